"""The shards that a server is yet to build: one at a time, each admitted in addition to those before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.events import Action, Run
from zmqps.core.protocol.messages import Assign
from zmqps.core.protocol.wire import uncollected
from zmqps.core.server.shard import Shard
from zmqps.core.server.tenant import FreeMemory, Tenant
from zmqps.errors import JobError, JobMemoryError, ProtocolError, PSError, counted


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


class Built(NamedTuple):
    """A shard that was built, and the restored ledgers of workers, as plain data; None: there are none."""

    shard: Shard
    ledgers: Mapping[str, Any] | None = None


#: ``begin(shard, job, restore)``, as in `Assign`: returns the restored ledgers of workers, as in `Built`.
Begin: TypeAlias = Callable[[Shard, JobSpec, Mapping[str, Any]], Mapping[str, Any] | None]


def begin_anew(shard: Shard, job: JobSpec, restore: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Start without restored state."""
    raise JobError("this server cannot begin with anything that was saved")


class Builds:
    """The queue of shards to build."""

    def __init__(
        self,
        tenants: Mapping[int, Tenant],  # the jobs of the server by epoch; shared with its machine
        # builds a shard: ``make_shard(job, placement, index, room)``
        make_shard: Callable[[JobSpec, Placement, int, Room], Shard],
        available: Callable[[], int],  # returns the available bytes of memory on this host
        begin: Begin = begin_anew,  # restores the state of a new shard
    ) -> None:
        self._tenants = tenants
        self._make_shard = make_shard
        self._available = available
        self._begin_with = begin
        self._waiting: deque[Assign] = deque()  # the first of them is being built

    def new_tenant(self, assign: Assign) -> Tenant:
        """Return a job's entry, with its share of what is free now, before any server of this host builds for it."""
        untouched = sum(tenant.untouched_nbytes for tenant in self._tenants.values())
        return Tenant(
            assign, FreeMemory((self._available() - untouched) // max(1, assign.sharing), set(self._built_epochs))
        )

    @property
    def _built_epochs(self) -> Iterable[int]:
        return (epoch for epoch, tenant in self._tenants.items() if tenant.shard is not None)

    def add(self, assign: Assign) -> list[Action]:
        """Queue the shard of an existing tenant."""
        self._waiting.append(assign)
        return self._begin() if len(self._waiting) == 1 else []

    def next(self) -> list[Action]:
        """The first shard is built, or could not be: start the next one."""
        self._waiting.popleft()
        return self._begin()

    def _begin(self) -> list[Action]:
        while self._waiting and self._waiting[0].epoch not in self._tenants:
            self._waiting.popleft()  # discarded before its turn
        if not self._waiting:
            return []
        assign = self._waiting[0]
        tenant = self._tenants[assign.epoch]
        required = {e: t.reserved_nbytes for e, t in self._tenants.items() if t.shard is not None}
        since = sum(nbytes for epoch, nbytes in required.items() if epoch not in tenant.free.beside)
        gently = bool(assign.restore.get("cut"))
        room = Room(
            sum(required.values()), tenant.free.nbytes - since, assign.num_workers, gently, max(1, assign.sharing)
        )
        return [Run(assign, partial(self._build, assign, room))]

    def _build(self, assign: Assign, room: Room) -> Built:
        """Read the job, which takes long if it has many parameters, and build its shard; in another thread."""
        job, placement = _located(assign)
        shard = self._make_shard(job, placement, assign.shard, room)
        return Built(shard, self._begin_with(shard, job, assign.restore) if assign.restore else None)


def build_error(name: str, assign: Assign, error: Exception) -> PSError:
    """Return this server's report to the coordinator that it could not build a shard."""
    if isinstance(error, PSError):
        return error
    if isinstance(error, MemoryError):
        return JobError(f"{name} lacks the memory for shard {assign.shard} ({error}); start more servers")
    return JobError(f"{name} cannot build shard {assign.shard} of the job {assign.name!r}: {error!r}")


def _located(assign: Assign) -> tuple[JobSpec, Placement]:
    """Return the job and the placement of an `Assign`; raise `PSError` if one of them is invalid."""
    with uncollected():
        job = JobSpec.from_wire(assign.job)
        keyspace = KeySpace.of(job).prepared()
    placement = Placement.from_wire(keyspace, assign.placement)
    if assign.shard >= placement.num_shards:
        raise ProtocolError(f"shard {assign.shard} of {placement.num_shards}")
    return job, placement
