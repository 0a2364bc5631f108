"""Trains the drafter against the frozen, already rounded backbone.

First on the training text, then on text that the backbone writes itself (greedy and sampled). The confidence head
learns the engine's event: the draft equals the keyed sample of the target, argmax(logits / t + noise) with the same
noise for both, temperatures mixed.
"""
import time

import torch

import checkpoint
import loop
import weights
from batches import Stream, documents
from drafter import Drafter, gumbel, keyed
from optimizer import Optimizer
from rollout import Rollout, prompts_from

OWN_FROM, OWN_UNTIL = 0.35, 0.6  # of the time: the backbone writes; afterwards the drafter trains on that
GREEDY = 0.5  # share of own text, and of blocks on other text, at temperature 0
SOFT = 0.5  # temperature of the losses for greedy blocks


def draft_loss(target, draft, confidence, temperature, noise, weight):
    """Loss and matches of drafts. target, draft, noise [M,5,V], confidence, weight [M,5], temperature [M].

    Returns the loss (0.3 CE + 0.7 TV against the target's distribution, BCE of the confidence against the event
    that both keyed samples are equal) and the events [M,5].
    """
    soft = torch.where(temperature > 0, temperature, SOFT)[:, None, None]
    target, draft = target.float(), draft.float()
    p = torch.softmax(target / soft, -1)
    logq = torch.log_softmax(draft / soft, -1)
    ce = -(p * logq).sum(-1)
    tv = 0.5 * (p - logq.exp()).abs().sum(-1)
    same = (keyed(target, temperature, noise) == keyed(draft.detach(), temperature, noise)).float()
    bce = torch.nn.functional.binary_cross_entropy_with_logits(confidence, same, reduction="none")
    loss = ((0.3 * ce + 0.7 * tv + bce) * weight).sum() / weight.sum().clamp(min=1)
    return loss, same


