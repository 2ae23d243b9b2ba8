"""Each slice has its own stretch of its table's slots, which begin with what the optimizer says."""

from __future__ import annotations

import numpy as np

from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.core.server.dense.memory import HostMemory
from zmqps.core.server.dense.rules import Slots

PARAMETERS = (Parameter("w", (12,), "float32"), Parameter("x", (6,), "float64"))


def test_slices_share_the_slots_of_their_table_and_no_element() -> None:
    placement = Placement.balance(KeySpace(PARAMETERS), 1, 16)
    bounds = [(cuts[0], cuts[1] - cuts[0]) for cuts in placement.cuts]
    dtypes = [table.dtype for table in placement.keyspace.tables]
    slots = Slots(bounds, dtypes, HostMemory(), (0.0, 2.5))
    assert slots.nbytes == 2 * (12 * 4 + 6 * 8)
    for number, slice_ in enumerate(placement.slices[0], 1):
        first, second = slots.of(slice_)
        assert first.size == second.size == slice_.size
        assert first.dtype == dtypes[slice_.table]
        assert np.all(first == 0.0), "no other slice has written here"
        assert np.all(second == 2.5)
        first.fill(number)
    assert [slots.of(slice_)[0][0] for slice_ in placement.slices[0]] == list(range(1, len(placement.slices[0]) + 1))


def test_an_optimizer_without_slots_takes_no_memory() -> None:
    slots = Slots([(0, 8)], [np.dtype("f4")], HostMemory(), ())
    assert slots.nbytes == 0
