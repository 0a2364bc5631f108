"""Which tensors a model has: names as in the checkpoint (experts stacked), shapes, formats, initial values."""
import math

import torch


def _block(s, prefix, experts):
    d, w = s.hidden_size, s.moe_intermediate_size
    q = s.num_attention_heads * s.head_dim
    mixes = (2 + s.hc_mult) * s.hc_mult
    yield prefix + "attn_norm.weight", (d,), "bf16"
    yield prefix + "ffn_norm.weight", (d,), "bf16"
    a, f = prefix + "attn.", prefix + "ffn."
    yield a + "wq_a.weight", (s.q_lora_rank, d), "fp8"
    yield a + "wq_b.weight", (q, s.q_lora_rank), "fp8"
    yield a + "wkv.weight", (s.head_dim, d), "fp8"
    yield a + "wo_a.weight", (s.o_groups * s.o_lora_rank, q // s.o_groups), "fp8"
    yield a + "wo_b.weight", (d, s.o_groups * s.o_lora_rank), "fp8"
    yield a + "q_norm.weight", (s.q_lora_rank,), "bf16"
    yield a + "kv_norm.weight", (s.head_dim,), "bf16"
    yield a + "attn_sink", (s.num_attention_heads,), "f32"
    for site in ("hc_attn", "hc_ffn"):
        yield prefix + site + "_fn", (mixes, s.hc_mult * d), "f32"
        yield prefix + site + "_base", (mixes,), "f32"
        yield prefix + site + "_scale", (3,), "f32"
    yield f + "gate.weight", (experts, d), "bf16"
    yield f + "gate.bias", (experts,), "f32"
    for name, shape in (("w1", (w, d)), ("w2", (d, w)), ("w3", (w, d))):
        yield f + "experts." + name, (experts, *shape), "fp4"
        yield f + "shared_experts." + name + ".weight", shape, "fp8"


def backbone(s):
    """(name, shape, format) of every tensor outside the drafter."""
    d = s.hidden_size
    yield "embed.weight", (s.vocab_size, d), "bf16"
    yield "head.weight", (s.vocab_size, d), "bf16"
    yield "norm.weight", (d,), "bf16"
    for l, role in enumerate(s.layers):
        p = f"layers.{l}."
        yield from _block(s, p, s.n_routed_experts)
        a = p + "attn."
        if role["ratio"] and role["index"]:
            yield a + "indexer.wq_b.weight", (s.index_n_heads * s.index_head_dim, s.q_lora_rank), "fp8"
            yield a + "indexer.weights_proj.weight", (s.index_n_heads, d), "bf16"
        if role["full"]:
            yield a + "compressor.wkv.weight", (s.head_dim, d), "bf16"
            if role["ratio"] > 1:
                yield a + "compressor.wgate.weight", (s.head_dim, d), "bf16"
            yield a + "compressor.norm.weight", (s.head_dim,), "bf16"
            yield a + "indexer.wk.weight", (s.index_head_dim, s.head_dim), "bf16"
            yield a + "indexer.k_norm.weight", (s.index_head_dim,), "bf16"
        if l in s.engram_layer_ids:
            rows = s.engram_num_embeddings[s.engram_layer_ids.index(l)]
            yield p + "engram.embed", (rows, s.engram_head_dim), "rows"
            yield p + "engram.wkv.weight", ((s.hc_mult + 1) * d, s.engram_columns * s.engram_head_dim), "fp8"
            yield p + "engram.q_weight", (s.hc_mult, d), "bf16"
            yield p + "engram.k_weight", (s.hc_mult, d), "bf16"


def drafter(s):
    """(name, shape, format) of every tensor of the drafter."""
    blocks, d = s.num_nextn_predict_layers, s.hidden_size
    for b in range(blocks):
        yield from _block(s, f"mtp.{b}.", s.dspark_n_routed_experts)
    yield "mtp.0.main_proj.weight", (d, d * len(s.dspark_target_layer_ids)), "fp8"
    yield "mtp.0.main_norm.weight", (d,), "bf16"
    last = f"mtp.{blocks - 1}."
    yield last + "norm.weight", (d,), "bf16"
    yield last + "markov_head.embed.weight", (s.vocab_size, s.dspark_markov_rank), "bf16"
    yield last + "markov_head.head.weight", (s.vocab_size, s.dspark_markov_rank), "bf16"
    yield last + "confidence_head.proj.weight", (1, d + s.dspark_markov_rank), "bf16"


def _initial(name, shape, settings, generator):
    """First value of a tensor, by its name. No all-zero matrices: a norm of exact zeros has a huge gradient."""
    def normal(std):
        return torch.randn(shape, generator=generator) * std

    if name.endswith("norm.weight") or name.endswith("q_weight") or name.endswith("k_weight"):
        return torch.ones(shape)
    if name.endswith(("attn_sink", "gate.bias")):
        return torch.zeros(shape)
    if name.endswith("_fn"):
        return normal(0.02)
    if name.endswith("_scale"):
        return torch.full(shape, 0.5)
    if name.endswith("_base"):  # about: read a quarter of each stream, write one, keep the streams apart
        n = settings.hc_mult
        return torch.cat([torch.full((n,), -1.1), torch.linspace(-0.3, 0.3, n), 3 * torch.eye(n).flatten()])
    if name in ("embed.weight", "mtp.noise") or name.endswith("engram.embed"):
        return normal(0.1)
    if name.endswith("markov_head.head.weight"):
        return normal(0.02)
    gain = 0.35 if name.endswith(("wo_b.weight", "experts.w2", "shared_experts.w2.weight")) else 0.7
    return normal(gain / math.sqrt(shape[-1]))


def create(specs, settings, seed, device):
    """A dict of float32 parameters with their initial values."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _initial(name, shape, settings, generator).to(device) for name, shape, _ in specs}
