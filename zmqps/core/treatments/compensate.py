"""Delay compensation: an estimate of the gradient at the present values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from zmqps import checks
from zmqps.core.protocol.arrays import Array
from zmqps.core.treatments.base import Treatment


@dataclass(frozen=True, slots=True)
class Compensate(Treatment):
    """``g + λ g⊙g⊙(w − w_read)``: the first-order Taylor term of the gradient, from the read to the present values.

    The Hessian that term needs is approximated by the diagonal of the outer product of the gradient
    with itself, times ``λ``. For gradients of a cross-entropy, averaged over a mini-batch, that is
    too small by about the batch's size, so λ grows with it; 0.04 is the paper's.

    The server keeps, for each worker, a copy of each slice as that worker last read it: the memory of one more model
    per worker. If the copy has another version than the gradient names (another pull of the same worker was in flight),
    the gradient is applied unchanged, and counted.

    References
    ----------
    Zheng, Meng, Wang, Chen, Yu, Ma, Liu: Asynchronous Stochastic Gradient Descent with Delay
    Compensation, ICML 2017, algorithm 2 with a constant λ (DC-ASGD-c).
    """

    lambda_: float

    name: ClassVar[str] = "compensate"
    needs_read: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "lambda_", checks.number("compensate: lambda", self.lambda_, above=0))

    def correct(self, g: Array, w: Array, read: Array | None, staleness: int) -> Array:
        """Add the compensation; none without staleness, or if the read values are unknown."""
        if staleness == 0 or read is None:
            return g
        # the difference first: where it is 0 a huge gradient squared would make it NaN
        with np.errstate(over="ignore", invalid="ignore"):  # a run that diverges does so without it, too
            correction = w - read
            correction *= correction.dtype.type(self.lambda_)
            correction *= g
            correction *= g
            correction += g
        return correction
