#!/usr/bin/env python3
"""Streaming requests with random cancels against a running cluster, then the books are checked.

Run by `troupe up --then`, which sets TROUPE_URL, TROUPE_MODEL and TROUPE_RUN_DIR:
  load_test.py TROUPE_PROGRAM [--requests N] [--concurrency N] [--seed N]

Checks: every stream that was not cancelled ends with one finish and [DONE]; the same prompt and seed give the same text
whatever ran beside it; at the end no request is running, free pages are all pages on every rank, every request has an end
in the metrics, and no process grew (resident memory at the end at most 5 % above that at 20 % of the run).
"""
import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from urllib.parse import urlparse

failures = []


def check(ok, text):
    if not ok:
        failures.append(text)
        print(f"FAILED: {text} (seed {args.seed})", flush=True)


async def exchange(method, path, body=None):
    """One request on a connection of its own; returns the reader behind the header, the status and the writer."""
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    payload = json.dumps(body).encode() if body is not None else b""
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
                 f"Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
    await writer.drain()
    head = await reader.readuntil(b"\r\n\r\n")
    return reader, writer, int(head.split(b" ", 2)[1])


async def stream(request, cancel_after):
    """Reads a stream; leaves after `cancel_after` events (None: never). Returns (text, finish reasons, done, usage)."""
    reader, writer, status = await exchange("POST", "/v1/completions", request)
    try:
        if status != 200:
            return (await reader.read()).decode(errors="replace"), [f"http {status}"], False, None
        text, finishes, done, usage, events = "", [], False, None, 0
        while True:
            if cancel_after is not None and events >= cancel_after:
                return text, finishes, None, usage
            line = await asyncio.wait_for(reader.readline(), 120)
            if not line:
                break
            if not line.startswith(b"data: "):
                continue
            data = line[6:].strip()
            if data == b"[DONE]":
                done = True
                continue
            event = json.loads(data)
            events += 1
            if "error" in event:
                finishes.append("error " + event["error"]["message"])
            for choice in event.get("choices", []):
                text += choice.get("text", "")
                if choice.get("finish_reason"):
                    finishes.append(choice["finish_reason"])
            usage = event.get("usage") or usage
        return text, finishes, done, usage
    finally:
        writer.close()


def status():
    out = subprocess.run([args.troupe, "status", "--json", "--run-dir", os.environ["TROUPE_RUN_DIR"]],
                         capture_output=True, text=True, timeout=60)
    check(out.returncode == 0, f"troupe status: {out.stderr}")
    return json.loads(out.stdout)


def memory():
    """Resident bytes by process name."""
    with open(os.path.join(os.environ["TROUPE_RUN_DIR"], "cluster.json")) as f:
        cluster = json.load(f)
    sizes = {}
    for p in cluster["processes"]:
        with open(f"/proc/{p['pid']}/statm") as f:
            sizes[p["name"]] = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return sizes


def request_of(i):
    r = random.Random(args.seed * 1000003 + i % (args.requests // 4))  # every request comes four times
    return {"model": os.environ["TROUPE_MODEL"], "stream": True, "stream_options": {"include_usage": True},
            "prompt": [3 + r.randrange(256) for _ in range(1 + r.randrange(120))],
            "max_tokens": 1 + r.randrange(40), "temperature": r.choice([0, 0.8]), "seed": r.randrange(1 << 30),
            "ignore_eos": r.random() < 0.5}


async def idle():
    """Waits until nobody has a request any more; returns the last status."""
    for _ in range(600):
        s = status()
        roles = [x for n in s["nodes"] for x in n["roles"]]
        if all(x["running"] == 0 and x.get("waiting", 0) == 0 for x in roles) and \
           all(x["pages"]["free"] == x["pages"]["total"] for x in roles if "pages" in x):
            return s
        await asyncio.sleep(0.1)
    return s


async def main():
    draw = random.Random(args.seed)
    cancels = [draw.randrange(0, 12) if draw.random() < 0.3 else None for _ in range(args.requests)]
    outputs, cancelled, finished = {}, 0, 0
    gate = asyncio.Semaphore(args.concurrency)
    before = None
    count = 0

    async def one(i):
        nonlocal cancelled, finished, before, count
        async with gate:
            text, finishes, done, usage = await stream(request_of(i), cancels[i])
        count += 1
        if count == args.requests // 5:
            before = memory()
        if count % 100 == 0:
            print(f"{count} of {args.requests} requests ended", file=sys.stderr, flush=True)
        if done is None:
            cancelled += 1
            return
        finished += 1
        check(done and len(finishes) == 1 and finishes[0] in ("stop", "length"),
              f"request {i} ended with {finishes}, [DONE] {done}: {text[:200]}")
        check(usage is not None and usage["prompt_cache_hit_tokens"] + usage["prompt_cache_miss_tokens"]
              == usage["prompt_tokens"] == len(request_of(i)["prompt"]), f"request {i}: usage {usage}")
        key = i % (args.requests // 4)
        check(outputs.setdefault(key, text) == text, f"prompt {key} gave two texts")

    started = time.monotonic()
    await asyncio.gather(*(one(i) for i in range(args.requests)))
    took = time.monotonic() - started

    s = await idle()
    for n in s["nodes"]:
        for role in n["roles"]:
            check(role["running"] == 0, f"{role['seat']} still runs {role['running']}")
            if "pages" in role:
                pages, rank = role["pages"], role["rank"]
                check(pages["free"] == pages["total"] and pages["reserved"] == 0, f"{role['seat']}: pages {pages}")
                check(rank["pages_free"] + rank["pages_owned"] == rank["pages_total"] and rank["pages_owned"] == 0
                      and rank["slots_open"] == 0, f"{role['seat']}: rank {rank}")
    after = memory()
    for name, size in after.items():
        check(size <= before[name] * 1.05, f"{name} grew from {before[name]} to {size} bytes")

    reader, writer, code = await exchange("GET", "/metrics")
    metrics = (await reader.read()).decode()
    writer.close()
    ended = sum(float(x) for x in re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", metrics, re.M))
    check(ended == args.requests, f"{ended} of {args.requests} requests have an end in the metrics")
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
        value = re.search(rf"^{name}\{{.*\}} (\S+)$", metrics, re.M)
        check(value and float(value[1]) == 0, f"{name} is {value and value[1]}")
    growth = max(after[n] / before[n] for n in after)
    print(f"{args.requests} requests in {took:.1f} s, {finished} finished, {cancelled} cancelled, {len(failures)} failures; "
          f"resident memory at most x{growth:.3f} since 20 %")


parser = argparse.ArgumentParser()
parser.add_argument("troupe")
parser.add_argument("--requests", type=int, default=1000)
parser.add_argument("--concurrency", type=int, default=48)
parser.add_argument("--seed", type=int, default=None)
args = parser.parse_args()
if args.seed is None:
    args.seed = int.from_bytes(os.urandom(4), "big")
url = urlparse(os.environ["TROUPE_URL"])
print(f"seed {args.seed}", flush=True)
asyncio.run(main())
sys.exit(1 if failures else 0)
