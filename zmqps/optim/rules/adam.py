r"""Adam: a step along the mean gradient, over the root of the mean squared gradient.

.. math::
    m &\leftarrow \beta_1 m + (1 - \beta_1)\,g \\
    v &\leftarrow \beta_2 v + (1 - \beta_2)\,g^2 \\
    w &\leftarrow w - \eta\,\frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

from ... import checks
from ...errors import OptimizerError
from ..base import Rule
from ..groups import Group
from ..options import flag, number
from ..schedules import Rate
from ..spec import OptimizerSpec, said


@dataclass(frozen=True, kw_only=True)
class Adam(Rule):
    """The rule of `adam`."""

    name = "adam"
    slots: ClassVar[tuple[str, ...]] = ("m", "v")

    b1: float = number(at_least=0.0, below=1.0)
    b2: float = number(at_least=0.0, below=1.0)
    eps: float = number(at_least=0.0)
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


@checks.options(OptimizerError)
def adam(
    learning_rate: Rate = 1e-3,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    eps_hat: bool = False,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    count: str = "pushes",
    groups: Sequence[Group] = (),
) -> OptimizerSpec:
    r"""Return Adam, adaptive moment estimation.

    .. math::
        m &\leftarrow \beta_1 m + (1 - \beta_1)\,g \\
        v &\leftarrow \beta_2 v + (1 - \beta_2)\,g^2 \\
        w &\leftarrow w - \eta\,\frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

    Parameters
    ----------
    learning_rate : float or Schedule
        :math:`\eta`.
    b1, b2 : float
        :math:`\beta_1, \beta_2`, how much of the two means each step keeps.
    eps : float
        :math:`\epsilon`, keeps the denominator from zero.
    weight_decay : float
        :math:`\lambda`; :math:`\lambda w` is added to the gradient. For decay beside the gradient, see `adamw`.
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
    >>> spec = adam(learning_rate=3e-4, b2=0.98)

    References
    ----------
    Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015.
    """
    hyper = {"b1": b1, "b2": b2, "eps": eps, "weight_decay": weight_decay} | said(eps_hat=eps_hat)
    return OptimizerSpec(
        name="adam",
        hyper=hyper,
        learning_rate=learning_rate,
        clip_value=clip_value,
        clip_norm=clip_norm,
        count=count,
        groups=groups,
    )
