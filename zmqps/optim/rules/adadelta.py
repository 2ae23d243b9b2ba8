r"""Adadelta: the step has the units of the values, so the learning rate has none.

.. math::
    v &\leftarrow \rho v + (1 - \rho)\,g^2 \\
    d &= \sqrt{\frac{a + \epsilon}{v + \epsilon}}\;g \\
    a &\leftarrow \rho a + (1 - \rho)\,d^2 \\
    w &\leftarrow w - \eta\,d
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ... import checks
from ...errors import OptimizerError
from ..base import Rule
from ..groups import Group
from ..options import number
from ..schedules import Rate
from ..spec import OptimizerSpec


@dataclass(frozen=True, kw_only=True)
class Adadelta(Rule):
    """The rule of `adadelta`."""

    name = "adadelta"
    steady = True
    slots = ("v", "a")

    rho: float = number(at_least=0.0, at_most=1.0)
    eps: float = number(above=0.0)

    def scalars(self, step: int) -> tuple[float, ...]:
        return self.rate(step), self.rho, 1.0 - self.rho, self.eps

    def equation(self, xp: Any) -> Callable[..., tuple[Any, ...]]:
        def update(w: Any, g: Any, v: Any, a: Any, rate: Any, rho: Any, rest: Any, eps: Any) -> tuple[Any, ...]:
            v = rho * v + rest * (g * g)
            d = xp.sqrt(a + eps) / xp.sqrt(v + eps) * g
            a = rho * a + rest * (d * d)
            return w - rate * d, v, a

        return update


@checks.options(OptimizerError)
def adadelta(
    learning_rate: Rate = 1.0,
    *,
    rho: float = 0.9,
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    count: str = "pushes",
    groups: Sequence[Group] = (),
) -> OptimizerSpec:
    r"""Return Adadelta, which needs no learning rate of its own.

    .. math::
        v &\leftarrow \rho v + (1 - \rho)\,g^2 \\
        d &= \sqrt{\frac{a + \epsilon}{v + \epsilon}}\;g \\
        a &\leftarrow \rho a + (1 - \rho)\,d^2 \\
        w &\leftarrow w - \eta\,d

    Parameters
    ----------
    learning_rate : float or Schedule
        :math:`\eta`.
    rho : float
        :math:`\rho`, how much of the two means each step keeps.
    eps : float
        :math:`\epsilon`, above 0; the first steps are of its root's size.
    weight_decay : float
        :math:`\lambda`; :math:`\lambda w` is added to the gradient.
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
    >>> spec = adadelta(rho=0.95)

    References
    ----------
    Zeiler, "ADADELTA: An Adaptive Learning Rate Method", 2012.
    """
    hyper = {"rho": rho, "eps": eps, "weight_decay": weight_decay}
    return OptimizerSpec(
        name="adadelta",
        hyper=hyper,
        learning_rate=learning_rate,
        clip_value=clip_value,
        clip_norm=clip_norm,
        count=count,
        groups=groups,
    )
