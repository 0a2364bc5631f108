"""Trains the drafter against the frozen, already rounded backbone, on text that the backbone writes itself.

The text comes from cached generation (rollout.py), which also keeps what the drafter reads: the target's features and
final hidden rows. So a step runs the drafter alone. Blocks move along the text as in serving: a block's next anchor is
the token that followed its last accepted draft. The confidence head learns the engine's event: the draft equals the
keyed sample of the target, argmax(logits / t + noise) with the same noise for both; the noise is drawn given that the
target's sample is the token of the text.
"""
import time

import numpy
import torch

import checkpoint
import loop
import weights
from drafter import Drafter, gumbel, keyed
from optimizer import Optimizer
from rollout import Rollout

GREEDY = 0.5  # share of text at temperature 0; the rest lies between HEAT and 1
HEAT = 0.3
SOFT = 0.5  # temperature of the losses for greedy blocks
LONGEST = 160  # tokens of an answer


def condition(target, tokens, temperature, noise, top_noise):
    """Noise [M,K,V] under which the keyed samples of `target` are `tokens` [M,K]; temperature [M] > 0.

    The maximum of logits/t + noise is itself Gumbel around the log-sum-exp; the others are truncated below it.
    """
    scaled = target / temperature[:, None, None]
    top = torch.logsumexp(scaled, -1, keepdim=True) + top_noise
    cut = -torch.logaddexp(-(scaled + noise), -top)
    chosen = torch.arange(target.shape[-1], device=target.device) == tokens.unsqueeze(-1)
    return torch.where(chosen, top, cut) - scaled


def draft_loss(target, draft, confidence, tokens, temperature, noise, top_noise, weight, shares):
    """Loss and matches of drafts. target, draft, noise [M,K,V], tokens, confidence, weight [M,K], temperature [M].

    Returns the loss (CE and TV against the target's distribution, CE of its likeliest token for greedy blocks, BCE of
    the confidence against the event that both keyed samples are equal) and the events [M,K]. shares: weights of CE, TV
    and the greedy CE.
    """
    hot = temperature > 0
    soft = torch.where(hot, temperature, SOFT)[:, None, None]
    target, draft = target.float(), draft.float()
    p = torch.softmax(target / soft, -1)
    logq = torch.log_softmax(draft / soft, -1)
    ce = -(p * logq).sum(-1)
    tv = 0.5 * (p - logq.exp()).abs().sum(-1)
    best = target.argmax(-1)
    hard = torch.logsumexp(draft, -1) - draft.gather(-1, best.unsqueeze(-1)).squeeze(-1)
    held = condition(target, tokens, temperature.clamp(min=0.1), noise, top_noise)
    got = keyed(draft.detach(), temperature, held)
    same = (got == torch.where(hot[:, None], tokens, best)).float()
    bce = torch.nn.functional.binary_cross_entropy_with_logits(confidence, same, reduction="none")
    each = shares[0] * ce + shares[1] * tv + bce + shares[2] * hard * ~hot[:, None]
    return (each * weight).sum() / weight.sum().clamp(min=1), same


class Text:
    """What the backbone wrote, with all that the drafter's training reads."""

    def __init__(self, args, ranks, model, specials):
        data = numpy.load(args.prompts)
        self.ids, self.sizes = data["ids"].astype(numpy.int32), data["sizes"]
        self.begins = self.ids[:, 0] == specials.bos
        self.a, self.ranks, self.parts = args, ranks, []
        self.rollout = Rollout(model, specials, args.rows, args.drafter_length, not args.no_graph, keep=True)

    def more(self):
        """One more round of writing."""
        a, device, n = self.a, self.ranks.device, len(self.parts)
        hot = torch.rand(a.rows, device=device) >= GREEDY
        t = (HEAT + (1 - HEAT) * torch.rand(a.rows, device=device)) * hot
        mix = numpy.random.default_rng([a.seed, self.ranks.rank, n]).permutation(len(self.sizes))
        first = mix[self.begins[mix]][:a.rows]  # a row begins with a document
        order = numpy.concatenate([first, mix[~numpy.isin(mix, first)]])
        r = self.rollout
        r.write(torch.from_numpy(self.ids[order]).to(device), torch.from_numpy(self.sizes[order]).to(device), t,
                restart=LONGEST)
        whole = (r.ids.int(), r.begin.clone(), r.made.clone(), r.features.clone(), r.final.clone(), t)
        self.parts.append(whole)
        return int(r.made.sum())


