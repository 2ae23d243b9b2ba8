"""The lane between two transports: its handshake, its envelope, and every way in which it is not to be had."""

from __future__ import annotations

import asyncio
import logging
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.net.lane.test_segment import left_by_a_killed_process
from tests.tables import for_each
from zmqps.core.protocol.events import COORDINATOR, server_peer
from zmqps.core.protocol.messages import Pull, Push
from zmqps.core.protocol.wire import decode, encode
from zmqps.errors import ConfigurationError, ProtocolError
from zmqps.net.lane import shm
from zmqps.net.lane.segment import DIRECTORY, Segment, SegmentError
from zmqps.net.lane.shm import ENVELOPE, MIN_NBYTES, PLAIN, LaneTransport
from zmqps.net.routes import Route
from zmqps.net.zeromq import ZmqTransport

SERVER = server_peer(0)  # as the worker calls it
WORKER = b"@worker"  # as the server calls it
LARGE = bytes(range(256)) * (MIN_NBYTES // 256)
RING = 8 * MIN_NBYTES


class Wire:
    """An inner transport whose messages go straight to the other one."""

    def __init__(self) -> None:
        self.other: Wire
        self.name = b""  # by which the other one knows this one
        self.up = True
        self.sent: list[list[bytes]] = []
        self.readers: list[Any] = []

    def start(self, deliver: Callable[..., None], delivered: Callable[[], None], noticed: Any = None) -> None:
        self.deliver = deliver

    def bind(self, endpoint: str) -> str:
        return endpoint

    def connect(self, peer: bytes, endpoint: str) -> None: ...

    def disconnect(self, peer: bytes) -> None: ...

    def send(self, peer: bytes, frames: Sequence[Any], readers: Sequence[list[Any]]) -> bool:
        if not self.up:
            return False
        self.sent.append([bytes(frame) for frame in frames])
        self.readers.append(readers)
        self.other.deliver(self.name, [memoryview(frame) for frame in self.sent[-1]])
        return True

    def greeting(self, peer: bytes) -> tuple[str, ...]:
        return ()

    def greeted(self, peer: bytes, capabilities: Sequence[str]) -> None: ...

    def origin(self, peer: bytes) -> str:
        return ""

    def facts(self) -> Mapping[str, Any]:
        return {}

    def close(self, linger: float) -> None: ...


class Pair:
    """A worker's and a server's transport; what arrives is copied, unless the test says otherwise."""

    def __init__(self, transport: str = "auto", ring_nbytes: int = RING) -> None:
        self.wires = Wire(), Wire()
        self.wires[0].other, self.wires[1].other = self.wires[1], self.wires[0]
        self.wires[0].name, self.wires[1].name = WORKER, SERVER
        self.worker = LaneTransport(self.wires[0], transport, ring_nbytes)
        self.server = LaneTransport(self.wires[1])
        self.inbox: list[list[bytes]] = []
        self.deliver: Callable[[bytes, Sequence[Any]], None] = lambda peer, frames: self.inbox.append(
            [bytes(frame) for frame in frames]
        )
        for transport_ in (self.worker, self.server):
            transport_.start(lambda peer, frames: self.deliver(peer, frames), lambda: None, lambda _: None)

    def shake_hands(self) -> None:
        self.server.greeted(WORKER, self.worker.greeting(SERVER))
        self.worker.greeted(SERVER, self.server.greeting(WORKER))

    def close(self) -> None:
        self.worker.close(0)
        self.server.close(0)

    @property
    def lane(self) -> shm.Lane:
        return self.worker._lanes[SERVER]


@pytest.fixture
def on_one_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm, "choose", lambda advertised, transport: Route("ipc://@here", transport != "ipc"))


def with_pair(scenario: Callable[[Pair], None], connect: bool = True, **options: Any) -> None:
    async def run() -> None:
        pair = Pair(**options)
        try:
            if connect:
                pair.worker.connect(SERVER, "ipc://@here")
                pair.shake_hands()
            scenario(pair)
        finally:
            pair.close()

    asyncio.run(run())


