"""The DSpark drafter: context KV from the target's features, three blocks over five slots, Markov and confidence heads.

A block belongs to an anchor position p: context = window KV of the target's features at positions max(0, p-W+1)..p,
slots = [token p+1, noise x 4] at positions p+1..p+5, every slot sees the context and all slots. Slot k (from 1) drafts
the token at position p+1+k.
"""
import torch

import blocks
import formats
from model import angles


def slot_attention(q, kv, context, seen, sink, scale):
    """q [M,5,H,hd], kv [M,5,hd], context [M,W,hd], seen [M,W] bool -> [M,5,H,hd]."""
    keys = torch.cat([context, kv], 1)
    m, slots, h, width = q.shape
    s = (q.reshape(m, slots * h, width) @ keys.transpose(1, 2)).view(m, slots, h, -1).float() * scale
    seen = torch.cat([seen, torch.ones_like(seen[:, :1]).expand(-1, slots)], 1)
    s = torch.where(seen[:, None, None], s, blocks.MASKED)
    top = torch.maximum(s.amax(-1, keepdim=True), sink[:, None])
    e = torch.exp(s - top)
    p = (e / (e.sum(-1, keepdim=True) + torch.exp(sink[:, None] - top))).to(q.dtype)
    return (p.view(m, slots * h, -1) @ keys).view(m, slots, h, width)


def draft_heads(hidden, norm, head, markov_embed, markov_head, confidence, previous, eps):
    """Logits [M,5,V] and confidence logits [M,5] for hidden [M,5,D], given the previous token of every slot [M,5]."""
    m = markov_embed.index_select(0, previous.flatten()).view(*previous.shape, -1).to(hidden.dtype)
    logits = blocks.rms(hidden, norm, eps) @ head.to(hidden.dtype).t() + m @ markov_head.to(hidden.dtype).t()
    joined = torch.cat([hidden, m], -1).float()
    return logits, (joined * confidence).sum(-1)


class Drafter:
    """The drafter of a Model; its weights are the `mtp.` entries of the model's dict."""

    def __init__(self, model, compiled=False):
        self.m, self.s = model, model.s
        self.last = f"mtp.{self.s.num_nextn_predict_layers - 1}."
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self.slot_attention, self.heads = wrap(slot_attention), wrap(draft_heads)

    def main_x(self, features):
        """Projected and normed target features [B,T,D]."""
        w = self.m.w
        x = features @ blocks.dense(w["mtp.0.main_proj.weight"], self.m.fp8, features.dtype).t()
        return blocks.rms(x, w["mtp.0.main_norm.weight"], self.s.rms_norm_eps)

    def hidden(self, features, docs, ids, anchors):
        """Collapsed hidden rows [M,5,D] before the last norm, M = B*A.

        features [B,T,3D], docs, ids [B,T], anchors [B,A]: the position p of each block, p + 1 < T.
        """
        s, m, w = self.s, self.m, self.m.w
        b, t = ids.shape
        slots, window = s.dspark_block_size, s.sliding_window
        where = (anchors + torch.arange(b, device=ids.device)[:, None] * t).flatten()  # rows in the flat batch
        back = torch.arange(-window + 1, 1, device=ids.device)
        inside = anchors.flatten()[:, None] + back >= 0
        rows = torch.where(inside, where[:, None] + back, where[:, None])
        seen = inside & (docs.flatten()[rows] == docs.flatten()[where][:, None])
        main = self.main_x(features)
        cos_sin = m._angles(t)[0]
        positions = anchors.flatten()[:, None] + 1 + torch.arange(slots, device=ids.device)
        slot_angles = angles(positions, m.plain)
        tokens = ids.flatten()[where + 1]
        noise = w["mtp.noise"] if "mtp.noise" in w else w["embed.weight"][s.dspark_noise_token_id]
        start = torch.cat([w["embed.weight"].index_select(0, tokens).unsqueeze(1),
                           noise.expand(len(tokens), slots - 1, -1)], 1)
        x, pre = m.streams(start)
        for block in range(s.num_nextn_predict_layers):
            p = f"mtp.{block}."
            context = m.ops.window_kv(main, w[p + "attn.wkv.weight"], w[p + "attn.kv_norm.weight"], *cos_sin, m.fp8,
                                      s.rms_norm_eps)
            context = context.flatten(0, 1).index_select(0, rows.flatten()).view(*rows.shape, -1)
            u, own, post, c = m.site_in(x, pre, p, "hc_attn", "attn_norm.weight")
            q, kv, _ = m.qkv(u, p, slot_angles)
            o = self.slot_attention(q, kv, context, seen, w[p + "attn.attn_sink"], s.head_dim**-0.5)
            x, pre = m.ops.expand(x, m.project(o, p, slot_angles), post, c), own
            x, pre, load = m.ffn(x, pre, p, s.dspark_num_experts_per_tok)
            self.loads = [load] if block == 0 else [*self.loads, load]
        return blocks.collapse(x, pre)

    def logits(self, hidden, previous):
        """Draft logits [M,5,V] (with the Markov bias) and confidence logits, given the previous tokens [M,5]."""
        w = self.m.w
        return self.heads(hidden, w[self.last + "norm.weight"], w["head.weight"],
                          w[self.last + "markov_head.embed.weight"], w[self.last + "markov_head.head.weight"],
                          w[self.last + "confidence_head.proj.weight"], previous, self.s.rms_norm_eps)

    def draft(self, hidden, first, temperature=None, noise=None):
        """Draws the block left to right: tokens [M,5] and confidence logits [M,5].

        first [M]: the anchor tokens. With temperature [M] and Gumbel noise [M,5,V]: argmax(logits / t + noise),
        rows of temperature 0 are greedy.
        """
        previous = first[:, None].expand(-1, self.s.dspark_block_size).clone()
        tokens = []
        for k in range(self.s.dspark_block_size):
            logits, confidence = self.logits(hidden, previous)
            tokens.append(keyed(logits[:, k].float(), temperature, None if noise is None else noise[:, k]))
            if k + 1 < self.s.dspark_block_size:
                previous[:, k + 1] = tokens[-1]
        return torch.stack(tokens, 1), confidence


def keyed(logits, temperature, noise):
    """The keyed sample: argmax(logits / t + noise), or argmax(logits) where t is 0 or not given."""
    if temperature is None:
        return logits.argmax(-1)
    t = temperature.view(-1, *[1] * (logits.dim() - 1))
    return torch.where(t > 0, logits / t.clamp(min=1e-6) + noise, logits).argmax(-1)


def gumbel(shape, device):
    """Gumbel noise."""
    return -torch.log(torch.empty(shape, device=device).exponential_().clamp(min=1e-20))


def rounded_noise(weights):
    """The learned noise vector as the checkpoint holds it: a row of the embedding, in BF16."""
    return formats.bf16_weight(weights["mtp.noise"])
