"""What a node does for a trace: it records for as long as it is told, says so, and hands out what it has."""

from __future__ import annotations

from tests.core.machines import identity, sent
from zmqps.core.node.member import Member
from zmqps.core.node.tracing import AGAIN_S, KEEP_S, LONGEST_S, MAX_RING_NBYTES, REPORT_S, trace
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.message import MAX_BLOB_NBYTES
from zmqps.core.protocol.messages.tracing import TraceState
from zmqps.errors import NotJoinedError

WELCOME = m.Welcome(1, b"i" * 16, "c", 5, 1.0, 1000.0, 4, 2)
WHO = b"a".ljust(16, b".")


class Recorder:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.now = 0.0
        self.data = b""
        self.lost = 56

    def start(self, nbytes: int) -> None:
        self.calls.append(f"start {nbytes}")

    def stop(self) -> None:
        self.calls.append("stop")
        self.data = bytes(range(256)) * (MAX_BLOB_NBYTES // 256 + 1)

    def forget(self) -> None:
        self.calls.append("forget")
        self.data = b""

    def time(self) -> float:
        return self.now

    @property
    def nbytes(self) -> int:
        return len(self.data)

    def read(self, offset: int, nbytes: int) -> bytes:
        return self.data[offset : offset + nbytes]


class Joined:
    """A member that has joined, what it counts, and what it records with."""

    def __init__(self) -> None:
        self.pushes = 3
        self.member = Member(identity("worker"), "tcp://c:1", lambda: {"pushes": self.pushes})
        self.recorder = Recorder()
        self.tracing = trace(self.member, self.recorder)
        self.member.start(0.0)
        self.tell(WELCOME, 0.0)

    def tell(self, message: m.Message, now: float) -> list[Action]:
        self.recorder.now = now
        actions = self.member.on_message(message, now)
        self.tracing.validate()
        return actions

    def wait(self, until: float) -> list[Action]:
        actions: list[Action] = []
        while (due := self.member.next_deadline()) is not None and due <= until:
            self.recorder.now = due
            actions += self.member.on_deadline(due)
            self.member.on_message(m.HeartbeatAck(4), due)
            self.tracing.validate()
        return actions


def recording(seconds: float) -> Joined:
    """Return one that is told to record for so long, from 10.0 on."""
    node = Joined()
    node.tell(m.RecordSpans(7, seconds, 4096), 10.0)
    return node


def test_it_records_for_as_long_as_it_is_told_and_says_so() -> None:
    node = Joined()
    [said] = sent(node.tell(m.RecordSpans(7, 1.0, 4096), 10.0), m.SpansRecorded)
    assert (said.number, said.state, said.sent, said.steps) == (7, TraceState.ON, 10.0, 0)
    assert node.recorder.calls == ["start 4096"]
    node.pushes = 9
    said_meanwhile = sent(node.wait(10.9), m.SpansRecorded)
    assert [one.sent for one in said_meanwhile] == [10.0 + REPORT_S * n for n in (1, 2, 3)]
    assert said_meanwhile[-1].steps == 6
    [over] = sent(node.wait(11.0), m.SpansRecorded)
    assert (over.state, over.nbytes, over.lost) == (TraceState.OFF, node.recorder.nbytes, 56)
    assert node.recorder.calls == ["start 4096", "stop"]


def test_that_it_is_over_is_said_until_it_is_heard() -> None:
    node = recording(1.0)
    assert len(sent(node.wait(11.0 + 3 * AGAIN_S), m.SpansRecorded)) == 3 + 4
    node.tell(m.Clock(7, TraceState.OFF, 14.0, 50.0), 14.0)
    assert not sent(node.wait(11.0 + KEEP_S - 0.1), m.SpansRecorded)
    assert node.recorder.data
    node.wait(11.0 + KEEP_S)
    assert node.recorder.calls[-1] == "forget"
    assert node.tracing.state == TraceState.NONE


def test_it_learns_of_the_coordinators_clock_from_the_answers() -> None:
    node = recording(1.0)
    node.tell(m.Clock(7, TraceState.ON, 10.0, 5.1), 10.2)
    [said] = sent(node.wait(10.3), m.SpansRecorded)
    assert abs(said.facts["offset_s"] + 5.0) < 1e-9  # type: ignore[operator]
    assert abs(said.facts["error_s"] - 0.1) < 1e-9  # type: ignore[operator]
    node.tell(m.Clock(8, TraceState.ON, 10.0, 900.0), 10.01)  # of another trace
    assert node.tracing.samples.offset.offset_s < 0  # type: ignore[union-attr]


def test_a_trace_that_is_ended_early_ends_once() -> None:
    node = recording(100.0)
    [said] = sent(node.tell(m.RecordSpans(7, 0.0, 4096), 12.0), m.SpansRecorded)
    assert said.state == TraceState.OFF
    [again] = sent(node.tell(m.RecordSpans(7, 0.0, 4096), 13.0), m.SpansRecorded)
    assert again.state == TraceState.OFF, "it has not heard"
    node.tell(m.RecordSpans(7, 50.0, 4096), 14.0)  # what comes late begins nothing anew
    assert node.recorder.calls == ["start 4096", "stop"]


def test_told_again_it_goes_on_and_no_longer() -> None:
    node = recording(2.0)
    node.tell(m.RecordSpans(7, 100.0, 4096), 11.0)
    node.wait(12.0)
    assert node.recorder.calls == ["start 4096", "stop"]


def test_nobody_makes_it_record_for_ever_or_into_all_its_memory() -> None:
    node = Joined()
    node.tell(m.RecordSpans(7, 1e9, 0xFFFFFFFF), 10.0)
    assert node.recorder.calls == [f"start {MAX_RING_NBYTES}"]
    assert node.tracing.ends_at == 10.0 + LONGEST_S


def test_another_trace_takes_the_place_of_the_one_before() -> None:
    node = recording(1.0)
    node.tell(m.RecordSpans(8, 1.0, 8192), 10.5)
    assert node.recorder.calls == ["start 4096", "stop", "forget", "start 8192"]
    assert not sent(node.tell(m.RecordSpans(9, 0.0, 0), 10.6), m.SpansRecorded)  # the end of one that never began


def test_it_hands_out_pieces_of_what_it_has_recorded_and_of_nothing_else() -> None:
    node = recording(1.0)
    [early] = sent(node.tell(m.Fetch(1, 7, WHO, 0), 10.5), m.Piece)
    assert (early.total, early.data) == (0, b"")
    node.wait(11.0)
    data = b""
    for request in range(3):
        [piece] = sent(node.tell(m.Fetch(request, 7, WHO, len(data)), 12.0), m.Piece)
        assert (piece.request, piece.offset, piece.total) == (request, len(data), node.recorder.nbytes)
        data += piece.data
    assert data == node.recorder.data
    [other] = sent(node.tell(m.Fetch(9, 6, WHO, 0), 12.0), m.Piece)
    assert other.total == 0


def test_who_has_left_or_lost_the_coordinator_records_nothing_any_more() -> None:
    node = recording(100.0)
    node.member.leave("finished", 11.0)
    assert node.recorder.calls == ["start 4096", "stop", "forget"]
    node = recording(100.0)
    node.tell(m.Error.of(0, NotJoinedError("another one")), 11.0)
    assert node.member.lost
    assert node.recorder.calls == ["start 4096", "stop", "forget"]
