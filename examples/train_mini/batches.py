"""Batches from packed token ids: a flat uint16 array, documents one after the other."""
import numpy
import torch


class Specials:
    """Ids of the special tokens that bound documents and turns."""

    def __init__(self, bos=0, eos=1, user=None, noise=2, answer=None):
        self.bos, self.eos, self.user = bos, eos, user
        self.noise, self.answer = noise, answer  # the drafter's filler; the last token of a chat's prompt

    @staticmethod
    def of(tokenizer):
        """From a tokenizer.json as dict, by the spellings of the released tokenizer."""
        ids = {t["content"]: t["id"] for t in tokenizer.get("added_tokens", [])}
        pad = ids.get("<｜▁pad▁｜>", 2)
        return Specials(ids["<｜begin▁of▁sentence｜>"], ids["<｜end▁of▁sentence｜>"], ids.get("<｜User｜>"),
                        ids.get("<｜noise｜>", pad), ids.get("</think>"))


def documents(ids, specials):
    """Document number of every token [B,T]: one begins at <bos>, and after <eos> unless a user's turn follows."""
    begins = ids == specials.bos
    after = torch.cat([torch.zeros_like(begins[:, :1]), ids[:, :-1] == specials.eos], 1)
    if specials.user is not None:
        after &= ids != specials.user
    return (begins | after).long().cumsum(1)


class Stream:
    """An endless, shuffled supply of sequences; every rank draws its own part of each epoch's permutation."""

    def __init__(self, path, length, batch, device, rank=0, world=1, seed=1):
        """path: .npy of uint16 ids. A sequence is `length` tokens and one more for the last target."""
        data = numpy.load(path, mmap_mode="r") if isinstance(path, str) else numpy.asarray(path)
        self.tokens = torch.from_numpy(data.astype(numpy.int32)).to(device)
        self.batch, self.rank, self.world, self.seed = batch, rank, world, seed
        self.epoch, self.device = -1, device
        self.set_length(length)

    def set_length(self, length):
        """Another sequence length from now on; the epoch begins anew."""
        self.length, self.order = length, numpy.zeros(0, numpy.int64)
        self.offsets = torch.arange(length + 1, device=self.device)
        assert len(self.tokens) > 2 * length + 1, "too few tokens for sequences of this length"

    def next(self):
        """ids [batch, length + 1] int64 on the device."""
        parts, need = [], self.batch
        while need:
            if not len(self.order):
                self.epoch += 1
                draw = numpy.random.default_rng([self.seed, self.epoch])
                shift = int(draw.integers(0, self.length))
                count = (len(self.tokens) - 1 - shift) // self.length
                mine = draw.permutation(count)[self.rank::self.world]
                self.order = mine * self.length + shift
                assert len(self.order), "too few tokens for this many ranks"
            parts.append(self.order[:need])
            self.order = self.order[need:]
            need -= len(parts[-1])
        starts = torch.from_numpy(numpy.concatenate(parts)).to(self.device, non_blocking=True)
        return self.tokens[starts[:, None] + self.offsets].long()

    def epochs(self):
        """How often the data has been seen, about."""
        total = max(1, len(self.tokens) // self.length // self.world)
        return self.epoch + 1 - len(self.order) / total


def replay_side(batch, length, share, device):
    """[B,T] 0 before and 1 after a random boundary, in `share` of the sequences; 0 in the others."""
    start = torch.randint(1, length, (batch, 1), device=device)
    cut = torch.rand(batch, 1, device=device) < share
    return ((torch.arange(length, device=device) >= start) & cut).long()
