"""Arrays are as they were before an update that has failed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.core.server.scarcity import ScarceHost, Scarcity
from zmqps.core.server.dense.memory import HostMemory
from zmqps.core.server.dense.rules import Undo


def test_what_was_saved_is_written_back_to_where_it_was() -> None:
    arrays = [np.arange(4, dtype=dtype) for dtype in (np.float32, np.float64)]
    part, undo = arrays[0][1:3], Undo(HostMemory())
    undo.save([part])
    undo.save(arrays[1:])
    for array in arrays:
        array[:] = -1
    undo.restore()
    assert [array.tolist() for array in arrays] == [[-1, 1, 2, -1], [0, 1, 2, 3]]


def test_what_cannot_be_saved_leaves_what_was_to_be_written_back() -> None:
    scarcity = Scarcity()
    arrays, undo = [np.zeros(2, np.float32), np.ones(2, np.float32)], Undo(ScarceHost(scarcity))
    scarcity.fail_after(1)
    with pytest.raises(MemoryError):
        undo.save(arrays)
    undo.restore()
    assert [array.tolist() for array in arrays] == [[0, 0], [1, 1]]
