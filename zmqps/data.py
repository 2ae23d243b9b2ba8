"""Which examples a worker trains on: handed out by the coordinator on request, or split by rank.

::

    for taken in worker.ranges(len(x), 256, passes=3, shuffle_seed=0):   # fast workers take more
        for batch in np.array_split(taken.indices, 8):
            worker.push(gradients(worker.pull(), x[batch], y[batch]))

    mine = zmqps.data.split(len(x), worker.rank, worker.num_workers)     # the same for all, and for good
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from zmqps import checks
from zmqps.core.job.data import MAX_EXAMPLES, DataRange, DataSpec
from zmqps.errors import ConfigurationError

__all__ = ["DataRange", "split"]


def split(
    num_examples: int, rank: int, num_workers: int, *, shuffle_seed: int | None = None, data_pass: int = 0
) -> NDArray[np.int64]:
    """Return the examples of one worker when each worker takes an equal part, by its rank.

    The coordinator is not involved, so a slow worker gets as much as the others, and the part of a worker that dies is
    not used. The parts of all ranks are disjoint and together hold all examples; their sizes differ by one at most.

    Parameters
    ----------
    num_examples, rank, num_workers : int
        ``worker.rank`` and ``worker.num_workers``; the latter must be the same on all workers.
    shuffle_seed, data_pass : int, optional
        Split a permutation instead, a different one in each pass; the same as that of `Worker.ranges`.

    Returns
    -------
    ndarray of int64
    """
    numbers: dict[str, Any] = {
        "num_examples": num_examples,
        "rank": rank,
        "num_workers": num_workers,
        "data_pass": data_pass,
    }
    for name, value in numbers.items():
        checks.whole(name, value, 0, MAX_EXAMPLES)
    if rank >= num_workers:
        raise ConfigurationError(
            f"rank {rank} is not below the number of workers, {num_workers}; if one was lost or has left meanwhile, "
            "keep the number of the beginning, or let worker.ranges hand out the examples"
        )
    start, stop = num_examples * rank // num_workers, num_examples * (rank + 1) // num_workers
    return DataRange(
        data=DataSpec(
            name="split", num_examples=num_examples, range_size=num_examples, passes=1, shuffle_seed=shuffle_seed
        ),
        data_pass=data_pass,
        number=rank,
        start=start,
        stop=stop,
    ).indices
