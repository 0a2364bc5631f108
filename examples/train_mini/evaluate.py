"""Measures a trained model and writes the figures as JSON.

usage: evaluate.py --run OUT --checkpoint FOLDER --heldout heldout.npy [--tokenizer tokenizer.json] --to eval.json
           [--engine PATH/troupe] [--acceptance] [--replay] [--batches N]

Held-out nats per byte of the weights before export and of the exported checkpoint, how often their next tokens agree,
expert load, and on request: agreement with the engine (its greedy tokens against the checkpoint in PyTorch), accepted
drafts with the calibration error of the confidences (needs a GPU for the text it writes), bounded replay.
"""
import argparse
import json
import pathlib
import subprocess

import numpy
import torch

import acceptance
import checkpoint
import engram_hash
import settings as shapes
from batches import Specials, Stream, documents
from model import Model


def load_trained(run, name, device, mapping):
    """A Model in float32 from a weights file of train.py, before rounding."""
    s = shapes.load(run)
    w = {k: v.to(device) for k, v in torch.load(run / name, map_location="cpu", weights_only=True).items()}
    return Model(s, w, engram_hash.Hash(s, mapping, device))


def batches_of(args, device, specials, count):
    """`count` held-out batches: ids, targets, documents."""
    stream = Stream(args.heldout, args.length, args.batch, device, seed=99)
    for _ in range(count):
        ids = stream.next()
        yield ids[:, :-1], ids[:, 1:], documents(ids[:, :-1], specials)


@torch.no_grad()
def held_out(models, args, device, specials, sizes):
    """Nats per byte and per token of every model, load skew of the last, agreement of the last with every other."""
    sums = {name: 0.0 for name in models}
    agree = {name: 0 for name in models}
    loads, count, size = 0, 0, 0
    for ids, targets, docs in batches_of(args, device, specials, args.batches):
        best = {}
        for name, model in models.items():
            out = model.forward(ids, docs, targets, want_logits=True)
            sums[name] += out.loss.double().sum().item()
            best[name] = out.logits.argmax(-1)
        loads = loads + out.load
        for name in models:
            agree[name] += int((best[name] == best[list(models)[-1]]).sum())
        count += targets.numel()
        size += int(sizes[targets].sum())
    return {"tokens": count, "bytes": size, "nats_per_byte": {n: v / size for n, v in sums.items()},
            "nats_per_token": {n: v / count for n, v in sums.items()},
            "agreement_with_checkpoint": {n: v / count for n, v in agree.items()},
            "load_max_over_mean": (loads.amax(1) / loads.mean(1)).tolist()}


@torch.no_grad()
def replay(model, args, device, specials):
    """Next-token agreement with exact runs after a replay boundary one window before P, P mid-sequence."""
    window, half = model.s.sliding_window, args.length // 2
    at = torch.arange(args.length, device=device)
    found = {}
    for name, encoder in (("decoder", False), ("both", True)):
        near = far = rows = 0
        for ids, _, docs in batches_of(args, device, specials, max(1, args.batches // 4)):
            docs = torch.zeros_like(docs)
            side = (at >= half - window).long().expand_as(ids)
            exact = model.forward(ids, docs, want_logits=True).logits.argmax(-1)
            cut = model.forward(ids, docs, decoder_side=side, encoder_side=side if encoder else None,
                                want_logits=True).logits.argmax(-1)
            same = (exact == cut).float()
            near += same[:, half:half + 32].sum().item()
            far += same[:, half:].sum().item()
            rows += len(ids)
        found[name] = {"first_32": near / (rows * 32), "continuation": far / (rows * (args.length - half))}
    return found


@torch.no_grad()
def engine(model, args, device, specials):
    """The engine's greedy tokens against the checkpoint in PyTorch, given the same text before each."""
    tokens = numpy.load(args.heldout, mmap_mode="r")
    draw = numpy.random.default_rng(7)
    same = total = 0
    worst = 0.0
    for _ in range(args.engine_prompts):
        start = int(draw.integers(0, len(tokens) - args.length))
        prompt = [specials.bos, *(int(t) for t in tokens[start:start + int(draw.integers(8, 200))]
                                  if t not in (specials.bos, specials.eos))]
        command = [args.engine, "generate", "--model", str(args.checkpoint), "--ids", ",".join(map(str, prompt)),
                   "--max-tokens", "48", "--ignore-eos", "--json", "--log-level", "error"]
        ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        answer = json.loads(ran.stdout)["tokens"]
        ids = prompt + answer
        padded = ids + [0] * (-len(ids) % model.s.sliding_window)
        logits = model.forward(torch.tensor([padded], device=device), want_logits=True).logits[0]
        rows = logits[len(prompt) - 1:len(ids) - 1]
        gap = rows.amax(-1) - rows.gather(-1, torch.tensor(answer, device=device)[:, None]).squeeze(-1)
        same += int((gap == 0).sum())
        worst = max(worst, gap.max().item())
        total += len(answer)
    return {"prompts": args.engine_prompts, "tokens": total, "agreement": same / total, "largest_logit_gap": worst}


def main():
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--run", required=True, type=pathlib.Path)
    p.add_argument("--checkpoint", required=True, type=pathlib.Path)
    p.add_argument("--heldout", required=True)
    p.add_argument("--tokenizer", type=pathlib.Path)
    p.add_argument("--to", required=True, type=pathlib.Path)
    p.add_argument("--weights", default="backbone.pt", help="before export, in OUT; skipped if it is not there")
    p.add_argument("--batches", type=int, default=8)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--length", type=int, default=1024)
    p.add_argument("--engine", help="path of the troupe program")
    p.add_argument("--engine-prompts", type=int, default=20)
    p.add_argument("--acceptance", action="store_true")
    p.add_argument("--replay", action="store_true")
    p.add_argument("--cpu", action="store_true")
    p.add_argument("--threads", type=int, default=1, help="on a CPU")
    args = p.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() and not args.cpu else "cpu")
    torch.manual_seed(1)
    if device.type == "cpu":
        torch.set_num_threads(args.threads)
    exported = checkpoint.load(args.checkpoint, device)
    mapping = exported.hash.map.tolist()
    specials, sizes = Specials(), torch.ones(exported.s.vocab_size, device=device, dtype=torch.long)
    if args.tokenizer:
        tokenizer = json.loads(args.tokenizer.read_text())
        _, data, special = engram_hash.vocabulary(tokenizer)
        specials = Specials.of(tokenizer)
        sizes = torch.tensor([0 if i in special else len(d) for i, d in enumerate(data)], device=device)
    models = {"checkpoint": exported}
    if (args.run / args.weights).exists():
        models = {"trained": load_trained(args.run, args.weights, device, mapping), **models}
    figures = {"heldout": held_out(models, args, device, specials, sizes)}
    if args.replay:
        figures["replay"] = replay(exported, args, device, specials)
    if args.engine:
        figures["engine"] = engine(exported, args, device, specials)
    if args.acceptance:
        figures["acceptance"] = acceptance.measure(exported, args, device, specials)
    args.to.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
