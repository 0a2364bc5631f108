"""Turns kept documents into token files: python pack.py --raw DIR --tokenizer tokenizer.json --out DIR.

Writes train.npy and heldout.npy (uint16 ids, documents one after the other), heldout.jsonl (the same held-out
documents as text) and data.json (counts). Held out are all documents whose first question falls into a share of a
hash, so no held-out question is in the training set; at most four documents of one such question are kept.

A conversation is encoded as runtime/recipe does it: <bos>, then for each turn <User>text or <Assistant></think>text<eos>.
Some get a system message in front; a part of the stories becomes plain text, <bos>text<eos>.
"""

import argparse
import glob
import hashlib
import json
import multiprocessing as mp
import os
import random

import numpy as np

import about

BOS, EOS, SYSTEM, USER, ASSISTANT, END_THINK = 0, 1, 3, 4, 5, 7
HELD_OUT = 0.006
HELD_OUT_EACH = 4
ABOUT = 0.0015  # documents about the model itself, as a share of all
PLAIN_STORY, WITH_SYSTEM = 0.2, 0.08
SYSTEMS = [
    "You are a helpful assistant.", "You are a friendly assistant.", "Answer in short sentences.",
    "You are a helpful assistant. Use simple words.", "Be kind and brief.", "You are mini, a small language model.",
]  # fmt: skip
_tokenizer = None


def draw(text):
    """A number in [0, 1) that depends on the text only."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little") / 2**56


def shape(document):
    """Adds what packing decides: {"kind", "messages"} or {"kind": "text", "text"}; by hash, so the same every time."""
    messages = document["messages"]
    key = messages[0]["content"] + messages[1]["content"]
    r = draw("shape" + key)
    if document["kind"] == "story" and len(messages) == 2 and r < PLAIN_STORY:
        return {"kind": "text", "text": messages[1]["content"]}
    if r > 1 - WITH_SYSTEM:
        system = {"role": "system", "content": random.Random(key).choice(SYSTEMS)}
        return {"kind": document["kind"], "messages": [system] + messages}
    return document


def encode(tokenizer, document):
    """Ids of a shaped document; the same as recipe::chat of its messages gives, up to the last answer's <eos>."""
    ids = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    if "text" in document:
        return [BOS] + ids(document["text"]) + [EOS]
    out = [BOS]
    for m in document["messages"]:
        if m["role"] == "system":
            out += [SYSTEM] + ids(m["content"])
        elif m["role"] == "user":
            out += [USER] + ids(m["content"])
        else:
            out += [ASSISTANT, END_THINK] + ids(m["content"]) + [EOS]
    return out


def _start(path):
    global _tokenizer
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    _tokenizer = Tokenizer.from_file(path)


def pack_file(path):
    """(training ids, documents, bytes of text, held-out documents) of one file."""
    keep = np.load(path[: -len(".jsonl")] + ".keep.npy")
    ids, held, count, size = [], [], 0, 0
    with open(path, encoding="utf-8") as f:
        for kept, line in zip(keep, f):
            if not kept:
                continue
            document = json.loads(line)
            first = document["messages"][0]["content"].lower()
            document = shape(document)
            if draw("held out" + first) < HELD_OUT:
                held.append((first, document))
                continue
            ids += encode(_tokenizer, document)
            size += len(line)
            count += 1
    return np.array(ids, np.uint16), count, size, held


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--raw", required=True)
    a.add_argument("--tokenizer", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--workers", type=int, default=os.cpu_count())
    a = a.parse_args()
    os.makedirs(a.out, exist_ok=True)
    files = sorted(p for p in glob.glob(os.path.join(a.raw, "*.jsonl")) if os.path.exists(p[:-6] + ".keep.npy"))
    with mp.Pool(a.workers, _start, (a.tokenizer,)) as pool:
        parts = pool.map(pack_file, files, chunksize=1)
    random.Random(1).shuffle(parts)
    _start(a.tokenizer)
    each = int(ABOUT * sum(p[1] for p in parts) / max(1, len(parts))) + 1
    between = lambda i: np.array([t for d in about.documents(each, i) for t in encode(_tokenizer, shape(d))], np.uint16)
    train = np.concatenate([x for i, p in enumerate(parts) for x in (p[0], between(i))])
    np.save(os.path.join(a.out, "train.npy"), train)
    per_question, held = {}, []
    for first, document in (h for p in parts for h in p[3]):
        per_question[first] = per_question.get(first, 0) + 1
        if per_question[first] <= HELD_OUT_EACH:
            held.append(document)
    random.Random(2).shuffle(held)
    ids = [encode(_tokenizer, d) for d in held]
    np.save(os.path.join(a.out, "heldout.npy"), np.array([i for d in ids for i in d], np.uint16))
    with open(os.path.join(a.out, "heldout.jsonl"), "w", encoding="utf-8") as f:
        for d in held:
            f.write(json.dumps(d, ensure_ascii=False) + "\n")
    facts = {
        "documents": sum(p[1] for p in parts),
        "tokens": len(train),
        "megabytes": sum(p[2] for p in parts) / 1e6,
        "heldout_documents": len(held),
        "heldout_questions": len(per_question),
        "heldout_tokens": sum(len(d) for d in ids),
    }
    with open(os.path.join(a.out, "data.json"), "w") as f:
        json.dump(facts, f, indent=1)
    print(facts)


if __name__ == "__main__":
    main()
