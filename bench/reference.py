"""What the servers' values must be after some pushes: computed here, one push after the other, with numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.setup import LEARNING_RATE, OPTIMIZERS, Setup
from zmqps.core.job.keyspace import KeySpace, Placement, Slice
from zmqps.core.job.spec import Parameter
from zmqps.core.protocol.encoding import choose
from zmqps.optim import make_kernel

Arrays = Mapping[str, np.ndarray[Any, np.dtype[Any]]]

#: Rounding of one update: half a unit in the last place of float32 values below eight, and some.
ROUNDING = 3e-7


def can_check(setup: Setup) -> bool:
    """Whether the values follow from the pushes alone, in any order of arrival.

    All workers push the same, but with error feedback not the same at the same time, which matters to optimizers
    with a memory.
    """
    codec = choose(setup.codec, setup.nbytes)
    return setup.workers == 1 or setup.optimizer == "sgd" or codec is None or not codec.error_feedback


def deviation(setup: Setup, start: Arrays, gradients: Arrays, values: Arrays, pushes: int, workers: int) -> float:
    """Return how far values are from where they must be, in units of what rounding explains: wrong above 1.

    Looks at the first and the last slice of every shard.

    Parameters
    ----------
    setup
        What was trained, how.
    start, gradients
        Of every worker.
    values
        From the servers, after all pushes.
    pushes
        Of each worker.
    workers
        How many pushed (1 in synchronous training, where the mean of equal gradients is one of them).
    """
    parameters = [Parameter(name, array.shape, "float32") for name, array in start.items()]
    placement = Placement.balance(KeySpace(parameters), setup.servers)
    flat_start, flat_gradients, flat_values = (
        [a[name].reshape(-1) for name in start] for a in (start, gradients, values)
    )
    worst = 0.0
    for shard in placement.slices:
        for piece in {shard[0].index: shard[0], shard[-1].index: shard[-1]}.values() if shard else ():
            expected, slack = _expected(setup, _cut(flat_start, piece), _cut(flat_gradients, piece), pushes, workers)
            off = np.abs(_cut(flat_values, piece) - expected)
            allowed = (1 + pushes * workers) * ROUNDING + slack
            worst = max(worst, float(np.max(off, initial=0.0)) / allowed)
    return worst


def _cut(flat: list[Any], piece: Slice) -> Any:
    return np.concatenate([flat[s.parameter][s.start : s.start + s.size] for s in piece.segments])


def _expected(setup: Setup, value: Any, gradient: Any, pushes: int, workers: int) -> tuple[Any, float]:
    """Return the values of a slice, and what chance may add to their error."""
    rules, _ = OPTIMIZERS[setup.optimizer]().rules(["w"])
    kernel = make_kernel(rules[0], "numpy")
    slots = tuple(np.full_like(value, fill) for fill in rules[0].slot_fill)
    codec = choose(setup.codec, gradient.nbytes)
    residual = np.zeros_like(gradient) if codec is not None and codec.error_feedback else None
    step = 0
    for push in range(pushes):
        arrived = gradient
        if codec is not None:
            blob = codec.encode(gradient, residual, seed=push)
            arrived, _ = codec.decode(blob, gradient.size, gradient.dtype)
        for _ in range(workers):
            step += 1
            kernel(value, arrived, value, slots, step)
    stochastic = codec is not None and getattr(codec, "stochastic", False)
    quantum = float(np.max(np.abs(gradient), initial=0.0)) / 64  # the coarsest grid has 127 steps for twice as much
    return value, pushes * workers * LEARNING_RATE * quantum if stochastic else 0.0
