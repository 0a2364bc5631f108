"""The parts of a block as pure functions of tensors, so that torch.compile sees each of them once for all layers.

Shapes: B sequences of T tokens, D hidden, H heads of width hd, S compressed groups (T / ratio), W window, E experts.
Activations have the compute type (BF16 in training, float32 in checks); weights are float32 masters. The formulas are
those of kernels/model and kernels/cpu.
"""
import torch

import formats

MASKED = -1e30  # not -inf: a query without a visible group must keep a finite softmax


def dense(w, flag, dtype):
    """A dense weight in the compute type; flag (0-dim) 1 = rounded to FP8 in 32x32 blocks, 0 or None = as it is."""
    if flag is None:
        return w.to(dtype)
    return (w + (formats.fp8_weight(w) - w).detach() * flag).to(dtype)


def expert(w, flag, dtype):
    """Expert weights, rounded to FP4; flag None: they are already."""
    if flag is None:
        return w.to(dtype)
    return formats.through(w, formats.fp4_weight(w)).to(dtype)


def rms(x, w, eps):
    """RMSNorm with weight w over the last dimension."""
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps) * w).to(x.dtype)


def rope(x, cos, sin):
    """Rotates the last channels of x in adjacent pairs; cos, sin [..., pairs] broadcast to x's leading dimensions."""
    width = cos.shape[-1] * 2
    a, b = x[..., -width:].float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([x[..., :-width], turned.to(x.dtype)], -1)


def site_in(x, pre, fn, base, scale, norm, eps, hc_eps):
    """What a site reads and how it will write: x [B,T,4,D] streams, pre [B,T,4] of the previous site.

    Returns u [B,T,D] (normed input), pre of this site, post [B,T,4], mixing logits [B,T,4,4].
    """
    n = x.shape[-2]
    flat = x.flatten(-2)
    r = torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + eps)
    m = (flat @ fn.to(x.dtype).t()).float() * r
    own = torch.sigmoid(m[..., :n] * scale[0] + base[:n]) + hc_eps
    post = 2 * torch.sigmoid(m[..., n:2 * n] * scale[1] + base[n:2 * n])
    logits = (m[..., 2 * n:] * scale[2] + base[2 * n:]).unflatten(-1, (n, n))
    return rms(collapse(x, pre), norm, eps), own, post, logits


def collapse(x, pre):
    """sum_k pre[k] * x[k] in the compute type."""
    return (x.float() * pre.unsqueeze(-1)).sum(-2).to(x.dtype)


def expand(x, y, post, c):
    """x'[k] = post[k] * y + sum_j c[j,k] * x[j]."""
    x32 = x.float()
    mixed = sum(c[..., j, :, None] * x32[..., j, None, :] for j in range(x.shape[-2]))
    return (mixed + post.unsqueeze(-1) * y.float().unsqueeze(-2)).to(x.dtype)


def qkv(u, wq_a, q_norm, wq_b, wkv, kv_norm, cos, sin, flag, heads, eps):
    """q [..,H,hd] rotated, window kv [..,hd] rotated and rounded, qr [..,q_lora] the query latent."""
    qr = rms(u @ dense(wq_a, flag, u.dtype).t(), q_norm, eps)
    q = (qr @ dense(wq_b, flag, u.dtype).t()).unflatten(-1, (heads, -1))
    q = rope(q, cos.unsqueeze(-2), sin.unsqueeze(-2))
    return q, window_kv(u, wkv, kv_norm, cos, sin, flag, eps), qr


def window_kv(u, wkv, kv_norm, cos, sin, flag, eps):
    """Window KV [..,hd]: projected, normed, rotated, rounded to FP8."""
    kv = rope(rms(u @ dense(wkv, flag, u.dtype).t(), kv_norm, eps), cos, sin).float()
    return formats.through(kv, formats.window_kv(kv)).to(u.dtype)


def compress(u, wkv, wgate, norm, ratio, eps):
    """Latents [B,S,hd] of the groups of `ratio` tokens; wgate is None for ratio 1."""
    kv = (u @ wkv.to(u.dtype).t()).float()
    if ratio > 1:
        gate = (u @ wgate.to(u.dtype).t()).float().unflatten(-2, (-1, ratio))
        kv = (torch.softmax(gate, -2) * kv.unflatten(-2, (-1, ratio))).sum(-2)
    return rms(kv, norm, eps)


