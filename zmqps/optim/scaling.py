"""The learning rate when several workers make one step together."""

from __future__ import annotations

from dataclasses import replace
from typing import overload

from .options import Number
from .schedules import Rate, check_rate, linear_warmup, rate_at, scale
from .spec import OptimizerSpec

_WORKERS = Number(at_least=1, whole=True)
_STEPS = Number(at_least=0, whole=True)


@overload
def scale_linearly(spec_or_rate: OptimizerSpec, workers: int, *, warmup_steps: int = 0) -> OptimizerSpec: ...


@overload
def scale_linearly(spec_or_rate: Rate, workers: int, *, warmup_steps: int = 0) -> Rate: ...


def scale_linearly(spec_or_rate: OptimizerSpec | Rate, workers: int, *, warmup_steps: int = 0) -> OptimizerSpec | Rate:
    r"""Return an optimizer, or a learning rate, for the steps that several workers make together.

    A synchronous step of :math:`k` workers is one of a batch :math:`k` times as large, and there
    are :math:`k` times fewer of them for the same data. The linear scaling rule makes each
    :math:`k` times longer: :math:`\eta' = k\,\eta`. That is wrong while the values change
    fast, so the rate rises to it from :math:`\eta` over the first steps.

    The rule is for SGD, with or without momentum. For optimizers that divide by the gradients'
    size, such as Adam, the usual factor is the root of :math:`k` where :math:`k` is large.

    Parameters
    ----------
    spec_or_rate : OptimizerSpec, Schedule or float
        What suits one worker. The learning rates of parameter groups are scaled as well.
    workers : int
        :math:`k`.
    warmup_steps : int
        Steps from :math:`\eta` to :math:`k\,\eta`; a schedule begins after them. In the paper
        they are five passes over the data. A `linear_warmup` keeps the warm-up it has, and takes no
        other one.

    Returns
    -------
    OptimizerSpec, Schedule or float
        Of the kind given; with a warm-up a number becomes a schedule. Lengths counted in steps (the
        ``decay_steps`` of a schedule) stay as they are: divide them by :math:`k` yourself.

    Raises
    ------
    OptimizerError
        A number is out of its range, or there would be two warm-ups.

    Examples
    --------
    >>> rate = scale_linearly(0.1, workers=4, warmup_steps=2)
    >>> [round(rate(step), 3) for step in range(4)]
    [0.1, 0.25, 0.4, 0.4]

    References
    ----------
    Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017.
    """
    factor = _WORKERS.accept("scale_linearly: workers", workers)
    steps = _STEPS.accept("scale_linearly: warmup_steps", warmup_steps)
    if not isinstance(spec_or_rate, OptimizerSpec):
        return _scaled(check_rate("scale_linearly: rate", spec_or_rate), factor, steps)
    spec = spec_or_rate
    groups = [
        g if g.learning_rate is None else replace(g, learning_rate=_scaled(g.learning_rate, factor, steps))
        for g in spec.groups
    ]
    return replace(spec, learning_rate=_scaled(spec.learning_rate, factor, steps), groups=groups)


def _scaled(rate: Rate, factor: float, warmup_steps: int) -> Rate:
    longer = scale(rate, factor)
    if not warmup_steps:
        return longer
    return linear_warmup(longer, warmup_steps=warmup_steps, init_value=rate_at(rate, 0))
