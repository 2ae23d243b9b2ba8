"""A coordinator that dies again and again, at any message and any write to its journal, and comes back from that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulator.engine import Node, as_kept
from tests.simulator.placement.replicas import LostServers
from zmqps.core.coordinator.journal import key_of
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.remembered import dump_all
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.plain import unpack
from zmqps.core.worker.operations import Operation
from zmqps.errors import CoordinatorRestartedError, EvictedError, PeerLostError

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

#: Members wait so long for it: longer than it is ever away.
PATIENCE_S = 60.0
#: How often it dies, and how long after it is back at least, and at most.
DEATHS = (1, 5)
AFTER_S = (0.0, 6.0)
#: It dies at one of so many messages or writes that follow.
MOST_EVENTS = 12
#: What it dies at: a moment, a message that it is about to send or take, a transaction that is lost, or is there.
MOMENTS = ("time", "send", "receive", "write", "written")
#: Where shards have copies it also dies at one of so many messages about these that follow, …
MOST_OF_COPIES = 4
COPY_MOMENTS = (
    *MOMENTS,
    "send of copies",
    "receive of copies",
    "send of copies",
    "receive of copies",
    *["promotion"] * 3,
)
ABOUT_COPIES = (m.Lead, m.Leading, m.View, m.Followed, m.Ready)
#: … and so often a server dies, too, so soon after it.
SERVER_TOO, SOON_S = 0.4, (0.0, 3.0)


class Comebacks:
    """Kills the coordinator, and asserts that what it had decided it still knows when it is back.

    Parameters
    ----------
    simulation
        Whose; it starts the coordinator again, from its journal.
    losses
        Where shards have copies, which servers may die with it.
    """

    def __init__(self, simulation: SimulatedCluster, losses: LostServers | None) -> None:
        self._simulation = simulation
        self._losses = losses
        self._moments = MOMENTS if losses is None else COPY_MOMENTS
        self._left = simulation.rng.randint(*DEATHS)
        self._moment = ""  # at what it dies next; empty: not yet
        self._events = 0
        self.times = 0  # that it has come back
        simulation.on_send.append(self._sent)
        simulation.on_receive.append(self._received)
        simulation.on_write.append(lambda node: self._at("write", node))
        simulation.on_written.append(lambda node: self._at("written", node))

    def started(self, coordinator: Node) -> None:
        """The coordinator is there, perhaps again: assert that it knows what is in its journal."""
        simulation = self._simulation
        if coordinator.machine.is_back:  # type: ignore[union-attr]
            self.times += 1
        self.check(coordinator)
        if self._left > 0:
            self._left -= 1
            simulation.at(simulation.now + simulation.rng.uniform(*AFTER_S), lambda: self._arm(coordinator))

    def _arm(self, coordinator: Node) -> None:
        simulation = self._simulation
        if not coordinator.alive or simulation.network.quiet:
            return
        self._events = simulation.rng.randrange(MOST_EVENTS)
        self._moment = simulation.rng.choice(self._moments)
        if self._moment in ("send of copies", "receive of copies", "promotion"):
            self._events %= MOST_OF_COPIES
        if self._moment == "time":
            self._events = 0
            self._at("time", coordinator)

    def _sent(self, sender: Node, receiver: str, message: m.Message) -> None:
        self._at("send", sender)
        if isinstance(message, ABOUT_COPIES):
            self._at("send of copies", sender)
        # behind what is said to the server that is to take over
        if isinstance(message, m.View) and message.change is m.ChangeKind.MOVED and not message.placement:
            self._at("promotion", sender)

    def _received(self, receiver: Node, sender: str, message: m.Message) -> None:
        self._at("receive", receiver)
        if isinstance(message, ABOUT_COPIES):
            self._at("receive of copies", receiver)

    def _at(self, moment: str, node: Node) -> None:
        if moment != self._moment or node.role != "coordinator" or not node.alive:
            return
        self._events -= 1
        if self._events < 0:
            self._moment, simulation = "", self._simulation
            simulation.kill(node)
            if self._losses is not None and simulation.rng.random() < SERVER_TOO:
                simulation.at(simulation.now + simulation.rng.uniform(*SOON_S), self._lose_server)

    def _lose_server(self) -> None:
        simulation, losses = self._simulation, self._losses
        assert losses is not None
        alive = [server for server in simulation.servers if server.alive and losses.may_lose(server)]
        if alive and not simulation.network.quiet:
            simulation.kill(simulation.rng.choice(alive))

    def check(self, coordinator: Node) -> None:
        """Assert that the journal holds what the coordinator knows, and nothing else."""
        machine = coordinator.machine
        assert isinstance(machine, CoordinatorMachine)
        knows = {key_of(*key): as_kept(data) for key, data in dump_all(machine).items()}
        kept = self._simulation.journals[coordinator.name]
        if knows == kept:
            return
        wrong = sorted(key for key in {*knows, *kept} if knows.get(key) != kept.get(key))
        raise AssertionError(
            "the journal does not hold what the coordinator knows: "
            + ", ".join(f"{key} {_differs(_data(kept.get(key)), _data(knows.get(key)))}" for key in wrong[:3])
        )

    def resolved(self, worker: Node, operation: Operation, value: object, *, may_be_lost: bool) -> None:
        """Assert that no member has lost the coordinator, and none is lost because it was away."""
        if self._simulation.nodes["coordinator"].exit is not None:
            return  # the cluster has ended with its job
        name = f"{worker.name}: {operation.title}"
        assert not isinstance(value, CoordinatorRestartedError), f"{name}: the coordinator is taken for another one"
        lost = isinstance(value, PeerLostError) and value.role == "coordinator"
        assert not lost, f"{name}: the coordinator is given up although it comes back"
        assert may_be_lost or not isinstance(value, EvictedError), f"{name}: it is evicted, though it was never away"


def _data(data: bytes | None) -> Any:
    return None if data is None else unpack(data)


def _differs(kept: Any, known: Any, where: str = "") -> str:
    """Say where two records differ first."""
    if type(kept) is type(known) is list and len(kept) == len(known):
        number = next(i for i, (a, b) in enumerate(zip(kept, known, strict=True)) if a != b)
        return _differs(kept[number], known[number], f"{where}[{number}]")
    if type(kept) is type(known) is dict and kept.keys() == known.keys():
        name = next(name for name in kept if kept[name] != known[name])
        return _differs(kept[name], known[name], f"{where}[{name!r}]")
    return f"{where} is {kept!r:.150}, not {known!r:.150}"
