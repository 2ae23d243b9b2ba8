"""The wire as requests and their answers show it: on a pretended one whose speed and delay are known."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.core.machines import hello
from tests.tables import for_each
from zmqps.core.node.handshake import Handshake
from zmqps.core.protocol.events import server_peer
from zmqps.core.protocol.message import WINDOW_NBYTES
from zmqps.core.protocol.messages import Welcome
from zmqps.core.worker.connections.wire import NUM_REQUESTS, NUM_SAMPLES, SAMPLE_NBYTES, Wire, WireSpeed

MB = 1 << 20


@dataclass
class Line:
    """A wire that carries so much a second each way; answers come back in order, when both ways have carried theirs."""

    bytes_per_s: float
    round_trip_s: float
    shrink: int = 1  # a codec's
    now: float = 0.0

    def __post_init__(self) -> None:
        self.wire = Wire()
        self.wire.answered_within(self.round_trip_s)

    def step(self, count: int, nbytes: int, *, out: bool = True, back: bool = False) -> float:
        """Carry so many requests as fast as the window allows; return the seconds."""
        began = self.now
        there_at = here_at = 0.0  # when each way is free
        waiting: list[tuple[float, tuple[int, int, int]]] = []
        left = count
        while left or waiting:
            while left and (not waiting or (len(waiting) + 1) * nbytes <= self.wire.window(nbytes)):
                if not waiting:
                    self.wire.begins(self.now)
                travels = nbytes // self.shrink
                there_at = max(there_at, self.now) + travels * out / self.bytes_per_s
                here_at = max(here_at, there_at + self.round_trip_s / 2) + travels * back / self.bytes_per_s
                waiting.append((here_at + self.round_trip_s / 2, (travels * out, travels * back, nbytes)))
                left -= 1
            self.now, answered = waiting.pop(0)
            self.wire.answered(self.now, answered, is_last=not waiting)
        took, self.now = self.now - began, self.now + 1.0
        return took


@for_each("mbit", [10, 100, 1_000, 10_000])
@for_each("round_trip_s", [0.0002, 0.002, 0.02])
def test_the_speed_and_the_delay_of_a_wire_are_found(mbit: int, round_trip_s: float) -> None:
    line = Line(mbit * 1e6 / 8, round_trip_s)
    for _ in range(5):
        line.step(400, MB)
    speed = line.wire.speed
    # what is on its way at most bounds what a very long and fast wire carries
    reachable = min(line.bytes_per_s, WINDOW_NBYTES / round_trip_s)
    assert 0.9 * reachable <= speed.out_bytes_per_s <= 1.01 * line.bytes_per_s
    assert speed.in_bytes_per_s == 0
    assert speed.round_trip_s == pytest.approx(round_trip_s)


def test_both_ways_are_told_apart() -> None:
    line = Line(1e8, 0.002)
    line.step(20, MB, out=False, back=True)
    assert line.wire.speed.out_bytes_per_s == 0
    line.step(40, MB, out=True, back=True)
    assert line.wire.speed.in_bytes_per_s == pytest.approx(1e8, rel=0.05)
    assert line.wire.speed.out_bytes_per_s == pytest.approx(1e8, rel=0.05)


def test_bytes_count_as_they_travel_and_fill_the_window_as_they_are() -> None:
    raw, encoded = Line(1e7, 0.02), Line(1e7, 0.02, shrink=4)
    for line in (raw, encoded):
        for _ in range(3):
            line.step(400, 64 << 10)
    assert encoded.wire.speed.out_bytes_per_s == pytest.approx(raw.wire.speed.out_bytes_per_s, rel=0.05)
    assert encoded.wire.window_nbytes == pytest.approx(4 * raw.wire.window_nbytes, rel=0.2)


def test_nothing_is_said_of_a_wire_that_has_carried_only_little() -> None:
    line = Line(1e9, 0.001)
    for _ in range(50):
        line.step(3, SAMPLE_NBYTES // 4, back=True)
    assert line.wire.speed == WireSpeed(round_trip_s=0.001)
    assert line.wire.window(MB) == WINDOW_NBYTES


def test_pauses_of_the_worker_do_not_count() -> None:
    line = Line(1e8, 0.001)
    line.step(40, MB)
    before = line.wire.speed.out_bytes_per_s
    line.now += 3600.0
    line.step(40, MB)
    assert line.wire.speed.out_bytes_per_s == pytest.approx(before)


def test_where_something_is_always_on_its_way_the_speed_is_known_before_the_end() -> None:
    wire = Wire()
    wire.begins(0.0)
    for number in range(1, 5):
        wire.answered(0.3 * number, (MB, 0, MB), is_last=False)
    assert wire.speed.out_bytes_per_s == pytest.approx(MB / 0.3, rel=0.5)


def test_a_burst_of_answers_at_the_end_is_not_taken_for_the_speed() -> None:
    wire = Wire()
    wire.begins(0.0)
    for number in range(1, 12):
        wire.answered(0.1 * number, (MB, 0, MB), is_last=False)
    wire.answered(1.101, (MB, 0, MB), is_last=False)
    wire.answered(1.102, (MB, 0, MB), is_last=True)
    assert wire.speed.out_bytes_per_s == pytest.approx(10 * MB, rel=0.05)


def test_a_wire_that_has_become_slower_is_slower_after_a_while() -> None:
    line = Line(1e9, 0.001)
    line.step(40, MB)
    line.bytes_per_s = 1e8
    for _ in range(NUM_SAMPLES):
        line.step(40, MB)
    assert line.wire.speed.out_bytes_per_s == pytest.approx(1e8, rel=0.05)


def test_the_window_of_a_slow_wire_holds_a_few_requests_and_that_of_a_fast_one_the_most() -> None:
    slow, fast = Line(1e6, 0.0002), Line(2e9, 0.0005)
    for line in (slow, fast):
        line.step(200, 64 << 10)
    assert slow.wire.window(64 << 10) == NUM_REQUESTS * (64 << 10)
    assert fast.wire.window(64 << 10) == WINDOW_NBYTES


def test_a_smaller_window_costs_no_time() -> None:
    line = Line(1.25e7, 0.02)
    first = line.step(400, 64 << 10, back=True)
    assert line.wire.window(64 << 10) < WINDOW_NBYTES // 8
    assert line.step(400, 64 << 10, back=True) <= 1.02 * first


def test_a_clock_that_stands_still_tells_nothing() -> None:
    line = Line(float("inf"), 0.0)
    line.step(10, MB)
    assert line.wire.speed.bytes_per_s == 0
    assert line.wire.window(MB) == WINDOW_NBYTES


def test_the_first_welcome_tells_of_the_round_trip() -> None:
    handshake = Handshake(hello("worker"), server_peer(0), "tcp://s0:1")
    handshake.start(10.0)
    early, usual, later = Wire(), Wire(), Wire()
    early.greeted(handshake, 10.5)
    handshake.again(11.0)
    usual.greeted(handshake, 11.25)
    handshake.on_welcome(Welcome(1, b"i" * 16, "s0", 0, 0.0, 0.0, 1, 1))
    later.greeted(handshake, 60.0)  # said twice
    assert [wire.round_trip_s for wire in (early, usual, later)] == [0.5, 0.25, 0.0]
