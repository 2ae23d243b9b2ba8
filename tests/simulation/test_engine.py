"""The simulator's loop: what a node is told, and in which order."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.simulator import Simulation
from tests.simulator.engine import Node
from tests.simulator.jobs.asynchronous import AsyncTraining
from zmqps.core.protocol.events import Connected, Disconnected


def test_a_node_that_was_stopped_hears_of_the_end_of_a_connection_before_its_return() -> None:
    simulation = Simulation(1, servers=1, workers=1, training=AsyncTraining(steps=5, compute_s=1.0))
    heard: dict[bytes, list[type]] = {}
    take = simulation.event

    def event(node: Node, event: Any) -> None:
        if isinstance(event, Connected | Disconnected) and node.role == "worker" and simulation.now > 3.0:
            if simulation.now >= node.stopped_until:
                heard.setdefault(event.peer, []).append(type(event))
        take(node, event)

    def stop() -> None:
        (worker,) = simulation.workers
        simulation.stop(worker, 5.0)
        for way in list(worker.connections.values()):  # it takes one after the other when it goes on
            simulation.network.reset(way, simulation.now)

    simulation.event = event  # type: ignore[method-assign]
    simulation.at(3.0, stop)
    simulation.run()
    assert len(heard) == 2
    assert all(events == [Disconnected, Connected] for events in heard.values())


def test_a_node_that_was_stopped_has_woken_at_the_time_that_it_has_then() -> None:
    simulation = Simulation(1, servers=1, workers=1, training=AsyncTraining(steps=30, compute_s=1.0))
    off: list[float] = []

    def check() -> None:
        (worker,) = simulation.workers
        off.append(simulation.time_of(worker) - simulation.woke_at(worker))

    def stop(seconds: float) -> None:
        (worker,) = simulation.workers
        simulation.stop(worker, seconds)
        simulation.at(worker.stopped_until, check)

    for number in range(15):
        simulation.at(2.7214463641858204 + 1.37 * number, partial(stop, 0.6 + 0.031 * number))
    simulation.run()
    assert off == 15 * [0.0]
