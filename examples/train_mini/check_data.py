"""Proof of the data part without a teacher and without a GPU: python check_data.py [SEED].

The device's bookkeeping of batch.py against a plain retelling of the same draws; the marks of dedup.py; the encoding of
pack.py. With TRITON_INTERPRET=1 also the teacher's kernels against the plain step, on a random model.
"""

import os
import random
import sys

import numpy as np
import torch

import batch
import dedup
import teacher

ROWS, SLOTS, PREFIX, VOCABULARY = 40, 64, 3, 60
GAP, COLON, LINE = 30, 31, 32


class Spellings:
    """A tokenizer that only knows what its tokens look like."""

    def id_to_token(self, i):
        return {GAP: "ĊĊ", COLON: "x:", LINE: "Ċ"}.get(i, f"t{i}")


def random_script(rng):
    segments = []
    for i in range(rng.randint(1, 5)):
        tail = int(i > 0 and not segments[-1][3] and rng.random() < 0.4)
        forced = [rng.randint(33, 59) for _ in range(rng.randint(1, 4))]
        segments.append((forced, rng.randint(10, 60), rng.choice([0, 2, 3]), tail))
    return segments, 1.0, rng.random() < 0.5


def retell(script, draws):
    """(tokens, status) of one row that drew `draws`, one rule after the other."""
    segments, _, no_lists = script
    out, turn, free, position, queue = [], 0, 0, PREFIX, list(segments[0][0])
    current = queue.pop(0)
    for drawn in draws:
        out.append(current)
        status, following = batch.RUNNING, None
        if queue:
            following, free = queue.pop(0), 0
        else:
            _, cap, after, _ = segments[turn]
            gap = drawn == GAP or (drawn == LINE and current in (GAP, LINE))
            listed = gap and no_lists and current == COLON
            cut = gap and not listed and 0 < after <= free
            tail = turn + 1 < len(segments) and segments[turn + 1][3]
            if cut and tail:
                turn, free, queue = turn + 1, 0, list(segments[turn + 1][0])
                following = queue.pop(0)
            elif cut or drawn == teacher.END_OF_TURN:
                turn, free, following = turn + (2 if tail else 1), 0, teacher.END_OF_TURN
                if turn >= len(segments):
                    return out, batch.FINISHED
                queue = list(segments[turn][0])
            else:
                following, free = drawn, free + 1
            if listed or free > cap:
                status = batch.TOO_LONG
        if status == batch.TOO_LONG or position + 2 >= SLOTS:
            return out, batch.TOO_LONG
        position, current = position + 1, following
    raise AssertionError("a row did not end")


def check_batch(seed):
    rng = random.Random(seed)
    kinds, draws = [teacher.END_OF_TURN, GAP, COLON, LINE, LINE, *range(33, VOCABULARY)], []

    def draw(*_):
        draws.append([rng.choice(kinds) for _ in range(ROWS)])
        return torch.tensor(draws[-1])

    class Empty:
        def __init__(self, *_):
            self.embed = torch.zeros(VOCABULARY, 1)

    real = teacher.step, teacher.Cache, teacher.sample
    teacher.step, teacher.Cache, teacher.sample = (lambda m, cache, tokens, pos, fast: tokens), Empty, draw
    try:
        b = batch.Batch(Empty(), Spellings(), [5, 6, 7], ROWS, SLOTS, "cpu")
        scripts = [random_script(rng) for _ in range(ROWS)]
        b.put(np.arange(ROWS), scripts)
        b.steps(SLOTS)
        rows, status, lengths, tokens = b.take()
    finally:
        teacher.step, teacher.Cache, teacher.sample = real
    assert len(rows) == ROWS, "rows still run"
    for r in range(ROWS):
        told, how = retell(scripts[r], [d[r] for d in draws])
        assert status[r] == how and tokens[r][: lengths[r]].tolist() == told, f"seed {seed}, row {r}"
    print(f"batch: {ROWS} rows as retold, {int((status == batch.FINISHED).sum())} of them finished")


def check_dedup():
    a = " ".join(f"w{i}" for i in range(400))
    near = a + " and a little more"
    other = " ".join(f"v{i}" for i in range(400))
    hashes = [dedup.runs(t) for t in (a, near, other)]
    assert len(hashes[0]) > 20 and np.isin(hashes[1], hashes[0]).mean() > 0.9 and not np.isin(hashes[2], hashes[0]).any()
    assert dedup.again(np.array([3, 1, 3, 2, 1])).tolist() == [False, False, True, False, True]
    print("dedup: near texts share their runs, others none")


def check_kernels():
    import teacher_kernels

    torch.manual_seed(0)
    some = lambda *shape: torch.randn(*shape) * shape[-1] ** -0.5
    layer = lambda: teacher.Layer(
        torch.rand(576) + 0.5, some(960, 576), some(576, 576), torch.rand(576) + 0.5, some(3072, 576), some(576, 1536)
    )
    m = teacher.Teacher(576, 9, 3, 64, 1536, 1e-5, 1e5, some(300, 576) * 20, torch.rand(576) + 0.5, [layer(), layer()])
    teacher_kernels.check(m, "cpu", rows=2, slots=100, first=60, length=9)
    logits, heat = (torch.randn(1, 300) * 1.5).repeat(2000, 1), torch.full((2000,), 0.8)
    drawn = teacher_kernels.sample(logits, heat, float(np.log(0.06)), torch.tensor([5]))
    plain = teacher.sample(logits, heat, 0.06, torch.Generator().manual_seed(1))
    share = lambda x: torch.bincount(x, minlength=300) / len(x)
    distance = float((share(drawn) - share(plain)).abs().sum() / 2)
    assert distance < 0.1, distance
    print(f"kernels: two samples of 2,000 draws differ by {distance:.3f}")


if __name__ == "__main__":
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    torch.set_num_threads(1)
    print("seed", seed)
    for s in range(seed, seed + 5):
        check_batch(s)
    check_dedup()
    if os.environ.get("TRITON_INTERPRET"):
        check_kernels()
