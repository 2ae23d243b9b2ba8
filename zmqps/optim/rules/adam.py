"""Adam."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from math import sqrt
from typing import Any, ClassVar

from ..options import flag, number
from ..registry import builtin
from ..spec import Rule


@builtin
@dataclass(frozen=True)
class Adam(Rule):
    r"""Adam, adaptive moment estimation.

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1)\,g \\
        v &\leftarrow \beta_2 v + (1 - \beta_2)\,g^2 \\
        w &\leftarrow w - \eta\,\frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    Parameters
    ----------
    b1, b2 : float
        :math:`\beta_1, \beta_2`, how much of the two means each step keeps.
    eps : float
        :math:`\epsilon`, keeps the denominator from zero.
    weight_decay : float
        :math:`\lambda`; :math:`\lambda w` is added to the gradient. For decoupled decay, see `adamw`.
    eps_hat : bool
        Whether :math:`\epsilon` is added before the second mean's bias is corrected, to :math:`\sqrt v`, as Keras and
        TensorFlow do.

    Examples
    --------
    >>> spec = adam(learning_rate=3e-4, b2=0.98)

    References
    ----------
    Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015.
    """

    name = "adam"
    slots: ClassVar[tuple[str, ...]] = ("m", "v")

    _: KW_ONLY
    b1: float = number(at_least=0.0, below=1.0, default=0.9)
    b2: float = number(at_least=0.0, below=1.0, default=0.999)
    eps: float = number(at_least=0.0, default=1e-8)
    eps_hat: bool = flag(default=False)

    def scalars(self, step: int) -> tuple[float, ...]:
        b1, b2 = self.b1, self.b2
        rate = self.rate(step) / (1.0 - b1**step)
        root = sqrt(1.0 - b2**step)
        return rate, root, b1, 1.0 - b1, b2, 1.0 - b2, self.eps / root if self.eps_hat else self.eps

    def equation(self, xp: Any) -> Callable[..., tuple[Any, ...]]:
        def update(
            w: Any, g: Any, m: Any, v: Any, rate: Any, root: Any, b1: Any, a1: Any, b2: Any, a2: Any, eps: Any
        ) -> tuple[Any, ...]:
            m = b1 * m + a1 * g
            v = b2 * v + a2 * (g * g)
            return w - rate * m / (xp.sqrt(v) / root + eps), m, v

        return update


adam = Adam
