"""DistributedDataParallel over gloo: a model in every rank, whose gradients are there as soon as they are asked for.

What is measured is what DDP adds to computing: gradients go into its buckets as backward delivers them, a bucket is
reduced as soon as it is full, and the optimizer updates every rank's copy.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from bench.peers.gloo import Ranks, join
from bench.peers.replica import share_cores
from bench.peers.serve import GRADIENT_SCALE, LEARNING_RATE, Work, serve


class Ready(torch.autograd.Function):
    """A loss whose gradients are known."""

    @staticmethod
    def forward(context: Any, gradients: list[torch.Tensor], *parameters: torch.Tensor) -> torch.Tensor:
        """Return a loss of nothing."""
        context.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(context: Any, *of_loss: torch.Tensor) -> tuple[Any, ...]:
        """Return the gradients, as they are."""
        return None, *context.gradients


class Model(torch.nn.Module):
    """A model's tensors, and their gradients."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.ones(shape) for shape in work.shapes.values())
        self._gradients = [torch.full(shape, GRADIENT_SCALE) for shape in work.shapes.values()]

    def forward(self) -> torch.Tensor:
        """Return the loss."""
        return Ready.apply(self._gradients, *self.parts)


class Rank:
    """A process with a copy of the model."""

    def __init__(self, rank: int, work: Work, port: int) -> None:
        join(rank, work, port)
        share_cores(work)
        self._model = DistributedDataParallel(Model(work), gradient_as_bucket_view=True, static_graph=True)
        optimizers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        self._optimizer = optimizers[work.optimizer](self._model.parameters(), lr=LEARNING_RATE, fused=True)

    def steps(self, count: int) -> list[float]:
        """Return the seconds of each step."""
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            self._optimizer.zero_grad()
            self._model().backward()
            self._optimizer.step()
            seconds.append(time.perf_counter() - started)
        return seconds


if __name__ == "__main__":
    serve(lambda work: Ranks(work, Rank))
