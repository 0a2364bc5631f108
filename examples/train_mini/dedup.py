"""Marks duplicates among generated documents: python dedup.py --raw DIR.

For every DIR/NAME.jsonl writes DIR/NAME.keep.npy, one bool a line. A document goes when its answers are those of an
earlier one, or when more than half of its sampled eight-word runs (one in eight, by hash) occur in earlier documents.
The order is that of the sorted file names, so the result is the same every time.
"""

import argparse
import glob
import hashlib
import json
import multiprocessing as mp
import os

import numpy as np

RUN, SAMPLE_BITS, LIMIT = 8, 3, 0.5
_words = {}


def _hash(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _word(w):
    h = _words.get(w)
    if h is None:
        h = _words[w] = _hash(w)
    return h


def runs(text):
    """Sampled hashes of the text's runs of RUN words, uint64."""
    words = text.lower().split()
    if len(words) < RUN:
        return np.zeros(0, np.uint64)
    w = np.fromiter((_word(x) for x in words), np.uint64, len(words))
    h = np.zeros(len(words) - RUN + 1, np.uint64)
    with np.errstate(over="ignore"):
        for i in range(RUN):
            h = h * np.uint64(0x9E3779B97F4A7C15) + w[i : len(words) - RUN + 1 + i]
        h ^= h >> np.uint64(29)
        h *= np.uint64(0xBF58476D1CE4E5B9)
    return h[h >> np.uint64(64 - SAMPLE_BITS) == 0]


def scan(path):
    """(whole hashes [n], counts of runs [n], run hashes) of one file."""
    whole, counts, hashes = [], [], []
    with open(path, encoding="utf-8") as f:
        for line in f:
            d = json.loads(line)
            text = "\n".join(m["content"] for m in d["messages"] if m["role"] == "assistant")
            r = runs(text)
            whole.append(_hash(text))
            counts.append(len(r))
            hashes.append(r)
    return np.array(whole, np.uint64), np.array(counts, np.int64), np.concatenate(hashes or [np.zeros(0, np.uint64)])


def again(values):
    """True where a value occurred before."""
    order = np.argsort(values, kind="stable")
    s = values[order]
    out = np.zeros(len(values), bool)
    out[order[1:]] = s[1:] == s[:-1]
    return out


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--raw", required=True)
    a.add_argument("--workers", type=int, default=os.cpu_count())
    a = a.parse_args()
    files = sorted(glob.glob(os.path.join(a.raw, "*.jsonl")))
    with mp.Pool(a.workers) as pool:
        parts = pool.map(scan, files, chunksize=1)
    whole = again(np.concatenate([p[0] for p in parts]))
    counts = np.concatenate([p[1] for p in parts])
    document = np.repeat(np.arange(len(counts)), counts)
    seen = np.bincount(document[again(np.concatenate([p[2] for p in parts]))], minlength=len(counts))
    near = seen > LIMIT * np.maximum(counts, 1)
    keep = ~(whole | near)
    at = 0
    for path, p in zip(files, parts):
        np.save(path[: -len(".jsonl")] + ".keep.npy", keep[at : at + len(p[0])])
        at += len(p[0])
    print(f"documents {len(keep)}, same {int(whole.sum())}, near {int((near & ~whole).sum())}, kept {int(keep.sum())}")


if __name__ == "__main__":
    main()
