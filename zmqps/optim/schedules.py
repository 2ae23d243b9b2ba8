"""Learning rates that change with the number of updates: plain data that travels by name and numbers.

A schedule is called with `step`, the number of updates already applied (0 for the first one), and
returns the learning rate of the next. Every schedule can be given wherever a learning rate is.
"""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Self, TypeVar

from .. import checks
from ..errors import OptimizerError
from .options import Number, check_fields, fields_of, option

RATE = Number(at_least=0.0)
T = TypeVar("T", bound="Schedule")


@dataclass(frozen=True)
class Schedule(ABC):
    """Base of the schedules; equal when they are of one kind with equal numbers."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        for name, value in check_fields(self.kind, fields_of(self), vars(self)).items():
            object.__setattr__(self, name, value)

    @abstractmethod
    def __call__(self, step: int) -> float:
        """Return the learning rate of the update that follows `step` others."""

    @abstractmethod
    def scaled(self, factor: float) -> Self:
        """Return this schedule with all its learning rates times `factor`; a warm-up begins where it began."""

    def to_wire(self) -> dict[str, Any]:
        """Return this schedule as plain data for a message."""
        return {"schedule": self.kind} | {f.name: rate_to_wire(getattr(self, f.name)) for f in fields_of(self)}


Rate = float | Schedule

#: Name on the wire -> schedule; nothing else can be named by a peer.
KINDS: dict[str, type[Schedule]] = {}


def named(cls: type[T]) -> type[T]:
    """Let peers and scripts name a schedule; a misspelled option raises an error that names it."""
    KINDS[cls.kind] = cls
    return checks.options_of(cls.kind, OptimizerError)(cls)


def rate_to_wire(rate: Rate) -> float | dict[str, Any]:
    """Return a learning rate, a number or a schedule, as plain data."""
    return rate.to_wire() if isinstance(rate, Schedule) else rate


@dataclass(frozen=True)
class RateOption:
    """A learning rate: a number, a schedule, or the plain data of one."""

    #: A warm-up leads into another schedule, not into another warm-up: so nesting has an end.
    may_warm_up: bool = True
    optional: bool = False

    def accept(self, label: str, value: object) -> Rate | None:
        if value is None and self.optional:
            return None
        kind: object = value.kind if isinstance(value, Schedule) else None
        if isinstance(value, Mapping):
            kind = value.get("schedule")
            if not isinstance(kind, str) or kind not in KINDS:
                raise OptimizerError(f"{label}: no schedule {reprlib.repr(kind)}; there are {', '.join(KINDS)}")
        if kind == LinearWarmup.kind and not self.may_warm_up:
            raise OptimizerError(
                f"{label} cannot itself be a linear_warmup; give the schedule that follows the warm-up"
            )
        if isinstance(value, Schedule):
            return value
        if isinstance(value, Mapping):
            cls = KINDS[str(kind)]
            given = {key: entry for key, entry in value.items() if key != "schedule"}
            return cls(**check_fields(f"{label}: {kind}", fields_of(cls), given))
        return float(RATE.accept(label, value))


@named
@dataclass(frozen=True)
class Constant(Schedule):
    r"""The same learning rate always: :math:`\eta_t = \eta_0`.

    Parameters
    ----------
    value : float
        The learning rate.

    Examples
    --------
    >>> constant(0.1)(1000)
    0.1
    """

    kind = "constant"
    value: float = option(RATE)

    def __call__(self, step: int) -> float:
        return self.value

    def scaled(self, factor: float) -> Self:
        return replace(self, value=self.value * factor)


@named
@dataclass(frozen=True)
class LinearWarmup(Schedule):
    r"""A straight rise to the first learning rate of what follows, then what follows.

    .. math:: \eta_t = \eta_0 + (\eta'_0 - \eta_0)\, t / k \text{ for } t < k, \quad \eta'_{t-k} \text{ from then on}

    Parameters
    ----------
    then : float or Schedule
        :math:`\eta'`, the learning rate after the warm-up; its steps count from the warm-up's end.
    warmup_steps : int
        :math:`k`, updates of the warm-up.
    init_value : float
        :math:`\eta_0`, the learning rate of the first update; at 0 that update changes nothing.

    Examples
    --------
    >>> [linear_warmup(0.8, warmup_steps=4)(t) for t in (0, 1, 2, 4, 1000)]
    [0.0, 0.2, 0.4, 0.8, 0.8]

    References
    ----------
    Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017.
    """

    kind = "linear_warmup"
    then: Rate = option(RateOption(may_warm_up=False))
    _: KW_ONLY
    warmup_steps: int = option(Number(at_least=1, whole=True))
    init_value: float = option(RATE, 0.0)

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.init_value + (rate_at(self.then, 0) - self.init_value) * step / self.warmup_steps
        return rate_at(self.then, step - self.warmup_steps)

    def scaled(self, factor: float) -> Self:
        return replace(self, then=scale(self.then, factor))


def check_rate(label: str, value: object) -> Rate:
    """Return a learning rate in its plain form, or raise `OptimizerError` naming it by `label`."""
    rate = RateOption().accept(label, value)
    assert rate is not None
    return rate


def rate_at(rate: Rate, step: int) -> float:
    """Return a learning rate, a number or a schedule, at `step`."""
    return rate(step) if isinstance(rate, Schedule) else rate


def scale(rate: Rate, factor: float) -> Rate:
    """Return a learning rate, a number or a schedule, times `factor`."""
    return rate.scaled(factor) if isinstance(rate, Schedule) else rate * factor


constant = Constant
linear_warmup = LinearWarmup
