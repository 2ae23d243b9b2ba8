r"""Adagrad: a step over the root of the sum of all squared gradients.

.. math::
    v &\leftarrow v + g^2 \\
    w &\leftarrow w - \frac{\eta}{1 + (t - 1)\,\delta}\,\frac{g}{\sqrt{v} + \epsilon}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ... import checks
from ...errors import OptimizerError
from ..base import Rule
from ..groups import Group
from ..options import flag, number
from ..schedules import Rate
from ..spec import OptimizerSpec, said


@dataclass(frozen=True, kw_only=True)
class Adagrad(Rule):
    """The rule of `adagrad`."""

    name = "adagrad"
    slots = ("v",)

    initial_accumulator_value: float = number(at_least=0.0)
    learning_rate_decay: float = number(at_least=0.0)
    eps: float = number(at_least=0.0)
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


@checks.options(OptimizerError)
def adagrad(
    learning_rate: Rate = 1e-2,
    *,
    initial_accumulator_value: float = 0.0,
    learning_rate_decay: float = 0.0,
    eps: float = 1e-10,
    weight_decay: float = 0.0,
    eps_in_sqrt: bool = False,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    count: str = "pushes",
    groups: Sequence[Group] = (),
) -> OptimizerSpec:
    r"""Return Adagrad, whose steps shrink where gradients have been large; a good match for sparse features.

    .. math::
        v &\leftarrow v + g^2 \\
        w &\leftarrow w - \frac{\eta}{1 + (t - 1)\,\delta}\,\frac{g}{\sqrt{v} + \epsilon}

    Parameters
    ----------
    learning_rate : float or Schedule
        :math:`\eta`.
    initial_accumulator_value : float
        What :math:`v` starts with.
    learning_rate_decay : float
        :math:`\delta`, an additional decay with the number of updates.
    eps : float
        :math:`\epsilon`, keeps the denominator from zero.
    weight_decay : float
        :math:`\lambda`; :math:`\lambda w` is added to the gradient.
    eps_in_sqrt : bool
        Whether :math:`\epsilon` is added under the root, as Keras and optax do: :math:`\sqrt{v + \epsilon}`.
    clip_value : float, optional
        Gradients are clipped to ``[-clip_value, clip_value]``, element by element.
    clip_norm : float, optional
        All gradients together are scaled to this norm where theirs is larger, before `clip_value`.
    count : {"pushes", "steps"}
        What schedules count where each worker's push is an update: those, or as many steps as all workers make.
    groups : sequence of Group
        Parameters with numbers of their own.

    Examples
    --------
    >>> spec = adagrad(learning_rate=0.05, initial_accumulator_value=0.1)

    References
    ----------
    Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization", JMLR 12,
    2011.
    """
    hyper = {
        "initial_accumulator_value": initial_accumulator_value,
        "learning_rate_decay": learning_rate_decay,
        "eps": eps,
        "weight_decay": weight_decay,
    } | said(eps_in_sqrt=eps_in_sqrt)
    return OptimizerSpec(
        name="adagrad",
        hyper=hyper,
        learning_rate=learning_rate,
        clip_value=clip_value,
        clip_norm=clip_norm,
        count=count,
        groups=groups,
    )
