"""Work that can wait leaves the processors to others."""

from __future__ import annotations

import numpy as np
import pytest

from zmqps.core.server.dense.memory import FILL_NBYTES, HostMemory
from zmqps.nodes.processors import LONGEST_REST_S, Rests


@pytest.mark.parametrize(("idle", "rests"), [(0.1, 3), (1.9, 0)])
def test_memory_is_made_ready_part_by_part_with_rests_where_no_processor_is_idle(
    monkeypatch: pytest.MonkeyPatch, idle: float, rests: int
) -> None:
    rested: list[float] = []
    monkeypatch.setattr(Rests, "idle", lambda self: idle)
    monkeypatch.setattr("zmqps.nodes.processors.time.sleep", rested.append)
    array = np.empty(2 * FILL_NBYTES // 4 + 1, np.float32)
    HostMemory(paced=Rests(2.0).paced).fill(array, 3.0)
    assert (array == 3.0).all()
    assert len(rested) == rests
    assert all(0 < seconds <= LONGEST_REST_S for seconds in rested)
    HostMemory().fill(array, 0)
    assert not array.any()
    assert len(rested) == rests


def test_processors_are_idle_in_part_at_most() -> None:
    rests = Rests(1.0)
    assert rests.idle() >= 0
