"""What a server keeps of one job: its shard, and who trains on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from typing import Any

from zmqps.core.protocol.figures import GREATEST
from zmqps.core.protocol.messages import Assign, Recalled
from zmqps.core.server import timing
from zmqps.core.server.dense.shard import Shard
from zmqps.core.server.ledger import Ledger
from zmqps.core.server.parked import DeferredPulls
from zmqps.core.server.past import Past
from zmqps.core.server.replicas.backup import Backup
from zmqps.core.server.replicas.stream import Stream
from zmqps.errors import JobError


class Tenant:
    """A job on one server, from its `Assign` to its `Discard`.

    Parameters
    ----------
    assign
        What the coordinator has said about it.
    available_nbytes
        How much memory was free for it when it was assigned,
    beside
        where these epochs had their shards already.
    """

    def __init__(self, assign: Assign, available_nbytes: int = 0, beside: Set[int] = frozenset()) -> None:
        self.assign = assign
        self.available_nbytes = available_nbytes
        self.beside = beside
        self.shard: Shard | None = None  # while it is not built yet
        self.ledgers: dict[bytes, Ledger] = {}  # by incarnation: a ledger outlives its connection
        self.past = Past(assign.key)  # who had a ledger
        self.parked = DeferredPulls()
        self.counts: Counter[str] = Counter()
        self.generation = assign.generation  # how often the shard had changed hands when this copy became what it is
        self.stream: Stream | None = None  # of a leader that has backups
        self.backup: Backup | None = None  # of a copy that follows a leader
        self.inherited = False  # it has ledgers of workers that have yet to come here
        self.recalled = False  # … from a checkpoint, which may lack what workers were told
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
        if shard is not None and shard.loaded and shard.updates.broken is None:
            return shard
        shard = self.built()
        if shard.updates.broken is not None:
            raise shard.updates.broken.again()
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
        shard = self.shard
        if shard is None:
            return 0
        granted = shard.beside.granted_nbytes + (shard.rows.granted_nbytes if shard.rows else 0)
        return shard.required_nbytes + granted

    @property
    def untouched_nbytes(self) -> int:
        """Memory that was admitted for the shard and does not show in what the host uses yet."""
        shard = self.shard
        if shard is None:
            return 0
        held = shard.arena_nbytes if shard.loaded else shard.arena_nbytes - shard.placement.nbytes(shard.index)
        beside = shard.beside.admitted_nbytes + shard.beside.granted_nbytes
        held += min(shard.counters["spare_nbytes"], shard.kept_nbytes + beside)
        held += shard.rows.nbytes if shard.rows else 0
        held += (shard.steps.stage.nbytes if shard.steps else 0) + (shard.copies.nbytes if shard.copies else 0)
        return max(0, self.reserved_nbytes - held)

    def saved_state(self) -> Mapping[str, Any]:
        """Return what a checkpoint keeps beside the arrays: who has pushed what, so that nothing is applied twice."""
        return {"ledgers": {who.hex(): ledger.to_plain() for who, ledger in self.ledgers.items()}}

    def recall(self, ledgers: Mapping[str, Any] | None) -> None:
        """Take what a checkpoint knows of workers' pushes, where they go on with it; None: it is none of theirs."""
        if ledgers is not None:
            self.inherited = self.recalled = True
            for who, plain in ledgers.items():
                self.ledgers[bytes.fromhex(who)] = Ledger.from_plain(plain)

    def ledger(self, incarnation: bytes) -> Ledger:
        """Return the ledger of a worker."""
        ledger = self.ledgers.get(incarnation)
        if ledger is None:
            ledger = self.ledgers[incarnation] = Ledger()
        return ledger

    def known_of(self, incarnation: bytes) -> Recalled:
        """Return what is known of a worker's pushes."""
        ledger = self.ledgers.get(incarnation) or Ledger()
        applied = [seq for seq, found in ledger.results.items() if found is not None]
        return Recalled(self.assign.epoch, ledger.floor, applied)

    def forget(self, incarnation: bytes) -> None:
        """A client has gone."""
        if self.ledgers.pop(incarnation, None) is not None:
            self.past.add(incarnation)
        if self.shard is not None and self.shard.copies is not None:
            self.shard.copies.forget(incarnation)
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
            "spare_nbytes": 0,
            **({**shard.counters, **shard.memory.counters(), **timing.counters(shard)} if shard else {}),
            **(shard.rows.counters() if shard and shard.rows else {}),
            "parked": len(self.parked),
            "oldest_parked_s": round(self.parked.oldest_s(now), 3),
            **(self.stream.counters(now) if self.stream else {}),
            **({"backup": 1, "filled": int(self.loaded)} if self.backup else {}),
            **({"slices": len(shard.slices), "slices_filled": shard.num_present} if self.backup and shard else {}),
            "loaded": self.loaded or self.backup is not None,
            "arena_nbytes": shard.arena_nbytes if shard else 0,
            "slots_nbytes": shard.arena_nbytes - shard.placement.nbytes(shard.index) if shard else 0,
            "copies_nbytes": shard.copies.nbytes if shard and shard.copies else 0,
            "stage_nbytes": shard.steps.stage.nbytes if shard and shard.steps else 0,
            "version": shard.version if shard else 0,
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
