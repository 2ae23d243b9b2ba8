"""A job as a worker describes it: read, compared with the existing job, and sized, before it is placed.

The description of a large model takes longer to read than others may wait, so that is done in the background
(`openings.py`), and its results are stored with it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.placement.resumption import Resumption
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.typed import Packed, pack
from zmqps.core.protocol.wire import MAX_HEADER_NBYTES, uncollected
from zmqps.errors import JobMemoryError, LimitError, PSError, counted, is_short

#: The advice if a worker's job differs from the one of its name.
OTHER_JOB = (
    "give this worker's job another name, connect(..., job=...), or end the job that is there, if it is an old one: "
    "zmqps jobs end {name}"
)
#: The most bytes sent about a job besides its description and its cuts: a row for each server, and for each backup.
TOLD_NBYTES = 64 << 10
#: The status shows this many parts and characters of an optimizer's option.
MAX_SHOWN = 500
SERVER_NBYTES = 1024
CUT_NBYTES = 9

#: What a described job is compared with: the existing one, or the checkpoint to start from.
Rival = JobSpec | Resumption | None


class Described(dict[str, Any]):
    """A job's map that was read in the background."""

    __slots__ = ("job", "keyspace", "packed", "problem", "raw", "rival")
    job: JobSpec
    keyspace: KeySpace
    rival: Rival  # what it was compared with
    problem: PSError | None  # how it differs from that; None: it does not
    raw: Packed  # the same, packed once for all receivers
    packed: bytes

    @classmethod
    def of(cls, wire: Mapping[str, Any], rival: Rival, owner: str, name: str) -> Described:
        """Return the description in a map; errors are those of `JobSpec.from_wire`."""
        with uncollected():
            job = JobSpec.from_wire(wire)
            if "mode" not in wire:  # an older map
                wire = job.to_wire()
            found = cls(wire)
            found.job, found.keyspace = job, KeySpace.of(job).prepared()
        found.packed = pack(dict(wire))
        found.raw = Packed(found.packed)
        found.rival, found.problem = rival, None
        try:
            check_same(rival, found.job, owner, name)
        except PSError as error:
            found.problem = error.with_traceback(None)
        return found

    def again(self) -> Described:
        """Return an equal one."""
        other = type(self)(self)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        return other


def read(wire: Mapping[str, Any]) -> JobSpec:
    """Return the job in a map; errors are those of `JobSpec.from_wire`."""
    return wire.job if isinstance(wire, Described) else JobSpec.from_wire(wire)


def check_same(rival: Rival, job: JobSpec, owner: str, name: str) -> None:
    """Raise `JobMismatchError` unless a job is the one of this name, or can start from the checkpoint."""
    if isinstance(rival, JobSpec):
        rival.check_same(job, owner, OTHER_JOB.format(name=shlex.quote(name)))
    elif rival is not None:
        rival.check(job)


def difference(rival: Rival, wire: Mapping[str, Any], owner: str, name: str) -> PSError | None:
    """Return how a described job differs from the existing one; None: it does not."""
    if isinstance(wire, Described) and wire.job is rival:
        return None
    if isinstance(wire, Described) and wire.rival is rival:
        return wire.problem
    try:
        check_same(rival, read(wire), owner, name)
    except PSError as error:
        return error
    return None


def shown(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer for the status, without long parts: usually its groups."""
    return {name: value for name, value in optimizer.items() if len(name) <= MAX_SHOWN and is_short(value, MAX_SHOWN)}


def place(
    name: str, job: JobSpec, wire: Mapping[str, Any], servers: Sequence[MemberInfo], copies: int, slice_nbytes: int
) -> Placement:
    """Return a job's placement on servers, with this many copies of each shard.

    Raises `JobMemoryError`: its values alone exceed the known memory of all servers, free or not. Each server is asked
    about its free memory, and the needs of the optimizer; `LimitError`: it has too many slices, or the messages about
    it would be too large.
    """
    keyspace = wire.keyspace if isinstance(wire, Described) else KeySpace.of(job)
    copies = min(copies, len(servers))
    known = [server.reported.memory_nbytes for server in servers]
    needed = copies * keyspace.nbytes
    if all(known) and needed > sum(known):
        held = f", {copies} copies of each" if copies > 1 else ""
        largest = keyspace.largest
        assert largest is not None, "rows take no memory before they are pushed"
        what = f"the values of job {name!r}{held} (the largest is {largest.name[:80]!r}, {largest.describe()})"
        raise JobMemoryError(
            server=f"the cluster's {counted(len(servers), 'server')}", what=what, needed_nbytes=needed,
            free_nbytes=sum(known),
        )  # fmt: skip
    described = len(wire.packed) if isinstance(wire, Described) else 0
    cuts = CUT_NBYTES * len(keyspace.tables) * (len(servers) + 1)
    told = described + cuts + copies * SERVER_NBYTES * len(servers) + TOLD_NBYTES
    if told > MAX_HEADER_NBYTES:
        what = f"number of bytes that servers need to know of job {name!r}"
        raise LimitError(what=what, got=told, limit=MAX_HEADER_NBYTES)
    return Placement.balance(keyspace, len(servers), slice_nbytes)
