"""Asserts that every range of a data set is used by one worker, once in each pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulator.engine import Node
from tests.simulator.jobs.training import Life, life_of
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.job.data import DataSpec, Number
from zmqps.core.protocol.messages import Leave, Message, Range, Take

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster
    from tests.simulator.placement.stores import SavedJob


class RangeWitness:
    """Notes which worker is given which range, and which says it has used it.

    Parameters
    ----------
    simulation
        Which it listens to.
    data
        The only data set.
    """

    def __init__(self, simulation: SimulatedCluster, data: DataSpec) -> None:
        self._simulation = simulation
        self._data = data
        self._holders: dict[tuple[Life, Number], bytes] = {}
        self._done: dict[Life, set[Number]] = {}
        self._answered: set[tuple[bytes, int]] = set()  # by incarnation and request
        simulation.on_send.append(self._sent)
        simulation.on_receive.append(self._received)
        #: What has been said to be used to a coordinator that has not written it yet, and may die before.
        self._said: list[tuple[Life, Number]] = []
        self._said_to: Node | None = None
        simulation.on_written.append(self._written)

    def resume(self, life: Life, saved: SavedJob, *, again: bool = False) -> None:
        """The data sets of a job stand where they stood in a checkpoint; ``again``: it has gone back to it."""
        if life in self._done and not again:
            return
        found = next((entry for entry in saved.manifest["data"] if entry[0][0] == self._data.name), None)
        _, data_pass, following, out = found or ([], 0, 0, [])
        numbers = range(self._data.num_ranges)
        done = {(before, number) for before in range(data_pass) for number in numbers}
        done |= {(data_pass, number) for number in range(following) if number not in out}
        self._done[life] = done
        self._holders = {key: who for key, who in self._holders.items() if key[0] != life}

    def _received(self, receiver: Node, sender: str, message: Message) -> None:
        """Note what has been used: a worker says so when it asks for more, or finishes."""
        if receiver.role != "coordinator":
            return
        self._said, self._said_to = [], receiver
        worker = self._simulation.nodes[sender]
        who = worker.identity.incarnation
        assert isinstance(receiver.machine, CoordinatorMachine)
        if who not in receiver.machine.membership.members:
            return
        if isinstance(message, Take) and message.done:
            life, used = life_of(worker), (message.done[0], message.done[1])
            if self._holders.get((life, used)) == who:
                self._note(life, [used])
        elif isinstance(message, Leave) and message.reason == "finished" and worker.role == "worker":
            life = life_of(worker)
            held = [number for (where, number), holder in self._holders.items() if (where, holder) == (life, who)]
            self._note(life, held)

    def _note(self, life: Life, used: list[Number]) -> None:
        if self._simulation.options.patience:
            self._said = [(life, number) for number in used]
        else:
            self._done.setdefault(life, set()).update(used)

    def _written(self, node: Node) -> None:
        for life, number in self._said if node is self._said_to else ():
            self._done.setdefault(life, set()).add(number)
        self._said = []

    def _sent(self, sender: Node, receiver: str, message: Message) -> None:
        """Assert that a range handed out is no other worker's, and not used yet."""
        if not isinstance(message, Range):
            return
        worker = self._simulation.nodes[receiver]
        life, who = life_of(worker), worker.identity.incarnation
        if (who, message.request) in self._answered:  # said again; if the job has gone back since, it has it anew
            if message.start < message.stop and (message.data_pass, message.number) not in self._done.get(life, ()):
                self._holders.setdefault((life, (message.data_pass, message.number)), who)
            return
        self._answered.add((who, message.request))
        done, num_ranges = self._done.setdefault(life, set()), self._data.num_ranges
        if message.start >= message.stop:
            missing = self._data.passes * num_ranges - len(done)
            assert not missing, f"the data are said to be used up, but {missing} ranges are not"
            return
        assert isinstance(sender.machine, CoordinatorMachine)
        number = message.data_pass, message.number
        holder = self._holders.get((life, number), who)
        assert holder == who or holder not in sender.machine.membership.members, f"two workers have range {number}"
        assert number not in done, f"range {number} has been used already"
        before = sum(data_pass < message.data_pass for data_pass, _ in done)
        assert before == message.data_pass * num_ranges, f"pass {message.data_pass} begins before the last one is over"
        self._holders[life, number] = who
