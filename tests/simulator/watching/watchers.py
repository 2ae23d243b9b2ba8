"""The views of watchers while jobs are trained: asserts that they are true."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tests.simulator.engine import Node
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.protocol.messages import Arrive, Message, Proceed

if TYPE_CHECKING:
    from tests.simulator.cluster import SimulatedCluster

#: Rounding of times.
EPSILON_S = 0.002


class Watchers:
    """Tracks the workers that have arrived at a step and those that may go on, and compares a view with them.

    Parameters
    ----------
    simulation
        Where they are.
    span
        How many seconds they look back.
    """

    def __init__(self, simulation: SimulatedCluster, span: float) -> None:
        self.num_waits = 0  # that they were told
        self.num_slowest = 0
        self._simulation = simulation
        self._span = span
        self._waiting: dict[str, object] = {}  # workers that have arrived and may not go on, and at which coordinator
        simulation.on_send.append(self._sent)
        simulation.on_receive.append(self._received)

    def _received(self, receiver: Node, sender: str, message: Message) -> None:
        if isinstance(message, Arrive):
            self._waiting[sender] = receiver.machine

    def _sent(self, sender: Node, to: str, message: Message) -> None:
        if isinstance(message, Proceed):
            self._waiting.pop(to, None)

    def check(self, coordinator: Node, view: Mapping[str, Any]) -> None:
        """Assert that what a coordinator shows is so."""
        machine, now = coordinator.machine, self._simulation.time_of(coordinator)
        assert isinstance(machine, CoordinatorMachine)
        names = {node.identity.incarnation: node.name for node in self._simulation.nodes.values()}
        for wait in view["waits"]:
            run = machine.runs[wait["job"]]
            title = f"{wait['node']} of {wait['job']!r}"
            member = next((m for m in run.members.values() if f"{m.role} {m.rank}" == wait["node"]), None)
            assert member is not None, f"{title}, which has gone, is said to be awaited"
            has_come = self._waiting.get(names[member.incarnation]) is machine and run.mode == "sync"
            assert not has_come, f"{title} has come, and is said to be waited for"
            assert 0 <= wait["since_s"] <= now, f"{title} is said to be waited for since before the beginning"
            assert wait["since_s"] == 0 or any(m is machine for m in self._waiting.values()), "no worker waits"
            assert wait["step"] == run.steps.clock, f"step {wait['step']} is shown in place of {run.steps.clock}"
            assert wait["text"].startswith(f"step {wait['step']} waits "), f"other words are shown: {wait['text']}"
            assert f" s for {wait['node']} on " in wait["text"], f"another node is named: {wait['text']}"
            self.num_waits += 1
        for job, slowest in view["slowest"].items():
            ranks = {f"{m.role} {m.rank}" for m in machine.runs[job].members.values()}
            assert slowest["node"] in ranks, f"{slowest['node']} of {job!r}, which has gone, is said to be slow"
            self.num_slowest += 1
        for job in machine.runs:
            awaited = sum(member.reported.awaited_s for member in machine.runs[job].members.values())
            assert awaited <= now + EPSILON_S, f"those of {job!r} are said to have been waited for longer than it took"
        times = [event["t"] for event in view["events"]]
        assert all(a <= b for a, b in pairwise(times)), "what happened is told in another order"
        assert all(now - self._span - EPSILON_S <= t <= now + EPSILON_S for t in times), (
            "more is told than was asked for"
        )
        for series in view["series"]:
            points = series["points"]
            assert all(a[0] < b[0] for a, b in pairwise(points)), "a time is told twice"
            assert all(low - EPSILON_S <= mean <= high + EPSILON_S for _, mean, low, high, _ in points)
            assert all(now - self._span - EPSILON_S <= t <= now + EPSILON_S for t, *_ in points), "a point is too old"
