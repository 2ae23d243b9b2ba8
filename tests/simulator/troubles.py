"""Faults that come by themselves, as often as a scenario says: nodes die, are stopped, or are cut off from others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.simulator.engine import Node
from tests.simulator.network import RECONNECT_S, Faults
from tests.simulator.placement.replicas import LostServers
from tests.simulator.placement.resizing import Resizing
from tests.simulator.placement.rolling import Rolling

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

#: No partition and no stop takes longer.
LONGEST_S = 30.0
#: Probability that it is the coordinator that does not reach some others: those go on with what was decided before.
OF_COORDINATOR = 0.4

#: Nodes are stopped for this part of the longest time, as a power of ten, which is so many heartbeat timeouts.
FREEZES, MOST_TIMEOUTS = (0.0, 1.5), 3.0
#: Probability that their connections break meanwhile, and what is sent to them is lost.
LOSES = 0.3
#: For so much of the heartbeat timeout a coordinator may be stopped that is not to be given up.
PATIENT = 0.6

#: For how many heartbeat timeouts the news that a server is presumed lost may be late.
VEILED = 0.9, 1.3


class Troubles:
    """Lets things go wrong, drawn from the seed.

    Parameters
    ----------
    simulation
        Where.
    faults
        How often.
    losses
        Where shards have backups: which servers may be lost.
    rolling
        Where servers are drained: asks one to go.
    resizing
        Where their number changes: asks for another one.
    """

    def __init__(
        self,
        simulation: SimulatedCluster,
        faults: Faults,
        losses: LostServers | None,
        rolling: Rolling | None,
        resizing: Resizing | None,
    ) -> None:
        self._simulation = simulation
        self._losses = losses
        self._veiled_until = 0.0
        self._faults = faults
        self._rng = simulation.rng
        self._network = simulation.network
        crash, stop = self._crash_somebody, self._stop_somebody
        rates: tuple[tuple[float, Callable[[], None]], ...] = (
            (faults.crash, partial(crash, "worker")), (faults.server_crash, partial(crash, "server")),
            (faults.coordinator_crash, partial(crash, "coordinator")), (faults.partition, self._cut_somebody),
            (faults.stop, partial(stop, "worker")), (faults.route, self._cut_route),
            (faults.server_stop, partial(stop, "server")), (faults.ways, self._cut_ways),
            (faults.deaf, self._deafen_somebody), (faults.veil, self._veil_somebody),
            (faults.freeze, self._freeze_some),
        )  # fmt: skip
        if rolling is not None:
            rates = (*rates, (faults.drain, rolling.ask))
        if resizing is not None:
            rates = (*rates, (faults.scale, resizing.ask))
        for rate, do in rates:
            if rate:
                self._schedule(rate, do)

    def _schedule(self, rate: float, do: Callable[[], None]) -> None:
        self._simulation.at(self._simulation.now + self._rng.expovariate(rate), partial(self._happen, rate, do))

    def _happen(self, rate: float, do: Callable[[], None]) -> None:
        if not self._network.quiet:
            do()
            self._schedule(rate, do)

    def _choose(self, *roles: str) -> Node | None:
        """Return some node that lives; None where there is none, or it is a server that is indispensable."""
        alive = [node for node in self._simulation.nodes.values() if node.alive and node.role in roles]
        node = self._rng.choice(alive) if alive else None
        return node if node is not None and self._may_miss(node) else None

    def _may_miss(self, node: Node) -> bool:
        return self._losses is None or node.role != "server" or self._losses.may_lose(node)

    def _miss(self, node: Node, seconds: float) -> None:
        """A node is not heard for some time."""
        if self._losses is not None and node.role == "server":
            self._losses.absent(node, seconds)

    def _seconds(self, mean: float) -> float:
        return min(LONGEST_S, self._rng.expovariate(1.0 / mean))

    def _crash_somebody(self, role: str) -> None:
        if (node := self._choose(role)) is not None:
            self._simulation.kill(node)

    def _stop_somebody(self, role: str) -> None:
        if (node := self._choose(role)) is not None:
            seconds = self._seconds(self._faults.stop_s)
            self._miss(node, seconds)
            self._simulation.stop(node, seconds)

    def _freeze_some(self) -> None:
        """Stop one node or two, whatever they are, shorter or longer than what they wait for, or is waited for them."""
        rng, simulation = self._rng, self._simulation
        alive = [node for node in simulation.nodes.values() if node.alive]
        coordinators = [node for node in alive if node.role == "coordinator"]
        first = rng.choice(coordinators if coordinators and rng.random() < OF_COORDINATOR else alive or [None])
        both = [first, *rng.sample(alive, rng.randint(0, 1))] if first is not None else []
        seconds = simulation.options.heartbeat_timeout * MOST_TIMEOUTS * 10 ** -rng.uniform(*FREEZES)
        for node in dict.fromkeys(both):
            lasts_s = min(seconds, self._longest(node))
            if not self._may_miss(node) or simulation.now < node.stopped_until:
                continue
            self._miss(node, lasts_s)
            simulation.stop(node, lasts_s)
            if lasts_s > RECONNECT_S[1] and rng.random() < LOSES:  # they are back before it is
                simulation.note(node.name, "loses its connections")
                self._network.reset_all(node.name, simulation.now)

    def _longest(self, node: Node) -> float:
        """Return how long a node may be stopped: where shards have copies no member may lose the coordinator."""
        options = self._simulation.options
        if node.role != "coordinator" or self._losses is None or options.patience:
            return LONGEST_S
        return PATIENT * options.heartbeat_timeout

    def _deafen_somebody(self) -> None:
        losses, node = self._losses, self._choose("server")
        if node is not None and losses is not None:
            seconds = self._seconds(self._faults.partition_s)
            self._simulation.note(node.name, f"loses its heartbeats for {seconds:.3f} s")
            losses.deafen(node, seconds)

    def _veil_somebody(self) -> None:
        """Let a server be presumed lost when it cannot know that yet, nor some of the workers that talk to it."""
        losses, node = self._losses, self._choose("server")
        if node is None or losses is None or self._simulation.now < self._veiled_until:
            return  # twice in a row all members would lose the coordinator
        late = self._simulation.options.heartbeat_timeout * self._rng.uniform(*VEILED)
        self._simulation.note(node.name, f"loses its heartbeats, and hears nothing of that for {late:.3f} s")
        losses.deafen(node, 2 * late)
        self._veiled_until = self._simulation.now + 2 * late
        workers = [worker for worker in self._simulation.workers if worker.alive]
        untold = self._rng.sample(workers, self._rng.randint(min(1, len(workers)), len(workers)))
        ways = [("coordinator", other.name) for other in (node, *untold)]
        self._network.cut_ways(ways, late, self._simulation.now, loses=False)

    def _cut_somebody(self) -> None:
        everybody = self._losses is None  # a coordinator that is cut off loses all servers at once
        if (node := self._choose("worker", "server", *(["coordinator"] if everybody else []))) is not None:
            seconds = self._seconds(self._faults.partition_s)
            self._miss(node, seconds)
            self._simulation.partition(node, seconds)

    def _cut_route(self) -> None:
        workers = [node for node in self._simulation.workers if node.alive]
        ways = [way for node in workers for way in node.connections.values() if not way.control]
        if ways:
            way, seconds = self._rng.choice(ways), self._seconds(self._faults.partition_s)
            self._simulation.note(way.ends[0], f"does not reach {way.ends[1]} for {seconds:.3f} s")
            self._network.cut_ways([way.ends, way.ends[::-1]], seconds, self._simulation.now)

    def _cut_ways(self) -> None:
        """Cut some node off from some of those it talks to, in one direction or both."""
        nodes = self._simulation.nodes
        if not (alive := [node for node in nodes.values() if node.alive]):
            return
        node = self._rng.choice(alive)
        if self._rng.random() < OF_COORDINATOR and (coordinator := nodes.get("coordinator")) in alive:
            node = coordinator
        others = sorted({end for way in node.connections.values() for end in way.ends} - {node.name})
        cut, seconds = list[str](), self._seconds(self._faults.partition_s)
        for name in self._rng.sample(others, self._rng.randint(1, len(others))) if others else ():
            if node.role == "coordinator" or name == "coordinator":
                member = nodes[name] if node.role == "coordinator" else node
                if not self._may_miss(member):
                    continue
                self._miss(member, seconds)
            cut.append(name)
        there, back = {(node.name, name) for name in cut}, {(name, node.name) for name in cut}
        ways = self._rng.choice((there, back, there | back))
        if ways:
            self._simulation.note(node.name, f"is cut off for {seconds:.3f} s: {sorted(ways)}")
            self._network.cut_ways(ways, seconds, self._simulation.now)
