"""The schedules of the suite: every class of torch.optim.lr_scheduler, and hyper-parameters set by hand."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

STEPS = 20
#: Called after each step with its number.
Schedule = Callable[[int], None]


def _largest(optimizer: Any) -> list[float]:
    return [group["lr"] * 2 for group in optimizer.param_groups]


def _has_momentum(optimizer: Any) -> bool:
    return all("momentum" in group or "betas" in group for group in optimizer.param_groups)


#: How each class of the module is made; one that takes an optimizer alone need not be here.
ARGUMENTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "LambdaLR": lambda o: {"lr_lambda": lambda step: 1 / (1 + step)},
    "MultiplicativeLR": lambda o: {"lr_lambda": lambda step: 0.95},
    "StepLR": lambda o: {"step_size": 6, "gamma": 0.5},
    "MultiStepLR": lambda o: {"milestones": [4, 11], "gamma": 0.5},
    "ConstantLR": lambda o: {"factor": 0.5, "total_iters": 5},
    "LinearLR": lambda o: {"start_factor": 0.2, "total_iters": 8},
    "ExponentialLR": lambda o: {"gamma": 0.9},
    "PolynomialLR": lambda o: {"total_iters": 12, "power": 2.0},
    "CosineAnnealingLR": lambda o: {"T_max": 15},
    "CosineAnnealingWarmRestarts": lambda o: {"T_0": 6},
    "ReduceLROnPlateau": lambda o: {"patience": 1, "factor": 0.5, "threshold": 0.5},
    "CyclicLR": lambda o: {
        "base_lr": [g["lr"] for g in o.param_groups], "max_lr": _largest(o), "step_size_up": 4,
        "cycle_momentum": _has_momentum(o),
    },
    "OneCycleLR": lambda o: {"max_lr": _largest(o), "total_steps": STEPS + 1, "cycle_momentum": _has_momentum(o)},
    "SWALR": lambda o: {"swa_lr": 0.002, "anneal_epochs": 6},
    "ChainedScheduler": lambda o: {"schedulers": [lr_scheduler.ExponentialLR(o, 0.95), lr_scheduler.StepLR(o, 7)]},
    "SequentialLR": lambda o: {
        "schedulers": [lr_scheduler.LinearLR(o, 0.1, total_iters=5), lr_scheduler.CosineAnnealingLR(o, 15)],
        "milestones": [5],
    },
}  # fmt: skip


def classes() -> dict[str, type]:
    """Return all schedulers that this PyTorch has."""
    found = {
        name: cls
        for name, cls in vars(lr_scheduler).items()
        if inspect.isclass(cls) and issubclass(cls, lr_scheduler.LRScheduler) and cls is not lr_scheduler.LRScheduler
    }
    return {name: cls for name, cls in {**found, "SWALR": SWALR}.items() if not name.startswith("_")}


def _of_class(name: str, cls: type) -> Callable[[Any], Schedule]:
    def make(optimizer: Any) -> Schedule:
        arguments = ARGUMENTS.get(name, lambda _: {})(optimizer)
        scheduler = cls(**arguments) if name == "ChainedScheduler" else cls(optimizer, **arguments)
        if name == "ReduceLROnPlateau":
            return lambda number: scheduler.step(1.0 / (1 + number // 4))  # the same on all ranks
        return lambda number: scheduler.step()

    return make


def _each_its_own(optimizer: Any) -> Schedule:
    def factor(number: int) -> Callable[[int], float]:
        return lambda step: 0.9**step if number % 2 else 1 / (1 + 0.1 * step)

    scheduler = lr_scheduler.LambdaLR(optimizer, [factor(n) for n, _ in enumerate(optimizer.param_groups)])
    return lambda number: scheduler.step()


def _by_hand(name: str, value: Callable[[int, int, Any], Any]) -> Callable[[Any], Schedule]:
    """Set one number of every group after each step, from where it began."""

    def make(optimizer: Any) -> Schedule:
        starts = [group[name] for group in optimizer.param_groups]

        def step(number: int) -> None:
            for index, (group, start) in enumerate(zip(optimizer.param_groups, starts, strict=True)):
                group[name] = value(number, index, start)

        return step

    return make


def _falling(number: int, index: int, start: float) -> float:
    return start * 0.95 ** (number + index)


#: Hyper-parameters that a script sets itself: what the group calls it, and to what.
BY_HAND: dict[str, tuple[str, Callable[[int, int, Any], Any]]] = {
    "own-lr": ("lr", _falling),
    "own-lr-zero": ("lr", lambda number, index, start: 0.0 if number in (3, 4, 9) else start),
    "own-parting": ("lr", lambda number, index, start: start * 0.3 if index % 2 and number > 6 else start),
    "own-decay": ("weight_decay", lambda number, index, start: start + 0.01 * number),
    "own-momentum": ("momentum", lambda number, index, start: start - 0.01 * number * (start > 0)),
    "own-dampening": ("dampening", lambda number, index, start: 0.02 * number),
    "own-betas": ("betas", lambda number, index, start: (start[0] - 0.01 * number, start[1] - 0.005 * number)),
    "own-eps": ("eps", lambda number, index, start: start * 1.5**number),
    "own-alpha": ("alpha", lambda number, index, start: start - 0.01 * number),
    "own-rho": ("rho", lambda number, index, start: start - 0.01 * number),
    "own-lr-decay": ("lr_decay", lambda number, index, start: start + 0.01 * number),
}

SCHEDULES: dict[str, Callable[[Any], Schedule]] = {
    "constant": lambda optimizer: lambda number: None,
    **{name: _of_class(name, cls) for name, cls in classes().items()},
    "LambdaLR-each": _each_its_own,
    **{name: _by_hand(*what) for name, what in BY_HAND.items()},
}