class Training:
    """Buffers and step of the drafter's training."""

    def __init__(self, args, ranks, model, specials):
        self.a, self.ranks, self.m = args, ranks, model
        s, device, dtype = model.s, ranks.device, model.dtype
        compiled = device.type == "cuda" and not args.no_compile
        blocks = s.num_nextn_predict_layers
        model.fp8.fill_(1.0)
        self.text = Text(args, ranks, model, specials)
        self.biases = torch.zeros(blocks, s.dspark_n_routed_experts, device=device)
        for b in range(blocks):
            model.w[f"mtp.{b}.ffn.gate.bias"] = self.biases[b]
        specs = [x for x in weights.drafter(s) if not x[0].endswith("gate.bias")]
        specs.append(("mtp.noise", (s.hidden_size,), "bf16"))
        self.slots = s.dspark_block_size
        self.opt = Optimizer(model.w, specs, s.o_groups, self.biases.numel() + 1 + 2 * (self.slots + 1))
        self.bias_rate = torch.zeros((), device=device)
        eager = args.eager.split(",")
        self.drafter = Drafter(model, compiled and "drafter" not in eager)
        self.loss = torch.compile(draft_loss, dynamic=False) if compiled and "draft_loss" not in eager else draft_loss
        self.shares = torch.tensor([float(x) for x in args.shares.split(",")], device=device)
        b, t = args.drafter_batch, args.drafter_length
        self.ids, self.begin = (torch.zeros(b, t, dtype=torch.long, device=device) for _ in range(2))
        self.made = torch.zeros(b, t, dtype=torch.bool, device=device)
        self.features = torch.zeros(b, t, s.hidden_size * len(s.dspark_target_layer_ids), device=device, dtype=dtype)
        self.final = torch.zeros(b, t, s.hidden_size, device=device, dtype=dtype)
        self.anchors = torch.zeros(b, args.anchors, dtype=torch.long, device=device)
        self.heat = torch.zeros(b, device=device)
        self.fade = torch.exp(-torch.arange(self.slots, device=device) / 5.0)
        self.draw = numpy.random.default_rng(args.seed + 31 * ranks.rank)
        self.round = 0

    def fill(self):
        """Fresh rows with random anchors every `rounds` steps; between them the blocks have moved on by themselves."""
        self.round += 1
        if self.round % self.a.rounds != 1 and self.a.rounds > 1:
            return
        b, t = self.ids.shape
        part = self.text.parts[int(self.draw.integers(len(self.text.parts)))]
        pick = torch.randint(len(part[0]), (b,), device=self.ids.device)
        for buffer, source in zip((self.ids, self.begin, self.made, self.features, self.final, self.heat), part):
            buffer.copy_(source[pick])
        last = t - self.slots - 2  # anchor positions p < last have all slots and targets
        live = self.made[:, 1:last + 1] & self.made[:, 2:last + 2]
        self.anchors.copy_(torch.topk(torch.rand(b, last, device=live.device) * live, self.a.anchors, -1).indices)

    def step(self):
        """Forward and backward on the buffers; then every block moves behind what it accepted."""
        m, n, (b, t) = self.m, self.slots, self.ids.shape
        where = (self.anchors + torch.arange(b, device=m.device)[:, None] * t).flatten()
        rows = where[:, None] + 1 + torch.arange(n, device=m.device)
        ids, begin, made = self.ids.flatten(), self.begin.flatten(), self.made.flatten()
        same_text = (begin[rows + 1] == begin[where][:, None]) & made[rows + 1]
        weight = self.fade * (same_text & made[where + 1][:, None]).int().cumprod(-1)
        final = self.final.flatten(0, 1).index_select(0, rows.flatten())
        target = (final @ m.w["head.weight"].to(final.dtype).t()).view(*rows.shape, -1)
        hidden = self.drafter.hidden(self.features, self.begin, self.ids, self.anchors)
        draft, confidence = self.drafter.logits(hidden, ids[rows])
        temperature = self.heat[:, None].expand_as(self.anchors).flatten()
        noise = gumbel(draft.shape, m.device)
        loss, same = self.loss(target, draft, confidence, ids[rows + 1], temperature, noise,
                               gumbel((*rows.shape, 1), m.device), weight, self.shares)
        loss.backward()
        with torch.no_grad():
            extras, chain = self.opt.extras, same.cumprod(-1)
            extras[0].copy_(loss)
            whole = weight[:, -1] > 0
            for at, kind in ((1, temperature == 0), (2 + n, temperature > 0)):
                live = (kind & whole).float()
                extras[at].copy_(live.sum())
                extras[at + 1:at + 1 + n].copy_((chain * live[:, None]).sum(0))
            extras[3 + 2 * n:].copy_(torch.stack(self.drafter.loads).flatten())
            moved = self.anchors + 1 + chain.sum(-1).long().view_as(self.anchors)
            self.anchors.copy_(moved.clamp(max=t - n - 3))

    def balance(self):
        """Router biases of the draft blocks follow the load."""
        with torch.no_grad():
            load = self.opt.extras[3 + 2 * self.slots:].view_as(self.biases)
            self.biases.add_(torch.sign(load.mean(1, keepdim=True) - load) * self.bias_rate)

    def accepted(self):
        """Mean accepted drafts at temperature 0 and above, of the last step's blocks (given their text)."""
        extras, n = self.opt.extras.tolist(), self.slots
        return [sum(extras[at + 1:at + 1 + n]) / max(extras[at], 1e-9) for at in (1, 2 + n)]


