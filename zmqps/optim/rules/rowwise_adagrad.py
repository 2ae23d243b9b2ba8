"""Row-wise Adagrad."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from ..options import number, option
from ..registry import builtin
from ..schedules import Rate, RateOption
from ..spec import Rule


@builtin
@dataclass(frozen=True)
class RowwiseAdagrad(Rule):
    r"""Row-wise Adagrad, for tables alone: it keeps one number a row, and so almost no memory.

    .. math::
        v &\leftarrow v + \tfrac1d \sum_j g_j^2 \\
        w &\leftarrow w - \eta\,\frac{g}{\sqrt{v} + \epsilon}

    Parameters
    ----------
    initial_accumulator_value : float
        What :math:`v` starts with.
    eps : float
        :math:`\epsilon`, keeps the denominator from zero.
    clip_norm : float, optional
        Each row's gradient is scaled to this norm where its own is larger, before `clip_value`.

    Examples
    --------
    >>> spec = rowwise_adagrad(learning_rate=0.05)

    References
    ----------
    FBGEMM's ``EXACT_ROWWISE_ADAGRAD``; Mudigere et al., "Software-Hardware Co-design for Fast and Scalable Training of
    Deep Learning Recommendation Models", ISCA 2022.
    """

    name = "rowwise_adagrad"
    row_slots = ("v",)
    steady = True

    learning_rate: Rate = option(RateOption(), 1e-2)
    _: KW_ONLY
    initial_accumulator_value: float = number(at_least=0.0, default=0.0)
    eps: float = number(at_least=0.0, default=1e-8)

    @property
    def row_slot_fill(self) -> tuple[float, ...]:
        return (self.initial_accumulator_value,)

    def scalars(self, step: int) -> tuple[float, ...]:
        return self.rate(step), self.eps

    def row_equation(self, xp: Any) -> Callable[..., Any]:
        def row_update(mean_square: Any, v: Any, rate: Any, eps: Any) -> Any:
            return v + mean_square

        return row_update

    def equation(self, xp: Any) -> Callable[..., tuple[Any, ...]]:
        def update(w: Any, g: Any, v: Any, rate: Any, eps: Any) -> tuple[Any, ...]:
            return (w - rate * g / (xp.sqrt(v) + eps),)

        return update


rowwise_adagrad = RowwiseAdagrad
