"""Adadelta."""

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
class Adadelta(Rule):
    r"""Adadelta, which needs no learning rate of its own.

    .. math::
        v &\leftarrow \rho v + (1 - \rho)\,g^2 \\
        d &= \sqrt{\frac{a + \epsilon}{v + \epsilon}}\;g \\
        a &\leftarrow \rho a + (1 - \rho)\,d^2 \\
        w &\leftarrow w - \eta\,d

    Parameters
    ----------
    rho : float
        :math:`\rho`, how much of the two means each step keeps.
    eps : float
        :math:`\epsilon`, above 0; the first steps are of its root's size.

    Examples
    --------
    >>> spec = adadelta(rho=0.95)

    References
    ----------
    Zeiler, "ADADELTA: An Adaptive Learning Rate Method", 2012.
    """

    name = "adadelta"
    steady = True
    slots = ("v", "a")

    learning_rate: Rate = option(RateOption(), 1.0)
    _: KW_ONLY
    rho: float = number(at_least=0.0, at_most=1.0, default=0.9)
    eps: float = number(above=0.0, default=1e-6)

    def scalars(self, step: int) -> tuple[float, ...]:
        return self.rate(step), self.rho, 1.0 - self.rho, self.eps

    def equation(self, xp: Any) -> Callable[..., tuple[Any, ...]]:
        def update(w: Any, g: Any, v: Any, a: Any, rate: Any, rho: Any, rest: Any, eps: Any) -> tuple[Any, ...]:
            v = rho * v + rest * (g * g)
            d = xp.sqrt(a + eps) / xp.sqrt(v + eps) * g
            a = rho * a + rest * (d * d)
            return w - rate * d, v, a

        return update


adadelta = Adadelta
