"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Self

from ...errors import OptimizerError
from ..options import flag, number
from ..registry import builtin
from ..spec import Rule


@builtin
@dataclass(frozen=True)
class SGD(Rule):
    r"""Stochastic gradient descent, with momentum if that is above 0.

    .. math::
        u &\leftarrow \mu u + (1 - \tau)\,g \\
        w &\leftarrow w - \eta\,u

    Without momentum :math:`u = g`, and no state is kept. With `nesterov` the step looks one ahead:
    :math:`w \leftarrow w - \eta\,(g + \mu u)`.

    Parameters
    ----------
    momentum : float
        :math:`\mu`, how much of the sum each step keeps; above 0 it needs a slot.
    dampening : float
        :math:`\tau`, how much of a gradient, the first excepted, is kept out of the sum.
    nesterov : bool
        Whether momentum is Nesterov's; needs momentum above 0, and no dampening.

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

    name = "sgd"

    _: KW_ONLY
    momentum: float = number(at_least=0.0, below=1.0, default=0.0)
    dampening: float = number(at_least=0.0, at_most=1.0, default=0.0)
    nesterov: bool = flag(default=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        sets = vars(self), *(each.hyper for each in self.groups)
        if self.nesterov and not any(numbers.get("momentum") for numbers in sets):
            raise OptimizerError("sgd: nesterov=True needs momentum above 0, such as momentum=0.9")
        self._check_dampening(*sets)

    def changed(self, values: Mapping[str, float]) -> Self:
        self._check_dampening(values)
        return super().changed(values)

    def _check_dampening(self, *sets: Mapping[str, Any]) -> None:
        if self.nesterov and any(numbers.get("dampening") for numbers in sets):
            raise OptimizerError("sgd: nesterov=True takes no dampening: leave out dampening, or nesterov")

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


sgd = SGD
