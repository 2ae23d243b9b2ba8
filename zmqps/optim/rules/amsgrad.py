r"""AMSGrad: Adam over the largest mean squared gradient so far.

.. math::
    m &\leftarrow \beta_1 m + (1 - \beta_1)\,g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2)\,g^2 \\
    p &\leftarrow \max(p, v) \\
    w &\leftarrow w - \eta\,\frac{m / (1 - \beta_1^t)}{\sqrt{p / (1 - \beta_2^t)} + \epsilon}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ... import checks
from ...errors import OptimizerError
from ..groups import Group
from ..options import flag
from ..schedules import Rate
from ..spec import OptimizerSpec, said
from .adam import Adam


@dataclass(frozen=True, kw_only=True)
class AMSGrad(Adam):
    """The rule of `amsgrad`."""

    name = "amsgrad"
    slots = ("m", "v", "p")

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


@checks.options(OptimizerError)
def amsgrad(
    learning_rate: Rate = 1e-3,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    eps_hat: bool = False,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    count: str = "pushes",
    groups: Sequence[Group] = (),
) -> OptimizerSpec:
    r"""Return AMSGrad, Adam whose denominator does not shrink.

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1)\,g \\
        v &\leftarrow \beta_2 v + (1 - \beta_2)\,g^2 \\
        p &\leftarrow \max(p, v) \\
        w &\leftarrow w - \eta\,\frac{m / (1 - \beta_1^t)}{\sqrt{p / (1 - \beta_2^t)} + \epsilon}

    Parameters
    ----------
    learning_rate : float or Schedule
        :math:`\eta`.
    b1, b2 : float
        :math:`\beta_1, \beta_2`, how much of the two means each step keeps.
    eps : float
        :math:`\epsilon`, keeps the denominator from zero.
    weight_decay : float
        :math:`\lambda`; :math:`\lambda w` is added to the gradient, unless it is decoupled.
    decoupled : bool
        Whether weight decay acts on the values beside the gradient, :math:`w \leftarrow (1 - \eta \lambda)\,w - \dots`,
        as in `adamw` and ``torch.optim.AdamW(amsgrad=True)``.
    eps_hat : bool
        Whether :math:`\epsilon` is added before the second mean's bias is corrected, to :math:`\sqrt v`, as Keras and
        TensorFlow do.
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
    >>> spec = amsgrad(learning_rate=3e-4)

    References
    ----------
    Reddi, Kale and Kumar, "On the Convergence of Adam and Beyond", ICLR 2018. In the form of ``torch.optim.Adam``.
    """
    hyper = {
        "b1": b1,
        "b2": b2,
        "eps": eps,
        "weight_decay": weight_decay,
        "decoupled": decoupled,
    } | said(eps_hat=eps_hat)
    return OptimizerSpec(
        name="amsgrad",
        hyper=hyper,
        learning_rate=learning_rate,
        clip_value=clip_value,
        clip_norm=clip_norm,
        count=count,
        groups=groups,
    )
