"""Fills a shard with what others on the same server have of it: where a job's shards are cut anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zmqps.core.server.dense.recut import fill_slices
from zmqps.core.server.replicas.backup import Backup
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.rows import rows_in
from zmqps.core.server.tenant import Tenant
from zmqps.errors import ProtocolError


def cut(tenant: Tenant, parents: Sequence[Tenant], backups: Mapping[int, Backup], version: int) -> None:
    """Fill a copy with what others here have of it, which change no more; done again, do nothing.

    ``backups`` are the copies here that follow a leader, by epoch; ``version``: the steps that the job has done, which
    nobody else says to a shard without a slice.

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
        backup = backups.get(parent.assign.epoch)
        if backup is None and not parent.yielding:
            raise ProtocolError(f"the leader of shard {parent.assign.shard} has not yielded")
        if backup is not None and backup.broken is not None:
            raise backup.broken.again()
    fill(shard, [parent.ready() for parent in parents], version)


def await_parents(shard: Shard) -> None:
    """Make a shard ready that will be filled here: its memory is there then, in a pause."""
    shard.follow()
    for slice_ in shard.slices:
        shard.memory.fill(slice_.value, 0)


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
