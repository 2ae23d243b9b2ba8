"""How long a shard's updates take, by the shell's clock: the core has none of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zmqps.core.server.dense.shard import Shard
from zmqps.core.server.dense.slices import Updates
from zmqps.core.server.tables.table import RowTable


def time_with(shard: Shard, clock: Callable[[], float]) -> None:
    """Count how long the updates of a shard take from now on, by a clock in seconds."""
    for timed in _timed(shard):
        timed.clock = clock


def counters(shard: Shard) -> dict[str, Any]:
    """Return what the status shows of it."""
    timed = _timed(shard)
    return {"apply_seconds": round(sum([t.apply_s for t in timed]), 6), "applies": sum([t.applies for t in timed])}


def _timed(shard: Shard) -> list[Updates | RowTable]:
    return [shard.updates, *(shard.rows.tables if shard.rows else ())]