def our_files() -> list[Path]:
    return list(DIRECTORY.glob(f"zmqps-{os.getpid()}-*"))  # other tests of this host have theirs


pytestmark = pytest.mark.usefixtures("on_one_host")

# --- with a lane --------------------------------------------------------------------------------


def test_large_frames_travel_through_the_lane_both_ways_and_in_order() -> None:
    def scenario(pair: Pair) -> None:
        messages = [[b"h%d" % i, bytes([i]) + LARGE, b"small", LARGE + bytes([i])] for i in range(20)]
        for message in messages:
            assert pair.worker.send(SERVER, message, ())
            assert pair.server.send(WORKER, message, ())
        assert pair.inbox == [message for message in messages for _ in range(2)]
        assert max(len(frame) for wire in pair.wires for sent in wire.sent for frame in sent) < 200
        assert pair.worker.counters["lane_frames"] == pair.server.counters["lane_frames"] == 60
        assert pair.worker.counters["lane_overflows"] == 0
        assert pair.worker.facts() == {
            "transport": "shm",
            "lane_frames": 60,
            "lane_references": 0,
            "lane_overflows": 0,
        }

    with_pair(scenario)


def test_the_lane_of_a_connection_that_was_closed_is_closed_on_both_sides() -> None:
    def scenario(pair: Pair) -> None:
        assert pair.server.send(WORKER, [b"h", LARGE], ())
        there = pair.server._lanes[WORKER].segment
        pair.worker.disconnect(SERVER)
        assert pair.worker._lanes == {}
        assert there.orphaned
        pair.server._reap()
        assert pair.server._lanes == {}
        assert pair.worker.facts() == pair.worker.counters
        pair.worker.connect(SERVER, "ipc://@here")
        pair.shake_hands()
        assert pair.worker.send(SERVER, [b"h", LARGE], ())
        assert pair.inbox == [[b"h", LARGE]] * 2

    with_pair(scenario)


def test_messages_without_large_frames_travel_as_ever() -> None:
    def scenario(pair: Pair) -> None:
        for message in ([b"header"], [b"header", b"x" * (MIN_NBYTES - 1)]):
            pair.worker.send(SERVER, message, ())
            assert pair.wires[0].sent[-1] == message

    with_pair(scenario)


def test_what_finds_no_room_travels_as_ever_with_its_readers() -> None:
    readers: list[list[Any]] = [[]]

    def scenario(pair: Pair) -> None:
        message = [b"header", LARGE, LARGE * 7, b"x" * MIN_NBYTES, LARGE]
        pair.worker.send(SERVER, message, readers)
        assert pair.inbox == [message]
        assert pair.wires[0].sent[0][1:] == [LARGE]
        assert pair.wires[0].readers == [readers]
        assert pair.worker.counters["lane_overflows"] == 1
        pair.worker.send(SERVER, [b"header", LARGE], readers)
        assert pair.wires[0].readers[1] == ()

    with_pair(scenario, ring_nbytes=9 * MIN_NBYTES)


def test_a_message_that_could_not_be_sent_takes_no_room() -> None:
    def scenario(pair: Pair) -> None:
        pair.wires[0].up = False
        for _ in range(100):
            assert not pair.worker.send(SERVER, [b"header", LARGE], ())
        pair.wires[0].up = True
        assert pair.worker.send(SERVER, [b"header", LARGE * 7], ())
        assert pair.worker.counters["lane_overflows"] == 0

    with_pair(scenario)


def test_frames_that_are_kept_stay_as_they_are() -> None:
    def scenario(pair: Pair) -> None:
        kept: list[Any] = []
        pair.deliver = lambda peer, frames: kept.append(np.frombuffer(frames[1], np.uint8))
        for i in range(20):
            pair.worker.send(SERVER, [b"header", bytes([i]) * MIN_NBYTES], ())
        assert [bytes(array) for array in kept] == [bytes([i]) * MIN_NBYTES for i in range(20)]
        assert pair.worker.counters["lane_overflows"] == 12
        kept.clear()
        pair.worker.send(SERVER, [b"header", LARGE], ())  # which tells the reader to look who still reads
        pair.worker.send(SERVER, [b"header", LARGE], ())
        assert pair.worker.counters["lane_overflows"] == 13

    with_pair(scenario)


