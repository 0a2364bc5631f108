"""Lets the teacher write documents: python generate.py --teacher FILE.gguf --out DIR --seconds 300 [--gpu 0 --seed 0].

Scripts come from topics.py in processes of their own, finished documents are turned into text, filtered and written as
JSON lines {"kind", "messages": [{"role", "content"}]} by others; this process only keeps the device busy. Files are
DIR/gGPU-wWRITER-NNN.jsonl, each complete once it has that name (a file being written ends in .part).
"""

import argparse
import json
import multiprocessing as mp
import os
import queue
import random
import time

import filters
import topics

BEGIN, END = "<|im_start|>", "<|im_end|>"
HEAT = {"story": 1.45, "write": 1.25, "free": 1.5}  # times --heat
ENDINGS = ["In the end,", "From that day on,", "And so", "That night,", "At last,", "Finally,", "After that,",
"And from then on,"]
SHARD_BYTES = 8_000_000


def script(tokenizer, plan, rng, heat):
    """The plan as the batch wants it. Answers end with their first paragraph, mostly; stories go on to the end of a
    later paragraph and get a last one that is told how to begin."""
    parts, rest, text = [], [], ""
    story = plan["kind"] == "story"
    short = plan["kind"] not in ("story", "write") and rng.random() < 0.9
    for role, content in plan["turns"]:
        text += f"{BEGIN}{role}\n"
        if content is not None:
            text += content + END + "\n"
            continue
        parts.append(text)
        if role == "user":
            rest.append((60, 0, 0))
        else:
            rest.append((330, rng.randrange(60, 150), 0) if story else (180, 12 if short else 0, 0))
        if story and role == "assistant" and len(parts) < 3:
            parts.append("\n\n" + rng.choice(ENDINGS))
            rest.append((150, 12, 1))
        text = "\n"
    segments = [(e.ids, *r) for e, r in zip(tokenizer.encode_batch(parts), rest)]
    return segments, heat * (HEAT.get(plan["kind"], 0.9) + 0.2 * (rng.random() - 0.5)), short


def planner(path, seed, out, block, heat):
    """Process: puts lists of (kind, script) into `out` for ever."""
    import teacher

    tokenizer = teacher.load_tokenizer(path)
    rng = random.Random(seed)
    while True:
        plans = [topics.plan(rng) for _ in range(block)]
        out.put([(p["kind"], script(tokenizer, p, rng, heat)) for p in plans])


def parse(text, finished):
    """Messages of a generated text. An unfinished last answer is dropped together with its question."""
    messages = []
    for part in text.split(BEGIN)[1:]:
        head, newline, body = part.partition("\n")
        body, end, _ = body.partition(END)
        messages.append({"role": head, "content": body.strip(), "end": bool(end)})
    if not finished and messages and messages[-1]["role"] != "user":
        messages = messages[:-1]
    if messages and messages[-1]["role"] == "user":
        messages = messages[:-1]
    return [{"role": m["role"], "content": m["content"]} for m in messages]


