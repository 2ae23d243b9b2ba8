"""Whether gradients are finite, asked of a whole push before any of it is sent."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from zmqps.core.protocol.arrays import GATHER_NBYTES, Array
from zmqps.optim import all_finite

#: More threads do not read memory faster.
NUM_THREADS = min(2, os.cpu_count() or 1)
#: Below this one thread is done sooner than another wakes.
SMALL_NBYTES = 4 << 20
BLOCK_NBYTES = 1 << 20


def are_finite(arrays: Sequence[Array]) -> bool:
    """Return whether no element is NaN or infinite.

    Nothing else of the push can be done meanwhile, so two threads look.

    Parameters
    ----------
    arrays
        Flat, contiguous, float32 or float64.
    """
    arrays = _joined(arrays)
    if NUM_THREADS == 1 or sum(array.nbytes for array in arrays) < SMALL_NBYTES:
        return _look(arrays)
    blocks = list(_blocks(arrays))
    middle = len(blocks) // 2
    other = _helper().submit(_look, blocks[middle:])
    return _look(blocks[:middle]) and other.result()


def _joined(arrays: Sequence[Array]) -> list[Array]:
    """Return the same elements with small arrays in one: a copy is cheaper than a call for each."""
    joined = [array for array in arrays if array.nbytes >= GATHER_NBYTES]
    small = [array for array in arrays if array.nbytes < GATHER_NBYTES]
    return joined + ([np.concatenate(small)] if len(small) > 1 else small)


def _look(blocks: Iterable[Array]) -> bool:
    for block in blocks:
        if not all_finite(block, "numba"):
            return False
    return True


def _blocks(arrays: Iterable[Array]) -> Iterator[Array]:
    for array in arrays:
        size = BLOCK_NBYTES // array.itemsize
        yield from (array[start : start + size] for start in range(0, array.size, size))


@cache
def _helper() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "zmqps-finite")


if hasattr(os, "register_at_fork"):  # a forked child has the executor, but not its thread, and would wait for ever
    os.register_at_fork(after_in_child=_helper.cache_clear)
