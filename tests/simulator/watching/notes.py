"""Simulated workers that log while they train: each call is taken once, in order, or counted as lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from tests.simulator.engine import Node
from tests.simulator.jobs.asynchronous import AsyncTraining
from tests.simulator.jobs.synchronous import SyncTraining
from tests.simulator.jobs.training import Training
from zmqps.core.coordinator.watching.notes import Logged
from zmqps.core.protocol.messages import Message, Push
from zmqps.core.worker.extensions import SessionMachine
from zmqps.core.worker.notes import Notebook

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

S = TypeVar("S")

#: Calls of `log` for each message with gradients.
CALLS = 3
#: Bytes of calls that a worker keeps where there is room for few.
FEW_NBYTES = 600


class Diary:
    """What simulated workers have logged, and what of it the coordinator has told.

    Each call has the worker's number and how many calls came before it, so that it is known what is missing.

    Parameters
    ----------
    simulation
        The cluster.
    few
        Whether workers have room for few calls only.
    """

    def __init__(self, simulation: SimulatedCluster, *, few: bool) -> None:
        self._simulation = simulation
        self._few = few
        self._logged: dict[int, list[tuple[float, float]]] = defaultdict(
            list
        )  # worker -> when each call was, also by its own time
        self._known: dict[int, int] = defaultdict(int)  # worker -> calls that were taken or counted as lost
        self._last: dict[
            int, object
        ] = {}  # worker -> the coordinator's life that has told of it last, or was there first
        self._books: dict[int, Notebook] = {}
        self._lost: dict[int, int] = defaultdict(int)  # worker -> calls that were counted as lost
        self.num_taken = 0
        simulation.on_send.append(self._log)

    def _log(self, sender: Node, to: str, message: Message) -> None:
        """Let a worker that sends gradients log something beside."""
        if sender.role != "worker" or not isinstance(message, Push):
            return
        assert isinstance(sender.machine, SessionMachine)
        book, times = sender.machine.notes.notebook, self._logged[sender.number]
        if self._few and not times:
            sender.machine.notes.notebook = book = Notebook(most_nbytes=FEW_NBYTES)
        self._books[sender.number] = book
        self._last.setdefault(sender.number, self._simulation.nodes["coordinator"].machine)
        for _ in range(CALLS):
            book.add(self._simulation.time_of(sender), {"who": sender.number, "number": len(times)}, step=len(times))
            times.append((self._simulation.now, self._simulation.time_of(sender)))

    def told(self, coordinator: Node, event: Logged) -> None:
        """Assert that what the coordinator tells comes next, but for what it says is lost, or was lost with it."""
        lost, when = event.dropped, []
        for at, step, values in event.entries:
            who, number = int(values["who"]), int(values["number"])
            assert step == number, "a call has the step of another one"
            assert number >= self._known[who], f"call {number} of worker {who} is taken twice, or out of order"
            gap = number - self._known[who] - lost
            has_died = self._last[who] is not coordinator.machine
            assert gap == 0 or (gap > 0 and has_died), f"{gap} calls of worker {who} are lost, and not counted"
            self._known[who], self._last[who] = number + 1, coordinator.machine
            when.append((at + coordinator.clock.stood_s, self._logged[who][number]))
            self.num_taken += 1
            self._lost[who] += lost
            lost = 0
            unfounded = self._lost[who] - self._books[who].num_dropped
            assert unfounded <= 0, f"{unfounded} calls of worker {who} are counted as lost that it had room for"
        assert all(at >= was - 1e-6 for at, (was, _) in when), "a call is dated before it was made"
        late = [at - own for at, (_, own) in when]
        assert max(late) - min(late) < 1e-6, "calls of one message are moved against each other in time"

    @property
    def num_lost(self) -> int:
        """How many calls were counted as lost."""
        return sum(self._lost.values())

    def check_end(self) -> None:
        """Assert that nothing is missing of workers that have finished, and were not let go before they were heard."""
        for node in self._simulation.workers:
            assert isinstance(node.machine, SessionMachine)
            book = node.machine.notes.notebook
            if node.finished and not node.machine.member.lost and not book and node.number not in self._last_died:
                known, logged = self._known[node.number], len(self._logged[node.number])
                known += book.num_dropped - self._lost[node.number]  # without room, and no later call says so
                assert known == logged, f"worker {node.number} was told that {logged} calls are there, not {known}"

    @property
    def _last_died(self) -> set[int]:
        """The workers whose last calls may be lost with the coordinator."""
        now = self._simulation.nodes["coordinator"].machine
        return {who for who, machine in self._last.items() if machine is not now}


class Noting(Training):
    """Mixed into a training whose workers log."""

    few = False

    def watch(self, simulation: SimulatedCluster) -> None:
        """Let workers log from now on."""
        super().watch(simulation)
        self.diary = Diary(simulation, few=self.few)

    def notified(self, simulation: SimulatedCluster, node: Node, event: object) -> None:
        """The coordinator tells what was logged."""
        super().notified(simulation, node, event)
        if isinstance(event, Logged):
            self.diary.told(node, event)

    def check_end(self, simulation: SimulatedCluster) -> None:
        """Assert that nothing is missing."""
        super().check_end(simulation)
        self.diary.check_end()


class NotedAsync(Noting, AsyncTraining):
    """Asynchronous training whose workers log."""


class NotedSync(Noting, SyncTraining):
    """Synchronous training whose workers log."""


class FewNotes(NotedAsync):
    """Asynchronous training whose workers log more than they can keep while the coordinator does not answer."""

    few = True


def note_scenarios(found: Mapping[str, S]) -> dict[str, S]:
    """Return scenarios whose workers log, made of those without."""

    def long(kind: type[AsyncTraining]) -> Callable[[], Training]:
        return lambda: kind(steps=8, parameters=4, size=32, lives=16, compute_s=1.0)

    def sync() -> Training:
        return NotedSync(steps=8, compute_s=1.0, lives=16, retain=1)

    return {
        "async-notes": _with(found["async-everything"], long(NotedAsync)),
        "async-notes-breaks": _with(found["async-breaks"], long(NotedAsync)),
        "async-notes-freezes": _with(found["async-freezes"], long(NotedAsync)),
        "async-notes-few": _with(found["async-everything"], long(FewNotes)),
        "async-notes-returned": _with(found["async-returned"], long(NotedAsync)),
        "sync-notes": _with(found["sync-everything"], sync),
        "sync-notes-returned-everything": _with(found["sync-returned-everything"], sync),
    }


def _with(scenario: S, training: Callable[[], Training]) -> S:
    return replace(scenario, training=training)  # type: ignore[type-var]