def writer(path, stem, source, counts):
    """Process: takes (kinds, finished, lengths, tokens) until None; writes what the filters let pass."""
    import teacher

    tokenizer = teacher.load_tokenizer(path)
    number, file, size = 0, None, 0
    while True:
        item = source.get()
        if file is None and item is not None:
            file, size = open(f"{stem}-{number:03d}.jsonl.part", "w", encoding="utf-8"), 0
        if item is not None:
            kinds, finished, lengths, tokens = item
            texts = tokenizer.decode_batch(
                [t[:n].tolist() for t, n in zip(tokens, lengths)], skip_special_tokens=False
            )
            lines = []
            for kind, ok, text in zip(kinds, finished, texts):
                messages = parse(text, ok)
                if filters.reason(kind, messages) is None:
                    lines.append(json.dumps({"kind": kind, "messages": messages}, ensure_ascii=False))
            data = "".join(line + "\n" for line in lines)
            file.write(data)
            size += len(data)
            with counts.get_lock():
                counts[0] += len(kinds)
                counts[1] += len(lines)
                counts[2] += len(data)
        if file is not None and (item is None or size > SHARD_BYTES):
            file.close()
            os.rename(f"{stem}-{number:03d}.jsonl.part", f"{stem}-{number:03d}.jsonl")
            number, file = number + 1, None
        if item is None:
            return


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--teacher", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--seconds", type=float, default=300, help="time of generation proper")
    a.add_argument("--device", default="cuda")
    a.add_argument("--gpu", type=int, default=0)
    a.add_argument("--seed", type=int, default=0)
    a.add_argument("--rows", type=int, default=4096)
    a.add_argument("--slots", type=int, default=512)
    a.add_argument("--poll", type=int, default=16, help="steps between two looks at finished rows")
    a.add_argument("--system", default=topics.SYSTEM, help="the teacher's system message")
    a.add_argument("--heat", type=float, default=0.5, help="temperature, roughly; stories are hotter")
    a.add_argument("--min-p", type=float, default=0.1, help="tokens below this share of the best one are not drawn")
    a.add_argument("--writers", type=int, default=4)
    a.add_argument("--planners", type=int, default=2)
    a.add_argument("--no-graph", action="store_true")
    a.add_argument("--no-kernels", action="store_true", help="plain PyTorch instead of the Triton kernels")
    a.add_argument("--stop-file", help="ends early once this file exists")
    a = a.parse_args()
    os.makedirs(a.out, exist_ok=True)
    spawn = mp.get_context("spawn")
    plans, done = spawn.Queue(24), spawn.Queue(64)
    counts = spawn.Array("q", 3)
    helpers = [
        spawn.Process(target=planner, args=(a.teacher, 1000 * (a.seed + 1) + i, plans, 256, a.heat), daemon=True)
        for i in range(a.planners)
    ]
    stem = lambda i: os.path.join(a.out, f"g{a.gpu}-w{i}")
    writers = [spawn.Process(target=writer, args=(a.teacher, stem(i), done, counts)) for i in range(a.writers)]
    for p in helpers + writers:
        p.start()
    try:
        run(a, plans, done, counts)
    finally:
        for _ in writers:
            done.put(None)
        for p in writers:
            p.join()
        for p in helpers:
            p.terminate()
    print(f"end: documents {counts[0]}, kept {counts[1]}, megabytes {counts[2] / 1e6:.1f}", flush=True)


def run(a, plans, done, counts):
    import torch

    import batch
    import teacher

    cuda = a.device == "cuda"
    device = torch.device("cuda", a.gpu) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    model = teacher.load(a.teacher, device, torch.bfloat16 if cuda else torch.float32)
    tokenizer = teacher.load_tokenizer(a.teacher)
    fast = cuda and not a.no_kernels
    if fast:
        import teacher_kernels

        teacher_kernels.check(model, device)
    prefix = tokenizer.encode(f"{BEGIN}system\n{a.system}{END}\n").ids
    b = batch.Batch(model, tokenizer, prefix, a.rows, a.slots, device, a.min_p, a.seed, fast)
    if cuda and not a.no_graph:
        b.capture()
    print(f"ready: {a.rows} rows, kernels {fast}, graph {b.graph is not None}", flush=True)
    kinds = [None] * a.rows
    pool = []
    started = shown = time.monotonic()
    steps = shown_steps = tokens_out = shown_tokens = 0
    while time.monotonic() - started < a.seconds and not (a.stop_file and os.path.exists(a.stop_file)):
        index, status, lengths, tokens = b.take()
        if len(index):
            while len(pool) < len(index):
                pool += plans.get()
            fresh, pool = pool[: len(index)], pool[len(index) :]
            old = [kinds[i] for i in index]
            b.put(index, [s for _, s in fresh])
            for i, (kind, _) in zip(index, fresh):
                kinds[i] = kind
            if old[0] is not None or any(k is not None for k in old):
                tokens_out += int(lengths.sum())
                done.put((old, status == batch.FINISHED, lengths, tokens.astype("uint16")))
        b.steps(a.poll)
        steps += a.poll
        now = time.monotonic()
        if now - shown > 5:
            rate = (tokens_out - shown_tokens) / (now - shown)
            print(
                f"{now - started:6.1f} s: {1e3 * (now - shown) / (steps - shown_steps):.2f} ms/step, {rate / 1e3:.1f} k"
                f" tokens/s finished, documents {counts[0]}, kept {counts[1]}, {counts[2] / 1e6:.1f} MB", flush=True
            )
            shown, shown_steps, shown_tokens = now, steps, tokens_out


if __name__ == "__main__":
    main()
