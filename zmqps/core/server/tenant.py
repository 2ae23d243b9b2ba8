"""A server's state of one job: its shard, and the workers that train on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Set
from typing import Any, NamedTuple

from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages import Assign, Committed, Recalled
from zmqps.core.server.clients import Client
from zmqps.core.server.ledger import Ledger, Ledgers, Past
from zmqps.core.server.parked import DeferredPulls
from zmqps.core.server.parts import AnyPull, AnyPush
from zmqps.core.server.shard import Shard
from zmqps.errors import DeposedError, JobError

#: What the status shows of a shard that is not built.
NO_SHARD = dict.fromkeys(
    ("spare_nbytes", "arena_nbytes", "slots_nbytes", "copies_nbytes", "stage_nbytes", "version"), 0
)


class FreeMemory(NamedTuple):
    """The free memory for a shard, when these epochs had theirs already."""

    nbytes: int = 0
    beside: Set[int] = frozenset()


class AnswerGate(ABC):
    """Defers answers until their content is confirmed elsewhere; a shard without one answers at once."""

    @abstractmethod
    def pushed(self, client: Client, tenant: Tenant, message: AnyPush, now: float) -> list[Action] | None:
        """A push was applied: return None if it may be acknowledged now, else it will be later."""

    @abstractmethod
    def asked(self, client: Client, tenant: Tenant, message: AnyPull, now: float) -> list[Action] | None:
        """A pull has arrived: return None if it may be answered now, else it will be later."""

    @abstractmethod
    def committed(self, tenant: Tenant, message: Committed, now: float) -> list[Action]:
        """A step was committed: report it to the coordinator, now or later."""

    @abstractmethod
    def withdraw(self, tenant: Tenant, incarnation: bytes, request: int) -> None:
        """The answer to a pull is not awaited any more."""


class Tenant:
    """A job on one server, from its `Assign` to its `Discard`.

    Parameters
    ----------
    assign
        The coordinator's order.
    free
        The free memory for it when it was assigned.
    """

    def __init__(self, assign: Assign, free: FreeMemory = FreeMemory()) -> None:  # noqa: B008  (a tuple)
        self.assign = assign
        self.free = free
        self.shard: Shard | None = None  # while it is not built yet
        self.ledgers = Ledgers(Past(assign.key))
        self.parked = DeferredPulls()
        self.counts: Counter[str] = Counter()
        self.generation = assign.generation  # how often the shard had changed hands when this copy got its role
        self.gate: AnswerGate | None = None  # defers its answers
        self.follows = False  # another copy leads: no client is answered
        self.yielding = False  # it gives up its leadership to such a copy, or has

    @property
    def name(self) -> str:
        """The job's name."""
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
        """Whether workers rely on reading what others have pushed before a step."""
        return self.assign.job.get("mode") == "bounded"

    @property
    def reserved_nbytes(self) -> int:
        """Memory that was admitted for the shard, or granted to it since."""
        return 0 if self.shard is None else self.shard.reserved_nbytes

    @property
    def untouched_nbytes(self) -> int:
        """Memory that was admitted for the shard and is not visible in the host's used memory yet."""
        return 0 if self.shard is None else self.shard.untouched_nbytes

    def check_role(self, role: str) -> None:
        """Raise `DeposedError` unless the role in a Hello fits this copy's role."""
        if (role == "server") != self.follows:
            raise DeposedError(job=self.name, generation=self.generation)

    def known_of(self, incarnation: bytes) -> Recalled:
        """Return the ledger of a worker."""
        ledger = self.ledgers.get(incarnation) or Ledger()
        applied = [seq for seq, found in ledger.results.items() if found is not None]
        return Recalled(self.assign.epoch, ledger.floor, applied)

    def forget(self, incarnation: bytes) -> None:
        """A client has departed."""
        self.ledgers.forget(incarnation)
        if self.shard is not None:
            self.shard.forget(incarnation)
        self.parked.drop(incarnation)

    def withdraw(self, incarnation: bytes, request: int) -> None:
        """The answer to a pull is not awaited any more."""
        self.parked.remove(incarnation, request)
        if self.gate is not None:
            self.gate.withdraw(self, incarnation, request)

    def counters(self, now: float = 0.0) -> dict[str, Any]:
        """Return the status of this job on this server."""
        shard = self.shard
        return {
            **self.counts,
            **NO_SHARD,
            **(shard.figures() if shard else {}),
            "parked": len(self.parked),
            "oldest_parked_s": round(self.parked.oldest_s(now), 3),
            "loaded": self.loaded,
        }

    def validate(self, clients: Iterable[bytes]) -> None:
        """Assert the invariants; ``clients`` are those of the server."""
        self.parked.validate(clients)
        for ledger in self.ledgers.values():
            ledger.validate()
        if self.shard is not None:
            self.shard.validate()
