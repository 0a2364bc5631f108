"""Trains the backbone of `mini`, then its drafter. One process a GPU (torchrun), or one process on a CPU.

  torchrun --master-addr 127.0.0.1 --master-port 29511 --nproc-per-node 4 train.py --tokens train.npy --heldout heldout.npy \\
      --tokenizer tokenizer.json --out OUT --minutes 8 --drafter-minutes 4
  train.py --warm --vocabulary 4096 --out OTHER     compiles everything on random tokens, which fills the disk cache
  train.py --phase drafter --checkpoint FOLDER --prompts prompts.npz --out OUT    another drafter for a checkpoint
  train.py --toy --out OUT                                 all of it at toy size on a CPU, in a minute

OUT gets backbone.pt and final.pt (weights), config.json, log.jsonl. --phase drafter continues from backbone.pt, or from
an exported checkpoint, whose backbone stays as it is.
"""
import argparse
import json
import os
import pathlib
import time

os.environ.setdefault("TORCHINDUCTOR_FX_GRAPH_CACHE", "1")
os.environ.setdefault("TORCHINDUCTOR_AUTOGRAD_CACHE", "1")

import numpy
import torch

import checkpoint
import engram_hash
import loop
import settings as shapes
import weights
from batches import Specials, Stream, documents, replay_side
from model import Model
from optimizer import Optimizer
from train_drafter import train_drafter

KEEP = 0.9  # share of tokens whose Engram values are kept in training


def arguments():
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokens", help="training ids (.npy, uint16)")
    p.add_argument("--heldout", help="held-out ids (.npy, uint16)")
    p.add_argument("--tokenizer", help="tokenizer.json")
    p.add_argument("--out", required=True, type=pathlib.Path)
    p.add_argument("--phase", choices=("all", "main", "drafter"), default="all")
    p.add_argument("--minutes", type=float, default=8, help="of backbone training, without start and compilation")
    p.add_argument("--drafter-minutes", type=float, default=4)
    p.add_argument("--length", type=int, default=1024)
    p.add_argument("--batch", type=int, default=32, help="sequences a step and GPU")
    p.add_argument("--long-length", type=int, default=2048, help="sequence length of the last stretch")
    p.add_argument("--long-share", type=float, default=0.12, help="share of the time for the last stretch; 0: none")
    p.add_argument("--mask-share", type=float, default=0.7, help="sequences whose documents do not see each other")
    p.add_argument("--eval-every", type=float, default=60, help="seconds between held-out losses and checkpoints")
    p.add_argument("--checkpoint", type=pathlib.Path, help="drafter: the backbone of this exported checkpoint")
    p.add_argument("--shape", default="{}", help="drafter: JSON, fields of text_config to change")
    p.add_argument("--prompts", help="drafter: prompts.npz of prompts.py")
    p.add_argument("--drafter-length", type=int, default=512, help="drafter: tokens of a row of own text")
    p.add_argument("--drafter-batch", type=int, default=128, help="drafter: rows a step and GPU")
    p.add_argument("--rows", type=int, default=6144, help="drafter: rows of own text a round and GPU")
    p.add_argument("--write-at", default="0.2,0.4,0.6", help="drafter: progress at which more text is written")
    p.add_argument("--anchors", type=int, default=64, help="drafter: blocks a row and step")
    p.add_argument("--rounds", type=int, default=3, help="drafter: steps on the same rows, blocks moving on between")
    p.add_argument("--shares", default="0.3,0.7,0.1", help="drafter: weights of CE, TV, greedy CE; BCE has 1")
    p.add_argument("--flat", type=float, default=0.4, help="drafter: progress at which the rates begin to fall")
    p.add_argument("--first", choices=("new", "layers", "same"), default="new",
                   help="drafter: begins anew, as the backbone's last layers, or as the checkpoint's drafter")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--no-graph", action="store_true", help="no CUDA graphs")
    p.add_argument("--no-compile", action="store_true", help="no torch.compile")
    p.add_argument("--eager", default="", help="names of functions not to compile, comma separated (model.operations)")
    p.add_argument("--vocabulary", type=int, default=4096, help="with --warm and no tokenizer yet")
    p.add_argument("--warm", action="store_true", help="compile on random tokens, train nothing")
    p.add_argument("--toy", action="store_true", help="toy sizes on the CPU; makes its own tokens if none are given")
    return p.parse_args()


