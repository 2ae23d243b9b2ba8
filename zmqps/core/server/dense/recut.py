"""Fills a shard with what others on the same server have of it: where a job's shards are cut anew."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zmqps.core.job.recut import Lookup
from zmqps.core.server.dense.memory import Memory
from zmqps.core.server.dense.shard import Shard
from zmqps.core.server.dense.slices import Pin, SliceState
from zmqps.core.server.tables.table import RowTable
from zmqps.core.server.tenant import Tenant
from zmqps.errors import ProtocolError
from zmqps.rows.kept import rebased
from zmqps.rows.store import SCANNED_ROWS


def cut(tenant: Tenant, parents: Sequence[Tenant], version: int) -> None:
    """Fill a copy with what others here have of it, which change no more; done again, do nothing.

    ``version``: the steps that the job has done, which nobody else says to a shard without a slice.

    Raises
    ------
    ProtocolError
        They may change yet.
    PSError, MemoryError
        It cannot be done.
    """
    shard = tenant.built()
    if shard.loaded:
        return
    for parent in parents:
        if parent.backup is None and not parent.yielding:
            raise ProtocolError(f"the leader of shard {parent.assign.shard} has not yielded")
        if parent.backup is not None and parent.backup.broken is not None:
            raise parent.backup.broken.again()
    fill(shard, [parent.ready() for parent in parents], version)


def fill(shard: Shard, parents: Sequence[Shard], version: int = 0) -> None:
    """Let a shard have the values, slots, counts and versions that its parents have of its elements.

    A slice has the newest version of those that it is made of, and a parameter in it the most updates: where pushes
    failed in part, or one shard has gone back to a checkpoint alone, they may differ.

    Raises
    ------
    ProtocolError
        The parents lack some of it, or are of different steps.
    MemoryError
        There is not enough for older versions that are kept readable; the shard is not complete.
    """
    versions = {parent.version for parent in parents if parent.slices or parent.rows}
    if len(versions) > 1:
        raise ProtocolError(f"shards of versions {sorted(versions)} cannot be put together")
    there = Lookup([(other.slice, other) for parent in parents for other in parent.slices])
    for state in shard.slices:
        _fill_slice(state, list(there.over(state.slice)), shard.memory)
    tables = Lookup([(t.slice, t) for parent in parents for t in (parent.rows.tables if parent.rows else ())])
    for table in shard.rows.tables if shard.rows is not None else ():
        _fill_table(table, list(tables.over(table.slice)))
    shard.begin_at(versions.pop() if versions else version)
    shard.filled()


def _fill_table(table: RowTable, over: Sequence[tuple[RowTable, slice, slice]]) -> None:
    """Let a table have the rows of some buckets of others; done again, they are the same."""
    num_filled = sum(here.stop - here.start for _, here, _ in over)
    if num_filled != table.slice.size:
        raise ProtocolError(f"of table {table.spec.name} {table.slice.size} buckets are wanted, {num_filled} are here")
    table.steps = max(other.steps for other, _, _ in over)
    table.version = max(other.version for other, _, _ in over)
    # rows are as old as they were, and expire no earlier
    table.expired_before = max(0, min(other.expired_before + table.steps - other.steps for other, _, _ in over))
    for other, _, there in over:
        lo, hi = other.slice.start + there.start, other.slice.start + there.stop
        start = 0
        while start < other.store.end:
            rows, start = other.store.in_buckets(lo, hi, table.spec.bucket_seed, start, SCANNED_ROWS)
            kept = other.kept(rows)
            table.take(kept._replace(stamps=rebased(kept.stamps, table.steps, other.steps)))


def _fill_slice(state: SliceState, over: Sequence[tuple[SliceState, slice, slice]], memory: Memory) -> None:
    num_filled = sum(here.stop - here.start for _, here, _ in over)
    if num_filled != state.size:
        raise ProtocolError(f"of slice {state.slice.index} {state.size} elements are wanted, {num_filled} are here")
    kept = set.intersection(*({number for number, *_ in other.history} for other, _, _ in over))
    older = [(number, memory.empty(state.size, state.value.dtype)) for number in sorted(kept)]
    steps = np.zeros_like(state.steps)
    for other, here, there in over:
        state.value[here] = other.value[there]
        for slot, its in zip(state.slots, other.slots, strict=True):
            slot[here] = its[there]
        for number, value in older:
            value[here] = other.at(number)[1][there]
        ours, its_own = slice(*state.segments(here.start, here.stop)), slice(*other.segments(there.start, there.stop))
        steps[ours] = np.maximum(steps[ours], other.steps[its_own])
    state.steps = steps
    state.version = max(other.version for other, _, _ in over)
    state.history.clear()
    for number, value in older:
        pin = Pin()
        state.history.append((number, value, [pin], pin))
