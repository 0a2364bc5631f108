#!/usr/bin/env python3
"""A long load with random cancels and slow clients against a running cluster: the books stay exact, memory stays flat.

Run by `troupe up --then`, which sets TROUPE_URL, TROUPE_MODEL and TROUPE_RUN_DIR:
  soak_test.py TROUPE_PROGRAM [--seconds N] [--concurrency N] [--seed N]

20 seconds, and 30 minutes with TROUPE_LONG=1. `troupe bench serve` makes the load. Checks: no request fails; on every
look free + owned = total pages of every rank; at the end nothing is owned, leased, offered or waited for, every
hand-over that began has one end, and the streams' sums hold; no process is larger in the last fifth of the run than 5 %
above its size when a fifth was over (2 MiB are always allowed).
"""
import argparse
import json
import os
import subprocess
import sys
import time

failures = []


def check(ok, text):
    if not ok:
        failures.append(text)
        print(f"FAILED: {text} (seed {args.seed})", flush=True)


def status():
    """The cluster's picture; a machine that is too busy to answer is asked again."""
    deadline = time.monotonic() + 120
    while True:
        out = subprocess.run([args.troupe, "status", "--json"], capture_output=True, text=True, timeout=300)
        if out.returncode == 0:
            return json.loads(out.stdout)
        if time.monotonic() > deadline:
            raise RuntimeError(f"troupe status: {out.stderr}")


def ranks(s):
    """Seat and role of every rank that answered."""
    return [(r["seat"], r) for n in s["nodes"] for r in n["roles"] if "rank" in r]


def memory():
    """Resident bytes by process name."""
    with open(os.path.join(os.environ["TROUPE_RUN_DIR"], "cluster.json")) as f:
        cluster = json.load(f)
    sizes = {}
    for p in cluster["processes"]:
        with open(f"/proc/{p['pid']}/statm") as f:
            sizes[p["name"]] = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return sizes


def check_pages(s):
    for seat, r in ranks(s):
        k = r["rank"]
        check(k["pages_free"] + k["pages_owned"] == k["pages_total"], f"{seat}: pages {k}")


def left_over(s):
    """What somebody still holds, in words."""
    out = []
    for n in s["nodes"]:
        for r in n["roles"]:
            for key in ("running", "waiting", "leased", "fetching"):
                if r.get(key, 0) != 0:
                    out.append(f"{r['seat']}: {key} {r[key]}")
    for seat, r in ranks(s):
        k, t = r["rank"], r["transfers"]
        if k["pages_owned"] != 0 or k["slots_open"] != 0 or k["plans_open"] != 0:
            out.append(f"{seat}: {k}")
        if t["offered"] + t["sending"] + t["fetching"] != 0 or t["places_free"] != t["places"]:
            out.append(f"{seat}: {t}")
    return out


def check_end():
    """Waits until nothing is held any more, then checks that every hand-over has one end."""
    deadline = time.monotonic() + 60
    while True:
        s = status()
        check_pages(s)
        left = left_over(s)
        if not left or time.monotonic() > deadline:
            break
    check(not left, f"left over: {left}")
    pulled = 0
    for seat, r in ranks(s):
        t = r["transfers"]
        check(t["out"] == t["out_done"] + t["out_expired"] + t["out_dropped"], f"{seat}: hand-overs {t}")
        check(t["in"] == t["in_done"] + t["in_failed"] + t["in_dropped"], f"{seat}: hand-overs {t}")
        pulled += t["in_done"]
    check(pulled > 0, "no sequence was handed over")
    return s


def main():
    load = subprocess.Popen(
        [args.troupe, "bench", "serve", "--duration", str(args.seconds), "--concurrency", str(args.concurrency),
         "--input-tokens", "1-160", "--output-tokens", "1-60", "--temperature", "0.8", "--cancel-share", "0.3",
         "--slow-client-share", "0.1", "--seed", str(args.seed)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True)
    try:
        watch(load)
    finally:
        load.kill()  # whatever goes wrong here, it does not go on alone


def watch(load):
    began, sizes, looks = time.monotonic(), [], 0
    while load.poll() is None and time.monotonic() - began < args.seconds + 120:
        share = (time.monotonic() - began) / args.seconds
        if share <= 1:
            sizes.append((share, memory()))
        check_pages(status())
        looks += 1
        try:
            load.wait(timeout=1 if args.seconds < 100 else 5)
        except subprocess.TimeoutExpired:
            pass
    if load.poll() is None:
        load.kill()
        check(False, "the load did not end")
    report = json.loads(load.communicate()[0])
    requests, tokens = report["requests"], report["tokens"]
    check(load.returncode == 0 and requests["failed"] == 0, f"exit code {load.returncode}, errors {report['errors']}")
    check(requests["sent"] == requests["finished"] + requests["left"], f"requests {requests}")
    check(tokens["prompt"] == tokens["asked_prompt"] and tokens["completion"] == tokens["asked_completion"],
          f"tokens {tokens}")
    check(requests["left"] > 10 and requests["slow_clients"] > 5, f"requests {requests}")
    s = check_end()

    growth = 0
    warm = next(m for share, m in sizes if share >= 0.2)
    for name, size in warm.items():
        late = max(m[name] for share, m in sizes if share >= 0.8)
        growth = max(growth, late / size)
        check(late <= size * 1.05 + (2 << 20), f"{name} grew from {size} to {late} bytes")
    totals = {key: sum(r.get(key, 0) for _, r in ranks(s)) for key in ("finished", "cancelled", "failed", "recomputed")}
    print(f"{requests['sent']} requests in {report['seconds']:.0f} s: {requests['finished']} finished, {requests['left']} "
          f"left, {requests['slow_clients']} slow; {tokens['received']} tokens; {looks} looks; of the ranks {totals}; "
          f"resident memory at most x{growth:.3f}; {len(failures)} failures")


parser = argparse.ArgumentParser()
parser.add_argument("troupe")
parser.add_argument("--seconds", type=int, default=1800 if os.environ.get("TROUPE_LONG") == "1" else 20)
parser.add_argument("--concurrency", type=int, default=48)
parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
args = parser.parse_args()
print(f"seed {args.seed}", flush=True)
main()
sys.exit(1 if failures else 0)
