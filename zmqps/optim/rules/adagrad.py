"""Adagrad."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from ..options import flag, number, option
from ..registry import builtin
from ..schedules import Rate, RateOption
from ..spec import Rule


@builtin
@dataclass(frozen=True)
class Adagrad(Rule):
    r"""Adagrad, whose steps shrink where gradients have been large; a good match for sparse features.

    .. math::
        v &\leftarrow v + g^2 \\
        w &\leftarrow w - \frac{\eta}{1 + (t - 1)\,\delta}\,\frac{g}{\sqrt{v} + \epsilon}

    Parameters
    ----------
    initial_accumulator_value : float
        What :math:`v` starts with.
    learning_rate_decay : float
        :math:`\delta`, an additional decay with the number of updates.
    eps : float
        :math:`\epsilon`, keeps the denominator from zero.
    eps_in_sqrt : bool
        Whether :math:`\epsilon` is added under the root, as Keras and optax do: :math:`\sqrt{v + \epsilon}`.

    Examples
    --------
    >>> spec = adagrad(learning_rate=0.05, initial_accumulator_value=0.1)

    References
    ----------
    Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization", JMLR 12,
    2011.
    """

    name = "adagrad"
    slots = ("v",)

    learning_rate: Rate = option(RateOption(), 1e-2)
    _: KW_ONLY
    initial_accumulator_value: float = number(at_least=0.0, default=0.0)
    learning_rate_decay: float = number(at_least=0.0, default=0.0)
    eps: float = number(at_least=0.0, default=1e-10)
    eps_in_sqrt: bool = flag(default=False)

    @property
    def slot_fill(self) -> tuple[float, ...]:
        return (self.initial_accumulator_value,)

    def scalars(self, step: int) -> tuple[float, ...]:
        return self.rate(step) / (1.0 + (step - 1) * self.learning_rate_decay), self.eps

    def equation(self, xp: Any) -> Callable[..., tuple[Any, ...]]:
        def update(w: Any, g: Any, v: Any, rate: Any, eps: Any) -> tuple[Any, ...]:
            v = v + g * g
            return w - rate * g / (xp.sqrt(v) + eps), v

        def under_the_root(w: Any, g: Any, v: Any, rate: Any, eps: Any) -> tuple[Any, ...]:
            v = v + g * g
            return w - rate * g / xp.sqrt(v + eps), v

        return under_the_root if self.eps_in_sqrt else update


adagrad = Adagrad