def publish(latent, wk, k_norm, cos, sin, eps, dtype):
    """Main entries [B,S,hd] and index keys [B,S,di] from latents; keys send no gradient into the latents."""
    main = rope(latent, cos, sin)
    key = rope(rms(latent.detach() @ wk.t(), k_norm, eps), cos, sin)
    return (formats.through(main, formats.main_kv(main)).to(dtype),
            formats.through(key, formats.index_key(key)).to(dtype))


def index_scores(u, qr, key, wq_b, wproj, cos, sin, visible, flag, heads):
    """Scores [B,T,S] float32 of the groups, MASKED where not visible. Trained by the KL alone: inputs are detached."""
    u, qr = u.detach(), qr.detach()
    q = (qr @ dense(wq_b, flag, u.dtype).t()).unflatten(-1, (heads, -1))
    q = rope(q, cos.unsqueeze(-2), sin.unsqueeze(-2)).float()
    q = formats.through(q, formats.index_key(q)).to(u.dtype)
    b, t, _, width = q.shape
    dots = torch.relu((q.reshape(b, t * heads, width) @ key.transpose(1, 2)).view(b, t, heads, -1))
    w = (u @ wproj.to(u.dtype).t()).float() * heads**-0.5
    score = (dots.float() * w.unsqueeze(-1)).sum(2) * width**-0.5
    return torch.where(visible, score, MASKED)


def _window_scores(q, kv, seg, window, scale):
    """Chunked window scores [B,n,W,H,2W] and keys [B,n,2W,hd]: each chunk sees the one before and itself."""
    b, t, h, width = q.shape
    n = t // window
    own = kv.view(b, n, window, width)
    keys = torch.cat([torch.cat([torch.zeros_like(own[:, :1]), own[:, :-1]], 1), own], 2)
    s = (q.view(b, n, window * h, width) @ keys.transpose(-1, -2)).view(b, n, window, h, 2 * window).float() * scale
    i = torch.arange(window, device=q.device)[:, None]
    j = torch.arange(2 * window, device=q.device)[None, :]
    band = (j > i) & (j <= i + window)
    own_seg = seg.view(b, n, window)
    key_seg = torch.cat([torch.cat([torch.full_like(own_seg[:, :1], -1), own_seg[:, :-1]], 1), own_seg], 2)
    seen = band & (own_seg.unsqueeze(-1) == key_seg.unsqueeze(-2))
    return torch.where(seen.unsqueeze(3), s, MASKED), keys


