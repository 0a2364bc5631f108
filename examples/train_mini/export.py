"""Writes the released checkpoint layout from trained weights: config.json, model.safetensors, tokenizer.json.

usage: export.py --run OUT [--weights final.pt] [--tokenizer tokenizer.json] --to FOLDER
       export.py --run OUT --checkpoint FOLDER --to FOLDER          another drafter for an exported checkpoint
Without a tokenizer the map of compressed ids is written beside it (engram_hash.json), as in tests/data/tiny-v41.
"""
import argparse
import json
import pathlib
import shutil

import torch

import checkpoint
import drafter
import settings as shapes
import weights

LIMIT = 32_000_000  # bytes, all files together


def export(run, name, tokenizer, folder):
    """Writes the folder; returns its size in bytes and the number of parameters (with, without the drafter)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((run / "config.json").read_text())
    s = shapes.Settings(config)
    trained = torch.load(run / name, map_location="cpu", weights_only=True)
    if "mtp.noise" in trained:
        trained["embed.weight"][s.dspark_noise_token_id] = drafter.rounded_noise(trained)
    bad = [n for n, v in trained.items() if not torch.isfinite(v).all()]
    assert not bad, f"not finite: {bad}"
    checkpoint.save(folder / "model.safetensors", s, trained)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if tokenizer:
        shutil.copyfile(tokenizer, folder / "tokenizer.json")
    else:
        shutil.copyfile(run / "engram_hash.json", folder / "engram_hash.json")
    counts = [sum(torch.Size(shape).numel() for _, shape, _ in specs(s))
              for specs in (weights.backbone, weights.drafter)]
    return sum(f.stat().st_size for f in folder.iterdir()), sum(counts), counts[0]


def replace_drafter(run, before, folder):
    """As export, of the checkpoint `before` with the drafter of the run (OUT/drafter.safetensors)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((run / "config.json").read_text())
    s = shapes.Settings(config)
    checkpoint.replace_drafter(before / "model.safetensors", run / "drafter.safetensors", folder / "model.safetensors",
                               s.dspark_noise_token_id)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for name in ("tokenizer.json", "generation_config.json", "heldout.jsonl", "engram_hash.json"):
        if (before / name).exists() and not (folder / name).exists():
            shutil.copyfile(before / name, folder / name)
    counts = [sum(torch.Size(shape).numel() for _, shape, _ in specs(s))
              for specs in (weights.backbone, weights.drafter)]
    return sum(f.stat().st_size for f in folder.iterdir()), sum(counts), counts[0]


def main():
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--run", required=True, type=pathlib.Path, help="OUT of train.py")
    p.add_argument("--weights", default="final.pt")
    p.add_argument("--tokenizer", type=pathlib.Path)
    p.add_argument("--checkpoint", type=pathlib.Path, help="keep its backbone, byte for byte")
    p.add_argument("--to", required=True, type=pathlib.Path)
    args = p.parse_args()
    if args.checkpoint:
        size, count, backbone = replace_drafter(args.run, args.checkpoint, args.to)
    else:
        size, count, backbone = export(args.run, args.weights, args.tokenizer, args.to)
    print(f"{args.to}: {size / 1e6:.2f} MB, {count / 1e6:.2f} M parameters, {backbone / 1e6:.2f} M without the drafter")
    if size > LIMIT:
        raise SystemExit(f"larger than {LIMIT / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
