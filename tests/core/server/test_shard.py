"""Updates are timed by the clock that the shell brings, and by none without it."""

from __future__ import annotations

from itertools import count

import numpy as np

from tests.core.machines import job, make_shard, placement


def test_updates_are_timed_by_the_shells_clock() -> None:
    spec = job("w", size=8)
    shard = make_shard(spec, placement(spec), 0)
    parts = tuple((slice_.index, 0, ()) for slice_ in shard.placement.slices[0])
    zeros = [np.zeros(slice_.size, np.float32) for slice_ in shard.placement.slices[0]]
    shard.dense.load(parts, zeros)
    shard.dense.push(parts, zeros, "w")
    assert shard.figures()["apply_seconds"] == 0.0
    before, seconds = shard.figures()["applies"], count()
    shard.time_with(lambda: float(next(seconds)))
    shard.dense.push(parts, zeros, "w")
    assert shard.figures()["apply_seconds"] == shard.figures()["applies"] - before > 0
