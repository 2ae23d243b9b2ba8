"""RMSProp."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from ..options import flag, number, option
from ..registry import builtin
from ..schedules import Rate, RateOption
from ..spec import Rule


@builtin
@dataclass(frozen=True)
class RMSProp(Rule):
    r"""RMSProp.

    .. math::
        v &\leftarrow \alpha v + (1 - \alpha)\,g^2 \\
        w &\leftarrow w - \eta\,\frac{g}{\sqrt{v} + \epsilon}

    With `centered`, :math:`v` is replaced by the variance :math:`|v - \bar g^2|`, where :math:`\bar g \leftarrow
    \alpha \bar g + (1 - \alpha)\,g`. With `momentum` :math:`\mu`, the quotient is not applied itself but goes into
    :math:`u \leftarrow \mu u + g / (\sqrt v + \epsilon)`, and :math:`w \leftarrow w - \eta\,u`.

    Parameters
    ----------
    decay : float
        :math:`\alpha`, how much of the means each step keeps.
    eps : float
        :math:`\epsilon`, keeps the denominator from zero.
    momentum : float
        :math:`\mu`; above 0, the quotients go through momentum and need another slot.
    centered : bool
        Whether to divide by the standard deviation, which needs another slot.
    eps_in_sqrt : bool
        Whether :math:`\epsilon` is added under the root, as Keras and optax do: :math:`\sqrt{v + \epsilon}`.

    Examples
    --------
    >>> spec = rmsprop(learning_rate=1e-3, momentum=0.9, centered=True)

    References
    ----------
    Tieleman and Hinton, "Lecture 6.5: rmsprop", Coursera, 2012; centered: Graves, "Generating Sequences With
    Recurrent Neural Networks", 2013. In the form of ``torch.optim.RMSprop``.
    """

    name = "rmsprop"

    learning_rate: Rate = option(RateOption(), 1e-2)
    _: KW_ONLY
    decay: float = number(at_least=0.0, at_most=1.0, default=0.99)
    eps: float = number(at_least=0.0, default=1e-8)
    momentum: float = number(at_least=0.0, below=1.0, default=0.0)
    centered: bool = flag(default=False)
    eps_in_sqrt: bool = flag(default=False)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("v", *("mean",) * self.centered, *("u",) * (self.momentum > 0.0))

    def scalars(self, step: int) -> tuple[float, ...]:
        return self.rate(step), self.decay, 1.0 - self.decay, self.eps, self.momentum

    def equation(self, xp: Any) -> Callable[..., tuple[Any, ...]]:
        plain, rolling, centered, centered_rolling = (_eps_in_root if self.eps_in_sqrt else _eps_beside_root)(xp)
        if self.centered:
            return centered_rolling if self.momentum > 0.0 else centered
        return rolling if self.momentum > 0.0 else plain


Equation = Callable[..., tuple[Any, ...]]


def _eps_beside_root(xp: Any) -> tuple[Equation, Equation, Equation, Equation]:
    """Return the equations without and with momentum, and both with the variance in the place of the mean square."""

    def plain(w: Any, g: Any, v: Any, rate: Any, decay: Any, rest: Any, eps: Any, momentum: Any) -> tuple[Any, ...]:
        v = decay * v + rest * (g * g)
        return w - rate * g / (xp.sqrt(v) + eps), v

    def rolling(
        w: Any, g: Any, v: Any, u: Any, rate: Any, decay: Any, rest: Any, eps: Any, momentum: Any
    ) -> tuple[Any, ...]:
        v = decay * v + rest * (g * g)
        u = momentum * u + g / (xp.sqrt(v) + eps)
        return w - rate * u, v, u

    # A variance is not negative, but its rounded value can be: hence `abs`.
    def centered(
        w: Any, g: Any, v: Any, mean: Any, rate: Any, decay: Any, rest: Any, eps: Any, momentum: Any
    ) -> tuple[Any, ...]:
        v = decay * v + rest * (g * g)
        mean = decay * mean + rest * g
        return w - rate * g / (xp.sqrt(xp.abs(v - mean * mean)) + eps), v, mean

    def centered_rolling(
        w: Any, g: Any, v: Any, mean: Any, u: Any, rate: Any, decay: Any, rest: Any, eps: Any, momentum: Any
    ) -> tuple[Any, ...]:
        v = decay * v + rest * (g * g)
        mean = decay * mean + rest * g
        u = momentum * u + g / (xp.sqrt(xp.abs(v - mean * mean)) + eps)
        return w - rate * u, v, mean, u

    return plain, rolling, centered, centered_rolling


def _eps_in_root(xp: Any) -> tuple[Equation, Equation, Equation, Equation]:
    """Return the same four with eps under the root."""

    def plain(w: Any, g: Any, v: Any, rate: Any, decay: Any, rest: Any, eps: Any, momentum: Any) -> tuple[Any, ...]:
        v = decay * v + rest * (g * g)
        return w - rate * g / xp.sqrt(v + eps), v

    def rolling(
        w: Any, g: Any, v: Any, u: Any, rate: Any, decay: Any, rest: Any, eps: Any, momentum: Any
    ) -> tuple[Any, ...]:
        v = decay * v + rest * (g * g)
        u = momentum * u + g / xp.sqrt(v + eps)
        return w - rate * u, v, u

    def centered(
        w: Any, g: Any, v: Any, mean: Any, rate: Any, decay: Any, rest: Any, eps: Any, momentum: Any
    ) -> tuple[Any, ...]:
        v = decay * v + rest * (g * g)
        mean = decay * mean + rest * g
        return w - rate * g / xp.sqrt(xp.abs(v - mean * mean) + eps), v, mean

    def centered_rolling(
        w: Any, g: Any, v: Any, mean: Any, u: Any, rate: Any, decay: Any, rest: Any, eps: Any, momentum: Any
    ) -> tuple[Any, ...]:
        v = decay * v + rest * (g * g)
        mean = decay * mean + rest * g
        u = momentum * u + g / xp.sqrt(xp.abs(v - mean * mean) + eps)
        return w - rate * u, v, mean, u

    return plain, rolling, centered, centered_rolling


rmsprop = RMSProp
