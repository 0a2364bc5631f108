"""Muon for matrices and AdamW for the rest, on flat buffers: one tensor each for weights, gradients and states.

Flat buffers make data-parallel training one all-reduce, and let a CUDA graph hold the whole update.
"""
import math

import torch

MUON_NAMES = ("compressor.wkv.weight", "compressor.wgate.weight", "indexer.wk.weight")
STEPS, COEFFICIENTS = 5, (3.4445, -4.7750, 2.0315)


def _matrix(name, shape, fmt, o_groups):
    """(count, rows, columns) of a tensor that Muon trains, or None for AdamW."""
    if fmt not in ("fp8", "fp4") and not name.endswith(MUON_NAMES):
        return None
    if len(shape) == 3:
        return tuple(shape)
    if name.endswith("wo_a.weight"):  # block diagonal: one matrix per group of heads
        return (o_groups, shape[0] // o_groups, shape[1])
    return (1, *shape)


def _decays(name):
    return name.endswith(("embed.weight", "head.weight", "gate.weight", "engram.embed"))


def orthogonal(g, dtype):
    """Newton-Schulz: the nearest (semi-)orthogonal matrix of each g [n,r,c], about."""
    x = g.to(dtype)
    turned = x.shape[-2] > x.shape[-1]
    x = x.mT if turned else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        square = x @ x.mT
        x = a * x + (b * square + c * (square @ square)) @ x
    return (x.mT if turned else x).float()


class Optimizer:
    """Moves the trained tensors of a weights dict into flat buffers and updates them.

    `extras` floats at the end of `grads` travel with the all-reduce (losses, expert loads). All rates are 0-dim
    device tensors, so that a captured graph follows the schedule.
    """

    def __init__(self, weights, specs, o_groups, extras, muon_rate=6e-3, adam_rate=2e-3, decay=0.1):
        """specs: (name, shape, format) of the tensors to train. They are replaced in `weights` by views."""
        device = next(iter(weights.values())).device
        matrices, others = {}, []
        for name, shape, fmt in specs:
            size = _matrix(name, shape, fmt, o_groups)
            if size:
                matrices.setdefault(size[1:], []).append((name, shape, size[0]))
            else:
                others.append((name, shape))
        others.sort(key=lambda o: not _decays(o[0]))
        at, places, self.groups = 0, [], []
        for (rows, columns), members in matrices.items():
            first = at
            for name, shape, count in members:
                places.append((name, shape, at))
                at += count * rows * columns
            self.groups.append((first, at, rows, columns))
        self.split = at
        for name, shape in others:
            places.append((name, shape, at))
            at += -(-torch.Size(shape).numel() // 16) * 16  # aligned, so that compiled code takes views without a copy
            if _decays(name):
                self.decay_end = at
        self.size = at
        self.values = torch.zeros(at, device=device)
        self.grads = torch.zeros(at + extras, device=device)
        self.extras = self.grads[at:]
        for name, shape, offset in places:
            view = self.values[offset:offset + torch.Size(shape).numel()].view(shape)
            view.copy_(weights[name].detach())
            weights[name] = view.requires_grad_()
            view.grad = self.grads[offset:offset + view.numel()].view(shape)
        self.momentum = torch.zeros(self.split, device=device)
        self.first = torch.zeros(at - self.split, device=device)
        self.second = torch.zeros_like(self.first)
        self.steps = torch.zeros((), device=device)
        self.rate = torch.zeros((), device=device)  # factor of both rates, set by the schedule
        self.norm = torch.zeros((), device=device)
        self.muon_rate, self.adam_rate, self.decay = muon_rate, adam_rate, decay
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32

    def zero(self):
        """Clears gradients and extras."""
        self.grads.zero_()

    @torch.no_grad()
    def update(self):
        """One step from the (averaged) gradients. With rate 0 nothing changes but the momenta."""
        self._muon()
        self._adam()

    def _muon(self):
        g = self.grads[:self.split]
        self.momentum.mul_(0.95).add_(g)
        wanted = torch.add(g, self.momentum, alpha=0.95)
        rate = self.rate * self.muon_rate
        for first, end, rows, columns in self.groups:
            step = orthogonal(wanted[first:end].view(-1, rows, columns), self.dtype)
            w = self.values[first:end].view(-1, rows, columns)
            w.mul_(1 - rate * self.decay).sub_(step * (rate * 0.2 * max(rows, columns) ** 0.5))

    def _adam(self):
        g = self.grads[self.split:self.size]
        self.norm.copy_(g.norm())
        g = g * (1 / self.norm.clamp(min=1.0))  # clipped to norm 1
        self.steps.add_(1)
        self.first.lerp_(g, 0.1)
        self.second.lerp_(g * g, 0.05)
        first = self.first / (1 - torch.exp(self.steps * math.log(0.9)))
        second = self.second / (1 - torch.exp(self.steps * math.log(0.95)))
        rate = self.rate * self.adam_rate
        w = self.values[self.split:]
        w[:self.decay_end - self.split].mul_(1 - rate * self.decay)
        w.sub_(first / (second.sqrt() + 1e-8) * rate)

    def reset_states(self):
        """Forgets momenta and step count, for after warm-up steps."""
        for t in (self.momentum, self.first, self.second, self.steps):
            t.zero_()
