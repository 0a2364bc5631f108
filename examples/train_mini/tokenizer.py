"""Trains the byte-level BPE: python tokenizer.py --raw DIR --vocabulary 4096 --out tokenizer.json.

The special tokens are those of the chat encoding in runtime/recipe, with the released spellings, at ids 0 to 11; then
come the 256 bytes and the merges. The text is a sample of what is in DIR/*.jsonl, the first megabytes of every file.
"""

import argparse
import glob
import json
import os

SPECIAL = [
    "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜System｜>", "<｜User｜>", "<｜Assistant｜>",
    "<think>", "</think>", "<｜latest_reminder｜>", "｜DSML｜", "<｜image｜>", "<｜noise｜>",
]  # fmt: skip


def texts(files, megabytes):
    """Contents of messages, evenly from all files, about `megabytes` in all."""
    each = megabytes * 1e6 / max(1, len(files))
    for path in files:
        left = each
        with open(path, encoding="utf-8") as f:
            for line in f:
                for m in json.loads(line)["messages"]:
                    yield m["content"]
                left -= len(line)
                if left < 0:
                    break


def train(source, vocabulary):
    """A tokenizer of `vocabulary` tokens, special ones included, from an iterator of texts."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    t.decoder = decoders.ByteLevel()
    special = [AddedToken(s, special=True, normalized=False) for s in SPECIAL]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2, show_progress=False,
    )  # fmt: skip
    t.train_from_iterator(source, trainer)
    for i, s in enumerate(SPECIAL):
        assert t.token_to_id(s) == i, s
    return t


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--raw", required=True)
    a.add_argument("--vocabulary", type=int, default=4096)
    a.add_argument("--megabytes", type=float, default=150)
    a.add_argument("--out", required=True)
    a = a.parse_args()
    files = sorted(glob.glob(os.path.join(a.raw, "*.jsonl")))
    t = train(texts(files, a.megabytes), a.vocabulary)
    t.save(a.out)
    print(f"{t.get_vocab_size()} tokens from {len(files)} files")


if __name__ == "__main__":
    main()
