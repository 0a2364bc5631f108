"""The released checkpoint layout: safetensors with FP8, FP4 and BF16 tensors, read and written."""
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import formats
import settings as shapes
import weights
from engram_hash import Hash, mapping_of
from model import Model

E8M0 = torch.float8_e8m0fnu


def _read(files, name, fmt, count):
    """One tensor in float32, experts stacked."""
    if fmt == "fp4":
        base, which = name.rsplit(".", 1)
        parts = [f"{base}.{e}.{which}" for e in range(count)]
        return torch.stack([formats.unpack_fp4(files(p + ".weight"), files(p + ".scale")) for p in parts])
    if fmt == "fp8":
        return formats.unpack_fp8(files(name), files(name.removesuffix("weight") + "scale"))
    if fmt == "rows":
        return formats.unpack_rows(files(name + ".weight"), files(name + ".scale"))
    return files(name).float()


def load(folder, device="cpu", dtype=torch.float32, drafter=True, compiled=False):
    """A Model with the dequantised weights of a checkpoint folder (config.json, model.safetensors)."""
    s = shapes.load(folder)
    specs = list(weights.backbone(s)) + (list(weights.drafter(s)) if drafter else [])
    with safe_open(folder / "model.safetensors", "pt") as f:
        def files(name):
            t = f.get_tensor(name)
            return t.view(torch.uint8) if t.dtype == E8M0 else t

        found = {name: _read(files, name, fmt, shape[0]).to(device) for name, shape, fmt in specs}
    for name, shape, _ in specs:
        assert found[name].shape == shape, f"{name}: shape {tuple(found[name].shape)}, expected {shape}"
    return Model(s, found, Hash(s, mapping_of(folder), torch.device(device)), dtype, compiled)


def _written(name, value, fmt):
    """(name, tensor) pairs of the file for one trained tensor."""
    value = value.detach().cpu().float()
    if fmt == "fp4":
        base, which = name.rsplit(".", 1)
        for e, w in enumerate(value):
            packed, scale = formats.pack_fp4(w)
            yield f"{base}.{e}.{which}.weight", packed
            yield f"{base}.{e}.{which}.scale", scale.view(E8M0)
    elif fmt == "fp8":
        codes, scale = formats.pack_fp8(value)
        yield name, codes
        yield name.removesuffix("weight") + "scale", scale.view(E8M0)
    elif fmt == "rows":
        codes, scale = formats.pack_rows(value)
        yield name + ".weight", codes
        yield name + ".scale", scale.view(E8M0)
    elif fmt == "bf16":
        yield name, value.to(torch.bfloat16)
    else:
        yield name, value
        if name.endswith("gate.bias"):  # the release has a second one for image tokens, unused for text
            yield name + "_vl", value.clone()


def _packed(specs, trained):
    out = {}
    for name, shape, fmt in specs:
        assert trained[name].shape == shape, name
        for key, tensor in _written(name, trained[name], fmt):
            out[key] = tensor.contiguous()
    return out


def _write(path, tensors):
    save_file(tensors, str(path), metadata={"format": "pt"})
    path.chmod(0o644)


def save(path, settings, trained):
    """Writes model.safetensors from the dict of trained float32 tensors."""
    _write(path, _packed([*weights.backbone(settings), *weights.drafter(settings)], trained))


def save_drafter(path, settings, trained):
    """Writes the drafter's tensors alone, as the checkpoint holds them, and mtp.noise."""
    specs = [*weights.drafter(settings), ("mtp.noise", (settings.hidden_size,), "bf16")]
    _write(path, _packed(specs, trained))


def replace_drafter(source, drafter, path, noise_id):
    """Writes model.safetensors: the file `source` with the drafter of the file `drafter`. All else keeps its bytes, but
    for the embedding of the drafter's noise token."""
    with safe_open(source, "pt") as f:
        out = {name: f.get_tensor(name) for name in f.keys() if not name.startswith("mtp.")}
    with safe_open(drafter, "pt") as f:
        out.update({name: f.get_tensor(name) for name in f.keys()})
    out["embed.weight"][noise_id] = out.pop("mtp.noise")
    _write(path, out)


def rounded(settings, trained):
    """The trained tensors after the rounding of their formats, in float32: what the checkpoint will hold."""
    how = {"fp4": formats.fp4_weight, "fp8": formats.fp8_weight, "rows": formats.row_weight,
           "bf16": formats.bf16_weight, "f32": lambda x: x}
    specs = [*weights.backbone(settings), *weights.drafter(settings)]
    return {name: how[fmt](trained[name].detach().float()) for name, _, fmt in specs if name in trained}