@given(sizes=st.lists(st.lists(st.integers(0, 3 * MIN_NBYTES), max_size=6), min_size=1, max_size=12))
@settings(max_examples=50)
def test_messages_of_any_size_arrive_whole(sizes: list[list[int]]) -> None:
    def scenario(pair: Pair) -> None:
        sent = []
        for number, lengths in enumerate(sizes):
            payload = [np.full(n, number + i, np.uint8) for i, n in enumerate(lengths)]
            frames = encode(Push(number, number, 1, 0, 0, 1, 0, 0, "raw", "raw", (), ((0, 0, ()),), payload))
            pair.worker.send(SERVER, frames, ())
            sent.append([bytes(frame) for frame in frames])
        assert pair.inbox == sent
        for frames in pair.inbox:
            decode(frames)

    with_pair(scenario)


# --- the handshake ------------------------------------------------------------------------------


def test_no_file_is_left_once_hands_are_shaken() -> None:
    def scenario(pair: Pair) -> None:
        pair.worker.connect(SERVER, "ipc://@here")
        before = our_files()
        (offer,) = pair.worker.greeting(SERVER)
        assert DIRECTORY / offer.removeprefix("shm:") in our_files()
        pair.server.greeted(WORKER, (offer,))
        assert pair.server.greeting(WORKER)
        assert not set(our_files()) - set(before)

    with_pair(scenario, connect=False)


def test_what_a_killed_process_left_is_removed_by_the_next_that_ends() -> None:
    transport = LaneTransport(ZmqTransport())
    left = left_by_a_killed_process()
    transport.close(0)
    assert not left.exists()


def test_a_repeated_hello_gets_the_same_answer() -> None:
    def scenario(pair: Pair) -> None:
        offer = pair.worker.greeting(SERVER)
        assert offer == pair.worker.greeting(SERVER)
        pair.server.greeted(WORKER, offer)
        answer = pair.server.greeting(WORKER)
        pair.shake_hands()
        pair.worker.send(SERVER, [b"header", LARGE], ())
        pair.server.greeted(WORKER, offer)  # late
        assert pair.server.greeting(WORKER) == answer
        pair.worker.greeted(SERVER, answer)
        pair.worker.send(SERVER, [b"header", LARGE], ())
        assert pair.inbox == [[b"header", LARGE]] * 2
        assert pair.worker.counters["lane_frames"] == 2

    with_pair(scenario)


def test_the_server_sends_nothing_through_a_lane_that_the_worker_has_not_confirmed() -> None:
    def scenario(pair: Pair) -> None:
        pair.worker.connect(SERVER, "ipc://@here")
        pair.server.greeted(WORKER, pair.worker.greeting(SERVER))
        pair.server.send(WORKER, [b"header", LARGE], ())
        assert pair.wires[1].sent == [[b"header", LARGE]]

    with_pair(scenario, connect=False)


@for_each("answer", [(), ("shm-proof:" + "0" * 64,), ("shm-proof:",), ("shm-proof:\u00e9",), ("else",)])
def test_without_the_right_proof_there_is_no_lane(answer: tuple[str, ...]) -> None:
    def scenario(pair: Pair) -> None:
        pair.worker.connect(SERVER, "ipc://@here")
        pair.server.greeted(WORKER, pair.worker.greeting(SERVER))
        pair.worker.greeted(SERVER, answer)
        for send in (lambda m: pair.worker.send(SERVER, m, ()), lambda m: pair.server.send(WORKER, m, ())):
            assert send([b"header", LARGE])
        assert pair.inbox == [[b"header", LARGE]] * 2
        assert [len(sent) for wire in pair.wires for sent in wire.sent] == [2, 2]
        assert pair.worker.facts() == {"transport": "ipc"}
        assert pair.worker.greeting(SERVER) == ()

    with_pair(scenario, connect=False)


