"""The machine that asks for the status: its repeats and its end."""

from __future__ import annotations

from zmqps.core.node.handshake import FIRST_RETRY_S, SLOWEST_RETRY_S
from zmqps.core.node.inquiry import AGAIN_S, LOOK_S, Inquiry
from zmqps.core.protocol.events import (
    COORDINATOR,
    Connect,
    Connected,
    Disconnected,
    Exit,
    Look,
    Looked,
    Received,
    Send,
    Stop,
    Undecodable,
)
from zmqps.core.protocol.messages import EndJob, Error, Exited, ExitNoted, JobEnded, Left, Status, StatusRequest
from zmqps.errors import LimitError, ProtocolError

ASK = Send(COORDINATOR, StatusRequest(1))


def test_it_asks_again_ever_more_slowly_until_somebody_answers() -> None:
    machine = Inquiry("tcp://127.0.0.1:1")
    assert machine.start(0.0) == [Connect(COORDINATOR, "tcp://127.0.0.1:1"), ASK]
    waits, now, looks = [], 0.0, []
    for _ in range(10):
        due = machine.next_deadline()
        assert due is not None
        waits.append(round(due - now, 9))
        now = due
        asked, *others = machine.on_deadline(now)
        assert asked == ASK
        looks += [(action, now) for action in others]
        machine.validate()
    ((look, looked_at),) = looks  # once
    assert look == Look(COORDINATOR, "tcp://127.0.0.1:1")
    assert LOOK_S <= looked_at < 3.0
    assert machine.handle(Looked(COORDINATOR, "nobody\nlistens"), now) == []
    assert machine.why == "nobody\\nlistens"
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (FIRST_RETRY_S, SLOWEST_RETRY_S)
    assert [type(a) for a in machine.handle(Received(COORDINATOR, Status(1, {"state": "x"})), now)] == [Exit]
    assert machine.status == {"state": "x"}
    assert machine.next_deadline() is None


def test_an_answer_that_will_not_do_is_asked_for_again() -> None:
    machine = Inquiry("tcp://127.0.0.1:1", lambda status: status["n"] == 2)
    machine.start(0.0)
    assert machine.handle(Received(COORDINATOR, Status(1, {"n": 1})), 1.0) == []
    assert machine.next_deadline() == 1.0 + AGAIN_S
    assert len(machine.handle(Received(COORDINATOR, Status(1, {"n": 2})), 2.0)) == 1


def test_anything_else_changes_nothing_and_a_stop_ends_it() -> None:
    machine = Inquiry("tcp://127.0.0.1:1")
    machine.start(0.0)
    assert machine.handle(Received(COORDINATOR, Left()), 0.0) == []
    assert machine.handle(Undecodable(COORDINATOR, ProtocolError("x")), 0.0) == []
    assert [type(a) for a in machine.handle(Stop("closed"), 0.0)] == [Exit]


def test_texts_of_a_status_and_of_an_answer_can_be_shown() -> None:
    machine = Inquiry("tcp://127.0.0.1:1")
    machine.start(0.0)
    said = {"a\nb": [{"name": "\x1b[2J", "pid": 7}], "state": "größer [red]"}
    machine.handle(Received(COORDINATOR, Status(1, said)), 0.0)
    assert machine.status == {"a\\nb": [{"name": "\\x1b[2J", "pid": 7}], "state": "größer [red]"}
    machine = Inquiry("tcp://127.0.0.1:1", question=EndJob(1, "x"))
    machine.start(0.0)
    machine.handle(Received(COORDINATOR, JobEnded(1, "a\rb")), 0.0)
    assert machine.text == "a\\rb"


def test_only_the_first_answer_counts_of_a_question_that_was_sent_twice() -> None:
    machine = Inquiry("tcp://127.0.0.1:1", question=Exited(1, b"token", "killed"))
    machine.start(0.0)
    assert len(machine.handle(Connected(COORDINATOR), 0.1)) == 1  # it asks again
    assert len(machine.handle(Received(COORDINATOR, ExitNoted(1, ("server 1",))), 0.2)) == 1
    assert machine.handle(Received(COORDINATOR, ExitNoted(1, ())), 0.2) == []  # it was no member any more
    assert machine.lost == ["server 1"]


def test_who_is_told_that_too_many_ask_asks_again() -> None:
    machine = Inquiry("tcp://127.0.0.1:1")
    machine.start(0.0)
    refusal = Error.of(1, LimitError(what="number of requests", got=2, limit=1))
    assert machine.handle(Received(COORDINATOR, refusal), 0.0) == []
    due = machine.next_deadline()
    assert due is not None
    assert machine.on_deadline(due) == [ASK]
    assert len(machine.handle(Received(COORDINATOR, Status(1, {})), due)) == 1
    assert machine.error is None


def test_a_cluster_that_ends_with_its_connection_has_answered() -> None:
    machine = Inquiry("tcp://127.0.0.1:1", question=EndJob(1, ""))
    machine.start(0.0)
    assert machine.handle(Disconnected(COORDINATOR), 0.1) == [Exit(0, "the connection has ended")]
    assert machine.next_deadline() is None
    of_a_job = Inquiry("tcp://127.0.0.1:1", question=EndJob(1, "x"))
    of_a_job.start(0.0)
    assert of_a_job.handle(Disconnected(COORDINATOR), 0.1) == []
