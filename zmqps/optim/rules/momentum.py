r"""Momentum: a step along a decaying sum of the gradients.

.. math::
    u &\leftarrow \mu u + (1 - \tau)\,g \\
    w &\leftarrow w - \eta\,u
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
class Momentum(Rule):
    """The rule of `momentum`."""

    name = "momentum"
    slots = ("u",)

    momentum: float = number(at_least=0.0, below=1.0)
    dampening: float = number(at_least=0.0, at_most=1.0)

    def scalars(self, step: int) -> tuple[float, ...]:
        inflow = 1.0 if step == 1 else 1.0 - self.dampening  # the first gradient enters whole, as in PyTorch
        return self.rate(step), self.momentum, inflow

    def equation(self, xp: Any) -> Callable[..., tuple[Any, ...]]:
        def update(w: Any, g: Any, u: Any, rate: Any, momentum: Any, inflow: Any) -> tuple[Any, ...]:
            u = momentum * u + inflow * g
            return w - rate * u, u

        def at_rest(w: Any, g: Any, u: Any, rate: Any, momentum: Any, inflow: Any) -> tuple[Any, ...]:
            return w - rate * g, u

        return update if self.momentum else at_rest  # as in PyTorch, which leaves its buffer as it is at 0


@checks.options(OptimizerError)
def momentum(
    learning_rate: Rate = 1e-3,
    *,
    momentum: float = 0.9,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    count: str = "pushes",
    groups: Sequence[Group] = (),
) -> OptimizerSpec:
    r"""Return gradient descent with momentum, also known as the heavy ball.

    .. math::
        u &\leftarrow \mu u + (1 - \tau)\,g \\
        w &\leftarrow w - \eta\,u

    Parameters
    ----------
    learning_rate : float or Schedule
        :math:`\eta`.
    momentum : float
        :math:`\mu`, how much of the sum each step keeps.
    dampening : float
        :math:`\tau`, how much of a gradient, the first excepted, is kept out of the sum.
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
    >>> spec = momentum(learning_rate=0.1, momentum=0.95)

    References
    ----------
    Polyak, "Some methods of speeding up the convergence of iteration methods", USSR Computational Mathematics and
    Mathematical Physics 4, 1964. In the form of ``torch.optim.SGD``.
    """
    hyper = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
    return OptimizerSpec(
        name="momentum",
        hyper=hyper,
        learning_rate=learning_rate,
        clip_value=clip_value,
        clip_norm=clip_norm,
        count=count,
        groups=groups,
    )
