"""FTRL-proximal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from ..options import number
from ..registry import builtin
from ..spec import Rule


@builtin
@dataclass(frozen=True)
class FTRL(Rule):
    r"""FTRL-proximal, follow the regularized leader, with a learning rate for each coordinate.

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

    Examples
    --------
    >>> spec = ftrl(learning_rate=0.05, l1=1.0, l2=1.0)

    References
    ----------
    McMahan et al., "Ad Click Prediction: a View from the Trenches", KDD 2013, algorithm 1.
    """

    name = "ftrl"
    steady = True
    slots = ("z", "n")

    #: Not a schedule: the rates decay by themselves, and what `z` holds is in units of the first.
    learning_rate: float = number(above=0.0, default=0.1)
    _: KW_ONLY
    beta: float = number(above=0.0, default=1.0)
    l1: float = number(at_least=0.0, default=0.0)
    l2: float = number(at_least=0.0, default=0.0)
    initial_accumulator_value: float = number(at_least=0.0, default=0.0)

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


ftrl = FTRL
