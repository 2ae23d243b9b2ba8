"""Lion."""

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
class Lion(Rule):
    r"""Lion, evolved sign momentum: one slot, and learning rates 3 to 10 times smaller than Adam's.

    .. math::
        c &= \beta_1 m + (1 - \beta_1)\,g \\
        w &\leftarrow (1 - \eta \lambda)\,w - \eta\,\operatorname{sign}(c) \\
        m &\leftarrow \beta_2 m + (1 - \beta_2)\,g

    Parameters
    ----------
    b1 : float
        :math:`\beta_1`, the share of the mean in the direction of a step.
    b2 : float
        :math:`\beta_2`, how much of the mean each step keeps.
    weight_decay : float
        :math:`\lambda`; each step shrinks the values by :math:`\eta \lambda`, whatever the gradient.

    Examples
    --------
    >>> spec = lion(learning_rate=1e-4, weight_decay=0.1)

    References
    ----------
    Chen et al., "Symbolic Discovery of Optimization Algorithms", NeurIPS 2023, program 1. Defaults as in optax.
    """

    name = "lion"
    steady = True
    slots = ("m",)

    learning_rate: Rate = option(RateOption(), 1e-4)
    _: KW_ONLY
    weight_decay: float = number(at_least=0.0, default=1e-3)
    b1: float = number(at_least=0.0, at_most=1.0, default=0.9)
    b2: float = number(at_least=0.0, at_most=1.0, default=0.99)

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


lion = Lion
