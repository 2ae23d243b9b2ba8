"""Write tests/data/optim: what the optimizers and schedulers of PyTorch do, or the papers of those that it lacks.

    PYTHONPATH=. python tests/data/make_optim_golden.py [NAME…]

writes the files that `tests/optim/specs.py` has cases for and that are not there, and those named: an optimizer, or
``schedules``. Only what comes from PyTorch needs it, ``torch==2.13.0`` (CPU).

Every case starts from ``w0`` and takes the gradients ``g`` of ``begin.npz``, one row a step. The file of an optimizer
has the values after each step as ``case/dtype``; what is written here element by element from a paper is in float64.
``schedules.npz`` holds the learning rate of each step.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.optim.specs import CASES, Case

FOLDER = Path(__file__).with_name("optim")
STEPS, SIZE = 8, 37

Array = np.ndarray[Any, np.dtype[Any]]


def begin() -> dict[str, Array]:
    rng = np.random.default_rng(20240607)
    # Values that float32 holds exactly, so both dtypes start from the same.
    w0 = rng.standard_normal(SIZE).astype(np.float32).astype(np.float64)
    g = rng.standard_normal((STEPS, SIZE)).astype(np.float32).astype(np.float64)
    g[:, 0] = 0.0  # an element that never gets a gradient, and one whose gradient never changes
    g[:, 1] = 0.25
    return {"w0": w0, "g": g}


def values(case: Case, w0: Array, g: Array) -> dict[str, Array]:
    """Return the golden values of a case by dtype."""
    if case.torch:
        return {dtype: np.array(list(torch_values(case, w0, g, dtype))) for dtype in ("float32", "float64")}
    written: Callable[..., Iterator[list[float]]] = {"ftrl": ftrl, "lion": lion}[case.spec.name]
    return {"float64": np.array(list(written(w0, g, learning_rate=case.spec.learning_rate, **case.spec.hyper)))}


def torch_values(case: Case, w0: Array, g: Array, dtype: str) -> Iterator[Array]:
    import torch

    w = torch.nn.Parameter(torch.tensor(w0, dtype=getattr(torch, dtype)))
    optimizer = getattr(torch.optim, case.torch)([w], foreach=False, **case.options)
    for row in g:
        w.grad = torch.tensor(row, dtype=w.dtype)
        if case.spec.clip_value is not None:
            torch.nn.utils.clip_grad_value_([w], case.spec.clip_value)
        optimizer.step()
        yield w.detach().numpy().copy()


def ftrl(
    w0: Array,
    g: Array,
    *,
    learning_rate: float,
    beta: float,
    l1: float,
    l2: float,
    initial_accumulator_value: float,
    weight_decay: float,
) -> Iterator[list[float]]:
    """McMahan et al. 2013, algorithm 1; its values start at 0."""
    assert not weight_decay
    alpha = learning_rate
    z, n, w = [0.0] * SIZE, [initial_accumulator_value] * SIZE, [0.0] * SIZE
    for row in g.tolist():
        for i, gradient in enumerate(row):
            sigma = (math.sqrt(n[i] + gradient**2) - math.sqrt(n[i])) / alpha
            z[i] += gradient - sigma * w[i]
            n[i] += gradient**2
            if abs(z[i]) <= l1:
                w[i] = 0.0
            else:
                w[i] = -(z[i] - math.copysign(l1, z[i])) / ((beta + math.sqrt(n[i])) / alpha + l2)
        yield list(w)


def lion(
    w0: Array, g: Array, *, learning_rate: float, b1: float, b2: float, weight_decay: float
) -> Iterator[list[float]]:
    """Chen et al. 2023, program 1."""
    w, m = w0.tolist(), [0.0] * SIZE
    for row in g.tolist():
        for i, gradient in enumerate(row):
            update = gradient * (1 - b1) + m[i] * b1
            sign = (update > 0) - (update < 0)
            m[i] = gradient * (1 - b2) + m[i] * b2
            w[i] -= learning_rate * (sign + w[i] * weight_decay)
        yield list(w)


def schedules() -> dict[str, list[float]]:
    import torch

    made: dict[str, Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]] = {
        "step_decay": lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=3, gamma=0.5),
        "exponential_decay": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.9),
        "cosine_decay": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=20, eta_min=0.1),
        "linear_decay": lambda o: torch.optim.lr_scheduler.LinearLR(
            o, start_factor=1.0, end_factor=0.25, total_iters=10
        ),
        "polynomial_decay": lambda o: torch.optim.lr_scheduler.PolynomialLR(o, total_iters=15, power=2.0),
        "one_cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.8, total_steps=21),
        "one_cycle linear": lambda o: torch.optim.lr_scheduler.OneCycleLR(
            o, max_lr=0.8, total_steps=21, pct_start=0.25, anneal_strategy="linear"
        ),
        "piecewise": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, milestones=[3, 10], gamma=0.1),
        "linear_warmup": lambda o: torch.optim.lr_scheduler.LinearLR(o, start_factor=0.25, total_iters=10),
    }
    rates = {}
    for name, make in made.items():
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.8)
        scheduler = make(optimizer)
        rates[name] = []
        for _ in range(20):
            rates[name].append(scheduler.get_last_lr()[0])
            with warnings.catch_warnings(action="ignore"):  # that the optimizer itself was not stepped
                scheduler.step()
    return rates


def main(named: list[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    start = begin()
    files: dict[str, Callable[[], dict[str, Any]]] = {"begin": lambda: start, "schedules": schedules}
    for optimizer in sorted({case.spec.name for case in CASES.values()}):
        files[optimizer] = lambda optimizer=optimizer: {
            f"{name}/{dtype}": array
            for name, case in CASES.items()
            if case.spec.name == optimizer
            for dtype, array in values(case, **start).items()
        }
    for file, made in files.items():
        path = FOLDER / f"{file}.npz"
        if file in named or not path.exists():
            np.savez_compressed(path, **made())
            print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
