"""Fills a shard from others on the same server, when a job's shards are divided again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zmqps.core.server.dense.recut import fill_slices
from zmqps.core.server.replicas.backup import Backup
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.rows import rows_in
from zmqps.core.server.tenant import Tenant
from zmqps.errors import ProtocolError


def cut(tenant: Tenant, parents: Sequence[Tenant], backups: Mapping[int, Backup], version: int) -> None:
    """Fill a copy from others here, which do not change any more; a repeated call does nothing.

    ``backups`` are the copies here that follow a leader, by epoch; ``version``: the steps of the job, for a shard
    without a slice.

    Raises
    ------
    ProtocolError
        They may still change.
    PSError, MemoryError
        It is impossible.
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
    """Prepare a shard to be filled here: its memory must be ready before the pause."""
    shard.follow()
    for slice_ in shard.slices:
        shard.memory.fill(slice_.value, 0)


def fill(shard: Shard, parents: Sequence[Shard], version: int = 0) -> None:
    """Copy a shard's values, slots, counts and versions from its parents.

    Raises
    ------
    ProtocolError
        The parents lack part of it, or are at different steps.
    MemoryError
        There is not enough for retained older versions; the shard is not complete.
    """
    versions = {parent.version for parent in parents if not parent.is_empty}
    if len(versions) > 1:
        raise ProtocolError(f"shards of versions {sorted(versions)} cannot be put together")
    fill_slices(shard.slices, [state for parent in parents for state in parent.slices], shard.memory)
    rows_in(shard).refill([rows_in(parent) for parent in parents])
    shard.begin_at(versions.pop() if versions else version)
    shard.filled()