def train_drafter(args, ranks, model, specials, log):
    """The whole schedule of the drafter; writes OUT/final.pt."""
    begun = time.monotonic()
    t = Training(args, ranks, model, specials)
    wrote = t.text.more()
    ranks.say(f"drafter: {wrote} own tokens on this rank after {time.monotonic() - begun:.0f} s")
    t.fill()
    step = loop.Step(ranks, t.opt, t.step, t.balance, not args.no_graph)
    if args.warm:
        step()
        ranks.say(f"drafter: compiled after {time.monotonic() - begun:.0f} s")
        return
    ranks.say(f"drafter: ready after {time.monotonic() - begun:.0f} s")
    clock, steps, reported = loop.Clock(ranks, args.drafter_minutes * 60), 0, 0.0
    clock.every = 1 if args.toy else 6
    texts = [float(x) for x in args.write_at.split(",") if x]
    while (progress := clock.tick()) < 1:
        if texts and progress >= texts[0]:
            texts.pop(0)
            t.text.more()
        t.opt.rate.fill_(loop.rate_at(progress, steps, 10 if args.toy else 100, args.flat))
        t.bias_rate.fill_(0.002 * (1 - progress))
        t.fill()
        step()
        steps += 1
        if clock.elapsed() - reported >= min(20, args.eval_every) and t.round % args.rounds == 0:
            reported = clock.elapsed()
            greedy, sampled = t.accepted()
            log(kind="drafter", progress=progress, steps=steps, loss=t.opt.extras[0].item(), accepted_greedy=greedy,
                accepted_sampled=sampled, parts=len(t.text.parts), seconds=clock.elapsed())
    greedy, sampled = t.accepted()
    log(kind="drafter", progress=1.0, steps=steps, loss=t.opt.extras[0].item(), accepted_greedy=greedy,
        accepted_sampled=sampled, parts=len(t.text.parts), seconds=clock.elapsed())
    if ranks.rank == 0:
        keep = {k: v.detach().clone().cpu() for k, v in model.w.items()}
        torch.save(keep, args.out / "final.pt")
        checkpoint.save_drafter(args.out / "drafter.safetensors", model.s, keep)
