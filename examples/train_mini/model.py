"""The whole architecture in PyTorch: backbone forward pass, trained weights as a dict of float32 tensors.

Two uses of one code path: training in BF16 with compiled parts, and checks in float32. Sequences are whole: T tokens
from position 0, T a multiple of the window. Documents inside a sequence are told apart by ids in `docs`; bounded
replay is simulated by a replay side in `encoder_side` and `decoder_side`: window attention acts only between positions
of the same document and the same side.
"""
import math
import types

import torch

import blocks
import sinkhorn


def yarn(theta, width, scaling):
    """Rotation frequencies [width/2] with the YaRN ramp."""
    def turns(beta):
        return width * math.log(scaling["original_max_position_embeddings"] / (beta * 2 * math.pi)) / (
            2 * math.log(theta))

    low = max(math.floor(turns(scaling["beta_fast"])), 0.0)
    high = min(math.ceil(turns(scaling["beta_slow"])), width - 1.0)
    high += 0.001 if high == low else 0
    i = torch.arange(width // 2, dtype=torch.float64)
    base = theta ** (-2 * i / width)
    t = ((i - low) / (high - low)).clamp(0, 1)
    return (base * (1 - t) + base / scaling["factor"] * t).float()


def plain_frequencies(theta, width):
    """Rotation frequencies [width/2] without YaRN."""
    return (theta ** (-2 * torch.arange(width // 2, dtype=torch.float64) / width)).float()


def angles(positions, frequencies):
    """cos, sin [..., pairs] of float32 positions."""
    a = positions.float().unsqueeze(-1) * frequencies
    return torch.cos(a), torch.sin(a)


def operations(compile_them, eager=()):
    """The functions of blocks.py, compiled one by one (fixed shapes), but for those named in `eager`."""
    names = ("site_in", "expand", "qkv", "window_kv", "compress", "publish", "index_scores", "core_window", "core_both",
             "index_loss", "project", "moe", "table", "engram", "head", "head_loss")
    made = {n: getattr(blocks, n) for n in names}
    if compile_them:
        for limit in ("recompile_limit", "cache_size_limit"):
            if hasattr(torch._dynamo.config, limit):
                setattr(torch._dynamo.config, limit, 64)
        made = {n: f if n in eager else torch.compile(f, dynamic=False) for n, f in made.items()}
    return types.SimpleNamespace(**made)


class Result(types.SimpleNamespace):
    """What a forward pass returns; see Model.forward."""


class Model:
    """Settings, weights (dict name -> float32 tensor) and the forward pass."""

    def __init__(self, settings, weights, engram_hash, dtype=torch.float32, compiled=False, eager=()):
        """engram_hash: see engram_hash.Hash. The weights' device is the model's device."""
        self.s, self.w, self.hash, self.dtype = settings, weights, engram_hash, dtype
        self.device = weights["embed.weight"].device
        self.ops = operations(compiled, eager)
        self.sinkhorn = sinkhorn.best(self.device)
        self.fp8 = torch.zeros((), device=self.device)  # 1: dense weights are rounded to FP8
        self.all_visible = torch.zeros((), dtype=torch.bool, device=self.device)  # the selection is switched off
        self.tables = {}
        s = settings
        self.plain = plain_frequencies(s.rope_theta, s.qk_rope_head_dim).to(self.device)
        self.ramped = yarn(s.compress_rope_theta, s.qk_rope_head_dim, s.rope_scaling).to(self.device)

    def _angles(self, length):
        if length not in self.tables:
            at = torch.arange(length, device=self.device)
            self.tables[length] = {0: angles(at, self.plain), "c": angles(at, self.ramped)}
            for ratio in {r["ratio"] for r in self.s.layers} - {0}:
                self.tables[length][ratio] = angles(at[::ratio], self.ramped)
        return self.tables[length]

    def site_in(self, x, pre, prefix, site, norm):
        """Mixing parameters of a site and its normed input."""
        w, s = self.w, self.s
        u, own, post, logits = self.ops.site_in(x, pre, w[prefix + site + "_fn"], w[prefix + site + "_base"],
                                                w[prefix + site + "_scale"], w[prefix + norm], s.rms_norm_eps, s.hc_eps)
        return u, own, post, self.sinkhorn(logits, s.hc_sinkhorn_iters, s.hc_eps)

    def ffn(self, x, pre, prefix, k):
        """The expert site: new streams, its pre, tokens per expert."""
        w, s, f = self.w, self.s, prefix + "ffn."
        u, own, post, c = self.site_in(x, pre, prefix, "hc_ffn", "ffn_norm.weight")
        y, load = self.ops.moe(
            u, w[f + "gate.weight"], w[f + "gate.bias"], w[f + "experts.w1"], w[f + "experts.w2"], w[f + "experts.w3"],
            *(w[f + f"shared_experts.w{i}.weight"] for i in (1, 2, 3)), k, s.routed_scaling_factor, s.swiglu_limit,
            self.fp8)
        return self.ops.expand(x, y, post, c), own, load

    def qkv(self, u, prefix, cos_sin):
        """Query, window KV and query latent of a block."""
        w, a = self.w, prefix + "attn."
        return self.ops.qkv(u, w[a + "wq_a.weight"], w[a + "q_norm.weight"], w[a + "wq_b.weight"], w[a + "wkv.weight"],
                            w[a + "kv_norm.weight"], *cos_sin, self.fp8, self.s.num_attention_heads,
                            self.s.rms_norm_eps)

    def project(self, o, prefix, cos_sin):
        """Output projection of a block."""
        a = prefix + "attn."
        return self.ops.project(o, *cos_sin, self.w[a + "wo_a.weight"], self.w[a + "wo_b.weight"], self.s.o_groups,
                                self.fp8)

    def streams(self, values):
        """values [..,D] in all streams, and the first site's pre (stream 0 only)."""
        x = values.to(self.dtype).unsqueeze(-2).expand(*values.shape[:-1], self.s.hc_mult, -1).contiguous()
        pre = torch.zeros(*x.shape[:-1], device=self.device)
        pre[..., 0] = 1
        return x, pre

    def _visible(self, docs, ratio):
        """[B,T,S]: group s lies wholly at or before token t and in its document."""
        t = torch.arange(docs.shape[1], device=self.device)
        last = t[ratio - 1::ratio]
        return (last <= t[:, None]) & (docs[:, last].unsqueeze(1) == docs.unsqueeze(2))

    def _best(self, score, k):
        """Mask of the k best of the last dimension; equal scores (0 is common) go to the lower index, as in the engine.

        The nudge per index is lost in the rounding of all but tiny scores.
        """
        nudged = score.detach() - torch.arange(score.shape[-1], device=self.device) * 1e-9
        best = torch.topk(nudged, min(k, score.shape[-1]), -1, sorted=False).indices
        return torch.zeros_like(score, dtype=torch.bool).scatter(-1, best, True) & (score > blocks.MASKED / 2)

    def _select(self, score, visible, within):
        """Selected groups [B,T,S] bool: the index_topk best visible ones."""
        if within is not None:
            score = torch.where(within | self.all_visible, score, blocks.MASKED)
        return visible & (self.all_visible | self._best(score, self.s.index_topk)), score

    def _candidates(self, score, visible):
        """Level one: groups inside the best blocks, or None where all blocks fit."""
        size, most = self.s.candidate_block_size, self.s.candidate_topk_blocks
        if score.shape[-1] <= size * most:
            return None
        padded = torch.nn.functional.pad(score.detach(), (0, -score.shape[-1] % size), value=blocks.MASKED)
        best = padded.unflatten(-1, (-1, size)).amax(-1)
        groups = torch.arange(score.shape[-1], device=self.device)
        newest = torch.where(visible, groups, -1).amax(-1, keepdim=True) // size
        best = torch.where(torch.arange(best.shape[-1], device=self.device) == newest, 1e30, best)
        kept = self._best(best, most).unsqueeze(-1).expand(*best.shape, size).flatten(-2)
        return kept[..., :score.shape[-1]]

    def _attention(self, l, u, shared, seg, docs, tables, record):
        """The attention site's sublayer. shared: what sources published so far, changed in place."""
        s, w, role = self.s, self.w, self.s.layers[l]
        p, a = f"layers.{l}.", f"layers.{l}.attn."
        cos_sin = tables[0] if role["ratio"] == 0 else tables["c"]
        q, kv, qr = self.qkv(u, p, cos_sin)
        scale = s.head_dim**-0.5
        if record is not None:
            record[f"window_kv.{l}"] = kv
        if role["ratio"] == 0:
            o = self.ops.core_window(q, kv, seg, w[a + "attn_sink"], s.sliding_window, scale)
            return self.project(o, p, cos_sin), None
        if role["full"]:
            latent = self.ops.compress(u, w[a + "compressor.wkv.weight"], w.get(a + "compressor.wgate.weight"),
                                       w[a + "compressor.norm.weight"], role["ratio"], s.rms_norm_eps)
            shared.main, shared.key = self.ops.publish(latent, w[a + "indexer.wk.weight"],
                                                       w[a + "indexer.k_norm.weight"], *tables[role["ratio"]],
                                                       s.rms_norm_eps, self.dtype)
            shared.visible = self._visible(docs, role["ratio"])
            shared.candidates = None
            if record is not None:
                record[f"compressed_kv.{l}"], record[f"index_key.{l}"] = shared.main, shared.key
        if role["index"]:
            score = self.ops.index_scores(u, qr, shared.key, w[a + "indexer.wq_b.weight"],
                                          w[a + "indexer.weights_proj.weight"], *cos_sin, shared.visible, self.fp8,
                                          s.index_n_heads)
            within = shared.candidates if s.within_candidates(l) else None
            if l == s.candidate_source_layer_id:
                shared.candidates = self._candidates(score, shared.visible)
            shared.selected, score = self._select(score, shared.visible, within)
            if record is not None:
                record[f"selected.{l}"], record[f"score.{l}"] = shared.selected, score
        o, weight = self.ops.core_both(q, kv, seg, w[a + "attn_sink"], shared.main, shared.selected, s.sliding_window,
                                       scale)
        loss = self.ops.index_loss(score, shared.selected, weight) if role["index"] else None
        return self.project(o, p, cos_sin), loss

    def _engram(self, x, l, docs, ids, keep):
        p, w, s = f"layers.{l}.engram.", self.w, self.s
        rows = self.hash.rows(s.engram_layer_ids.index(l), ids, docs)
        values = self.ops.table(w[p + "embed"], self.dtype).index_select(0, rows.flatten())
        return self.ops.engram(x, values.view(*ids.shape, -1), w[p + "wkv.weight"], w[p + "q_weight"],
                               w[p + "k_weight"], keep, self.fp8, s.rms_norm_eps)

    def forward(self, ids, docs=None, targets=None, encoder_side=None, decoder_side=None, keep=None, first_full=True,
                want_logits=False, record=None):
        """ids [B,T] int64; all other inputs [B,T] and optional.

        first_full: the first decoder layer does not feel the decoder's replay side (as the engine serves it).
        Result: loss [B,T] nats (with targets), logits (if wanted), index_loss (mean over index layers), load
        [layers][E] tokens per expert, features [B,T,3D] for the drafter. record: a dict that collects inner values.
        """
        s, w = self.s, self.w
        zero = torch.zeros_like(ids)
        docs = zero if docs is None else docs
        encoder = docs * 2 + (zero if encoder_side is None else encoder_side)
        decoder = encoder * 2 + (zero if decoder_side is None else decoder_side)
        keep = torch.ones(ids.shape, device=self.device) if keep is None else keep
        tables = self._angles(ids.shape[1])
        x, pre = self.streams(w["embed.weight"].index_select(0, ids.flatten()).view(*ids.shape, -1))
        shared, losses, loads, features = types.SimpleNamespace(), [], [], []
        for l in range(s.num_hidden_layers):
            p = f"layers.{l}."
            if l in s.engram_layer_ids:
                x = self._engram(x, l, docs, ids, keep)
            if l in s.dspark_target_layer_ids:
                features.append(x.float().mean(-2).to(self.dtype))
            cut = l > s.encoder_layers or (l == s.encoder_layers and not first_full)
            u, own, post, c = self.site_in(x, pre, p, "hc_attn", "attn_norm.weight")
            y, loss = self._attention(l, u, shared, decoder if cut else encoder, docs, tables, record)
            x, pre = self.ops.expand(x, y, post, c), own
            x, pre, load = self.ffn(x, pre, p, s.num_experts_per_tok)
            loads.append(load)
            if loss is not None:
                losses.append(loss)
            if record is not None:
                record[f"resid_mean.{l}"] = x.float().mean(-2)
        out = Result(index_loss=torch.stack(losses).mean(), load=torch.stack(loads), features=torch.cat(features, -1))
        final = (x, pre, w["norm.weight"], w["head.weight"])
        if targets is not None:
            out.loss = self.ops.head_loss(*final, targets, s.rms_norm_eps)
        if want_logits:
            out.logits = self.ops.head(*final, s.rms_norm_eps)
        return out
