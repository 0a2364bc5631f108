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

    A script is (segments, temperature, no_lists). A segment is (tokens, cap, after, tail): forced tokens, the most free
    tokens, from how many free tokens on an empty line ends the turn (0: never), and whether this segment continues the
    turn before it where an empty line ended that one; where the turn ended by itself, a tail is skipped. With no_lists a
    document is given up when an empty line follows a colon: a list begins, which would be cut after its first entry.
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
        self.ends, self.caps, self.after, self.tail = (z(rows, MAX_SEGMENTS) for _ in range(4))
        self.out = z(rows, slots, kind=torch.int64)
        self.temperature = torch.ones(rows, device=device)
        self.no_lists = z(rows, kind=torch.bool)
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
        parts = np.zeros((4, n, MAX_SEGMENTS), np.int32)
        small = np.zeros((n, 3), np.float32)
        for r, (segments, temperature, no_lists) in enumerate(scripts):
            flat = [t for s in segments for t in s[0]][: self.slots]
            queue[r, : len(flat)] = flat
            parts[0, r, : len(segments)] = np.cumsum([len(s[0]) for s in segments])
            parts[1:, r, : len(segments)] = np.array([s[1:] for s in segments]).T
            small[r] = len(segments), temperature, no_lists
        at = torch.from_numpy(index).to(self.device)
        queue, parts, small = (torch.from_numpy(x).to(self.device) for x in (queue, parts, small))
        self.queue[at] = queue
        self.ends[at], self.caps[at], self.after[at], self.tail[at] = parts
        self.current[at] = queue[:, 0]
        self.turns[at], self.temperature[at], self.no_lists[at] = small[:, 0].int(), small[:, 1], small[:, 2] > 0
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
        turn = self.turn.long().clamp(max=MAX_SEGMENTS - 2)[:, None]
        end, cap, after = (x.gather(1, turn)[:, 0] for x in (self.ends, self.caps, self.after))
        tail = (self.tail.gather(1, turn + 1)[:, 0] > 0) & (self.turn + 1 < self.turns)
        forced = self.taken < end
        queued = self.queue.gather(1, self.taken.long().clamp(max=self.slots - 1)[:, None])[:, 0]
        free = running & ~forced
        gap = free & (self.is_gap[drawn] | (self.is_line[drawn] & self.is_line[self.current]))
        listed = gap & self.no_lists & self.is_colon[self.current]
        cut = gap & ~listed & (after > 0) & (self.free >= after)
        natural = free & (drawn == T.END_OF_TURN)
        ended = cut | natural
        go_on, skip = cut & tail, natural & tail
        self.turn += ended.int() + skip.int()
        last = ended & ~go_on & (self.turn >= self.turns)
        from_queue = (running & forced) | go_on
        self.taken.copy_(torch.where(skip, self.ends.gather(1, turn + 1)[:, 0], self.taken + from_queue.int()))
        self.free.copy_(torch.where(forced | ended, 0, self.free + 1))
        long = running & ~last & (listed | (self.pos + 2 >= self.slots) | (self.free > cap))
        status = torch.where(last, FINISHED, torch.where(long, TOO_LONG, self.status))
        self.status.copy_(torch.where(running, status, self.status))
        drawn = torch.where(from_queue, queued, torch.where(ended, T.END_OF_TURN, drawn))
        self.current.copy_(torch.where(running, drawn, self.current))
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
