"""What a server keeps of one job: its shard, and who trains on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Any, NamedTuple

from zmqps.core.protocol.figures import GREATEST
from zmqps.core.protocol.messages import Assign, Recalled
from zmqps.core.server.ledger import Ledger, Ledgers
from zmqps.core.server.parked import DeferredPulls
from zmqps.core.server.past import Past
from zmqps.core.server.replicas.backup import Backup
from zmqps.core.server.replicas.stream import Stream
from zmqps.core.server.shard import Shard
from zmqps.errors import JobError

#: What the status shows of a shard that is not built.
NO_SHARD = dict.fromkeys(
    ("spare_nbytes", "arena_nbytes", "slots_nbytes", "copies_nbytes", "stage_nbytes", "version"), 0
)


class FreeMemory(NamedTuple):
    """How much memory was free for a shard, where these epochs had theirs already."""

    nbytes: int = 0
    beside: Set[int] = frozenset()


class Tenant:
    """A job on one server, from its `Assign` to its `Discard`.

    Parameters
    ----------
    assign
        What the coordinator has said about it.
    free
        What was free for it when it was assigned.
    """

    def __init__(self, assign: Assign, free: FreeMemory = FreeMemory()) -> None:  # noqa: B008  (a tuple)
        self.assign = assign
        self.free = free
        self.shard: Shard | None = None  # while it is not built yet
        self.ledgers = Ledgers(Past(assign.key))
        self.parked = DeferredPulls()
        self.counts: Counter[str] = Counter()
        self.generation = assign.generation  # how often the shard had changed hands when this copy became what it is
        self.stream: Stream | None = None  # of a leader that has backups
        self.backup: Backup | None = None  # of a copy that follows a leader
        self.yielding = False  # it is a leader that gives up its place to a backup, or has

    @property
    def name(self) -> str:
        """The job's."""
        return self.assign.name

    @property
    def loaded(self) -> bool:
        """Whether the shard has all its initial values."""
        return self.shard is not None and self.shard.loaded

    def built(self) -> Shard:
        """Return the shard, or raise `JobError` if it is not built yet."""
        if self.shard is None:
            raise JobError(f"this server has no shard of the job {self.name!r} yet; call worker.init(...) first")
        return self.shard

    def ready(self) -> Shard:
        """Return the shard once it has its values, or raise `JobError`."""
        shard = self.shard
        if shard is not None and shard.came.loaded and shard.dense.updates.broken is None:
            return shard
        shard = self.built()
        if shard.dense.updates.broken is not None:
            raise shard.dense.updates.broken.again()
        if not shard.loaded:
            raise JobError("this shard has no initial values yet; wait for worker.init(...) to return")
        return shard

    @property
    def is_bounded(self) -> bool:
        """Whether workers count on what others have pushed before a step to be in what they read."""
        return bool(self.assign.job.get("staleness"))

    @property
    def reserved_nbytes(self) -> int:
        """Memory that was admitted for the shard, or granted to it since."""
        return 0 if self.shard is None else self.shard.reserved_nbytes

    @property
    def untouched_nbytes(self) -> int:
        """Memory that was admitted for the shard and does not show in what the host uses yet."""
        return 0 if self.shard is None else self.shard.untouched_nbytes

    def known_of(self, incarnation: bytes) -> Recalled:
        """Return what is known of a worker's pushes."""
        ledger = self.ledgers.get(incarnation) or Ledger()
        applied = [seq for seq, found in ledger.results.items() if found is not None]
        return Recalled(self.assign.epoch, ledger.floor, applied)

    def forget(self, incarnation: bytes) -> None:
        """A client has gone."""
        self.ledgers.forget(incarnation)
        if self.shard is not None:
            self.shard.forget(incarnation)
        self.parked.drop(incarnation)

    def withdraw(self, incarnation: bytes, request: int) -> None:
        """Nobody waits for the answer to a pull any more."""
        self.parked.remove(incarnation, request)
        if self.stream is not None:
            self.stream.withdraw(incarnation, request)

    def counters(self, now: float = 0.0) -> Mapping[str, Any]:
        """Return what the status shows of this job on this server."""
        shard = self.shard
        return {
            **self.counts,
            **NO_SHARD,
            **(shard.figures() if shard else {}),
            "parked": len(self.parked),
            "oldest_parked_s": round(self.parked.oldest_s(now), 3),
            **(self.stream.counters(now) if self.stream else {}),
            **({"backup": 1, "filled": int(self.loaded)} if self.backup else {}),
            **({"slices": len(shard.slices), "slices_filled": shard.num_present} if self.backup and shard else {}),
            "loaded": self.loaded or self.backup is not None,
        }

    def validate(self, clients: Iterable[bytes]) -> None:
        """Assert the invariants; ``clients`` are those of the server."""
        self.parked.validate(clients)
        for ledger in self.ledgers.values():
            ledger.validate()
        if self.shard is not None:
            self.shard.validate()


def in_all(of_jobs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the counters of several jobs as one.

    They are sums, but the newest version and the longest wait, whether all are loaded, and what the device they share
    has free.
    """
    total: dict[str, Any] = {"loaded": True, "version": 0}
    for counters in of_jobs:
        for name, value in counters.items():
            if name in GREATEST:
                total[name] = max(total.get(name, value), value)
            elif name == "device_free_nbytes":
                total[name] = min(total.get(name, value), value)
            elif name == "loaded":
                total[name] = total[name] and value
            else:
                total[name] = total.get(name, 0) + value if type(value) in (int, float) else value
    return total
