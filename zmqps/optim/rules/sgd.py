"""Stochastic gradient descent: plain, with momentum, and with Nesterov's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ... import checks
from ...errors import OptimizerError
from ..base import Rule
from ..groups import Group
from ..options import flag, number
from ..schedules import Rate
from ..spec import OptimizerSpec, said


@dataclass(frozen=True, kw_only=True)
class SGD(Rule):
    """The rule of `sgd`; without momentum it has no slot."""

    name = "sgd"

    momentum: float = number(at_least=0.0, below=1.0)
    dampening: float = number(at_least=0.0, at_most=1.0)
    nesterov: bool = flag(default=False)

    @classmethod
    def check(cls, sets: Sequence[Mapping[str, Any]]) -> None:
        if sets[0].get("nesterov"):
            for numbers in sets:
                _check_dampening(numbers)
            if not any(numbers["momentum"] for numbers in sets):
                raise OptimizerError("sgd: nesterov=True needs momentum above 0, such as momentum=0.9")

    def changed(self, values: Mapping[str, float]) -> Self:
        if self.nesterov:
            _check_dampening(values)
        return super().changed(values)

    @property
    def steady(self) -> bool:
        return not (self.dampening and self.momentum)

    @property
    def slots(self) -> tuple[str, ...]:
        return ("u",) if self.momentum > 0.0 else ()

    def scalars(self, step: int) -> tuple[float, ...]:
        if not self.momentum:
            return (self.rate(step),)
        if self.nesterov:
            return self.rate(step), self.momentum
        inflow = 1.0 if step == 1 else 1.0 - self.dampening  # the first gradient enters whole, as in PyTorch
        return self.rate(step), self.momentum, inflow

    def equation(self, xp: Any) -> Callable[..., tuple[Any, ...]]:
        def plain(w: Any, g: Any, rate: Any) -> tuple[Any, ...]:
            return (w - rate * g,)

        def rolling(w: Any, g: Any, u: Any, rate: Any, momentum: Any, inflow: Any) -> tuple[Any, ...]:
            u = momentum * u + inflow * g
            return w - rate * u, u

        def ahead(w: Any, g: Any, u: Any, rate: Any, momentum: Any) -> tuple[Any, ...]:
            u = momentum * u + g
            return w - rate * (g + momentum * u), u

        if not self.momentum:
            return plain
        return ahead if self.nesterov else rolling


def _check_dampening(numbers: Mapping[str, Any]) -> None:
    if numbers.get("dampening"):
        raise OptimizerError("sgd: nesterov=True takes no dampening: leave out dampening, or nesterov")


@checks.options(OptimizerError)
def sgd(
    learning_rate: Rate = 1e-3,
    *,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    clip_value: float | None = None,
    clip_norm: float | None = None,
    count: str = "pushes",
    groups: Sequence[Group] = (),
) -> OptimizerSpec:
    r"""Return stochastic gradient descent, with momentum if that is above 0.

    .. math::
        u &\leftarrow \mu u + (1 - \tau)\,g \\
        w &\leftarrow w - \eta\,u

    Without momentum :math:`u = g`, and no state is kept. With `nesterov` the step looks one ahead:
    :math:`w \leftarrow w - \eta\,(g + \mu u)`.

    Parameters
    ----------
    learning_rate : float or Schedule
        :math:`\eta`.
    momentum : float
        :math:`\mu`, how much of the sum each step keeps; above 0 it needs a slot.
    dampening : float
        :math:`\tau`, how much of a gradient, the first excepted, is kept out of the sum.
    nesterov : bool
        Whether momentum is Nesterov's; needs momentum above 0, and no dampening.
    weight_decay : float
        :math:`\lambda`; :math:`\lambda w` is added to the gradient.
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
    >>> spec = sgd(learning_rate=0.1, momentum=0.9, nesterov=True)

    References
    ----------
    Robbins and Monro, "A Stochastic Approximation Method", Annals of Mathematical Statistics 22, 1951. Polyak, "Some
    methods of speeding up the convergence of iteration methods", USSR Computational Mathematics and Mathematical
    Physics 4, 1964. Sutskever et al., "On the importance of initialization and momentum in deep learning", ICML 2013.
    In the form of ``torch.optim.SGD``.
    """
    hyper = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay} | said(nesterov=nesterov)
    return OptimizerSpec(
        name="sgd",
        hyper=hyper,
        learning_rate=learning_rate,
        clip_value=clip_value,
        clip_norm=clip_norm,
        count=count,
        groups=groups,
    )
