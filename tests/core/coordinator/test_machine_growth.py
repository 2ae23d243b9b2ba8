"""What members cost the coordinator grows with their number and no faster: counted in operations, not in time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest

from tests.core.machines import hello, identity, job, peer, receivers, sent, sent_to
from zmqps.core.coordinator.kernel.machine import MOST_LOST
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action, Received, Send

pytestmark = pytest.mark.repeats

SMALL, LARGE = 48, 192
#: One of many members may cost so much more than one of few: dictionaries grow, and ranks have more digits.
MOST = 1.25


class Crowded:
    """A coordinator whose job ``default`` two workers train, and a crowd."""

    def __init__(self, **options: Any) -> None:
        self.machine = CoordinatorMachine(identity("coordinator"), CoordinatorOptions(**options))
        self.machine.start(0.0)
        self.now = 0.0
        for role, name in (("server", "s0"), ("worker", "w0"), ("worker", "w1")):
            self.take(name, hello(role, name))
        for name in ("w0", "w1"):
            self.take(name, m.Init(1, job(mode="sync").to_wire()))
        self.take("s0", m.Ready(1, 1))

    def take(self, name: str, message: m.Message) -> list[Action]:
        return self.machine.handle(Received(peer(name), message), self.now)

    def crowd(self, number: int, *messages: m.Message) -> list[str]:
        """Let many workers join a job of their own, each of which says these; return their names."""
        names = [f"c{i}" for i in range(number)]
        for name in names:
            for message in (hello("worker", name, "crowd"), *messages):
                self.take(name, message)
        return names

    def step(self, number: int) -> None:
        """Let the two workers complete a step: neither waits for anybody else."""
        self.take("w0", m.Arrive(10 + number, number, (1,)))
        assert receivers(self.take("w1", m.Arrive(10 + number, number, (1,))), m.Proceed) == [peer("w0"), peer("w1")]
        self.take("s0", m.Committed(1, number))

    def lose(self, *alive: str) -> list[list[Action]]:
        """Let all be lost but the trainers and these; return what each call does."""
        self.now = 5.0
        for name in ("s0", "w0", "w1", *alive):
            self.take(name, m.Heartbeat({}))
        self.now = 10.5
        calls = []
        while (due := self.machine.next_deadline()) is not None and due < 12.0:
            self.now = max(self.now, due)
            calls.append(self.machine.on_deadline(self.now))
        return calls


@contextmanager
def counted(counts: list[int]) -> Iterator[None]:
    """Count the instructions that Python carries out."""

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        counts[0] += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def come_beat_and_are_lost(number: int) -> None:
    crowded = Crowded()
    names = [f"c{i}" for i in range(number)]
    for name in names:
        crowded.take(name, hello("worker" if name[-1] in "02468" else "observer", name, "crowd"))
    crowded.step(0)
    for name in names:
        crowded.take(name, m.Heartbeat({"pushes": 1}))
    calls = crowded.lose()
    assert len(crowded.machine.membership.members) == 3
    assert max(len(receivers(call, m.Error)) for call in calls) <= MOST_LOST
    crowded.step(1)
    for name in names:
        assert len(sent(crowded.take(name, m.Heartbeat({})), m.Error)) == 1


def look_on_at_a_job_and_are_lost(number: int) -> None:
    """Of its own job a member of the crowd is told nothing when others are lost, but its server is."""
    crowded = Crowded()
    for i in range(number):
        crowded.take(f"o{i}", hello("observer", f"o{i}"))
        crowded.take(f"o{i}", m.Init(1, {}))
    calls = crowded.lose()
    told = [(to, got.incarnation) for actions in calls for to, got in sent_to(actions, m.Departed)]
    assert {to for to, _ in told} == {"s0"}
    assert number <= len(told) <= 2 * number, "once, and once more a second later"
    assert not [message for call in calls for message in sent(call, m.Lost)]
    for _, incarnation in told:
        crowded.take("s0", m.Forgotten(incarnation))
    assert len({incarnation for _, incarnation in told}) == number
    assert crowded.machine.erasures.next_deadline() is None


def wait_for_the_start_of_a_job_and_leave(number: int) -> None:
    crowded = Crowded(workers=2)
    for name in crowded.crowd(number, m.Init(1, job().to_wire())):
        crowded.take(name, m.Leave("closed"))


def enter_a_barrier_one_after_the_other(number: int) -> None:
    crowded = Crowded()
    names = crowded.crowd(number)
    for name in names[:-1]:
        assert len(sent(crowded.take(name, m.Enter(1, "end")), m.Waiting)) == 1
    assert len(sent(crowded.take(names[-1], m.Enter(1, "end")), m.Released)) == number


def wait_at_barriers_of_their_own_while_others_come_and_go(number: int) -> None:
    """What those pay who do not wait at these barriers does not depend on how many there are."""
    crowded = Crowded()
    for i in range(number):
        crowded.take(f"c{i}", hello("worker", f"c{i}", "crowd"))
        for k in range(3):
            crowded.take(f"c{i}", m.Enter(k + 1, f"barrier {i} {k}"))
        crowded.take("guest", hello("worker", "guest", "crowd"))
        crowded.take("guest", m.Leave("closed"))


def wait_for_the_last_range_and_are_lost(number: int) -> None:
    crowded = Crowded()
    names = crowded.crowd(number, m.Take(1, "examples", 1, 1, 1, (), ()))
    crowded.lose(names[0])


@pytest.mark.parametrize(
    "events",
    [
        come_beat_and_are_lost,
        look_on_at_a_job_and_are_lost,
        wait_for_the_start_of_a_job_and_leave,
        enter_a_barrier_one_after_the_other,
        wait_at_barriers_of_their_own_while_others_come_and_go,
        wait_for_the_last_range_and_are_lost,
    ],
)
def test_the_cost_of_a_member_does_not_grow_with_the_number_of_others(events: Callable[[int], None]) -> None:
    costs = []
    for number in (SMALL, LARGE):
        counts = [0]
        with counted(counts):
            events(number)
        costs.append(counts[0] / number)
    assert costs[1] <= MOST * costs[0], costs


@pytest.mark.parametrize("gradients", [1, 2])
def test_the_cost_of_an_arrival_does_not_grow_with_the_number_of_workers(gradients: int) -> None:
    """``gradients``: how many each worker brings to a step."""
    costs = []
    for number in (SMALL, LARGE):
        spec = job(mode="sync", aggregate=None if gradients == 1 else gradients * number)
        crowded = Crowded()
        names = crowded.crowd(number, m.Init(1, spec.to_wire()))
        [copy] = crowded.machine.runs["crowd"].startup.copies
        crowded.take("s0", m.Ready(copy.epoch, 1))
        counts, granted = [0], 0
        with counted(counts):
            for attempt in range(1, gradients + 1):
                for name in names:
                    granted += len(receivers(crowded.take(name, m.Arrive(1 + attempt, 0, (attempt,))), m.Proceed))
                    crowded.machine.next_deadline()
        assert granted == gradients * number
        assert crowded.machine.runs["crowd"].steps.clock == 1
        costs.append(counts[0] / number)
    assert costs[1] <= MOST * costs[0], costs


def test_the_lost_are_told_in_pieces_with_room_for_others_in_between() -> None:
    crowded = Crowded()
    for i in range(5 * MOST_LOST):
        crowded.take(f"o{i}", hello("observer", f"o{i}"))
    crowded.now = 5.0
    for name in ("s0", "w0", "w1", "o7"):
        crowded.take(name, m.Heartbeat({}))
    crowded.now = 10.5
    times = []
    while len(crowded.machine.membership.members) > 5:  # s0, w0, w1, o7 and o159 are alive
        due = crowded.machine.next_deadline()
        assert due is not None
        crowded.now = max(due, crowded.now)
        sends = [action for action in crowded.machine.on_deadline(crowded.now) if isinstance(action, Send)]
        assert len(sends) <= 2 * MOST_LOST
        times.append(crowded.now)
        if len(times) == 1:
            crowded.take("o159", m.Heartbeat({}))  # its sign of life had been on its way
            assert crowded.machine.membership.find(peer("o159")) is not None
    assert len(times) == 5
    assert all(earlier < later for earlier, later in pairwise(times))
    assert crowded.machine.membership.find(peer("o159")) is not None
