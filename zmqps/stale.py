"""What servers do about stale gradients, for ``zmqps.Gradients(treatment=…)``.

Only where gradients can be stale: with ``mode="async"`` or ``mode="bounded"``.

=================== ==============================================================================
`divide`            a gradient τ updates old counts 1/τ
`drop`              gradients more than a bound old are not applied
`compensate`        old gradients are corrected by what has changed since (DC-ASGD)
=================== ==============================================================================

docs/experiments.md compares them.
"""

from __future__ import annotations

from zmqps.core.treatments import Compensate, Divide, Drop, Treatment

__all__ = ["Treatment", "compensate", "divide", "drop"]


def divide() -> Treatment:
    """Return the treatment that divides a gradient by its staleness, if that is above 1.

    With W workers of equal speed staleness is about W − 1, so a step is about as long as one worker's. This gives
    stability, and costs speed if the learning rate was not too large.

    References
    ----------
    Zhang, Gupta, Lian, Liu: Staleness-aware Async-SGD for Distributed Deep Learning, IJCAI 2016.
    """
    return Divide()


def drop(bound: int) -> Treatment:
    """Return the treatment that drops gradients that are more than ``bound`` updates old.

    Set the bound above the number of workers, or most of the work is discarded. Dropped gradients are counted:
    ``dropped`` in `Worker.statistics` (pushes of which a slice was dropped) and in the servers' counters (slices).

    Parameters
    ----------
    bound : int
        The largest staleness that is still applied.
    """
    return Drop(bound)


def compensate(lambda_: float = 0.04) -> Treatment:
    """Return the treatment that corrects a gradient by λ g⊙g⊙(w_now − w_read).

    Each server needs a copy of its values for each worker (``copies_nbytes`` in the status).

    Parameters
    ----------
    lambda_ : float
        Strength of the correction; larger for gradients that are means over larger batches.

    References
    ----------
    Zheng, Meng, Wang, Chen, Yu, Ma, Liu: Asynchronous Stochastic Gradient Descent with Delay
    Compensation, ICML 2017.
    """
    return Compensate(lambda_)
