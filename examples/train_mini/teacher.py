"""The teacher: a Llama-shaped model read from a GGUF file (SmolLM2-135M-Instruct), and its batched decode step.

`load` reads and dequantises the file; `forward` is the plain whole-sequence form that tests compare with; `step` feeds
one token of every row of a batch through the model with a key/value cache of fixed size, each row at its own position.
On CUDA the step uses the kernels of teacher_kernels.py and can be captured in a CUDA graph; elsewhere plain PyTorch.
"""

import dataclasses

import numpy as np
import torch
import torch.nn.functional as F

END_OF_TURN = 2  # <|im_end|>
FIRST_TEXT = 17  # ids below are special tokens


@dataclasses.dataclass
class Layer:
    attn_norm: torch.Tensor  # [D]
    qkv: torch.Tensor  # [(H + 2 KV) hd, D]; rows of q and k in the half-rotation order of rope
    out: torch.Tensor  # [D, H hd]
    ffn_norm: torch.Tensor  # [D]
    gate_up: torch.Tensor  # [2 F, D]
    down: torch.Tensor  # [D, F]


@dataclasses.dataclass
class Teacher:
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    eps: float
    theta: float
    embed: torch.Tensor  # [V, D], also the output matrix
    norm: torch.Tensor  # [D]
    layers: list


def _half_rotation(w, heads, head_dim):
    """GGUF stores q and k for rotation of neighbouring pairs; rope here rotates element i with i + head_dim / 2."""
    return w.reshape(heads, head_dim // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def load(path, device="cpu", dtype=torch.float32):
    """Reads the GGUF file at `path`. Matrices get `dtype`, norm weights stay float32."""
    import gguf

    reader = gguf.GGUFReader(path)
    field = lambda name: reader.fields["llama." + name].contents()
    raw = {t.name: t for t in reader.tensors}

    def matrix(name):
        t = raw[name]
        return np.asarray(gguf.quants.dequantize(t.data, t.tensor_type), dtype=np.float32)

    heads, kv_heads = field("attention.head_count"), field("attention.head_count_kv")
    dim = field("embedding_length")
    head_dim = dim // heads
    put = lambda a, kind=dtype: torch.from_numpy(np.array(a)).to(device=device, dtype=kind)
    layers = []
    for i in range(field("block_count")):
        p = f"blk.{i}."
        q = _half_rotation(matrix(p + "attn_q.weight"), heads, head_dim)
        k = _half_rotation(matrix(p + "attn_k.weight"), kv_heads, head_dim)
        layers.append(
            Layer(
                attn_norm=put(matrix(p + "attn_norm.weight"), torch.float32),
                qkv=put(np.concatenate([q, k, matrix(p + "attn_v.weight")])),
                out=put(matrix(p + "attn_output.weight")),
                ffn_norm=put(matrix(p + "ffn_norm.weight"), torch.float32),
                gate_up=put(np.concatenate([matrix(p + "ffn_gate.weight"), matrix(p + "ffn_up.weight")])),
                down=put(matrix(p + "ffn_down.weight")),
            )
        )
    return Teacher(
        dim=dim,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=field("feed_forward_length"),
        eps=field("attention.layer_norm_rms_epsilon"),
        theta=field("rope.freq_base"),
        embed=put(matrix("token_embd.weight")),
        norm=put(matrix("output_norm.weight"), torch.float32),
        layers=layers,
    )


def load_tokenizer(path):
    """The `tokenizers` object of the vocabulary inside the GGUF file (byte-level BPE, single digits)."""
    import gguf
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    t = Tokenizer(models.BPE({s: i for i, s in enumerate(tokens)}, merges))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(s, special=True) for s in tokens[:FIRST_TEXT]])
    return t


def rope_table(m, length, device):
    """cos and sin, [length, head_dim / 2] each, float32."""
    f = m.theta ** (-torch.arange(0, m.head_dim, 2, dtype=torch.float64) / m.head_dim)
    a = torch.arange(length, dtype=torch.float64)[:, None] * f
    return a.cos().float().to(device), a.sin().float().to(device)


def _rms(x, w, eps):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


