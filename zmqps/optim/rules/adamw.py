"""AdamW."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from ..options import number
from ..registry import builtin
from .adam import Adam


@builtin
@dataclass(frozen=True)
class AdamW(Adam):
    r"""AdamW, Adam with decoupled weight decay.

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1)\,g \\
        v &\leftarrow \beta_2 v + (1 - \beta_2)\,g^2 \\
        w &\leftarrow (1 - \eta \lambda)\,w - \eta\,\frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    Parameters
    ----------
    weight_decay : float
        :math:`\lambda`; each step shrinks the values by :math:`\eta \lambda`, whatever the gradient.

    Examples
    --------
    >>> spec = adamw(learning_rate=3e-4, weight_decay=0.1)

    References
    ----------
    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
    """

    name = "adamw"

    _: KW_ONLY
    weight_decay: float = number(at_least=0.0, default=1e-2)

    @property
    def decouples(self) -> bool:
        return True

    def scalars(self, step: int) -> tuple[float, ...]:
        return 1.0 - self.rate(step) * self.weight_decay, *super().scalars(step)

    def equation(self, xp: Any) -> Callable[..., tuple[Any, ...]]:
        def update(
            w: Any, g: Any, m: Any, v: Any, keep: Any, rate: Any, root: Any, b1: Any, a1: Any, b2: Any, a2: Any,
            eps: Any,
        ) -> tuple[Any, ...]:  # fmt: skip
            m = b1 * m + a1 * g
            v = b2 * v + a2 * (g * g)
            return keep * w - rate * m / (xp.sqrt(v) / root + eps), m, v

        return update


adamw = AdamW
