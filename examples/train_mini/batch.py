"""A batch of documents being written by the teacher, one token of every row a step, the whole step in a CUDA graph.

Each row follows its own script: segments of forced tokens (prompt parts), each followed by free tokens up to the end of
the turn. A finished row waits until the host takes it out and puts the next script in; the others go on.
"""

import math

import numpy as np
import torch

import teacher as T

MAX_SEGMENTS = 8
RUNNING, FINISHED, TOO_LONG = 0, 1, 2


class Batch:
    """`rows` rows of `slots` tokens. All rows share the tokens `prefix`, computed once.

    A script is (segments, caps, temperature, cut): lists of at most MAX_SEGMENTS token lists and limits of free tokens,
    the sampling temperature, and whether an empty line ends a turn once it has 12 tokens. Such a document is given up
    when a line ends in a colon instead: a list follows, which would be cut after its first entry.
    """

    def __init__(self, model, tokenizer, prefix, rows, slots, device, min_p=0.06, seed=0, fast=False):
        self.m, self.slots, self.rows, self.device, self.fast = model, slots, rows, device, fast
        self.log_min_p, self.min_p = math.log(min_p), min_p
        self.start = len(prefix)
        self.cache = T.Cache(model, rows, slots, device)
        z = lambda *shape, kind=torch.int32: torch.zeros(*shape, dtype=kind, device=device)
        self.pos, self.turn, self.turns, self.taken = z(rows), z(rows), z(rows), z(rows)
        self.free, self.status = z(rows), torch.full((rows,), FINISHED, dtype=torch.int32, device=device)
        self.current = z(rows, kind=torch.int64)
        self.queue = z(rows, slots, kind=torch.int64)
        self.ends, self.caps = z(rows, MAX_SEGMENTS), z(rows, MAX_SEGMENTS)
        self.out = z(rows, slots, kind=torch.int64)
        self.temperature = torch.ones(rows, device=device)
        self.cut = z(rows, kind=torch.bool)
        self.seed = torch.full((1,), seed * 1_000_003 + 1, dtype=torch.int64, device=device)
        self.generator = torch.Generator(device).manual_seed(seed)
        text = [tokenizer.id_to_token(i) for i in range(model.embed.shape[0])]
        flag = lambda test: torch.tensor([test(s) for s in text], device=device)
        self.is_gap = flag(lambda s: s.startswith("ĊĊ"))  # Ċ is the byte-level spelling of a line feed
        self.is_line = flag(lambda s: s.endswith("Ċ"))
        self.is_colon = flag(lambda s: s.endswith(":"))
        self.graph = None
        for i, token in enumerate(prefix):
            pos = torch.full((rows,), i, dtype=torch.int32, device=device)
            T.step(model, self.cache, torch.full((rows,), token, dtype=torch.int64, device=device), pos, fast)

    def put(self, index, scripts):
        """Starts `scripts` in the rows `index` (numpy), which must not be running."""
        n = len(index)
        queue = np.zeros((n, self.slots), np.int64)
        ends, caps = np.zeros((n, MAX_SEGMENTS), np.int32), np.zeros((n, MAX_SEGMENTS), np.int32)
        small = np.zeros((n, 3), np.float32)
        for r, (segments, limits, temperature, cut) in enumerate(scripts):
            flat = [t for s in segments for t in s][: self.slots]
            queue[r, : len(flat)] = flat
            ends[r, : len(segments)] = np.cumsum([len(s) for s in segments])
            caps[r, : len(limits)] = limits
            small[r] = len(segments), temperature, cut
        at = torch.from_numpy(index).to(self.device)
        move = lambda a: torch.from_numpy(a).to(self.device)
        queue, small = move(queue), move(small)
        self.queue[at], self.ends[at], self.caps[at] = queue, move(ends), move(caps)
        self.current[at] = queue[:, 0]
        self.turns[at], self.temperature[at], self.cut[at] = small[:, 0].int(), small[:, 1], small[:, 2] > 0
        self.pos[at] = self.start
        self.taken[at] = 1
        self.turn[at], self.free[at], self.status[at] = 0, 0, RUNNING

    def take(self):
        """(index, status, lengths, tokens [n, slots]) of the rows that are not running, on the host."""
        status = self.status.cpu()
        index = status.nonzero()[:, 0]
        if not len(index):
            return index.numpy(), None, None, None
        at = index.to(self.device)
        length = (self.pos[at] - self.start).cpu().numpy()
        tokens = self.out[at][:, self.start :].cpu().numpy()
        return index.numpy(), status[index].numpy(), length, tokens

    @torch.no_grad()
    def _step(self):
        logits = T.step(self.m, self.cache, self.current, self.pos, self.fast)
        if self.fast:
            import teacher_kernels

            drawn = teacher_kernels.sample(logits, self.temperature, self.log_min_p, self.seed)
        else:
            drawn = T.sample(logits, self.temperature, self.min_p, self.generator)
        running = self.status == RUNNING
        at = self.pos.long()[:, None]
        self.out.scatter_(1, at, torch.where(running[:, None], self.current[:, None], self.out.gather(1, at)))
        turn = self.turn.long().clamp(max=MAX_SEGMENTS - 1)[:, None]
        end, cap = self.ends.gather(1, turn)[:, 0], self.caps.gather(1, turn)[:, 0]
        forced = self.taken < end
        queued = self.queue.gather(1, self.taken.long().clamp(max=self.slots - 1)[:, None])[:, 0]
        gap = self.is_gap[drawn] | (self.is_line[drawn] & self.is_line[self.current])
        gap &= self.cut & ~forced
        listed = gap & self.is_colon[self.current]
        drawn = torch.where(gap & ~listed & (self.free >= 12), T.END_OF_TURN, drawn)
        ended = running & ~forced & (drawn == T.END_OF_TURN)
        self.free.copy_(torch.where(forced | ended, 0, self.free + 1))
        self.taken += (forced & running).int()
        self.turn += ended.int()
        last = ended & (self.turn >= self.turns)
        long = running & ~last & (listed | (self.pos + 2 >= self.slots) | (self.free > cap))
        status = torch.where(last, FINISHED, torch.where(long, TOO_LONG, self.status))
        self.status.copy_(torch.where(running, status, self.status))
        self.current.copy_(torch.where(running, torch.where(forced, queued, drawn), self.current))
        self.pos += running.int()
        self.pos.clamp_(max=self.slots - 1)
        self.seed += 1

    def capture(self):
        """Puts the step into a CUDA graph. Rows must not hold documents yet."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        self.graph = graph
        self.status.fill_(FINISHED)

    def steps(self, n):
        for _ in range(n):
            if self.graph is not None:
                self.graph.replay()
            else:
                self._step()