def test_a_lane_that_must_be_and_cannot_is_an_error_that_says_why() -> None:
    def scenario(pair: Pair) -> None:
        pair.worker.connect(SERVER, "ipc://@here")
        offer = pair.worker.greeting(SERVER)
        (DIRECTORY / offer[0].removeprefix("shm:")).unlink()
        pair.server.greeted(WORKER, offer)
        with pytest.raises(ConfigurationError, match="no lane to server-0: cannot open the segment: No such file"):
            pair.worker.greeted(SERVER, pair.server.greeting(WORKER))

    with_pair(scenario, connect=False, transport="shm")


def test_a_lane_that_may_be_and_cannot_is_done_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(ring_nbytes: int) -> Segment:
        raise SegmentError("no room")

    monkeypatch.setattr(Segment, "create", full)

    def scenario(pair: Pair) -> None:
        assert pair.worker.greeting(SERVER) == ()
        pair.worker.send(SERVER, [b"header", LARGE], ())
        assert pair.inbox == [[b"header", LARGE]]

    with caplog.at_level(logging.INFO, "zmqps.transport"):
        with_pair(scenario)
    assert "server-0: payloads over ipc; no shared memory: no room" in caplog.text

    def must(pair: Pair) -> None:
        pair.worker.connect(SERVER, "ipc://@here")
        with pytest.raises(ConfigurationError, match="no room"):
            pair.worker.greeting(SERVER)

    with_pair(must, connect=False, transport="shm")


@for_each("offer", ["shm:../../etc/passwd", "shm:", "shm:zmqps-1-" + "0" * 32, "shm", "tcp"])
def test_offers_of_nothing_are_refused_or_ignored(offer: str) -> None:
    def scenario(pair: Pair) -> None:
        pair.server.greeted(WORKER, (offer,))
        assert all(answer.startswith("shm-refused:") for answer in pair.server.greeting(WORKER))
        assert pair.server.greeting(WORKER) == ()
        assert pair.server.facts() == {}

    with_pair(scenario, connect=False)


def test_no_lane_is_offered_to_the_coordinator_or_when_not_asked_for() -> None:
    def scenario(pair: Pair) -> None:
        for peer in (COORDINATOR, SERVER):
            pair.worker.connect(peer, "ipc://@here")
            assert pair.worker.greeting(peer) == ()
            pair.worker.greeted(peer, ("shm-proof:0",))

    with_pair(scenario, connect=False, transport="ipc")


def test_a_new_connection_begins_without_the_old_lane() -> None:
    def scenario(pair: Pair) -> None:
        old = pair.lane.segment
        pair.worker.connect(SERVER, "ipc://@here")
        pair.worker.send(SERVER, [b"header", LARGE], ())
        assert pair.wires[0].sent == [[b"header", LARGE]]
        pair.shake_hands()
        assert pair.lane.segment is not old
        pair.worker.send(SERVER, [b"header", LARGE], ())
        assert pair.inbox == [[b"header", LARGE]] * 2
        assert len(pair.wires[0].sent[1]) == 1

    with_pair(scenario)


def test_lanes_of_workers_that_are_gone_are_let_go() -> None:
    def scenario(pair: Pair) -> None:
        pair.server._reap()
        assert pair.server._lanes
        pair.worker.close(0)
        pair.server._ring()
        assert not pair.server._lanes

    with_pair(scenario)


def test_a_server_takes_so_many_lanes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm, "MAX_LANES", 1)

    def scenario(pair: Pair) -> None:
        another = Segment.create(RING)
        pair.server.greeted(b"@another", ("shm:" + another.name,))
        assert pair.server.greeting(b"@another") == ("shm-refused:there are 1 lanes already",)
        another.close()

    with_pair(scenario)


