"""Simulated asynchronous training over a thin wire: workers must find out what it carries, and keep to that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.simulator.engine import Node, Program
from tests.simulator.jobs.asynchronous import AsyncTraining
from zmqps.core.protocol.arrays import Array
from zmqps.core.worker.connections.link import Link
from zmqps.core.worker.connections.wire import BUSY_S, NUM_REQUESTS
from zmqps.core.worker.operations import Attached
from zmqps.core.worker.session import SessionKernel

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

#: Bytes a second: a step of some kilobytes takes as long as one of a large model on a LAN.
LINE_BANDWIDTH = 1e5
#: What is travelled at a time tells of the wire from here on.
SAMPLE_NBYTES = 2 << 10
#: What of the wire is payload at least, beside headers, round trips and the other way's messages.
LEAST = 0.4
#: Round trips differ, so what the shortest one leaves of a time may be a little less than it was.
MOST = 1.1
SLICE_NBYTES = 1 << 10


class LineTraining(AsyncTraining):
    """One worker and one server, so that all that a wire carries is theirs.

    What is measured is about what the wire carries; what is on its way is what that asks for.
    """

    def __init__(self, steps: int = 5) -> None:
        super().__init__(steps, parameters=2, size=1024, compute_s=3.0, slice_nbytes=SLICE_NBYTES, timeout=60.0)
        self._most: dict[int, float] = {}  # by id of a link: bytes that may be on their way, since it has measured

    def step(
        self, simulation: SimulatedCluster, worker: Node, attached: Attached, push: int, out: Sequence[Array | None]
    ) -> Program:
        """Pull, compute, push; look what was measured."""
        assert isinstance(worker.machine, SessionKernel)
        links = worker.machine.links.by_shard
        for link in links:
            link.wire.sample_nbytes = SAMPLE_NBYTES
        yield from super().step(simulation, worker, attached, push, out)
        for link in links:
            told = link.wire.speed
            for way, speed in (("out", told.out_bytes_per_s), ("in", told.in_bytes_per_s)):
                text = f"{worker.name} measures {speed:.0f} bytes/s {way} of a wire that carries {LINE_BANDWIDTH:.0f}"
                assert speed <= MOST * LINE_BANDWIDTH, text
                assert speed >= LEAST * LINE_BANDWIDTH or (way == "in" and not push), text

    def check(self, simulation: SimulatedCluster, node: Node) -> None:
        """What is on its way is what the wire asks for, once that is known."""
        super().check(simulation, node)
        if isinstance(node.machine, SessionKernel):
            for link in node.machine.links.by_shard:
                self._check_window(link)

    def _check_window(self, link: Link) -> None:
        told = link.wire.speed
        if not link.in_flight and told.bytes_per_s:
            carried = LINE_BANDWIDTH * (2 * told.round_trip_s + BUSY_S)
            self._most[id(link)] = max(NUM_REQUESTS * SLICE_NBYTES, MOST * carried)
        most = self._most.get(id(link), float("inf"))
        assert link.in_flight.nbytes <= most or len(link.in_flight) == 1, (
            f"{link.in_flight.nbytes} bytes are on their way where {most:.0f} keep the wire busy"
        )
