"""Triton kernels of the teacher's decode step. Each has its plain form in teacher.py; `check` compares them."""

import torch
import triton
import triton.language as tl

from teacher import END_OF_TURN, FIRST_TEXT


@triton.jit
def _add_rms_norm(x, delta, w, out, eps, D: tl.constexpr, HAS_DELTA: tl.constexpr, P: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, P)
    ok = c < D
    v = tl.load(x + row * D + c, ok, 0.0)
    if HAS_DELTA:
        v += tl.load(delta + row * D + c, ok, 0.0).to(tl.float32)
        tl.store(x + row * D + c, v, ok)
    r = 1.0 / tl.sqrt(tl.sum(v * v) / D + eps)
    tl.store(out + row * D + c, (v * r * tl.load(w + c, ok, 0.0)).to(out.dtype.element_ty), ok)


def add_rms_norm(x, delta, w, eps, kind):
    """x += delta (x float32, in place; delta may be None); returns rms-normalised x times w as `kind`."""
    B, D = x.shape
    out = torch.empty(B, D, dtype=kind, device=x.device)
    d = x if delta is None else delta
    _add_rms_norm[(B,)](x, d, w, out, eps, D, delta is not None, triton.next_power_of_2(D), num_warps=4)
    return out


@triton.jit
def _rope_store(qkv, k, v, cos, sin, pos, S, H: tl.constexpr, KV: tl.constexpr, HD: tl.constexpr, P: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.load(pos + row).to(tl.int64)
    half: tl.constexpr = HD // 2
    h = tl.arange(0, P)[:, None]
    c = tl.arange(0, half)[None, :]
    cs = tl.load(cos + at * half + c)
    sn = tl.load(sin + at * half + c)
    base = qkv + row * (H + 2 * KV) * HD + h * HD + c
    rotated = h < H + KV
    a = tl.load(base, rotated, 0.0).to(tl.float32)
    b = tl.load(base + half, rotated, 0.0).to(tl.float32)
    x = (a * cs - b * sn).to(qkv.dtype.element_ty)
    y = (b * cs + a * sn).to(qkv.dtype.element_ty)
    tl.store(base, x, h < H)
    tl.store(base + half, y, h < H)
    key = (h >= H) & rotated
    to = k + ((row * KV + (h - H)) * S + at) * HD + c
    tl.store(to, x, key)
    tl.store(to + half, y, key)
    value = (h >= H + KV) & (h < H + 2 * KV)
    to = v + ((row * KV + (h - H - KV)) * S + at) * HD + c
    tl.store(to, tl.load(base, value, 0.0), value)
    tl.store(to + half, tl.load(base + half, value, 0.0), value)


def rope_store(qkv, k, v, cos, sin, pos, heads):
    """Rotates q inside qkv [B, (H + 2 KV) hd] and writes rotated k and v into the caches [B, KV, S, hd] at pos [B]."""
    B, KV, S, HD = k.shape
    _rope_store[(B,)](qkv, k, v, cos, sin, pos, S, heads, KV, HD, triton.next_power_of_2(heads + 2 * KV), num_warps=4)


@triton.jit
def _attend(
    qkv, k, v, out, pos, S, scale, H: tl.constexpr, KV: tl.constexpr, HD: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    kv = tl.program_id(1)
    G: tl.constexpr = H // KV
    length = tl.load(pos + row) + 1
    g = tl.arange(0, M)
    c = tl.arange(0, HD)
    n = tl.arange(0, N)
    q = tl.load(qkv + row * (H + 2 * KV) * HD + (kv * G + g)[:, None] * HD + c[None, :], (g < G)[:, None], 0.0)
    kp = k + (row * KV + kv) * S * HD
    vp = v + (row * KV + kv) * S * HD
    top = tl.full((M,), -1e30, tl.float32)
    total = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, HD), tl.float32)
    for start in range(0, length, N):
        seen = (start + n) < length
        kk = tl.load(kp + (start + n)[None, :] * HD + c[:, None], seen[None, :], 0.0)
        s = tl.where(seen[None, :], tl.dot(q, kk) * scale, -1e30)
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - new[:, None])
        keep = tl.exp(top - new)
        total = total * keep + tl.sum(p, 1)
        vv = tl.load(vp + (start + n)[:, None] * HD + c[None, :], seen[:, None], 0.0)
        acc = acc * keep[:, None] + tl.dot(p.to(vv.dtype), vv)
        top = new
    acc = acc / total[:, None]
    to = out + row * H * HD + (kv * G + g)[:, None] * HD + c[None, :]
    tl.store(to, acc.to(out.dtype.element_ty), (g < G)[:, None])


