"""Whether a shard fits in addition to those of other jobs: decided before any of it is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.errors import JobMemoryError, counted


class Room(NamedTuple):
    """What a server that builds a shard knows about the memory for it.

    ``reserved_nbytes`` were admitted for other jobs on it; ``available_nbytes`` are its share of its host's free
    memory; ``num_workers`` is how many the job counts on; ``gently``: the job trains meanwhile, and does not wait for
    the shard; ``sharing`` servers of the job are on the host.
    """

    reserved_nbytes: int = 0
    available_nbytes: int = 1 << 62
    num_workers: int = 1
    gently: bool = False
    sharing: int = 1


def required_nbytes(placement: Placement, index: int, num_slots: int, job: JobSpec, num_workers: int) -> dict[str, int]:
    """Return the bytes of a job's shard with this many workers, by purpose."""
    values = placement.nbytes(index)
    return {
        "values": values,
        "optimizer slots": values * num_slots,
        "kept versions": values * job.retain,
        f"gradients of {counted(num_workers, 'worker')}": values * num_workers if job.mode == "sync" else 0,
    }


def described(placement: Placement, index: int, required: Mapping[str, int]) -> str:
    """Return a shard and its memory by purpose, for errors."""
    parts = ", ".join(f"{what} {nbytes:,}" for what, nbytes in required.items() if nbytes)
    return f"shard {index} of {placement.num_shards} ({parts})"


def admit(server: str, placement: Placement, index: int, required: Mapping[str, int], free_nbytes: int) -> int:
    """Return the bytes to reserve for a shard.

    Raises
    ------
    JobMemoryError
        That much memory is not free.
    """
    needed = sum(required.values())
    if needed > free_nbytes:
        what = described(placement, index, required)
        raise JobMemoryError(server=server, what=what, needed_nbytes=needed, free_nbytes=max(0, free_nbytes))
    return needed
