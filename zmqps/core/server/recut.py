"""Fills a shard with what others on the same server have of it: where a job's shards are cut anew."""

from __future__ import annotations

from collections.abc import Sequence

from zmqps.core.server.dense.recut import fill_slices
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.rows import rows_in
from zmqps.core.server.tenant import Tenant
from zmqps.errors import ProtocolError


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

    Raises
    ------
    ProtocolError
        The parents lack some of it, or are of different steps.
    MemoryError
        There is not enough for older versions that are kept readable; the shard is not complete.
    """
    versions = {parent.version for parent in parents if not parent.is_empty}
    if len(versions) > 1:
        raise ProtocolError(f"shards of versions {sorted(versions)} cannot be put together")
    fill_slices(shard.slices, [state for parent in parents for state in parent.slices], shard.memory)
    rows_in(shard).refill([rows_in(parent) for parent in parents])
    shard.begin_at(versions.pop() if versions else version)
    shard.filled()
