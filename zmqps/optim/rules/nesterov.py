r"""Nesterov's momentum: momentum that looks one step ahead.

.. math::
    u &\leftarrow \mu u + g \\
    w &\leftarrow w - \eta\,(g + \mu u)
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
class Nesterov(Rule):
    """The rule of `nesterov`."""

    name = "nesterov"
    steady = True
    slots = ("u",)

    momentum: float = number(at_least=0.0, below=1.0)

    def scalars(self, step: int) -> tuple[float, ...]:
        return self.rate(step), self.momentum

    def equation(self, xp: Any) -> Callable[..., tuple[Any, ...]]:
        def update(w: Any, g: Any, u: Any, rate: Any, momentum: Any) -> tuple[Any, ...]:
            u = momentum * u + g
            return w - rate * (g + momentum * u), u

        def at_rest(w: Any, g: Any, u: Any, rate: Any, momentum: Any) -> tuple[Any, ...]:
            return w - rate * g, u

        return update if self.momentum else at_rest  # as in PyTorch, which leaves its buffer as it is at 0


@checks.options(OptimizerError)
def nesterov(
    learning_rate: Rate = 1e-3,
    *,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    count: str = "pushes",
    groups: Sequence[Group] = (),
) -> OptimizerSpec:
    r"""Return gradient descent with Nesterov's accelerated momentum.

    .. math::
        u &\leftarrow \mu u + g \\
        w &\leftarrow w - \eta\,(g + \mu u)

    Parameters
    ----------
    learning_rate : float or Schedule
        :math:`\eta`.
    momentum : float
        :math:`\mu`, how much of the sum each step keeps.
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
    >>> spec = nesterov(learning_rate=0.1, momentum=0.95)

    References
    ----------
    Nesterov, "A method for solving the convex programming problem with convergence rate O(1/k²)", 1983; in the form
    of Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.
    """
    hyper = {"momentum": momentum, "weight_decay": weight_decay}
    return OptimizerSpec(
        name="nesterov",
        hyper=hyper,
        learning_rate=learning_rate,
        clip_value=clip_value,
        clip_norm=clip_norm,
        count=count,
        groups=groups,
    )