def _rotate(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


@torch.no_grad()
def forward(m, tokens):
    """Logits [B, T, V] in float32 of whole sequences `tokens` [B, T]."""
    B, T = tokens.shape
    kind = m.embed.dtype
    cos, sin = rope_table(m, T, tokens.device)
    x = m.embed[tokens].float()
    for l in m.layers:
        qkv = F.linear(_rms(x, l.attn_norm, m.eps).to(kind), l.qkv).view(B, T, -1, m.head_dim).transpose(1, 2)
        q, k, v = qkv.split([m.heads, m.kv_heads, m.kv_heads], 1)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        group = m.heads // m.kv_heads
        a = F.scaled_dot_product_attention(
            q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), is_causal=True
        )
        x = x + F.linear(a.transpose(1, 2).reshape(B, T, -1), l.out).float()
        gate, up = F.linear(_rms(x, l.ffn_norm, m.eps).to(kind), l.gate_up).chunk(2, -1)
        x = x + F.linear((F.silu(gate.float()) * up.float()).to(kind), l.down).float()
    return F.linear(_rms(x, m.norm, m.eps).to(kind), m.embed).float()


class Cache:
    """Keys and values of `rows` sequences of at most `slots` tokens."""

    def __init__(self, m, rows, slots, device):
        shape = (len(m.layers), rows, m.kv_heads, slots, m.head_dim)
        self.k = torch.zeros(shape, dtype=m.embed.dtype, device=device)
        self.v = torch.zeros(shape, dtype=m.embed.dtype, device=device)
        self.cos, self.sin = rope_table(m, slots, device)


@torch.no_grad()
def step(m, cache, tokens, pos, fast):
    """Feeds tokens [B] (int64) at positions pos [B] (int32); returns logits [B, V] and fills the cache at `pos`.

    `fast` takes the Triton kernels. Nothing here depends on values on the host, so a CUDA graph can hold the call.
    """
    if fast:
        return _step_fast(m, cache, tokens, pos)
    B, kind = tokens.shape[0], m.embed.dtype
    at = pos.long()
    cos, sin = cache.cos[at][:, None], cache.sin[at][:, None]
    row = torch.arange(B, device=tokens.device)
    hidden = torch.arange(cache.k.shape[3], device=tokens.device)[None, :] > at[:, None]
    x = m.embed[tokens].float()
    for i, l in enumerate(m.layers):
        qkv = F.linear(_rms(x, l.attn_norm, m.eps).to(kind), l.qkv).view(B, -1, m.head_dim)
        q, k, v = qkv.split([m.heads, m.kv_heads, m.kv_heads], 1)
        q = _rotate(q, cos, sin)
        cache.k[i, row, :, at] = _rotate(k, cos, sin)
        cache.v[i, row, :, at] = v
        q = q.view(B, m.kv_heads, m.heads // m.kv_heads, m.head_dim)
        s = (q @ cache.k[i].transpose(-1, -2)).float() * m.head_dim**-0.5
        p = s.masked_fill(hidden[:, None, None], -torch.inf).softmax(-1).to(kind)
        x = x + F.linear((p @ cache.v[i]).reshape(B, -1), l.out).float()
        gate, up = F.linear(_rms(x, l.ffn_norm, m.eps).to(kind), l.gate_up).chunk(2, -1)
        x = x + F.linear((F.silu(gate.float()) * up.float()).to(kind), l.down).float()
    return F.linear(_rms(x, m.norm, m.eps).to(kind), m.embed)


def _step_fast(m, cache, tokens, pos):
    import teacher_kernels as kernels

    x = m.embed.index_select(0, tokens).float()
    delta = None
    for i, l in enumerate(m.layers):
        h = kernels.add_rms_norm(x, delta, l.attn_norm, m.eps, m.embed.dtype)
        qkv = F.linear(h, l.qkv)
        kernels.rope_store(qkv, cache.k[i], cache.v[i], cache.cos, cache.sin, pos, m.heads)
        a = kernels.attend(qkv, cache.k[i], cache.v[i], pos, m.heads)
        h = kernels.add_rms_norm(x, F.linear(a, l.out), l.ffn_norm, m.eps, m.embed.dtype)
        delta = F.linear(kernels.silu_mul(F.linear(h, l.gate_up)), l.down)
    return F.linear(kernels.add_rms_norm(x, delta, m.norm, m.eps, m.embed.dtype), m.embed)


def sample(logits, temperature, min_p, seed):
    """One token a row in plain PyTorch: softmax(logits / temperature) over tokens of at least min_p times the best
    token's probability, special tokens other than the end of the turn excluded. `seed` is a torch.Generator."""
    z = logits.float() / temperature[:, None]
    z[:, :FIRST_TEXT] = torch.where(
        torch.arange(FIRST_TEXT, device=z.device) == END_OF_TURN, z[:, :FIRST_TEXT], -torch.inf
    )
    z = z.masked_fill(z < z.amax(-1, keepdim=True) + float(np.log(min_p)), -torch.inf)
    return torch.multinomial(z.softmax(-1), 1, generator=seed)[:, 0]
