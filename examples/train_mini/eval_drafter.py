"""Measures the drafter of an exported checkpoint and fits the calibration of its confidences.

usage: eval_drafter.py --checkpoint FOLDER --heldout heldout.npy --to FILE.json

Both on text that the model writes after held-out prompts: the calibration is fitted, per temperature and draft, on
documents behind the first --skip tokens and written into FOLDER/config.json as text_config.dspark_confidence, which the
engine applies: confidence = sigmoid(scale * logit + bias), scale and bias linear between the temperatures. Acceptance
and calibration error are those of the first --skip tokens' documents.
"""
import argparse
import json
import pathlib

import numpy
import torch

import acceptance
import checkpoint
from batches import Specials
from rollout import Rollout, prompts_from

LONGEST = 64  # tokens of a prompt
KNOTS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


def blocks_at(model, rollout, specials, ids, sizes, temperature, most):
    """Accepted chains and confidence logits of all blocks of the answers (up to `most` tokens each)."""
    rollout.write(ids, sizes, torch.full((rollout.count,), temperature, device=model.device))
    texts, lengths = rollout.ids, sizes[:rollout.count]
    place = torch.arange(rollout.length, device=model.device)
    stop = torch.where((texts == specials.eos) & (place >= lengths[:, None]), place + 1, rollout.length).amin(1)
    stop = torch.minimum(stop, lengths + most)
    parts = [acceptance.walk(model, texts[i:i + 128], lengths[i:i + 128], temperature, stop[i:i + 128])
             for i in range(0, len(texts), 128)]
    return [numpy.concatenate(x) for x in zip(*parts)]


def fit(logits, happened):
    """Scale and bias of sigmoid(scale * logit + bias) by Newton's method on the likelihood, near (1, 0) if data are few."""
    x = numpy.stack([logits, numpy.ones_like(logits)], 1).astype(float)
    start = numpy.array([1.0, 0.0])
    a = start.copy()
    for _ in range(50):
        p = 1 / (1 + numpy.exp(-numpy.clip(x @ a, -30, 30)))
        gradient = x.T @ (p - happened) + 4 * (a - start)
        hessian = (x * (p * (1 - p))[:, None]).T @ x + 4 * numpy.eye(2)
        a -= numpy.linalg.solve(hessian, gradient)
    return max(0.05, float(a[0])), float(a[1])


def fit_all(chain, logits):
    """Scale and bias of every draft, on the blocks whose drafts before it were accepted."""
    pairs = []
    for k in range(logits.shape[1]):
        live = numpy.ones(len(chain), bool) if k == 0 else chain[:, k - 1] > 0
        pairs.append(fit(logits[live, k], chain[live, k]))
    return [p[0] for p in pairs], [p[1] for p in pairs]


def figures(chain, logits, scale, bias):
    """Acceptance, and expected calibration error (10 bins) per draft and cumulative, before and after scaling."""
    found = {"blocks": len(chain), "mean_accepted": float(chain.sum(1).mean()), "survival": chain.mean(0).tolist()}
    for name, x in (("raw", logits), ("scaled", logits * scale + bias)):
        p = 1 / (1 + numpy.exp(-x))
        live = numpy.concatenate([numpy.ones((len(chain), 1), bool), chain[:, :-1] > 0], 1)
        found["error_" + name] = acceptance.calibration_error(p[live], chain[live])
        found["error_cumulative_" + name] = acceptance.calibration_error(p.cumprod(1).ravel(), chain.ravel())
    return found


def main():
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--checkpoint", required=True, type=pathlib.Path)
    p.add_argument("--heldout", required=True)
    p.add_argument("--to", required=True, type=pathlib.Path)
    p.add_argument("--count", type=int, default=1024, help="answers a temperature")
    p.add_argument("--skip", type=int, default=80_000)
    p.add_argument("--length", type=int, default=256)
    p.add_argument("--most", type=int, default=96, help="tokens of an answer")
    args = p.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(5)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = checkpoint.load(args.checkpoint, device, dtype)
    specials = Specials.of(json.loads((args.checkpoint / "tokenizer.json").read_text()))
    rollout = Rollout(model, specials, args.count, args.length, True)
    tokens = torch.from_numpy(numpy.load(args.heldout).astype(numpy.int32)).to(device)
    (held, lengths), (ids, sizes) = (
        prompts_from(part, specials, args.count, LONGEST * 2, torch.Generator().manual_seed(11))
        for part in (tokens[:args.skip], tokens[args.skip:]))
    held, ids = held[:, :LONGEST].int(), ids[:, :LONGEST].int()
    table, found = {"temperature": [], "scale": [], "bias": []}, {}
    for t in KNOTS:
        scale, bias = fit_all(*blocks_at(model, rollout, specials, ids, sizes, t, args.most))
        for name, value in (("temperature", t), ("scale", scale), ("bias", bias)):
            table[name].append(value)
        if t in (0.0, 0.6, 0.8, 1.0):
            chain, logits = blocks_at(model, rollout, specials, held, lengths, t, args.most)
            found[str(t)] = figures(chain, logits, numpy.array(scale), numpy.array(bias))
            print(t, json.dumps(found[str(t)]), flush=True)
    config = json.loads((args.checkpoint / "config.json").read_text())
    config["text_config"]["dspark_confidence"] = table
    (args.checkpoint / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    args.to.write_text(json.dumps({"table": table, "heldout": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
