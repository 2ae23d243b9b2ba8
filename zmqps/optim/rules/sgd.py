r"""Stochastic gradient descent: :math:`w \leftarrow w - \eta g`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ... import checks
from ...errors import OptimizerError
from ..base import Rule
from ..groups import Group
from ..schedules import Rate
from ..spec import OptimizerSpec


@dataclass(frozen=True, kw_only=True)
class SGD(Rule):
    """The rule of `sgd`."""

    name = "sgd"
    steady = True

    def scalars(self, step: int) -> tuple[float, ...]:
        return (self.rate(step),)

    def equation(self, xp: Any) -> Callable[..., tuple[Any, ...]]:
        def update(w: Any, g: Any, rate: Any) -> tuple[Any, ...]:
            return (w - rate * g,)

        return update


@checks.options(OptimizerError)
def sgd(
    learning_rate: Rate = 1e-3,
    *,
    weight_decay: float = 0.0,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    count: str = "pushes",
    groups: Sequence[Group] = (),
) -> OptimizerSpec:
    r"""Return plain stochastic gradient descent, which keeps no state.

    .. math:: w \leftarrow w - \eta\,g

    Parameters
    ----------
    learning_rate : float or Schedule
        :math:`\eta`.
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
    >>> spec = sgd(learning_rate=0.1, weight_decay=1e-4)

    References
    ----------
    Robbins and Monro, "A Stochastic Approximation Method", Annals of Mathematical Statistics 22, 1951.
    """
    return OptimizerSpec(
        name="sgd",
        hyper={"weight_decay": weight_decay},
        learning_rate=learning_rate,
        clip_value=clip_value,
        clip_norm=clip_norm,
        count=count,
        groups=groups,
    )