def toy_tokens(path, count, seed):
    """Learnable made-up ids: documents of repeated phrases over 100 of 512 tokens."""
    draw = numpy.random.default_rng(seed)
    phrases = numpy.random.default_rng(5).integers(10, 110, (40, 6))
    out = []
    while len(out) < count:
        out += [0, *phrases[draw.integers(0, 40, int(draw.integers(4, 12)))].flatten().tolist(), 1]
    numpy.save(path, numpy.array(out[:count], numpy.uint16))
    return str(path)


def toy_prompts(path):
    """First phrases of made-up documents."""
    phrases = numpy.random.default_rng(5).integers(10, 110, (40, 6))
    numpy.savez(path, ids=numpy.pad(phrases, ((0, 0), (1, 2))), sizes=numpy.full(40, 7))
    return str(path)


def prepare(args, ranks):
    """Defaults of the modes, vocabulary, config.json. Returns (Settings, token map, Specials, bytes per token id)."""
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads(pathlib.Path(args.tokenizer).read_text()) if args.tokenizer else None
    if args.toy:
        torch.set_num_threads(1)
        args.length, args.batch, args.long_length, args.anchors = 64, 8, 128, 8
        args.drafter_length, args.drafter_batch, args.rows = 96, 8, 16
    if args.checkpoint:
        return prepare_again(args, ranks, tokenizer)
    if tokenizer:
        raw, data, special = engram_hash.vocabulary(tokenizer)
        mapping, specials = engram_hash.token_map(tokenizer), Specials.of(tokenizer)
        sizes = [0 if i in special else len(d) for i, d in enumerate(data)]
        mark = (specials.bos, specials.eos, {t["content"]: t["id"] for t in tokenizer["added_tokens"]}.get(
            "<｜▁pad▁｜>", 2), specials.noise)
        config = shapes.mini(len(raw), max(mapping) + 1, mark, args.toy)
    else:
        count = 512 if args.toy else args.vocabulary
        mapping, sizes, specials = list(range(count)), [1] * count, Specials()
        config = shapes.mini(count, count, (0, 1, 2, 2), args.toy)
    if ranks.rank == 0:
        (args.out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        if not tokenizer:
            (args.out / "engram_hash.json").write_text(json.dumps({"token_map": mapping}))
    return shapes.Settings(config), mapping, specials, torch.tensor(sizes, device=ranks.device)


def prepare_again(args, ranks, tokenizer):
    """As prepare, for another drafter of a checkpoint."""
    tokenizer = tokenizer or json.loads((args.checkpoint / "tokenizer.json").read_text())
    config = json.loads((args.checkpoint / "config.json").read_text())
    text = config["text_config"]
    text.update(json.loads(args.shape))
    text["compress_ratios"] = text["compress_ratios"][:text["num_hidden_layers"]] + [0] * text["num_nextn_predict_layers"]
    text.pop("dspark_confidence", None)  # that of the drafter before
    if ranks.rank == 0:
        (args.out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    return shapes.Settings(config), engram_hash.token_map(tokenizer), Specials.of(tokenizer), None


def first_drafter(args, w, s):
    """First values of the drafter, where they are not random: by --first."""
    if args.first == "same":
        before = checkpoint.load(args.checkpoint, drafter=True).w
        before["mtp.noise"] = before["embed.weight"][s.dspark_noise_token_id]
        for name, value in before.items():
            if name.startswith("mtp.") and w[name].shape == value.shape:
                w[name].copy_(value)
    for b in range(s.num_nextn_predict_layers if args.first == "layers" else 0):
        source = f"layers.{s.num_hidden_layers - s.num_nextn_predict_layers + b}."
        for name in [n for n in w if n.startswith(f"mtp.{b}.")]:
            value = w.get(source + name.removeprefix(f"mtp.{b}."))
            if value is not None and value.shape[1:] == w[name].shape[1:] and len(value) >= len(w[name]):
                w[name].copy_(value[:len(w[name])])


class Backbone:
    """Backbone training: input buffers, the step, held-out loss, checkpoints."""

    def __init__(self, args, ranks, model, specials, sizes):
        self.a, self.ranks, self.m, self.specials, self.sizes = args, ranks, model, specials, sizes
        s, device = model.s, ranks.device
        self.stream = Stream(args.tokens, args.length, args.batch, device, ranks.rank, ranks.world, args.seed)
        self.held = Stream(args.heldout, args.length, args.batch, device, ranks.rank, ranks.world, 99)
        self.biases = torch.zeros(s.num_hidden_layers, s.n_routed_experts, device=device)
        for l in range(s.num_hidden_layers):
            name = f"layers.{l}.ffn.gate.bias"
            self.biases[l].copy_(model.w[name])
            model.w[name] = self.biases[l]
        specs = [x for x in weights.backbone(s) if not x[0].endswith("gate.bias")]
        self.opt = Optimizer(model.w, specs, s.o_groups, self.biases.numel() + 2)
        self.load = torch.zeros_like(self.biases)
        self.bias_rate = torch.zeros((), device=device)
        self.buffers(args.batch, args.length)

    def buffers(self, batch, length):
        """Static inputs of the step; another length means another graph."""
        new = lambda: torch.zeros(batch, length, dtype=torch.long, device=self.ranks.device)
        self.ids, self.targets, self.docs, self.encoder, self.decoder = (new() for _ in range(5))
        self.keep = torch.ones(batch, length, device=self.ranks.device)

    def fill(self, stream, training):
        """A batch into the buffers."""
        ids = stream.next()
        b, t = self.ids.shape
        self.ids.copy_(ids[:, :-1])
        self.targets.copy_(ids[:, 1:])
        docs = documents(self.ids, self.specials)
        if training:
            docs = docs * (torch.rand(b, 1, device=docs.device) < self.a.mask_share)
            self.encoder.copy_(replay_side(b, t, 0.35, docs.device))
            self.decoder.copy_(replay_side(b, t, 0.75, docs.device))
            self.keep.bernoulli_(KEEP).div_(KEEP)
        else:
            for buffer, value in ((self.encoder, 0), (self.decoder, 0), (self.keep, 1)):
                buffer.fill_(value)
        self.docs.copy_(docs)

    def forward(self):
        """The model on the buffers."""
        return self.m.forward(self.ids, self.docs, self.targets, self.encoder, self.decoder, self.keep)

    def step(self):
        """Forward and backward; losses and loads travel with the gradients."""
        out = self.forward()
        loss = out.loss.mean()
        (loss + out.index_loss).backward()
        extras = self.opt.extras
        extras[0].copy_(loss.detach())
        extras[1].copy_(out.index_loss.detach())
        extras[2:].copy_(out.load.detach().flatten())

    def balance(self):
        """Router biases follow the load: up for experts below the mean of their layer, down above."""
        with torch.no_grad():
            self.load.lerp_(self.opt.extras[2:].view_as(self.load), 0.1)
            self.biases.add_(torch.sign(self.load.mean(1, keepdim=True) - self.load) * self.bias_rate)

    def evaluate(self, batches):
        """Held-out nats per byte, and per layer the busiest expert's load over the mean."""
        self.held.epoch, self.held.order = -1, self.held.order[:0]
        sums = torch.zeros(2, device=self.ranks.device)
        load = torch.zeros_like(self.biases)
        for _ in range(batches):
            self.fill(self.held, False)
            out = self.forward()
            sums += torch.stack([out.loss.detach().sum(), self.sizes[self.targets].sum()])
            load += out.load.detach()
        self.ranks.average(sums)
        self.ranks.average(load)
        return (sums[0] / sums[1]).item(), (load.amax(1) / load.mean(1)).tolist()

    def save(self, name):
        """Weights to OUT/name (rank 0), without gradients and views."""
        if self.ranks.rank == 0:
            torch.save({k: v.detach().clone().cpu() for k, v in self.m.w.items()}, self.a.out / (name + ".tmp"))
            os.replace(self.a.out / (name + ".tmp"), self.a.out / name)


def train_backbone(args, ranks, model, specials, sizes, log):
    """The whole schedule of the backbone."""
    b = Backbone(args, ranks, model, specials, sizes)
    stages = [(args.length, args.batch)]
    if args.long_share:
        stages.append((args.long_length, max(1, args.batch * args.length // args.long_length)))
    if args.warm:
        stages = stages[::-1]  # ends at the usual length, where the evaluation is compiled
    model.all_visible.fill_(True)
    begun, clock, steps, reported, tokens = time.monotonic(), None, 0, 0.0, 0
    for number, (length, batch) in enumerate(stages):
        b.stream.batch = batch
        b.stream.set_length(length)
        b.buffers(batch, length)
        b.fill(b.stream, True)
        b.bias_rate.zero_()
        step = None  # the graph of the stage before goes first, with its memory
        loop.free_memory(ranks)
        step = loop.Step(ranks, b.opt, b.step, b.balance, not args.no_graph)
        if args.warm:
            step()
            ranks.say(f"length {length}: compiled after {time.monotonic() - begun:.0f} s")
            continue
        ranks.say(f"length {length}: ready after {time.monotonic() - begun:.0f} s")
        if clock is None:
            clock = loop.Clock(ranks, args.minutes * 60)
        until = 1 - args.long_share if number == 0 else 1.0
        while (progress := clock.tick()) < until:
            model.all_visible.fill_(progress < 0.12)
            model.fp8.fill_(float(progress >= 0.9))
            b.opt.rate.fill_(loop.rate_at(progress, steps, 10 if args.toy else 100))
            b.bias_rate.fill_(0.003 * (1 - progress) + 0.0005 if progress < 0.9 else 0.0)
            b.fill(b.stream, True)
            step()
            steps += 1
            tokens += batch * length * ranks.world
            if clock.elapsed() - reported >= args.eval_every:
                reported = clock.elapsed()
                report(b, args, ranks, log, progress, steps, tokens, clock, length)
    step = None
    if args.warm:
        b.evaluate(1)
        return
    if args.long_share:
        b.buffers(args.batch, args.length)
    b.held.batch = args.batch
    held, load = b.evaluate(args_batches(args))
    log(kind="backbone", heldout=held, load=load, steps=steps, tokens=tokens, epochs=b.stream.epochs(),
        seconds=clock.elapsed())
    b.save("backbone.pt")


def args_batches(args):
    """Held-out batches of the last evaluation."""
    return 2 if args.toy else 16


def report(b, args, ranks, log, progress, steps, tokens, clock, length):
    """Held-out loss (at the usual length only: the other would compile again), training loss, checkpoint."""
    extras = b.opt.extras[:2].tolist()
    line = dict(kind="main", progress=progress, steps=steps, tokens=tokens, seconds=clock.elapsed(), train=extras[0],
                index=extras[1], norm=b.opt.norm.item(), epochs=b.stream.epochs(), length=length)
    if length == args.length:
        line["heldout"], line["load"] = b.evaluate(4)
    log(**line)
    b.save("backbone.pt")


def main():
    """Runs the phases."""
    args = arguments()
    ranks = loop.Ranks(force_cpu=args.toy)
    torch.manual_seed(args.seed + 1000 * ranks.rank)
    s, mapping, specials, sizes = prepare(args, ranks)
    if args.toy and not args.prompts and args.phase != "main":
        args.prompts = toy_prompts(args.out / f"prompts{ranks.rank}.npz")
    if not args.checkpoint and (args.warm or (args.toy and not args.tokens)):
        vocabulary, rng = s.vocab_size, numpy.random.default_rng(3)
        if args.warm:
            args.tokens = args.heldout = rng.integers(0, vocabulary, 2_000_000).astype(numpy.uint16)
        else:
            args.tokens = toy_tokens(args.out / f"train{ranks.rank}.npy", 400_000, 3)
            args.heldout = toy_tokens(args.out / f"heldout{ranks.rank}.npy", 40_000, 4)

    def log(**line):
        """One line to OUT/log.jsonl and the console."""
        if ranks.rank == 0:
            with open(args.out / "log.jsonl", "a") as f:
                f.write(json.dumps(line) + "\n")
            ranks.say(" ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in line.items()
                               if k != "load"), "load " + "/".join(f"{x:.1f}" for x in line.get("load", [])))

    cuda = ranks.device.type == "cuda"
    specs = list(weights.backbone(s)) + list(weights.drafter(s)) + [("mtp.noise", (s.hidden_size,), "bf16")]
    w = weights.create(specs, s, args.seed, ranks.device)
    if args.checkpoint:
        w.update({k: v.to(ranks.device) for k, v in checkpoint.load(args.checkpoint, drafter=False).w.items()})
        first_drafter(args, w, s)
    elif args.phase == "drafter":
        w.update({k: v.to(ranks.device) for k, v in torch.load(args.out / "backbone.pt", weights_only=True).items()})
    model = Model(s, w, engram_hash.Hash(s, mapping, ranks.device), torch.bfloat16 if cuda else torch.float32,
                  cuda and not args.no_compile, args.eager.split(","))
    if args.phase != "drafter":
        train_backbone(args, ranks, model, specials, sizes, log)
    if args.phase != "main":
        model.w = {k: v.detach().clone() for k, v in model.w.items()}
        loop.free_memory(ranks)
        train_drafter(args, ranks, model, specials, log)
    ranks.close()


if __name__ == "__main__":
    main()
