"""Learning rates that fall, or rise and fall, as updates go by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

from ..errors import OptimizerError
from .options import Flag, Number, number, option
from .schedules import RATE, Schedule, named


@named
@dataclass(frozen=True)
class StepDecay(Schedule):
    r"""A drop by one factor at regular steps: :math:`\eta_t = \eta_0\,\gamma^{\lfloor t/k \rfloor}`.

    Parameters
    ----------
    init_value : float
        :math:`\eta_0`, the learning rate of the first update.
    every : int
        :math:`k`, updates between two drops.
    factor : float
        :math:`\gamma`, above 0 and at most 1.

    Examples
    --------
    >>> [step_decay(1.0, every=10, factor=0.5)(t) for t in (0, 9, 10, 20)]
    [1.0, 1.0, 0.5, 0.25]
    """

    kind = "step_decay"
    init_value: float = option(RATE)
    _: KW_ONLY
    every: int = option(Number(at_least=1, whole=True))
    factor: float = number(above=0.0, at_most=1.0, default=0.1)

    def __call__(self, step: int) -> float:
        return self.init_value * math.pow(self.factor, step // self.every)

    def scaled(self, factor: float) -> Self:
        return replace(self, init_value=self.init_value * factor)


@named
@dataclass(frozen=True)
class ExponentialDecay(Schedule):
    r"""A smooth decay: :math:`\eta_t = \eta_0\,\gamma^{t/k}`.

    Parameters
    ----------
    init_value : float
        :math:`\eta_0`, the learning rate of the first update.
    decay_rate : float
        :math:`\gamma`, above 0 and at most 1.
    transition_steps : int
        :math:`k`, updates after which the rate has fallen by one factor of `decay_rate`.

    Examples
    --------
    >>> exponential_decay(1.0, decay_rate=0.25, transition_steps=10)(5)
    0.5
    """

    kind = "exponential_decay"
    init_value: float = option(RATE)
    _: KW_ONLY
    decay_rate: float = number(above=0.0, at_most=1.0)
    transition_steps: int = option(Number(at_least=1, whole=True), 1)

    def __call__(self, step: int) -> float:
        return self.init_value * math.pow(self.decay_rate, step / self.transition_steps)

    def scaled(self, factor: float) -> Self:
        return replace(self, init_value=self.init_value * factor)


@named
@dataclass(frozen=True)
class CosineDecay(Schedule):
    r"""Half a cosine from the first learning rate to the last, which then stays.

    .. math:: \eta_t = \eta_T + \tfrac12 (\eta_0 - \eta_T)(1 + \cos(\pi \min(t, T) / T))

    Parameters
    ----------
    init_value : float
        :math:`\eta_0`, the learning rate of the first update.
    decay_steps : int
        :math:`T`, updates until the last learning rate is reached.
    end_value : float
        :math:`\eta_T`, the learning rate from then on.

    Examples
    --------
    >>> cosine_decay(1.0, decay_steps=100, end_value=0.2)(100)
    0.2

    References
    ----------
    Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017.
    """

    kind = "cosine_decay"
    init_value: float = option(RATE)
    _: KW_ONLY
    decay_steps: int = option(Number(at_least=1, whole=True))
    end_value: float = option(RATE, 0.0)

    def __call__(self, step: int) -> float:
        done = min(step, self.decay_steps) / self.decay_steps
        return self.end_value + 0.5 * (self.init_value - self.end_value) * (1.0 + math.cos(math.pi * done))

    def scaled(self, factor: float) -> Self:
        return replace(self, init_value=self.init_value * factor, end_value=self.end_value * factor)


@named
@dataclass(frozen=True)
class LinearDecay(Schedule):
    r"""A straight line from the first learning rate to the last, which then stays.

    .. math:: \eta_t = \eta_T + (\eta_0 - \eta_T)(1 - \min(t, T) / T)

    Parameters
    ----------
    init_value : float
        :math:`\eta_0`, the learning rate of the first update.
    decay_steps : int
        :math:`T`, updates until the last learning rate is reached.
    end_value : float
        :math:`\eta_T`, the learning rate from then on.

    Examples
    --------
    >>> [linear_decay(1.0, decay_steps=4)(t) for t in (0, 1, 2, 4, 5)]
    [1.0, 0.75, 0.5, 0.0, 0.0]
    """

    kind = "linear_decay"
    init_value: float = option(RATE)
    _: KW_ONLY
    decay_steps: int = option(Number(at_least=1, whole=True))
    end_value: float = option(RATE, 0.0)

    def __call__(self, step: int) -> float:
        left = 1.0 - min(step, self.decay_steps) / self.decay_steps
        return self.end_value + (self.init_value - self.end_value) * left

    def scaled(self, factor: float) -> Self:
        return replace(self, init_value=self.init_value * factor, end_value=self.end_value * factor)


@named
@dataclass(frozen=True)
class PolynomialDecay(Schedule):
    r"""A power of what is left, from the first learning rate to the last, which then stays.

    .. math:: \eta_t = \eta_T + (\eta_0 - \eta_T)(1 - \min(t, T) / T)^p

    Parameters
    ----------
    init_value : float
        :math:`\eta_0`, the learning rate of the first update.
    decay_steps : int
        :math:`T`, updates until the last learning rate is reached.
    power : float
        :math:`p`, above 0; 1 is a straight line.
    end_value : float
        :math:`\eta_T`, the learning rate from then on.

    Examples
    --------
    >>> polynomial_decay(1.0, decay_steps=10, power=2.0)(5)
    0.25
    """

    kind = "polynomial_decay"
    init_value: float = option(RATE)
    _: KW_ONLY
    decay_steps: int = option(Number(at_least=1, whole=True))
    power: float = number(above=0.0, at_most=100.0)
    end_value: float = option(RATE, 0.0)

    def __call__(self, step: int) -> float:
        left = 1.0 - min(step, self.decay_steps) / self.decay_steps
        return self.end_value + (self.init_value - self.end_value) * math.pow(left, self.power)

    def scaled(self, factor: float) -> Self:
        return replace(self, init_value=self.init_value * factor, end_value=self.end_value * factor)


@named
@dataclass(frozen=True)
class OneCycle(Schedule):
    r"""Up to a peak and down to almost nothing, each along half a cosine or a straight line.

    As ``torch.optim.lr_scheduler.OneCycleLR`` with its defaults, but that it does not move the momentum. With
    :math:`a = fT - 1` and :math:`b = T - 1` the rate goes from :math:`\eta/d` at 0 to the peak :math:`\eta` at
    :math:`a`, and to :math:`\eta/(d\,e)` at :math:`b`, where it stays. ``optax.cosine_onecycle_schedule`` is the same
    with :math:`a = fT` and :math:`b = T`.

    Parameters
    ----------
    peak_value : float
        :math:`\eta`, the largest learning rate.
    total_steps : int
        :math:`T`, updates of the whole cycle, 2 at least.
    warmup_fraction : float
        :math:`f`, the part of them before the peak.
    start_divisor : float
        :math:`d`, the peak over the first learning rate.
    end_divisor : float
        :math:`e`, the first learning rate over the last.
    linear : bool
        Straight lines instead of cosines.

    Examples
    --------
    >>> [round(one_cycle(1.0, total_steps=10)(t), 4) for t in (0, 2, 9)]
    [0.04, 1.0, 0.0]

    References
    ----------
    Smith and Topin, "Super-Convergence: Very Fast Training of Neural Networks Using Large Learning Rates", 2017.
    """

    kind = "one_cycle"
    peak_value: float = option(RATE)
    _: KW_ONLY
    total_steps: int = option(Number(at_least=2, whole=True))
    warmup_fraction: float = number(above=0.0, below=1.0, default=0.3)
    start_divisor: float = number(at_least=1.0, default=25.0)
    end_divisor: float = number(at_least=1.0, default=1e4)
    linear: bool = option(Flag(), False)

    def __call__(self, step: int) -> float:
        first = self.peak_value / self.start_divisor
        peak_at, last_at = self.warmup_fraction * self.total_steps - 1.0, self.total_steps - 1.0
        if step < peak_at:
            return self._between(first, self.peak_value, step / peak_at)
        return self._between(
            self.peak_value, first / self.end_divisor, min(1.0, (step - peak_at) / (last_at - peak_at))
        )

    def _between(self, start: float, end: float, done: float) -> float:
        return end + (start - end) * (1.0 - done if self.linear else 0.5 * (1.0 + math.cos(math.pi * done)))

    def scaled(self, factor: float) -> Self:
        return replace(self, peak_value=self.peak_value * factor)


#: A schedule has a handful; the limit bounds what a peer can make us look at.
MOST_MULTIPLIERS = 1024


@dataclass(frozen=True)
class Multipliers:
    """Numbers that multiply a learning rate from some step on, by that step."""

    def accept(self, label: str, value: object) -> tuple[tuple[int, float], ...]:
        try:
            pairs = [(step, by) for step, by in (value.items() if isinstance(value, Mapping) else value)]  # type: ignore[attr-defined]
        except (TypeError, ValueError):
            raise OptimizerError(f"{label} must be steps with multipliers, like {{1000: 0.1}}") from None
        if not 0 < len(pairs) <= MOST_MULTIPLIERS:
            raise OptimizerError(f"{label} must be 1 to {MOST_MULTIPLIERS} steps with multipliers, not {len(pairs)}")
        step, by = Number(at_least=1, whole=True), Number(at_least=0.0)
        found = {step.accept(f"{label}: a step", at): float(by.accept(f"{label}: a multiplier", m)) for at, m in pairs}
        if len(found) < len(pairs):
            raise OptimizerError(f"{label} has a step twice")
        return tuple(sorted(found.items()))


@named
@dataclass(frozen=True)
class Piecewise(Schedule):
    r"""A learning rate that is multiplied at given steps: :math:`\eta_t = \eta_0 \prod_{k \le t} \gamma_k`.

    As ``optax.piecewise_constant_schedule``, or ``torch.optim.lr_scheduler.MultiStepLR`` with a factor for each step.

    Parameters
    ----------
    init_value : float
        :math:`\eta_0`, the learning rate of the first update.
    multipliers : mapping of int to float
        :math:`\gamma_k` by :math:`k`, the updates after which each holds, too.

    Examples
    --------
    >>> [piecewise(1.0, {10: 0.5, 20: 0.1})(t) for t in (0, 9, 10, 19, 20)]
    [1.0, 1.0, 0.5, 0.5, 0.05]
    """

    kind = "piecewise"
    init_value: float = option(RATE)
    multipliers: tuple[tuple[int, float], ...] = option(Multipliers())

    def __call__(self, step: int) -> float:
        return self.init_value * math.prod(by for at, by in self.multipliers if at <= step)

    def scaled(self, factor: float) -> Self:
        return replace(self, init_value=self.init_value * factor)

    def to_wire(self) -> dict[str, Any]:
        return {**super().to_wire(), "multipliers": [list(pair) for pair in self.multipliers]}


step_decay = StepDecay
exponential_decay = ExponentialDecay
cosine_decay = CosineDecay
linear_decay = LinearDecay
polynomial_decay = PolynomialDecay
one_cycle = OneCycle
piecewise = Piecewise