def core_window(q, kv, seg, sink, window, scale):
    """Attention over the window only. q [B,T,H,hd], kv [B,T,hd], seg [B,T] (equal = may see each other)."""
    b, t, h, width = q.shape
    s, keys = _window_scores(q, kv, seg, window, scale)
    top = torch.maximum(s.amax(-1, keepdim=True), sink[:, None])
    e = torch.exp(s - top)
    p = (e / (e.sum(-1, keepdim=True) + torch.exp(sink[:, None] - top))).to(q.dtype)
    return (p.view(b, t // window, window * h, 2 * window) @ keys).view(b, t, h, width)


def core_both(q, kv, seg, sink, entries, selected, window, scale):
    """Attention over window and selected entries, one softmax.

    entries [B,S,hd], selected [B,T,S] bool. Returns the output and the detached head mean [B,T,S] of the weights on
    the entries, which is what the indexer learns.
    """
    b, t, h, width = q.shape
    s, keys = _window_scores(q, kv, seg, window, scale)
    s = s.view(b, t, h, 2 * window)
    g = (q.reshape(b, t * h, width) @ entries.transpose(1, 2)).view(b, t, h, -1).float() * scale
    g = torch.where(selected.unsqueeze(2), g, MASKED)
    top = torch.maximum(torch.maximum(s.amax(-1, keepdim=True), g.amax(-1, keepdim=True)), sink[:, None])
    es, eg = torch.exp(s - top), torch.exp(g - top)
    total = es.sum(-1, keepdim=True) + eg.sum(-1, keepdim=True) + torch.exp(sink[:, None] - top)
    ps, pg = (es / total).to(q.dtype), (eg / total).to(q.dtype)
    out = (ps.view(b, t // window, window * h, 2 * window) @ keys).view(b, t, h, width)
    out = out + (pg.view(b, t * h, -1) @ entries).view(b, t, h, width)
    return out, pg.detach().float().mean(2)


def index_loss(score, selected, weight):
    """KL(normalised attention weight || softmax of the scores) over the selected set, mean over rows that have one."""
    total = weight.sum(-1, keepdim=True)
    p = weight / total.clamp(min=1e-9)
    logq = torch.log_softmax(torch.where(selected, score, MASKED), -1)
    kl = torch.where(selected & (p > 0), p * (torch.log(p.clamp(min=1e-9)) - logq), 0.0).sum(-1)
    live = (total.squeeze(-1) > 1e-6).float()
    return (kl * live).sum() / live.sum().clamp(min=1)


def project(o, cos, sin, wo_a, wo_b, groups, flag):
    """Undoes the rotation that the values carry, then the grouped and the common output projection."""
    o = rope(o, cos.unsqueeze(-2), -sin.unsqueeze(-2))
    lead = o.shape[:-2]
    x = o.reshape(-1, groups, o.shape[-1] * o.shape[-2] // groups).transpose(0, 1)
    a = dense(wo_a, flag, o.dtype).view(groups, -1, x.shape[-1])
    mid = (x @ a.transpose(1, 2)).transpose(0, 1).reshape(*lead, -1)
    return mid @ dense(wo_b, flag, o.dtype).t()


def moe(u, gate, bias, w1, w2, w3, s1, s2, s3, k, scale, limit, flag):
    """All experts computed densely, the unchosen ones weighted with 0; the shared expert is one more.

    w1, w3 [E,w,D], w2 [E,D,w], s1, s2, s3 the shared expert's. Returns y and the number of tokens per expert [E].
    """
    x = u.reshape(-1, u.shape[-1])
    count = w1.shape[0]
    s = torch.sqrt(torch.nn.functional.softplus(x.float() @ gate.t()) + 1e-12)
    chosen = torch.zeros_like(s).scatter(1, torch.topk(s.detach() + bias, k, -1).indices, 1.0)
    weights = s * chosen
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * scale
    weights = torch.cat([weights, torch.ones_like(weights[:, :1])], 1).to(x.dtype)
    up_in = torch.cat([torch.cat([expert(w1, flag, x.dtype), dense(s1, flag, x.dtype)[None]]).flatten(0, 1),
                       torch.cat([expert(w3, flag, x.dtype), dense(s3, flag, x.dtype)[None]]).flatten(0, 1)])
    g, v = (x @ up_in.t()).view(-1, 2, count + 1, w1.shape[1]).unbind(1)
    h = torch.nn.functional.silu(g.float().clamp(max=limit)) * v.float().clamp(-limit, limit)
    h = (h * weights.float().unsqueeze(-1)).to(x.dtype)
    down = torch.cat([expert(w2, flag, x.dtype), dense(s2, flag, x.dtype)[None]]).transpose(1, 2).flatten(0, 1)
    return (h.flatten(1) @ down).view(u.shape), chosen.sum(0)


def table(w, dtype):
    """An Engram table after FP8 rounding."""
    return formats.through(w, formats.row_weight(w)).to(dtype)


def engram(x, values, wkv, q_weight, k_weight, keep, flag, eps):
    """Adds the gated n-gram value to all streams. values [B,T,columns*dim]; keep [B,T] scales it (dropout)."""
    n, d = x.shape[-2:]
    kv = (values @ dense(wkv, flag, x.dtype).t()).float().unflatten(-1, (n + 1, d))
    key, value = kv[..., :n, :], kv[..., n, :]
    x32 = x.float()
    dot = (x32 * (q_weight * k_weight) * key).sum(-1)
    dot = dot * torch.rsqrt(x32.square().mean(-1) + eps) * torch.rsqrt(key.square().mean(-1) + eps) * d**-0.5
    gate = torch.sigmoid(torch.copysign(torch.sqrt(dot.abs().clamp(min=1e-6)), dot)) * keep.unsqueeze(-1)
    return (x32 + gate.unsqueeze(-1) * value.unsqueeze(-2)).to(x.dtype)


def head(x, pre, norm, weight, eps):
    """Logits [B,T,V] from the streams."""
    return rms(collapse(x, pre), norm, eps) @ weight.to(x.dtype).t()


def head_loss(x, pre, norm, weight, targets, eps):
    """Cross entropy [B,T] in nats against targets."""
    logits = head(x, pre, norm, weight, eps).float()
    return torch.logsumexp(logits, -1) - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
