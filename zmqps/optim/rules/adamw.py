r"""AdamW: Adam with weight decay beside the gradient.

.. math::
    m &\leftarrow \beta_1 m + (1 - \beta_1)\,g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2)\,g^2 \\
    w &\leftarrow (1 - \eta \lambda)\,w - \eta\,\frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ... import checks
from ...errors import OptimizerError
from ..groups import Group
from ..schedules import Rate
from ..spec import OptimizerSpec, said
from .adam import Adam


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """The rule of `adamw`."""

    name = "adamw"

    @property
    def decouples(self) -> bool:
        return True

    def scalars(self, step: int) -> tuple[float, ...]:
        return 1.0 - self.rate(step) * self.weight_decay, *super().scalars(step)

    def equation(self, xp: Any) -> Callable[..., tuple[Any, ...]]:
        def update(
            w: Any,
            g: Any,
            m: Any,
            v: Any,
            keep: Any,
            rate: Any,
            root: Any,
            b1: Any,
            a1: Any,
            b2: Any,
            a2: Any,
            eps: Any,
        ) -> tuple[Any, ...]:
            m = b1 * m + a1 * g
            v = b2 * v + a2 * (g * g)
            return keep * w - rate * m / (xp.sqrt(v) / root + eps), m, v

        return update


@checks.options(OptimizerError)
def adamw(
    learning_rate: Rate = 1e-3,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    eps_hat: bool = False,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    count: str = "pushes",
    groups: Sequence[Group] = (),
) -> OptimizerSpec:
    r"""Return AdamW, Adam with decoupled weight decay.

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1)\,g \\
        v &\leftarrow \beta_2 v + (1 - \beta_2)\,g^2 \\
        w &\leftarrow (1 - \eta \lambda)\,w - \eta\,\frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    Parameters
    ----------
    learning_rate : float or Schedule
        :math:`\eta`.
    b1, b2 : float
        :math:`\beta_1, \beta_2`, how much of the two means each step keeps.
    eps : float
        :math:`\epsilon`, keeps the denominator from zero.
    weight_decay : float
        :math:`\lambda`; each step shrinks the values by :math:`\eta \lambda`, whatever the gradient.
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
    >>> spec = adamw(learning_rate=3e-4, weight_decay=0.1)

    References
    ----------
    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
    """
    hyper = {"b1": b1, "b2": b2, "eps": eps, "weight_decay": weight_decay} | said(eps_hat=eps_hat)
    return OptimizerSpec(
        name="adamw",
        hyper=hyper,
        learning_rate=learning_rate,
        clip_value=clip_value,
        clip_norm=clip_norm,
        count=count,
        groups=groups,
    )
