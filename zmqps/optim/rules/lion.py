r"""Lion: a step of one size in the direction of the sign.

.. math::
    c &= \beta_1 m + (1 - \beta_1)\,g \\
    w &\leftarrow (1 - \eta \lambda)\,w - \eta\,\operatorname{sign}(c) \\
    m &\leftarrow \beta_2 m + (1 - \beta_2)\,g
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
class Lion(Rule):
    """The rule of `lion`."""

    name = "lion"
    steady = True
    slots = ("m",)

    b1: float = number(at_least=0.0, at_most=1.0)
    b2: float = number(at_least=0.0, at_most=1.0)

    @property
    def decouples(self) -> bool:
        return True

    def scalars(self, step: int) -> tuple[float, ...]:
        rate, b1, b2 = self.rate(step), self.b1, self.b2
        return 1.0 - rate * self.weight_decay, rate, b1, 1.0 - b1, b2, 1.0 - b2

    def equation(self, xp: Any) -> Callable[..., tuple[Any, ...]]:
        def update(w: Any, g: Any, m: Any, keep: Any, rate: Any, b1: Any, a1: Any, b2: Any, a2: Any) -> tuple[Any, ...]:
            c = b1 * m + a1 * g
            return keep * w - rate * xp.sign(c), b2 * m + a2 * g

        return update


@checks.options(OptimizerError)
def lion(
    learning_rate: Rate = 1e-4,
    *,
    b1: float = 0.9,
    b2: float = 0.99,
    weight_decay: float = 1e-3,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    count: str = "pushes",
    groups: Sequence[Group] = (),
) -> OptimizerSpec:
    r"""Return Lion, evolved sign momentum: one slot, and learning rates 3 to 10 times smaller than Adam's.

    .. math::
        c &= \beta_1 m + (1 - \beta_1)\,g \\
        w &\leftarrow (1 - \eta \lambda)\,w - \eta\,\operatorname{sign}(c) \\
        m &\leftarrow \beta_2 m + (1 - \beta_2)\,g

    Parameters
    ----------
    learning_rate : float or Schedule
        :math:`\eta`.
    b1 : float
        :math:`\beta_1`, the share of the mean in the direction of a step.
    b2 : float
        :math:`\beta_2`, how much of the mean each step keeps.
    weight_decay : float
        :math:`\lambda`; each step shrinks the values by :math:`\eta \lambda`, whatever the gradient.
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
    >>> spec = lion(learning_rate=1e-4, weight_decay=0.1)

    References
    ----------
    Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023, program 1. Defaults as in optax.
    """
    hyper = {"b1": b1, "b2": b2, "weight_decay": weight_decay}
    return OptimizerSpec(
        name="lion",
        hyper=hyper,
        learning_rate=learning_rate,
        clip_value=clip_value,
        clip_norm=clip_norm,
        count=count,
        groups=groups,
    )
