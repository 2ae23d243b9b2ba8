r"""FTRL-proximal: online gradient descent that finds sparse models.

.. math::
    \sigma &= \bigl(\sqrt{n + g^2} - \sqrt{n}\bigr) / \eta \\
    z &\leftarrow z + g - \sigma w \\
    n &\leftarrow n + g^2 \\
    w &\leftarrow \frac{\operatorname{clip}(z, -\lambda_1, \lambda_1) - z}{(\beta + \sqrt{n}) / \eta + \lambda_2}
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
from ..spec import OptimizerSpec


@dataclass(frozen=True, kw_only=True)
class FTRL(Rule):
    """The rule of `ftrl`."""

    name = "ftrl"
    steady = True
    slots = ("z", "n")

    #: Not a schedule: the rates decay by themselves, and what `z` holds is in units of the first.
    learning_rate: float = number(above=0.0)
    beta: float = number(above=0.0)
    l1: float = number(at_least=0.0)
    l2: float = number(at_least=0.0)
    initial_accumulator_value: float = number(at_least=0.0)

    @property
    def slot_fill(self) -> tuple[float, ...]:
        return 0.0, self.initial_accumulator_value

    def scalars(self, step: int) -> tuple[float, ...]:
        return self.rate(step), self.beta, self.l1, self.l2

    def equation(self, xp: Any) -> Callable[..., tuple[Any, ...]]:
        def update(w: Any, g: Any, z: Any, n: Any, rate: Any, beta: Any, l1: Any, l2: Any) -> tuple[Any, ...]:
            before = xp.sqrt(n)
            n = n + g * g
            root = xp.sqrt(n)
            z = z + g - (root - before) / rate * w
            return (xp.minimum(xp.maximum(z, -l1), l1) - z) / ((beta + root) / rate + l2), z, n

        return update


@checks.options(OptimizerError)
def ftrl(
    learning_rate: float = 0.1,
    *,
    beta: float = 1.0,
    l1: float = 0.0,
    l2: float = 0.0,
    initial_accumulator_value: float = 0.0,
    weight_decay: float = 0.0,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    count: str = "pushes",
    groups: Sequence[Group] = (),
) -> OptimizerSpec:
    r"""Return FTRL-proximal, follow the regularized leader, with a learning rate for each coordinate.

    .. math::
        \sigma &= \bigl(\sqrt{n + g^2} - \sqrt{n}\bigr) / \eta \\
        z &\leftarrow z + g - \sigma w \\
        n &\leftarrow n + g^2 \\
        w &\leftarrow \frac{\operatorname{clip}(z, -\lambda_1, \lambda_1) - z}{(\beta + \sqrt{n}) / \eta + \lambda_2}

    The values follow from :math:`z` and :math:`n` alone, which start as if all values were 0: train from zeros, as
    linear models do, because other starting values are soon forgotten.

    Parameters
    ----------
    learning_rate : float
        :math:`\eta`, called :math:`\alpha` in the paper; above 0 and not a schedule.
    beta : float
        :math:`\beta`, above 0; the larger, the smaller the first steps.
    l1, l2 : float
        :math:`\lambda_1, \lambda_2`, strength of the two regularizers; with `l1` unimportant values become exactly 0.
    initial_accumulator_value : float
        What :math:`n` starts with.
    weight_decay : float
        :math:`\lambda w` is added to the gradient, as in every optimizer; `l2` is the regularizer of the paper.
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
    >>> spec = ftrl(learning_rate=0.05, l1=1.0, l2=1.0)

    References
    ----------
    McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013, algorithm 1.
    """
    hyper = {
        "beta": beta,
        "l1": l1,
        "l2": l2,
        "initial_accumulator_value": initial_accumulator_value,
        "weight_decay": weight_decay,
    }
    return OptimizerSpec(
        name="ftrl",
        hyper=hyper,
        learning_rate=learning_rate,
        clip_value=clip_value,
        clip_norm=clip_norm,
        count=count,
        groups=groups,
    )
