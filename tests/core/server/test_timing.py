"""Updates are timed by the clock that the shell brings, and by none without it."""

from __future__ import annotations

from itertools import count

import numpy as np

from tests.core.machines import job, make_shard, placement
from zmqps.core.server.timing import counters, time_with


def test_updates_are_timed_by_the_shells_clock() -> None:
    spec = job("w", size=8)
    shard = make_shard(spec, placement(spec), 0)
    parts = tuple((slice_.index, 0, ()) for slice_ in shard.placement.slices[0])
    zeros = [np.zeros(slice_.size, np.float32) for slice_ in shard.placement.slices[0]]
    shard.load(parts, zeros)
    shard.push(parts, zeros, "w")
    assert counters(shard)["apply_seconds"] == 0.0
    before, seconds = counters(shard)["applies"], count()
    time_with(shard, lambda: float(next(seconds)))
    shard.push(parts, zeros, "w")
    assert counters(shard)["apply_seconds"] == counters(shard)["applies"] - before > 0
