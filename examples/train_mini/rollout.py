"""Text that the model itself writes, many short sequences side by side, by running whole rows again for each token.

A row of T tokens holds T / slot sequences of `slot` tokens, told apart by document numbers, so that the shapes are
those of training and nothing new is compiled.
"""
import torch

from drafter import gumbel, keyed


class Rollout:
    """Buffers and the step that adds one token to every sequence."""

    def __init__(self, model, batch, length, slot, graph):
        """batch rows of `length` tokens with sequences of `slot` tokens; graph: capture the step (CUDA)."""
        self.m, self.slot, self.count = model, slot, batch * (length // slot)
        device = model.device
        self.ids = torch.zeros(batch, length, dtype=torch.long, device=device)
        self.docs = (torch.arange(length, device=device) // slot).expand(batch, -1).contiguous()
        self.at = torch.zeros((), dtype=torch.long, device=device)
        self.lengths = torch.ones(self.count, dtype=torch.long, device=device)
        self.temperature = torch.zeros(self.count, device=device)
        self.graph = None
        if graph and device.type == "cuda":
            self._capture()

    @torch.no_grad()
    def _step(self):
        """Samples the token after position `at` of every sequence, where the prompt does not give it."""
        logits = self.m.forward(self.ids, self.docs, want_logits=True).logits
        row = logits.view(self.count, self.slot, -1).index_select(1, self.at.view(1)).squeeze(1).float()
        token = keyed(row, self.temperature, gumbel(row.shape, row.device))
        flat = self.ids.view(self.count, self.slot)
        after = self.at.view(1) + 1
        given = flat.index_select(1, after).squeeze(1)
        flat.index_copy_(1, after, torch.where(self.lengths > after, given, token)[:, None])
        self.at.add_(1)

    def _capture(self):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._step()
            self.graph = graph
        except Exception as problem:
            print(f"rollout: no CUDA graph ({problem})", flush=True)
            torch.cuda.synchronize()

    def write(self, prompts, lengths, temperature):
        """prompts [count, slot] ids of which `lengths` [count] are given; returns [count, slot] continued to the end.

        temperature [count]: 0 = greedy.
        """
        self.ids.copy_(prompts.view_as(self.ids))
        self.lengths.copy_(lengths)
        self.temperature.copy_(temperature)
        self.at.fill_(max(0, int(lengths.min()) - 1))
        for _ in range(self.slot - 1 - int(self.at)):
            self.graph.replay() if self.graph else self._step()
        return self.ids.view(self.count, self.slot).clone()


def prompts_from(tokens, specials, count, slot, generator):
    """Beginnings of documents: ids [count, slot] and how many are given (a third to a half of the slot, at most).

    tokens: flat ids on the device. A chat's prompt ends before the answer; other text is cut at 4 to 32 tokens.
    """
    begins = (tokens[:-slot - 1] == specials.bos).nonzero().flatten()
    if not len(begins):
        begins = (tokens[:-slot - 1] == specials.eos).nonzero().flatten() + 1
    pick = begins[torch.randint(len(begins), (count,), generator=generator).to(begins.device)]
    ids = tokens[pick[:, None] + torch.arange(slot, device=tokens.device)].long()
    cut = torch.randint(4, 33, (count,), generator=generator).to(ids.device).clamp(max=slot // 2)
    if specials.answer is not None:
        place = torch.arange(slot, device=ids.device)
        first = torch.where(ids == specials.answer, place, slot).amin(1) + 1
        cut = torch.where(first <= slot // 2, first, cut)
    return ids, cut
