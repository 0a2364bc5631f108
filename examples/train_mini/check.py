"""Proof that model.py and drafter.py compute what the engine computes: tiny-v41's recorded outputs, on the CPU.

usage: check.py [FOLDER with config.json, model.safetensors, golden.safetensors]
Tolerances as in the folder's README: 1e-3 + 1e-3 |want|; where a borderline KV value rounds the other way, 3e-2 (5e-2
for the 300-token prompt) with equal argmax (99 %).
"""
import argparse
import pathlib
import sys

import torch
from safetensors.torch import load_file

import checkpoint
import sinkhorn
from batches import Specials
from drafter import Drafter
from rollout import Rollout


def run(model, ids, **extra):
    """Logits [N,V] of a prompt; the batch is padded to whole windows, which a causal model does not notice."""
    length = -(-len(ids) // model.s.sliding_window) * model.s.sliding_window
    padded = torch.nn.functional.pad(ids.long(), (0, length - len(ids)))[None]
    sides = {k: torch.nn.functional.pad(v, (0, length - len(ids)), value=int(v[-1]))[None]
             for k, v in extra.items() if torch.is_tensor(v)}
    with torch.no_grad():
        out = model.forward(padded, want_logits=True, **{**extra, **sides})
    return out.logits[0, :len(ids)], out, padded


class Report:
    """Prints one line a comparison and remembers failures."""

    failed = 0

    def line(self, name, ok, text):
        self.failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {name}: {text}")

    def close(self, name, got, want, limit=3e-2, agreement=1.0):
        """Two-tier comparison of logits [.., V]."""
        worst = (got - want).abs().max().item()
        first = bool(((got - want).abs() <= 1e-3 + 1e-3 * want.abs()).all())
        same = (got.argmax(-1) == want.argmax(-1)).float().mean().item()
        ok = first or (worst <= limit and same >= agreement)
        self.line(name, ok, f"largest difference {worst:.1e}, argmax {same:.3f}")


def prompts(model, golden, report):
    """Logits of all prompts, and the inner values of the 40- and 97-token ones."""
    for n in (1, 2, 17, 40, 97, 300):
        record = {}
        logits, _, _ = run(model, golden[f"prompt.{n}.ids"], record=record)
        report.close(f"prompt.{n}", logits, golden[f"prompt.{n}.logits"], *((5e-2, 0.99) if n == 300 else ()))
        if n == 40:
            resid = torch.stack([record[f"resid_mean.{l}"][0, :n] for l in range(model.s.num_hidden_layers)])
            report.close("prompt.40.resid_mean", resid, golden["prompt.40.resid_mean"])
            for s in model.s.kv_source_layer_ids:
                groups = n // model.s.layers[s]["ratio"]
                for what in ("compressed_kv", "index_key"):
                    got, want = record[f"{what}.{s}"][0, :groups], golden[f"prompt.40.{what}.{s}"]
                    report.line(f"prompt.40.{what}.{s}", (got != want).float().mean() < 1e-3,
                                f"{int((got != want).sum())} of {want.numel()} values differ")
        if n == 97:
            for s in model.s.index_source_layer_ids:
                want = torch.zeros_like(record[f"selected.{s}"][0, :n])
                for row, chosen in enumerate(golden[f"prompt.97.index_sel.{s}"].long()):
                    want[row, chosen[chosen >= 0]] = True
                wrong = int((record[f"selected.{s}"][0, :n] != want).sum())
                report.line(f"prompt.97.index_sel.{s}", wrong == 0, f"{wrong} selections differ")


def replay(model, golden, report):
    """The replay side of training is decoder replay exactly: last position after a cut one window before the end."""
    for n in (40, 97, 300):
        side = (torch.arange(n) >= n - model.s.sliding_window).long()
        for name, full in (("strict", False), ("first_full", True)):
            logits, _, _ = run(model, golden[f"prompt.{n}.ids"], decoder_side=side, first_full=full)
            report.close(f"decoder_replay.{n}.{name}", logits[-1], golden[f"decoder_replay.{n}.{name}"].flatten())


def drafts(model, golden, report):
    """Hidden rows, drafted tokens and confidences of one block."""
    drafter = Drafter(model)
    for n in (40, 97):
        ids = golden[f"prompt.{n}.ids"]
        logits, _, _ = run(model, ids)
        anchor = logits[-1].argmax()
        report.line(f"dspark.{n}.anchor", int(anchor) == int(golden[f"dspark.{n}.anchor"]), f"{int(anchor)}")
        _, out, padded = run(model, torch.cat([ids.long(), anchor[None]]))
        with torch.no_grad():
            hidden = drafter.hidden(out.features, torch.zeros_like(padded), padded, torch.tensor([[n - 1]]))
            tokens, confidence = drafter.draft(hidden, anchor[None])
        report.close(f"dspark.{n}.hidden", hidden[0], golden[f"dspark.{n}.hidden"])
        same = tokens[0].tolist() == golden[f"dspark.{n}.draft_ids"].flatten().tolist()
        report.line(f"dspark.{n}.draft_ids", same, str(tokens[0].tolist()))
        report.close(f"dspark.{n}.confidence_logit", confidence, golden[f"dspark.{n}.confidence_logit"].view(1, -1))


def rollout(model, report):
    """Cached generation computes what the whole pass computes: hidden rows, features, greedy tokens, documents."""
    s, length = model.s, 4 * model.s.sliding_window
    specials = Specials(bos=s.bos_token_id, eos=s.eos_token_id)
    pool = torch.randint(10, s.vocab_size, (12, 9))
    pool[:, 0] = specials.bos
    writer = Rollout(model, specials, 3, length, False, keep=True)
    ids = writer.write(pool, torch.randint(4, 10, (12,)), torch.tensor([0.0, 0.0, 0.8]), restart=11)
    docs = writer.begin.long()
    docs[:, -1] = docs[:, -2]
    model.fp8.fill_(1)
    out = model.forward(ids, docs, want_logits=True)
    model.fp8.fill_(0)
    gap = ((writer.final @ model.w["head.weight"].t()) - out.logits)[:, :-1].abs().amax(-1)
    far = (writer.features - out.features)[:, :-1].abs().amax(-1)
    other = ((gap > 1e-2) | (far > 1e-2)).float().mean().item()  # random weights: near ties of the selection
    wrong = ((out.logits.argmax(-1)[:2, :-1] != ids[:2, 1:]) & writer.made[:2, 1:]).sum().item()
    starts = len(docs[0].unique())
    report.line("rollout", other < 0.3 and wrong == 0 and starts > 2,
                f"{other:.1%} of the rows differ, {wrong} greedy tokens, {starts} documents in the first row")


def kernels(report):
    """The Sinkhorn kernels against plain PyTorch, where Triton can run (TRITON_INTERPRET=1 on a CPU)."""
    x = (torch.randn(100, 4, 4) * 2).requires_grad_()
    y = x.detach().clone().requires_grad_()
    weight = torch.randn(100, 4, 4)
    a, b = sinkhorn.plain(x, 20, 1e-6), sinkhorn.kernel(y, 20, 1e-6)
    (a * weight).sum().backward()
    (b * weight).sum().backward()
    error, grad = (a - b).abs().max().item(), (x.grad - y.grad).abs().max().item()
    report.line("sinkhorn kernels", error < 1e-5 and grad < 1e-4, f"value {error:.1e}, gradient {grad:.1e}")


def main():
    """Runs all checks; exit code 1 if one fails."""
    default = pathlib.Path(__file__).resolve().parents[2] / "tests/data/tiny-v41"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=default)
    parser.add_argument("--kernels", action="store_true", help="also the Triton kernels (set TRITON_INTERPRET=1)")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model, golden, report = checkpoint.load(args.folder), load_file(args.folder / "golden.safetensors"), Report()
    prompts(model, golden, report)
    replay(model, golden, report)
    drafts(model, golden, report)
    rollout(model, report)
    if args.kernels:
        kernels(report)
    print("all agree" if not report.failed else f"{report.failed} failed")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