def attend(qkv, k, v, pos, heads):
    """Attention of rotated q inside qkv over cache slots 0 .. pos of each row; [B, H hd]. Reads no slot beyond pos."""
    B, KV, S, HD = k.shape
    out = torch.empty(B, heads * HD, dtype=qkv.dtype, device=qkv.device)
    _attend[(B, KV)](qkv, k, v, out, pos, S, HD**-0.5, heads, KV, HD, 16, 64, num_warps=2)
    return out


@triton.jit
def _silu_mul(h, out, F, N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * N + tl.arange(0, N)
    g = tl.load(h + row * 2 * F + c, c < F, 0.0).to(tl.float32)
    u = tl.load(h + row * 2 * F + F + c, c < F, 0.0).to(tl.float32)
    tl.store(out + row * F + c, (g / (1.0 + tl.exp(-g)) * u).to(out.dtype.element_ty), c < F)


def silu_mul(h):
    """silu(first half) * second half of each row."""
    B, F = h.shape[0], h.shape[1] // 2
    out = torch.empty(B, F, dtype=h.dtype, device=h.device)
    _silu_mul[(B, triton.cdiv(F, 512))](h, out, F, 512, num_warps=4)
    return out


@triton.jit
def _sample(
    logits, temperature, seed, out, V, log_min_p, FIRST: tl.constexpr, END: tl.constexpr, N: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    t = 1.0 / tl.load(temperature + row)
    sd = tl.load(seed)
    c = tl.arange(0, N)
    top = tl.full((N,), -1e30, tl.float32)
    for start in range(0, V, N):
        i = start + c
        ok = (i < V) & ((i >= FIRST) | (i == END))
        top = tl.maximum(top, tl.load(logits + row * V + i, ok, -1e30).to(tl.float32))
    floor = tl.max(top, 0) * t + log_min_p
    best = tl.full((N,), -1e30, tl.float32)
    where = tl.zeros((N,), tl.int32)
    for start in range(0, V, N):
        i = start + c
        ok = (i < V) & ((i >= FIRST) | (i == END))
        z = tl.load(logits + row * V + i, ok, -1e30).to(tl.float32) * t
        u = tl.rand(sd, (row * V + i).to(tl.int32))
        z = tl.where(ok & (z >= floor), z - tl.log(-tl.log(u * 0.9999998 + 1e-7)), -1e30)
        better = z > best
        best = tl.where(better, z, best)
        where = tl.where(better, i, where)
    m = tl.max(best, 0)
    tl.store(out + row, tl.min(tl.where(best == m, where, 2147483647), 0).to(tl.int64))


def sample(logits, temperature, min_p_log, seed):
    """teacher.sample with its own random numbers: `seed` is an int64 tensor of one element that the caller changes
    every step."""
    B, V = logits.shape
    out = torch.empty(B, dtype=torch.int64, device=logits.device)
    _sample[(B,)](logits, temperature, seed, out, V, min_p_log, FIRST_TEXT, END_OF_TURN, 2048, num_warps=8)
    return out


def check(m, device, rows=64, slots=256, first=0, length=90):
    """Compares the kernels with the plain step on rows of random tokens from position `first` on, each at its own pace;
    raises if they disagree."""
    import teacher

    g = torch.Generator("cpu").manual_seed(1)
    plain, fast = (teacher.Cache(m, rows, slots, device) for _ in range(2))
    pos = torch.full((rows,), first, dtype=torch.int32, device=device)
    for i in range(length):
        tokens = torch.randint(FIRST_TEXT, m.embed.shape[0], (rows,), generator=g).to(device)
        a, b = teacher.step(m, plain, tokens, pos, False).float(), teacher.step(m, fast, tokens, pos, True).float()
        pos += (torch.arange(rows, device=device) % 3 <= i % 3).int()  # some rows write a slot again
    error = float((a - b).norm() / a.norm())
    limit = 1e-4 if m.embed.dtype == torch.float32 else 8e-2  # bfloat16 rounds differently in 30 layers
    if not error < limit:
        raise SystemExit(f"the teacher's kernels disagree with the plain step: relative error {error}")
    cold = torch.full((rows,), 1e-3, device=device)
    drawn = sample(b.to(m.embed.dtype), cold, -0.01, torch.ones(1, dtype=torch.int64, device=device))
    b[:, [i for i in range(FIRST_TEXT) if i != END_OF_TURN]] = -torch.inf
    if not bool((b.gather(1, drawn[:, None])[:, 0] >= b.amax(1) - 0.2).all()):
        raise SystemExit("the sampling kernel does not find the best token")
    print(f"kernels: relative error {error:.1e}", flush=True)
