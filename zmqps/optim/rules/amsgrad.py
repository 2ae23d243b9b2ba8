"""AMSGrad."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from ..options import flag
from ..registry import builtin
from .adam import Adam


@builtin
@dataclass(frozen=True)
class AMSGrad(Adam):
    r"""AMSGrad, Adam whose denominator does not shrink.

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1)\,g \\
        v &\leftarrow \beta_2 v + (1 - \beta_2)\,g^2 \\
        p &\leftarrow \max(p, v) \\
        w &\leftarrow w - \eta\,\frac{m / (1 - \beta_1^t)}{\sqrt{p / (1 - \beta_2^t)} + \epsilon}

    Parameters
    ----------
    weight_decay : float
        :math:`\lambda`; :math:`\lambda w` is added to the gradient, unless it is decoupled.
    decoupled : bool
        Whether weight decay acts directly on the values, :math:`w \leftarrow (1 - \eta \lambda)\,w - \dots`, as in
        `adamw` and ``torch.optim.AdamW(amsgrad=True)``.

    Examples
    --------
    >>> spec = amsgrad(learning_rate=3e-4)

    References
    ----------
    Reddi, Kale and Kumar, "On the Convergence of Adam and Beyond", ICLR 2018. In the form of ``torch.optim.Adam``.
    """

    name = "amsgrad"
    slots = ("m", "v", "p")

    _: KW_ONLY
    decoupled: bool = flag(default=False)

    @property
    def decouples(self) -> bool:
        return self.decoupled

    def scalars(self, step: int) -> tuple[float, ...]:
        keep = (1.0 - self.rate(step) * self.weight_decay,) if self.decoupled else ()
        return *keep, *super().scalars(step)

    def equation(self, xp: Any) -> Callable[..., tuple[Any, ...]]:
        def decaying(
            w: Any, g: Any, m: Any, v: Any, p: Any, keep: Any, rate: Any, root: Any, b1: Any, a1: Any, b2: Any, a2: Any,
            eps: Any,
        ) -> tuple[Any, ...]:  # fmt: skip
            m = b1 * m + a1 * g
            v = b2 * v + a2 * (g * g)
            p = xp.maximum(p, v)
            return keep * w - rate * m / (xp.sqrt(p) / root + eps), m, v, p

        def update(
            w: Any, g: Any, m: Any, v: Any, p: Any, rate: Any, root: Any, b1: Any, a1: Any, b2: Any, a2: Any, eps: Any
        ) -> tuple[Any, ...]:
            m = b1 * m + a1 * g
            v = b2 * v + a2 * (g * g)
            p = xp.maximum(p, v)
            return w - rate * m / (xp.sqrt(p) / root + eps), m, v, p

        return decaying if self.decoupled else update


amsgrad = AMSGrad
