"""Write optim_golden.npz: what PyTorch's optimizers and schedulers do, and two that it lacks.

Run it in an environment with ``torch==2.13.0`` (CPU) and numpy::

    python tests/data/make_optim_golden.py

Every case starts from ``w0`` and takes the gradients ``g``, one row a step; ``case/dtype`` holds the
values after each step. FTRL and Lion are written here element by element from their papers, in
float64. ``schedule/case`` holds the learning rate of each step.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

STEPS, SIZE = 8, 37
CLIP = 0.5

ADAM: dict[str, Any] = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}
RMSPROP: dict[str, Any] = {"lr": 0.03, "alpha": 0.9, "eps": 1e-4, "weight_decay": 0.1}

TORCH: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "sgd with decay": (torch.optim.SGD, {"lr": 0.3, "weight_decay": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    "momentum with options": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.7, "dampening": 0.4, "weight_decay": 0.1}),
    "nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "nesterov with decay": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.7, "nesterov": True, "weight_decay": 0.1}),
    "adagrad": (torch.optim.Adagrad, {}),
    "adagrad with options": (
        torch.optim.Adagrad,
        {"lr": 0.2, "lr_decay": 0.3, "initial_accumulator_value": 0.5, "eps": 1e-3, "weight_decay": 0.1},
    ),
    "adadelta": (torch.optim.Adadelta, {}),
    "adadelta with options": (torch.optim.Adadelta, {"lr": 0.5, "rho": 0.8, "eps": 1e-3, "weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {}),
    "rmsprop with options": (torch.optim.RMSprop, RMSPROP),
    "rmsprop centered": (torch.optim.RMSprop, RMSPROP | {"centered": True}),
    "rmsprop with momentum": (torch.optim.RMSprop, RMSPROP | {"momentum": 0.8}),
    "rmsprop centered with momentum": (torch.optim.RMSprop, RMSPROP | {"momentum": 0.8, "centered": True}),
    "adam": (torch.optim.Adam, {}),
    "adam with options": (torch.optim.Adam, ADAM),
    "adam clipped": (torch.optim.Adam, ADAM),
    "sgd clipped": (torch.optim.SGD, {"lr": 0.3, "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {}),
    "adamw with options": (torch.optim.AdamW, ADAM),
    "amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "amsgrad with options": (torch.optim.Adam, ADAM | {"amsgrad": True}),
    "amsgrad decoupled": (torch.optim.AdamW, ADAM | {"amsgrad": True}),
}


def torch_values(case: str, w0: np.ndarray, g: np.ndarray, dtype: torch.dtype) -> Iterator[np.ndarray]:
    cls, options = TORCH[case]
    w = torch.nn.Parameter(torch.tensor(w0, dtype=dtype))
    optimizer = cls([w], foreach=False, **options)
    for row in g:
        w.grad = torch.tensor(row, dtype=dtype)
        if "clipped" in case:
            torch.nn.utils.clip_grad_value_([w], CLIP)
        optimizer.step()
        yield w.detach().numpy().copy()


def ftrl(g: np.ndarray, alpha: float, beta: float, l1: float, l2: float, n0: float) -> Iterator[list[float]]:
    """McMahan et al. 2013, algorithm 1; its values start at 0."""
    z, n, w = [0.0] * SIZE, [n0] * SIZE, [0.0] * SIZE
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


def lion(w0: np.ndarray, g: np.ndarray, rate: float, b1: float, b2: float, decay: float) -> Iterator[list[float]]:
    """Chen et al. 2023, program 1."""
    w, m = w0.tolist(), [0.0] * SIZE
    for row in g.tolist():
        for i, gradient in enumerate(row):
            update = gradient * (1 - b1) + m[i] * b1
            sign = (update > 0) - (update < 0)
            m[i] = gradient * (1 - b2) + m[i] * b2
            w[i] -= rate * (sign + w[i] * decay)
        yield list(w)


def schedules() -> dict[str, list[float]]:
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


def main() -> None:
    rng = np.random.default_rng(20240607)
    # Values that float32 holds exactly, so both dtypes start from the same.
    w0 = rng.standard_normal(SIZE).astype(np.float32).astype(np.float64)
    g = rng.standard_normal((STEPS, SIZE)).astype(np.float32).astype(np.float64)
    g[:, 0] = 0.0  # an element that never gets a gradient, and one whose gradient never changes
    g[:, 1] = 0.25
    golden = {"w0": w0, "g": g}
    for case in TORCH:
        for dtype in (torch.float32, torch.float64):
            golden[f"{case}/{str(dtype)[6:]}"] = np.array(list(torch_values(case, w0, g, dtype)))
    golden["ftrl/float64"] = np.array(list(ftrl(g, alpha=0.1, beta=1.0, l1=0.0, l2=0.0, n0=0.0)))
    golden["ftrl with options/float64"] = np.array(list(ftrl(g, alpha=0.5, beta=0.7, l1=0.6, l2=0.3, n0=0.1)))
    golden["lion/float64"] = np.array(list(lion(w0, g, rate=1e-4, b1=0.9, b2=0.99, decay=1e-3)))
    golden["lion with options/float64"] = np.array(list(lion(w0, g, rate=0.05, b1=0.8, b2=0.95, decay=0.1)))
    golden |= {f"schedule/{name}": np.array(rates) for name, rates in schedules().items()}
    np.savez_compressed(Path(__file__).with_name("optim_golden.npz"), **golden)


if __name__ == "__main__":
    main()
