"""What both trainings share: ranks, CUDA graphs with an eager all-reduce between, time-based schedule, logging."""
import gc
import os
import time

import torch
import torch.distributed as dist


class Ranks:
    """The processes of a torchrun start (one a GPU), or this process alone."""

    def __init__(self, force_cpu=False):
        self.world = int(os.environ.get("WORLD_SIZE", 1))
        self.rank = int(os.environ.get("RANK", 0))
        cuda = torch.cuda.is_available() and not force_cpu
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(self.device)
            torch.backends.cuda.matmul.allow_tf32 = True
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
        if self.world > 1:
            dist.init_process_group("nccl" if cuda else "gloo")

    def average(self, tensor):
        """In place, over all ranks."""
        if self.world > 1:
            dist.all_reduce(tensor)
            tensor.div_(self.world)

    def agree(self, value):
        """Rank 0's float, on every rank."""
        if self.world == 1:
            return value
        t = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.broadcast(t, 0)
        return t.item()

    def say(self, *text):
        """Prints on rank 0."""
        if self.rank == 0:
            print(time.strftime("%H:%M:%S"), *text, flush=True)

    def close(self):
        """Ends the group."""
        if self.world > 1:
            dist.barrier()
            dist.destroy_process_group()


def free_memory(ranks):
    """Returns cached memory of the GPU, after something large was dropped."""
    if ranks.device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()


class Step:
    """A training step: `forward_backward()` fills gradients, they are averaged, the optimizer updates.

    On CUDA with `graph` both halves are captured; the all-reduce runs between them, outside any graph. A failed
    capture falls back to eager steps on that rank, which computes the same.
    """

    def __init__(self, ranks, optimizer, forward_backward, after_update, graph):
        self.ranks, self.optimizer = ranks, optimizer
        self.first, self.second, self.pool = forward_backward, after_update, None
        self.graphs = None
        if graph and ranks.device.type == "cuda":
            self._capture()

    def _front(self):
        self.optimizer.zero()
        self.first()

    def _back(self):
        self.optimizer.update()
        self.second()

    def _capture(self):
        kept = self.optimizer.rate.clone()
        self.optimizer.rate.zero_()
        saved = [t.clone() for t in (self.optimizer.momentum, self.optimizer.first, self.optimizer.second,
                                     self.optimizer.steps)]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._front()
                self._back()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        try:
            front, back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(front, capture_error_mode="thread_local"):
                self._front()
            with torch.cuda.graph(back, pool=front.pool(), capture_error_mode="thread_local"):
                self._back()
            self.graphs = (front, back)
        except Exception as problem:
            print(f"rank {self.ranks.rank}: no CUDA graph ({problem}); steps run eagerly", flush=True)
            torch.cuda.synchronize()
        for t, was in zip((self.optimizer.momentum, self.optimizer.first, self.optimizer.second,
                           self.optimizer.steps), saved):
            t.copy_(was)
        self.optimizer.rate.copy_(kept)

    def __call__(self):
        """One step on whatever the input buffers hold."""
        self.graphs[0].replay() if self.graphs else self._front()
        self.ranks.average(self.optimizer.grads)
        self.graphs[1].replay() if self.graphs else self._back()


class Clock:
    """Progress 0..1 through a time budget, the same on all ranks (asked of rank 0 every few steps)."""

    def __init__(self, ranks, seconds, every=5):
        self.ranks, self.seconds, self.every = ranks, seconds, every
        self.start, self.steps, self.now = time.monotonic(), 0, 0.0

    def tick(self):
        """Called once a step; returns progress."""
        if self.steps % self.every == 0:
            if self.ranks.device.type == "cuda":
                torch.cuda.synchronize()
            self.now = self.ranks.agree((time.monotonic() - self.start) / self.seconds)
        self.steps += 1
        return self.now

    def elapsed(self):
        """Seconds since the start, at the last agreement."""
        return self.now * self.seconds


def rate_at(progress, steps, warmup=100, flat_until=0.6, last=0.03):
    """Factor of the learning rates: warm-up by steps, constant, then linear to `last`."""
    if progress >= flat_until:
        fall = min(1.0, (progress - flat_until) / (1 - flat_until))
        return 1 - fall * (1 - last)
    return min(1.0, (steps + 1) / warmup)