class Training:
    """Buffers and step of the drafter's training."""

    def __init__(self, args, ranks, model, specials):
        self.a, self.ranks, self.m, self.specials = args, ranks, model, specials
        s, device = model.s, ranks.device
        compiled = device.type == "cuda" and not args.no_compile
        self.stream = Stream(args.tokens, args.length, args.batch, device, ranks.rank, ranks.world, args.seed + 7)
        for name, value in checkpoint.rounded(s, model.w).items():
            if not name.startswith("mtp."):
                model.w[name] = value  # the drafter learns the target that is exported
        model.fp8.fill_(1.0)
        model.all_visible.fill_(False)
        blocks = s.num_nextn_predict_layers
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
        shape = (args.batch, args.length)
        self.ids, self.docs = (torch.zeros(shape, dtype=torch.long, device=device) for _ in range(2))
        self.anchors = torch.zeros(args.batch, args.anchors, dtype=torch.long, device=device)
        self.temperature = torch.zeros(args.batch, args.anchors, device=device)
        self.fade = torch.exp(-torch.arange(self.slots, device=device) / 5.0)
        self.own = None

    def fill(self):
        """The next batch: training text, or own text once there is some."""
        b, t = self.ids.shape
        device = self.ids.device
        self.anchors.copy_(torch.randint(0, t - self.slots - 1, self.anchors.shape, device=device))
        if self.own is None:
            self.ids.copy_(self.stream.next()[:, :-1])
            self.docs.copy_(documents(self.ids, self.specials))
            greedy = torch.rand(self.temperature.shape, device=device) < GREEDY
            self.temperature.copy_((0.4 + 0.6 * torch.rand_like(self.temperature)) * ~greedy)
            return
        texts, temperatures, slot = self.own
        pick = torch.randint(len(texts), (b, t // slot), device=device)
        self.ids.copy_(texts[pick].view(b, t))
        self.docs.copy_((torch.arange(t, device=device) // slot).expand(b, -1))
        self.temperature.copy_(temperatures[pick].gather(1, self.anchors // slot))

    def step(self):
        """Forward and backward on the buffers."""
        s, m, n = self.m.s, self.m, self.slots
        with torch.no_grad():
            out = m.forward(self.ids, self.docs, want_logits=True)
        t = self.ids.shape[1]
        where = (self.anchors + torch.arange(len(self.ids), device=m.device)[:, None] * t).flatten()
        rows = where[:, None] + 1 + torch.arange(n, device=m.device)
        previous, docs = self.ids.flatten()[rows], self.docs.flatten()
        weight = self.fade * (docs[rows] == docs[where][:, None])
        target = out.logits.flatten(0, 1).index_select(0, rows.flatten()).view(*rows.shape, -1)
        hidden = self.drafter.hidden(out.features, self.docs, self.ids, self.anchors)
        draft, confidence = self.drafter.logits(hidden, previous)
        temperature = self.temperature.flatten()
        loss, same = self.loss(target, draft, confidence, temperature, gumbel(draft.shape, m.device), weight)
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

    def balance(self):
        """Router biases of the draft blocks follow the load."""
        with torch.no_grad():
            load = self.opt.extras[3 + 2 * self.slots:].view_as(self.biases)
            self.biases.add_(torch.sign(load.mean(1, keepdim=True) - load) * self.bias_rate)

    def accepted(self):
        """Mean accepted drafts at temperature 0 and above, of the last step's blocks (given their text)."""
        extras, n = self.opt.extras.tolist(), self.slots
        return [sum(extras[at + 1:at + 1 + n]) / max(extras[at], 1e-9) for at in (1, 2 + n)]

    def write_own(self, clock, until):
        """Own text until the clock's progress passes `until`, at least one round; then `fill` uses it."""
        a, device = self.a, self.ranks.device
        slot = max(4 * self.m.s.sliding_window // 2, 32) if a.toy else 256
        slot = min(slot, a.length)
        rollout = Rollout(self.m, a.batch, a.length, slot, not a.no_graph)
        generator = torch.Generator().manual_seed(a.seed + 100 * self.ranks.rank)
        texts, temperatures = [], []
        while not texts or (clock is not None and clock.tick() < until):
            prompts, lengths = prompts_from(self.stream.tokens, self.specials, rollout.count, slot, generator)
            t = 0.4 + 0.6 * torch.rand(rollout.count, device=device)
            t = t * (torch.rand(rollout.count, device=device) >= GREEDY)
            texts.append(rollout.write(prompts, lengths, t))
            temperatures.append(t)
        self.own = (torch.cat(texts), torch.cat(temperatures), slot)


def train_drafter(args, ranks, model, specials, log):
    """The whole schedule of the drafter; writes OUT/final.pt."""
    begun = time.monotonic()
    t = Training(args, ranks, model, specials)
    t.fill()
    step = loop.Step(ranks, t.opt, t.step, t.balance, not args.no_graph)
    if args.warm:
        t.write_own(None, 0)
        t.fill()
        step()
        ranks.say(f"drafter: compiled after {time.monotonic() - begun:.0f} s")
        return
    ranks.say(f"drafter: ready after {time.monotonic() - begun:.0f} s")
    clock, steps, reported = loop.Clock(ranks, args.drafter_minutes * 60), 0, 0.0
    clock.every = 1 if args.toy else 5
    while (progress := clock.tick()) < 1:
        if progress >= OWN_FROM and t.own is None:
            clock.every, kept = 1, clock.every
            t.write_own(clock, OWN_UNTIL)
            clock.every = kept
            ranks.say(f"own text: {t.own[0].numel()} tokens on this rank")
        t.opt.rate.fill_(loop.rate_at(progress, steps, 10 if args.toy else 100, 0.7))
        t.bias_rate.fill_(0.002 * (1 - progress))
        t.fill()
        step()
        steps += 1
        if clock.elapsed() - reported >= min(20, args.eval_every):
            reported = clock.elapsed()
            greedy, sampled = t.accepted()
            log(kind="drafter", progress=progress, steps=steps, loss=t.opt.extras[0].item(), accepted_greedy=greedy,
                accepted_sampled=sampled, own=t.own is not None, seconds=clock.elapsed())
    greedy, sampled = t.accepted()
    log(kind="drafter", progress=1.0, steps=steps, loss=t.opt.extras[0].item(), accepted_greedy=greedy,
        accepted_sampled=sampled, own=True, seconds=clock.elapsed())
    if ranks.rank == 0:
        torch.save({k: v.detach().clone().cpu() for k, v in model.w.items()}, args.out / "final.pt")
