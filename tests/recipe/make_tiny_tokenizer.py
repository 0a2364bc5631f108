#!/usr/bin/env python3
"""Writes tests/data/tiny-v41/tokenizer.json: a byte tokenizer of 512 tokens with DeepSeek's special tokens.

ids 0, 1, 2      begin of sentence, end of sentence, pad
ids 3 .. 258     the 256 bytes, in the byte-level alphabet, no merges
ids 259 ..       the special tokens of the chat encoding
up to 510        place holders
id 511           the drafter's noise token
Usage: make_tiny_tokenizer.py [OUT]
"""
import json
import pathlib
import sys

out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "data/tiny-v41/tokenizer.json"

printable = set(range(0x21, 0x7F)) | set(range(0xA1, 0xAD)) | set(range(0xAE, 0x100))
alphabet, extra = {}, 0x100
for b in range(256):
    if b in printable:
        alphabet[b] = chr(b)
    else:
        alphabet[b] = chr(extra)
        extra += 1

special = {0: "<｜begin▁of▁sentence｜>", 1: "<｜end▁of▁sentence｜>", 2: "<｜▁pad▁｜>", 511: "<｜draft▁noise｜>"}
names = ["<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "<｜latest_reminder｜>", "｜DSML｜", "<｜image｜>"]
special |= {259 + i: n for i, n in enumerate(names)}
for i in range(259 + len(names), 511):
    special[i] = f"<｜place▁holder▁no▁{i}｜>"

doc = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {"id": i, "content": special[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for i in sorted(special)
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        # The special tokens too: `tokenizers` renumbers an added token that the vocabulary does not know.
        "vocab": dict(sorted([*((alphabet[b], 3 + b) for b in range(256)), *((s, i) for i, s in special.items())], key=lambda e: e[1])),
        "merges": [],
    },
}
out.write_text(json.dumps(doc, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
