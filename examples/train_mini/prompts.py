"""Prompts for the text that the model itself writes: python prompts.py --tokenizer tokenizer.json --out prompts.npz

The questions of topics.py, encoded up to the answer's first token; held-out questions (pack.py) never occur. A share are
follow-up questions, which go on with the conversation before them, and beginnings that leave the question to the model.
"""
import argparse
import random

import numpy as np

import about
import pack
import topics

LONGEST = 64  # tokens; longer prompts are left out
FOLLOW, OPEN, ABOUT, SYSTEM = 0.15, 0.05, 0.01, 0.08


def make(tokenizer, count, seed, longest=LONGEST):
    """ids [count, longest] uint16, 0 beyond each prompt's length, and the lengths [count]."""
    rng = random.Random(seed)
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    ids, sizes = np.zeros((count, longest), np.uint16), np.zeros(count, np.int64)
    known = [q for questions in about.QUESTIONS.values() for q in questions]
    n = 0
    while n < count:
        r = rng.random()
        if r < OPEN:
            row = [pack.BOS, pack.USER]
        elif r < OPEN + FOLLOW:
            text = rng.choice(topics.FOLLOW) if rng.random() < 0.6 else topics._ask(rng)
            row = [pack.USER, *encode(text), pack.ASSISTANT, pack.END_THINK]
        else:
            text = rng.choice(known) if r > 1 - ABOUT else topics.plan(rng)["turns"][0][1]
            if text is None or pack.draw("held out" + text.lower()) < pack.HELD_OUT:
                continue
            system = [pack.SYSTEM, *encode(rng.choice(pack.SYSTEMS))] if rng.random() < SYSTEM else []
            row = [pack.BOS, *system, pack.USER, *encode(text), pack.ASSISTANT, pack.END_THINK]
        if n == 0 and row[0] != pack.BOS or len(row) > longest:
            continue
        ids[n, :len(row)], sizes[n] = row, len(row)
        n += 1
    return ids, sizes


def main():
    """The command line."""
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--tokenizer", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--count", type=int, default=200_000)
    a.add_argument("--seed", type=int, default=21)
    a = a.parse_args()
    from tokenizers import Tokenizer

    ids, sizes = make(Tokenizer.from_file(a.tokenizer), a.count, a.seed)
    np.savez_compressed(a.out, ids=ids, sizes=sizes)
    print(f"{a.count} prompts, {len(np.unique(ids, axis=0))} distinct, {sizes.mean():.1f} tokens")


if __name__ == "__main__":
    main()
