"""How many drafts the target accepts, and how well the confidences tell it, on text that the target writes."""
import numpy
import torch

from drafter import Drafter, gumbel
from rollout import Rollout, prompts_from

BINS = 15


def calibration_error(predicted, happened):
    """Expected calibration error over equal bins of the predicted probability."""
    bins = numpy.clip((predicted * BINS).astype(int), 0, BINS - 1)
    error = 0.0
    for b in range(BINS):
        inside = bins == b
        if inside.any():
            error += inside.mean() * abs(predicted[inside].mean() - happened[inside].mean())
    return float(error)


def temperatures(logits, survived):
    """Sequential temperature scaling: per slot the divisor that minimises the error of the cumulative product.

    logits [N,5], survived [N,5] (draft k and all before it accepted). Returns divisors, errors before and after.
    """
    grid = numpy.exp2(numpy.linspace(-2, 2, 49))
    grid = grid[numpy.argsort(abs(numpy.log(grid)), kind="stable")]
    raw = numpy.cumprod(1 / (1 + numpy.exp(-logits)), 1)
    before = [calibration_error(raw[:, k], survived[:, k]) for k in range(logits.shape[1])]
    chosen, after, product = [], [], numpy.ones(len(logits))
    for k in range(logits.shape[1]):
        tried = [(calibration_error(product / (1 + numpy.exp(-logits[:, k] / t)), survived[:, k]), t) for t in grid]
        error, best = min(tried, key=lambda x: x[0])
        chosen.append(float(best))
        after.append(error)
        product = product / (1 + numpy.exp(-logits[:, k] / best))
    return chosen, before, after


@torch.no_grad()
def walk(model, texts, lengths, temperature, ends):
    """Drafting along texts as the engine does: each block starts after the tokens of the one before.

    texts [N, slot] written by the model with the noise that is drawn again here only for t > 0, so for sampled text the
    event is drawn anew: a draft is accepted while it equals a keyed sample at its position that equals the text.
    Returns the counts of accepted drafts and the confidence logits, one row a block.
    """
    drafter = Drafter(model)
    slots = model.s.dspark_block_size
    count, size = texts.shape
    padded = torch.nn.functional.pad(texts, (0, -size % model.s.sliding_window))
    docs = torch.zeros_like(padded)
    out = model.forward(padded, docs, want_logits=True)
    accepted, confidences = [], []
    at = lengths.clone() - 1  # the last position with target features; the anchor follows it
    live = at + slots + 1 < ends
    while live.any():
        rows = live.nonzero().flatten()
        p = at[rows]
        hidden = drafter.hidden(out.features[rows], docs[rows], padded[rows], p[:, None])
        t = torch.full((len(rows),), temperature, device=texts.device)
        noise = None
        if temperature > 0:
            noise = conditioned(out.logits[rows], padded[rows], p, slots, temperature)
        tokens, logit = drafter.draft(hidden, padded[rows, p + 1], t if temperature > 0 else None, noise)
        want = padded[rows[:, None], p[:, None] + 2 + torch.arange(slots, device=texts.device)]
        chain = (tokens == want).long().cumprod(1)
        accepted.append(chain)
        confidences.append(logit)
        at[rows] = p + 1 + chain.sum(1)
        live = at + slots + 1 < ends
    return torch.cat(accepted).cpu().numpy(), torch.cat(confidences).float().cpu().numpy()


def conditioned(logits, ids, p, slots, temperature):
    """Gumbel noise [n,slots,V] given that the target's keyed samples are the tokens of the text.

    The maximum of logits/t + noise is itself Gumbel around the log-sum-exp; the others are truncated below it.
    """
    where = p[:, None] + 1 + torch.arange(slots, device=ids.device)
    scaled = logits[torch.arange(len(ids), device=ids.device)[:, None], where].float() / temperature
    token = ids[torch.arange(len(ids), device=ids.device)[:, None], where + 1].unsqueeze(-1)
    top = torch.logsumexp(scaled, -1, keepdim=True) + gumbel((*scaled.shape[:-1], 1), scaled.device)
    free = scaled + gumbel(scaled.shape, scaled.device)
    cut = -torch.logaddexp(-free, -top)  # free, given that it stays below top
    return torch.where(torch.arange(scaled.shape[-1], device=ids.device) == token, top, cut) - scaled


def summary(chain, confidences):
    """Figures of one temperature."""
    chosen, before, after = temperatures(confidences, chain)
    return {"blocks": len(chain), "mean_accepted": float(chain.sum(1).mean()), "survival": chain.mean(0).tolist(),
            "confidence": numpy.cumprod(1 / (1 + numpy.exp(-confidences)), 1).mean(0).tolist(),
            "calibration_error": before, "temperatures": chosen, "calibration_error_scaled": after}


def measure(model, args, device, specials):
    """Greedy and sampled (0.8) acceptance on held-out prompts."""
    slot = min(256, args.length)
    rollout = Rollout(model, specials, args.batch * (args.length // slot), slot, device.type == "cuda")
    tokens = torch.from_numpy(numpy.load(args.heldout).astype(numpy.int32)).to(device)
    found, both = {}, []
    for name, t in (("greedy", 0.0), ("sampled_0.8", 0.8)):
        prompts, lengths = prompts_from(tokens, specials, rollout.count, slot, torch.Generator().manual_seed(11))
        texts = rollout.write(prompts, lengths, torch.full((rollout.count,), t, device=device))
        place = torch.arange(slot, device=device)
        stop = torch.where((texts == specials.eos) & (place >= lengths[:, None]), place, slot).amin(1)
        both.append(walk(model, texts, lengths, t, stop))
        found[name] = summary(*both[-1])
    found["together"] = summary(*(numpy.concatenate(x) for x in zip(*both)))
    return found
