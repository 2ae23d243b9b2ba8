"""What goes wrong in a simulation by itself, drawn from its seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from zmqps.testing.network import Faults
from zmqps.testing.replicas import OneAtATime
from zmqps.testing.resizing import Resizing
from zmqps.testing.rolling import Rolling

if TYPE_CHECKING:
    from zmqps.testing.cluster import SimulatedCluster

#: No partition and no stop takes longer.
LONGEST_S = 30.0


class Mishaps:
    """Lets nodes die, stop and be cut off, and asks servers to go.

    Parameters
    ----------
    simulation
        To whom.
    faults
        How often.
    replicas
        Says which servers may be lost, where shards have backups.
    rolling
        Asks servers to go.
    resizing
        Asks for another number of servers.
    """

    def __init__(
        self,
        simulation: SimulatedCluster,
        faults: Faults,
        replicas: OneAtATime | None,
        rolling: Rolling | None,
        resizing: Resizing | None,
    ) -> None:
        self._simulation = simulation
        self._faults = faults
        self._replicas = replicas
        self._rolling = rolling
        self._resizing = resizing

    def schedule(self) -> None:
        """Draw when each of them happens first."""
        f, crash = self._faults, self._crash_somebody
        rates: tuple[tuple[float, Callable[[], None]], ...] = (
            (f.crash, partial(crash, "worker")), (f.server_crash, partial(crash, "server")),
            (f.coordinator_crash, partial(crash, "coordinator")), (f.partition, self._cut_somebody),
            (f.stop, self._stop_somebody), (f.route, self._cut_route), (f.drain, self._drain_somebody),
            (f.scale, self._scale),
        )  # fmt: skip
        for rate, do in rates:
            if rate:
                self._draw(rate, do)

    def _draw(self, rate: float, do: Callable[[], None]) -> None:
        simulation = self._simulation
        simulation.at(simulation.now + simulation.rng.expovariate(rate), partial(self._happen, rate, do))

    def _happen(self, rate: float, do: Callable[[], None]) -> None:
        if not self._simulation.network.quiet:
            do()
            self._draw(rate, do)

    def _seconds(self, mean: float) -> float:
        return min(LONGEST_S, self._simulation.rng.expovariate(1.0 / mean))

    def _crash_somebody(self, role: str) -> None:
        simulation = self._simulation
        if alive := [node for node in simulation.nodes.values() if node.alive and node.role == role]:
            node = simulation.rng.choice(alive)
            if self._replicas is None or role != "server" or self._replicas.may_lose(node):
                simulation.kill(node)

    def _stop_somebody(self) -> None:
        simulation = self._simulation
        if alive := [node for node in simulation.workers if node.alive]:
            simulation.stop(simulation.rng.choice(alive), self._seconds(self._faults.stop_s))

    def _drain_somebody(self) -> None:
        if self._rolling is not None:
            self._rolling.ask()

    def _scale(self) -> None:
        if self._resizing is not None:
            self._resizing.ask()

    def _cut_route(self) -> None:
        simulation = self._simulation
        workers = [node for node in simulation.workers if node.alive]
        if ways := [way for node in workers for way in node.connections.values() if not way.control]:
            way, seconds = simulation.rng.choice(ways), self._seconds(self._faults.partition_s)
            simulation.note(way.ends[0], f"does not reach {way.ends[1]} for {seconds:.3f} s")
            simulation.network.cut_route(way, seconds, simulation.now)

    def _cut_somebody(self) -> None:
        simulation = self._simulation
        if alive := [node for node in simulation.nodes.values() if node.alive]:
            node, seconds = simulation.rng.choice(alive), self._seconds(self._faults.partition_s)
            if self._replicas is not None and node.role != "worker":
                if node.role == "coordinator" or not self._replicas.may_lose(node):
                    return
                self._replicas.cut(seconds)
            simulation.partition(node, seconds)
