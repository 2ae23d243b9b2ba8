r"""Row-wise Adagrad: Adagrad with one accumulator for a whole row of a table.

.. math::
    v &\leftarrow v + \tfrac1d \sum_j g_j^2 \\
    w &\leftarrow w - \eta\,\frac{g}{\sqrt{v} + \epsilon}
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ... import checks
from ...errors import OptimizerError
from ..base import Rule
from ..options import number
from ..schedules import Rate
from ..spec import OptimizerSpec


@dataclass(frozen=True, kw_only=True)
class RowwiseAdagrad(Rule):
    """The rule of `rowwise_adagrad`."""

    name = "rowwise_adagrad"
    row_slots = ("v",)
    steady = True

    initial_accumulator_value: float = number(at_least=0.0)
    eps: float = number(at_least=0.0)

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


@checks.options(OptimizerError)
def rowwise_adagrad(
    learning_rate: Rate = 1e-2,
    *,
    initial_accumulator_value: float = 0.0,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    count: str = "pushes",
) -> OptimizerSpec:
    r"""Return row-wise Adagrad, for tables alone: it keeps one number a row, and so almost no memory.

    .. math::
        v &\leftarrow v + \tfrac1d \sum_j g_j^2 \\
        w &\leftarrow w - \eta\,\frac{g}{\sqrt{v} + \epsilon}

    Parameters
    ----------
    learning_rate : float or Schedule
        :math:`\eta`.
    initial_accumulator_value : float
        What :math:`v` starts with.
    eps : float
        :math:`\epsilon`, keeps the denominator from zero.
    weight_decay : float
        :math:`\lambda`; :math:`\lambda w` is added to the gradient.
    clip_value : float, optional
        Gradients are clipped to ``[-clip_value, clip_value]``, element by element.
    clip_norm : float, optional
        Each row's gradient is scaled to this norm where its own is larger, before `clip_value`.
    count : {"pushes", "steps"}
        What schedules count where each worker's push is an update: those, or as many steps as all workers make.

    Examples
    --------
    >>> spec = rowwise_adagrad(learning_rate=0.05)

    References
    ----------
    FBGEMM's ``EXACT_ROWWISE_ADAGRAD``; Mudigere et al., "Software-Hardware Co-design for Fast and Scalable Training of
    Deep Learning Recommendation Models", ISCA 2022.
    """
    hyper = {"initial_accumulator_value": initial_accumulator_value, "eps": eps, "weight_decay": weight_decay}
    return OptimizerSpec(
        name="rowwise_adagrad",
        hyper=hyper,
        learning_rate=learning_rate,
        clip_value=clip_value,
        clip_norm=clip_norm,
        count=count,
    )