# --- peers that do not behave -------------------------------------------------------------------


def bad_envelopes(good: bytes) -> list[list[bytes]]:
    entry = ENVELOPE.size

    def patched(at: int, form: str, *values: Any) -> list[bytes]:
        frame = bytearray(good)
        struct.pack_into(form, frame, at, *values)
        return [bytes(frame)]

    return [
        [good[:1]], [good[: entry - 1]], [good[:entry]], [good[: entry + 24]], [good, b"extra"],
        patched(1, "<B", 1), patched(2, "<H", 0), patched(2, "<H", 2), patched(2, "<H", 65535), patched(8, "<Q", 0),
        patched(16, "<Q", PLAIN), patched(16, "<Q", 64), patched(16, "<Q", 3 * RING),
        patched(24, "<Q", 1), patched(24, "<Q", PLAIN), patched(4, "<IQQQ", 1 << 31, 0, 0, 1),
        patched(entry, "<Q", PLAIN), patched(entry, "<Q", 1), patched(entry, "<Q", 1 << 63),
        patched(entry + 8, "<Q", PLAIN), patched(entry + 8, "<Q", 1), patched(entry + 8, "<Q", RING),
        patched(entry + 8, "<Q", 1 << 63), patched(entry + 16, "<Q", 0), patched(entry + 16, "<Q", PLAIN),
        patched(entry + 16, "<Q", RING + 1),
    ]  # fmt: skip


@for_each("number", range(26))
def test_garbage_in_an_envelope_is_refused_and_changes_nothing(number: int) -> None:
    def scenario(pair: Pair) -> None:
        message = [
            bytes(frame) for frame in encode(Push(1, 1, 1, 0, 0, 1, 0, 0, "raw", "raw", (), ((0, 0, ()),), [LARGE]))
        ]
        packed, *_ = pair.lane.pack(message, pair.worker.arenas, ())
        bad = bad_envelopes(packed[0])[number]
        pair.wires[0].send(SERVER, bad, ())
        for frames in pair.inbox:
            with pytest.raises(ProtocolError):
                decode(frames)
        pair.inbox.clear()
        pair.wires[0].send(SERVER, packed, ())
        assert pair.inbox == [message]

    assert len(bad_envelopes(bytes(100))) == 26
    with_pair(scenario)


@given(garbage=st.binary(max_size=200), extra=st.lists(st.binary(max_size=20), max_size=2))
@settings(max_examples=50)
def test_any_envelope_is_a_message_or_refused(garbage: bytes, extra: list[bytes]) -> None:
    def scenario(pair: Pair) -> None:
        known = struct.pack("<BBHI8s", 0xC1, 2, 1, 0, pair.lane.segment.id)
        for start in (b"\xc1", known):
            pair.wires[0].send(SERVER, [start + garbage, *extra], ())
        for frames in pair.inbox:
            try:
                decode(frames)
            except ProtocolError:
                pass

    with_pair(scenario)


def test_an_envelope_from_a_peer_without_a_lane_is_refused() -> None:
    def scenario(pair: Pair) -> None:
        packed, *_ = pair.lane.pack([b"header", LARGE], pair.worker.arenas, ())
        pair.server.close(0)
        pair.wires[0].send(SERVER, packed, ())
        with pytest.raises(ProtocolError):
            decode(pair.inbox[0])

    with_pair(scenario)


def test_a_broken_tail_ends_the_sending_through_the_lane_not_the_connection() -> None:
    def scenario(pair: Pair) -> None:
        pair.lane.segment.writer._tail[0] = 1 << 40
        for _ in range(2):
            assert pair.worker.send(SERVER, [b"header", LARGE], ())
        assert pair.inbox == [[b"header", LARGE]] * 2
        pair.server.send(WORKER, encode(Pull(1, 1, 0, 0, "raw", ())), ())
        pair.server.send(WORKER, [b"header", LARGE], ())
        assert pair.inbox[-1] == [b"header", LARGE]

    with_pair(scenario)
