"""Which Engram rows a token reads: compressed token ids, multipliers, primes; the rule of kernels/model/engram_hash."""
import json
import unicodedata

import numpy
import torch

import settings as shapes

BLANKS = " \t\r\n"
WHITE = set("\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {chr(c) for c in range(0x2000, 0x200B)}


def byte_alphabet():
    """The reversible alphabet of byte-level BPE: character -> byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in plain}
    for n, b in enumerate(sorted(set(range(256)) - set(plain))):
        table[chr(256 + n)] = b
    return table


def vocabulary(tokenizer):
    """tokenizer: a tokenizer.json as dict. Returns (raw token strings, their bytes; special tokens have none)."""
    alphabet = byte_alphabet()
    vocab = tokenizer["model"]["vocab"]
    added = {t["id"]: t["content"] for t in tokenizer.get("added_tokens", [])}
    count = max([*vocab.values(), *added]) + 1
    raw, data = [""] * count, [b""] * count
    for token, i in vocab.items():
        raw[i] = token
        data[i] = b"".join(bytes([alphabet[c]]) if c in alphabet else c.encode() for c in token)
    special = set()
    for i, content in added.items():
        raw[i], data[i] = content, content.encode()
        special.add(i)
    return raw, data, special


def _normalise(text):
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    out, blank = [], False
    for c in text:
        if unicodedata.category(c) == "Mn":
            continue
        if c in BLANKS:
            if not blank:
                out.append(" ")
            blank = True
            continue
        blank = False
        low = c.lower()
        out.append(low if len(low) == 1 else c)
    text = "".join(out)
    if text == " ":
        text = "\ue000"
    begin, end = 0, len(text)
    while begin < end and text[begin] in WHITE:
        begin += 1
    while end > begin and text[end - 1] in WHITE:
        end -= 1
    return text[begin:end]


def token_map(tokenizer):
    """Compressed id of every token id: tokens of equal normalised text share one, in first-seen order."""
    raw, data, _ = vocabulary(tokenizer)
    seen = {}
    out = []
    for token, value in zip(raw, data):
        text = value.decode("utf-8", "replace")
        key = "\0" + token if "\ufffd" in text else _normalise(text)
        out.append(seen.setdefault(key, len(seen)))
    return out


class Hash:
    """Row numbers of n-grams for all Engram layers, on the model's device."""

    def __init__(self, s, mapping, device):
        """s: Settings; mapping: compressed id of every token id."""
        self.map = torch.tensor(mapping, dtype=torch.int64, device=device)
        assert int(self.map.max()) + 1 == s.engram_compressed_vocab_size and len(mapping) == s.vocab_size
        self.pad = self.map[s.engram_pad_token_id]
        self.orders, self.heads = s.engram_orders, s.engram_n_heads
        primes = shapes.engram_primes(len(s.engram_layer_ids), s.engram_vocab_size, s.engram_orders, s.engram_n_heads)
        self.layers = []
        for layer, table in zip(s.engram_layer_ids, primes):
            high = (2**63 - 1) // s.engram_compressed_vocab_size // 2
            draws = numpy.random.default_rng(10007 * layer).integers(0, high, size=s.engram_max_ngram_size)
            flat = torch.tensor([p for order in table for p in order], dtype=torch.int64)
            self.layers.append(([int(m) * 2 + 1 for m in draws], flat.to(device),
                                (flat.cumsum(0) - flat).to(device)))

    def rows(self, module, ids, docs):
        """Rows [B,T,columns] of tokens ids [B,T]; a look-back never leaves the token's document."""
        multipliers, primes, offsets = self.layers[module]
        mapped = self.map[ids]
        roll = mapped * multipliers[0]
        out = []
        for j in range(1, self.orders + 1):
            back = torch.cat([self.pad.expand(ids.shape[0], j), mapped[:, :-j]], 1)
            same = torch.cat([torch.zeros_like(docs[:, :j], dtype=torch.bool), docs[:, :-j] == docs[:, j:]], 1)
            roll = roll ^ (torch.where(same, back, self.pad) * multipliers[j])
            at = slice((j - 1) * self.heads, j * self.heads)
            out.append(roll.unsqueeze(-1) % primes[at] + offsets[at])
        return torch.cat(out, -1)


def mapping_of(folder):
    """Compressed ids for a checkpoint folder: engram_hash.json if it is there, otherwise from tokenizer.json."""
    own = folder / "engram_hash.json"
    if own.exists():
        return json.loads(own.read_text())["token_map"]
    return token_map(json.loads((folder / "tokenizer.json").read_text()))
