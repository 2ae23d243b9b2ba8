"""Small models, and a loop that trains them: with PyTorch alone on whole batches, or as some workers with parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

import zmqps
import zmqps.torch
from tests.inprocess import InProcessCluster
from tests.team import PATIENCE

Make = Callable[[], torch.nn.Module]
Optimize = Callable[[torch.nn.Module], torch.optim.Optimizer]
#: Trains a model: the model, its optimizer, and the batches.
Loop = Callable[[torch.nn.Module, Any, Sequence[tuple[torch.Tensor, torch.Tensor]]], None]

FEATURES, BATCH = 12, 8


def batches(
    number: int, seed: int = 0, shape: tuple[int, ...] = (FEATURES,)
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return batches of numbers in float64, and what is to be said of them."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(number, BATCH, *shape, generator=generator, dtype=torch.float64)
    return [(x, torch.sin(x.reshape(BATCH, -1).sum(1, keepdim=True))) for x in inputs]


def mlp() -> torch.nn.Module:
    """Return three layers, of which the first is cut over slices."""
    torch.manual_seed(1)
    layers = [torch.nn.Linear(FEATURES, 40), torch.nn.Tanh(), torch.nn.Linear(40, 40), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(40, 1)).double()


def plain_loop(model: torch.nn.Module, optimizer: Any, data: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Train as everybody does."""
    for x, y in data:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


def alone(make: Make, optimize: Optimize, data: Any, loop: Loop = plain_loop) -> torch.nn.Module:
    """Return a model that PyTorch has trained."""
    model = make()
    loop(model, optimize(model), data)
    return model


def together(
    make: Make,
    optimize: Optimize,
    data: Sequence[tuple[torch.Tensor, torch.Tensor]],
    loop: Loop = plain_loop,
    workers: int = 2,
    servers: int = 2,
    **options: Any,
) -> list[torch.nn.Module]:
    """Return the models of workers that have trained with equal parts of each batch, by rank."""
    options = {"mode": "sync", "timeout": PATIENCE, **options}
    with InProcessCluster(servers=servers, slice_size=4096, workers=workers) as cluster:

        def work(number: int) -> tuple[int, torch.nn.Module]:
            with zmqps.connect(cluster.address, timeout=PATIENCE) as worker:
                model = made[number]
                optimizer = zmqps.torch.Optimizer(model, worker, optimize(model), **options)
                rank, size = worker.rank, BATCH // workers
                mine = [(x[rank * size :][:size], y[rank * size :][:size]) for x, y in data]
                loop(model, optimizer, mine)
                optimizer.synchronize()
                worker.barrier("end", timeout=PATIENCE)
                return rank, model

        made = [make() for _ in range(workers)]  # here: the seed is of all threads
        with ThreadPoolExecutor(workers) as threads:
            return [model for _, model in sorted(threads.map(work, range(workers)), key=lambda pair: pair[0])]


def check_same(ours: torch.nn.Module, theirs: torch.nn.Module, tolerance: float = 1e-10) -> None:
    """Assert that two models have the same parameters."""
    expected = dict(theirs.named_parameters())
    assert dict(ours.named_parameters()).keys() == expected.keys()
    for name, parameter in ours.named_parameters():
        a, b = parameter.detach().double().numpy(), expected[name].detach().double().numpy()
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * float(np.abs(b).max() + 1e-300), err_msg=name)
