"""Text that the model itself writes, thousands of sequences side by side, one token of each a step from cached KV.

A row is a stream of documents: a prompt is fed, the model answers, and after <eos> (or a limit) the next prompt of the
pool follows in the same row. Documents do not see each other. Nothing is compiled: a step is one CUDA graph.
"""
import types

import torch

import blocks
import checkpoint
import weights
from drafter import gumbel, keyed
from model import Model


def frozen(model):
    """The model for inference: weights rounded once and kept in the compute type, no function compiled."""
    s = model.s
    w = checkpoint.rounded(s, {k: v for k, v in model.w.items() if not k.startswith("mtp.")})
    for name, _, fmt in weights.backbone(s):
        if fmt in ("fp8", "fp4", "rows") or name == "head.weight":
            w[name] = w[name].to(model.dtype)
    fixed = Model(s, w, model.hash, model.dtype)
    fixed.fp8 = None  # dense and expert weights are taken as they are
    return fixed


class Rollout:
    """Buffers of `count` rows of `length` tokens, and the step that adds one token to every row."""

    def __init__(self, model, specials, count, length, graph, keep=False):
        """graph: capture the step (CUDA). keep: collect features and final hidden rows for the drafter's training."""
        self.m, self.specials, self.count, self.length = frozen(model), specials, count, length
        s, device, dtype = model.s, model.device, model.dtype
        new = lambda *shape, kind=dtype: torch.zeros(shape, device=device, dtype=kind)
        self.ids, self.made = new(count, length, kind=torch.long), new(count, length, kind=torch.bool)
        self.begin = new(count, length, kind=torch.int32)  # first position of each token's document
        self.at, self.start = new(1, kind=torch.long), new(count, kind=torch.long)
        self.temperature = new(count, kind=torch.float32)
        self.ring = [new(count, s.sliding_window, s.head_dim) for _ in range(s.num_hidden_layers)]
        self.entries, self.keys, self.pair = {}, {}, {}
        for l, role in enumerate(s.layers):
            if role["full"]:
                self.entries[l] = new(count, length // role["ratio"], s.head_dim)
                self.keys[l] = new(count, length // role["ratio"], s.index_head_dim)
                self.pair[l] = new(2, 2, count, s.head_dim, kind=torch.float32)
        wide = s.hidden_size * len(s.dspark_target_layer_ids)
        self.features = new(count, length, wide) if keep else None
        self.final = new(count, length, s.hidden_size) if keep else None
        self.pool = self.sizes = self.restart = self.graph = None
        self.which, self.offset = new(count, kind=torch.long), new(count, kind=torch.long)
        self.wants_graph = graph and device.type == "cuda"

    def _attend(self, l, q, kv, entries, selected):
        """Attention of one query a row over the window ring and the selected entries, one softmax with the sink."""
        s, w = self.m.s, self.m.w
        ring, window, scale = self.ring[l], self.m.s.sliding_window, self.m.s.head_dim**-0.5
        ring.index_copy_(1, self.at % window, kv.unsqueeze(1))
        sink = w[f"layers.{l}.attn.attn_sink"][:, None]
        scores = torch.where(self.seen, torch.bmm(q, ring.transpose(1, 2)).float() * scale, blocks.MASKED)
        if entries is not None:
            g = torch.bmm(q, entries.transpose(1, 2)).float() * scale
            scores = torch.cat([scores, torch.where(selected, g, blocks.MASKED)], -1)
        top = torch.maximum(scores.amax(-1, keepdim=True), sink)
        e = torch.exp(scores - top)
        p = (e / (e.sum(-1, keepdim=True) + torch.exp(sink - top))).to(q.dtype)
        o = torch.bmm(p[..., :window], ring)
        return o if entries is None else o + torch.bmm(p[..., window:], entries)

    def _publish(self, l, u, role):
        """The compressed entry and index key of the token's group; of a group's first token it is not visible yet."""
        s, w, m = self.m.s, self.m.w, self.m
        a, ratio = f"layers.{l}.attn.", role["ratio"]
        kv = (u @ w[a + "compressor.wkv.weight"].to(u.dtype).t()).float()
        group = self.at // ratio
        if ratio > 1:
            assert ratio == 2
            gate = (u @ w[a + "compressor.wgate.weight"].to(u.dtype).t()).float()
            self.pair[l].index_copy_(1, self.at % 2, torch.stack([kv, gate]).unsqueeze(1))
            kv, gate = self.pair[l]
            kv = (torch.softmax(gate, 0) * kv).sum(0)
        latent = blocks.rms(kv, w[a + "compressor.norm.weight"], s.rms_norm_eps)
        cos, sin = (x.index_select(0, group) for x in m._angles(self.length)[ratio])
        main, key = blocks.publish(latent, w[a + "indexer.wk.weight"], w[a + "indexer.k_norm.weight"], cos, sin,
                                   s.rms_norm_eps, m.dtype)
        self.entries[l].index_copy_(1, group, main.unsqueeze(1))
        self.keys[l].index_copy_(1, group, key.unsqueeze(1))

    def _attention(self, l, u, shared, angles):
        s, m, role, p = self.m.s, self.m, self.m.s.layers[l], f"layers.{l}."
        cos_sin = angles[0] if role["ratio"] == 0 else angles["c"]
        q, kv, qr = m.qkv(u, p, cos_sin)
        entries = None
        if role["ratio"]:
            source, ratio = role["source"], role["ratio"]
            if role["full"]:
                self._publish(l, u, role)
            entries = self.entries[source]
            if role["index"]:
                first = torch.arange(entries.shape[1], device=m.device) * ratio
                visible = ((first + ratio - 1 <= self.at) & (first + ratio - 1 >= self.start[:, None])).unsqueeze(1)
                a = p + "attn.indexer."
                score = blocks.index_scores(u.unsqueeze(1), qr.unsqueeze(1), self.keys[source],
                                            m.w[a + "wq_b.weight"], m.w[a + "weights_proj.weight"], *cos_sin,
                                            visible, m.fp8, s.index_n_heads)
                within = shared.candidates if s.within_candidates(l) else None
                if l == s.candidate_source_layer_id:
                    shared.candidates = m._candidates(score, visible)
                shared.selected, _ = m._select(score, visible, within)
        o = self._attend(l, q, kv, entries, shared.selected)
        return m.project(o, p, cos_sin)

    def _engram(self, x, l):
        m, w, s, p = self.m, self.m.w, self.m.s, f"layers.{l}.engram."
        back = self.at + torch.arange(-s.engram_orders, 1, device=m.device)
        ids = self.ids.index_select(1, back.clamp(min=0))
        inside = (back >= self.start[:, None]).long()
        rows = m.hash.rows(s.engram_layer_ids.index(l), ids, inside)[:, -1]
        values = w[p + "embed"].index_select(0, rows.flatten()).view(len(ids), -1)
        return blocks.engram(x, values, w[p + "wkv.weight"], w[p + "q_weight"], w[p + "k_weight"],
                             torch.ones(len(ids), device=m.device), None, s.rms_norm_eps)

    def _hidden(self, token):
        """The final normed hidden rows of the tokens at `at`; caches and kept features are written."""
        m, s, w = self.m, self.m.s, self.m.w
        slot = torch.arange(s.sliding_window, device=m.device)
        where = self.at - torch.remainder(self.at - slot, s.sliding_window)  # position that a ring slot holds
        self.seen = ((where >= 0) & (where >= self.start[:, None])).unsqueeze(1)
        tables = m._angles(self.length)
        angles = {k: tuple(x.index_select(0, self.at) for x in tables[k]) for k in (0, "c")}
        x, pre = m.streams(w["embed.weight"].index_select(0, token))
        shared, features = types.SimpleNamespace(selected=None, candidates=None), []
        for l in range(s.num_hidden_layers):
            p = f"layers.{l}."
            if l in s.engram_layer_ids:
                x = self._engram(x, l)
            if self.features is not None and l in s.dspark_target_layer_ids:
                features.append(x.float().mean(-2).to(m.dtype))
            u, own, post, c = m.site_in(x, pre, p, "hc_attn", "attn_norm.weight")
            x, pre = blocks.expand(x, self._attention(l, u, shared, angles), post, c), own
            x, pre, _ = m.ffn(x, pre, p, s.num_experts_per_tok)
        hidden = blocks.rms(blocks.collapse(x, pre), w["norm.weight"], s.rms_norm_eps)
        if self.features is not None:
            self.features.index_copy_(1, self.at, torch.cat(features, -1).unsqueeze(1))
            self.final.index_copy_(1, self.at, hidden.unsqueeze(1))
        return hidden

    @torch.no_grad()
    def _step(self):
        token = self.ids.index_select(1, self.at).squeeze(1)
        self.start.copy_(torch.where(token == self.specials.bos, self.at, self.start))
        self.begin.index_copy_(1, self.at, self.start[:, None].int())
        logits = (self._hidden(token) @ self.m.w["head.weight"].t()).float()
        drawn = keyed(logits, self.temperature, gumbel(logits.shape, logits.device))
        if self.restart:
            fresh = (token == self.specials.eos) & self.made.index_select(1, self.at).squeeze(1)
            fresh |= (token == self.specials.eos) & (self.offset - self.sizes[self.which] > self.restart)
            self.which.copy_(torch.where(fresh, (self.which + self.count) % len(self.sizes), self.which))
            self.offset.copy_(torch.where(fresh, 0, self.offset))
        given = self.sizes[self.which]
        own = self.offset >= given
        place = self.offset.clamp(max=self.pool.shape[1] - 1)
        after = torch.where(own, drawn, self.pool[self.which, place].long())
        if self.restart:
            late = self.offset - given >= self.restart
            after = torch.where(late, self.specials.eos, after)
            own = own & ~late
        self.ids.index_copy_(1, self.at + 1, after[:, None])
        self.made.index_copy_(1, self.at + 1, own[:, None])
        self.offset.add_(1)
        self.at.add_(1)

    def _capture(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._step()
            self.graph = graph
        except Exception as problem:
            print(f"rollout: no CUDA graph ({problem})", flush=True)
            torch.cuda.synchronize()

    def write(self, pool, sizes, temperature, restart=0, first=0):
        """Fills all rows: row i begins with prompt (first + i) of the pool. Returns the ids [count, length].

        pool [P, longest] ids of which `sizes` [P] are given, temperature [count] (0 = greedy), P >= count. restart: the
        tokens after which an answer is cut and the next prompt follows; 0: one document a row, continued to the end.
        A prompt that does not begin with <bos> goes on with the row's conversation.
        """
        if self.pool is None or self.pool.shape != pool.shape or self.restart != restart:
            self.graph = None
            self.pool, self.sizes, self.restart = pool.clone(), sizes.clone(), restart
        self.pool.copy_(pool)
        self.sizes.copy_(sizes)
        self.temperature.copy_(temperature)
        if self.wants_graph and self.graph is None:
            self._begin(first)
            self._capture()
        self._begin(first)
        for _ in range(self.length - 1):
            self.graph.replay() if self.graph else self._step()
        return self.ids

    def _begin(self, first):
        self.at.zero_()
        self.start.zero_()
        self.made.zero_()
        self.which.copy_((first + torch.arange(self.count, device=self.which.device)) % len(self.sizes))
        self.offset.fill_(1)
        self.ids[:, 0] = self.pool[self.which, 0].long()


def prompts_from(tokens, specials, count, slot, generator):
    """Beginnings of documents: ids [count, slot] and how many are given (a third to a half of the slot, at most).

    tokens: flat ids on the device. A chat's prompt ends before the answer; other text is cut at 4 to 32 tokens.
    """
    begins = (tokens[:-slot - 1] == specials.bos).nonzero().flatten()
    if not len(begins):
        begins = (tokens[:-slot - 1] == specials.eos).nonzero().flatten() + 1
    pick = begins[torch.randint(len(begins), (count,), generator=generator).to(begins.device)]
    ids = tokens[pick[:, None] + torch.arange(slot, device=tokens.device)].long()
    cut = torch.randint(4, 33, (count,), generator=generator).to(ids.device).clamp(max=slot // 2)
    if specials.answer is not None:
        place = torch.arange(slot, device=ids.device)
        first = torch.where(ids == specials.answer, place, slot).amin(1) + 1
        cut = torch.where(first <= slot // 2, first, cut)
    return ids, cut
