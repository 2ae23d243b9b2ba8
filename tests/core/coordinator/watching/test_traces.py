"""Traces of a running cluster: who may ask, who is told, and what is passed on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.machines import hello, identity, peer, sent
from tests.tables import for_each
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.watching.traces import MAX_FETCHES
from zmqps.core.node.tracing import KEEP_S, LONGEST_S, MAX_RING_NBYTES, Nothing
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action, Received
from zmqps.core.protocol.messages.tracing import TraceAction, TraceState
from zmqps.core.protocol.security.guard import proved
from zmqps.core.protocol.security.roles import KeyHolder
from zmqps.errors import IdentityError, JobError, LimitError, NotJoinedError, ProtocolError

OPERATOR = b"@operator"
SECRET, NONCE = b"the job's secret", bytes(range(16))
NUMBER = int.from_bytes(NONCE[:8], "little")


class Cluster:
    """A coordinator with a server and workers of two jobs."""

    def __init__(self, secret: bytes = b"", *, keyed: bool = False) -> None:
        who = replace(identity("coordinator", "c"), end_key=secret, keyed=keyed)
        self.machine = CoordinatorMachine(who, CoordinatorOptions(servers=1, heartbeat_timeout=1e6))
        self.machine.start(0.0)
        self.secret = secret
        if not keyed:
            self.join("server", "s", "default")
            self.join("worker", "a", "one")
            self.join("worker", "b", "two")

    def join(self, role: str, name: str, job: str, now: float = 0.0) -> list[Action]:
        return self.take(hello(role, name, job), now, peer(name))

    def take(
        self, message: m.Message, now: float = 1.0, who: bytes = OPERATOR, holder: KeyHolder | None = None
    ) -> list[Action]:
        actions = self.machine.handle(Received(who, message, holder=holder), now)
        self.machine.validate()
        return actions

    def ask(self, action: int = TraceAction.START, now: float = 1.0, nonce: bytes = NONCE, **told: Any) -> list[Action]:
        told = {"job": "", "seconds": 2.0, "steps": 0, "nbytes": 4096, **told}
        message = m.Trace(1, action, told["job"], told["seconds"], told["steps"], told["nbytes"], nonce)
        return self.take(proved(self.secret, message), now)

    def fetch(self, name: str, offset: int = 0, now: float = 4.0) -> list[Action]:
        message = m.Fetch(5, NUMBER, name.encode().ljust(16, b"."), offset, NONCE)
        return self.take(proved(self.secret, message), now)

    def wait(self, until: float) -> list[Action]:
        actions: list[Action] = []
        while (due := self.machine.next_deadline()) is not None and due <= until:
            actions += self.machine.on_deadline(due)
            self.machine.validate()
        return actions

    def say(self, name: str, state: int, now: float, steps: int = 0) -> list[Action]:
        facts = {"offset_s": -2.0, "error_s": 0.5}
        return self.take(m.SpansRecorded(NUMBER, state, now, 100, 0, steps, facts), now, peer(name))


def traced(until: float = 0.0) -> Cluster:
    """Return one whose nodes record from 1.0 to 3.0."""
    cluster = Cluster()
    cluster.ask()
    cluster.wait(until)
    return cluster


def told(actions: list[Action]) -> dict[str, float]:
    """Return who is told to record, and for how long."""
    return {name: watch.seconds for name in "sabd" for watch in sent(actions, m.RecordSpans, peer(name))}


def refused(actions: list[Action], error: type[Exception]) -> str:
    [answer] = sent(actions, m.Error, OPERATOR)
    assert answer.code == error.code  # type: ignore[attr-defined]
    return answer.text


def test_all_nodes_are_told_to_record_and_those_who_come_later_too() -> None:
    cluster = Cluster()
    actions = cluster.ask()
    assert told(actions) == {"s": 2.0, "a": 2.0, "b": 2.0}
    [answer] = sent(actions, m.Tracing, OPERATOR)
    assert (answer.number, answer.state, answer.left) == (NUMBER, TraceState.ON, 2.0)
    assert [node["role"] for node in answer.nodes["nodes"]] == ["coordinator", "server", "worker", "worker"]
    for name in "sab":
        cluster.say(name, TraceState.ON, 1.1)
    cluster.join("worker", "d", "one", 1.2)
    assert told(cluster.wait(1.9)) == {"d": pytest.approx(1.75, abs=0.05)}


def test_the_coordinator_records_as_well() -> None:
    class Noting(Nothing):
        started, stopped = 0, 0

        def start(self, nbytes: int) -> None:
            self.started += nbytes

        def stop(self) -> None:
            self.stopped += 1

    cluster = Cluster()
    recorder = cluster.machine.traces.recorder = Noting()
    cluster.ask(nbytes=1 << 20)
    assert (recorder.started, recorder.stopped) == (1 << 20, 0)
    cluster.wait(5.0)
    assert recorder.stopped == 1


def test_the_coordinator_ends_a_trace_at_its_time_and_not_when_it_next_looks_who_has_come() -> None:
    cluster = Cluster()
    cluster.ask(seconds=1.55)
    cluster.wait(2.5)
    assert cluster.machine.traces.state == TraceState.ON
    cluster.wait(2.55)
    assert cluster.machine.traces.state == TraceState.OFF


def test_of_one_job_its_workers_record_and_all_servers() -> None:
    cluster = Cluster()
    assert told(cluster.ask(job="two")).keys() == {"s", "b"}
    assert "no job 'three'" in refused(Cluster().ask(job="three"), JobError)


def test_asked_again_it_begins_no_other_one() -> None:
    cluster = traced()
    assert told(cluster.ask(now=1.5)) == {}
    refused(cluster.ask(now=1.6, nonce=NONCE[::-1]), LimitError)
    cluster.wait(3.0)
    assert told(cluster.ask(now=4.0, nonce=NONCE[::-1])).keys() == {"s", "a", "b"}  # the one before is over


@for_each(
    "wrong, error",
    [
        ({"seconds": 0.0}, LimitError), ({"seconds": LONGEST_S + 1}, LimitError),
        ({"nbytes": MAX_RING_NBYTES + 1}, LimitError), ({"nonce": b""}, ProtocolError),
    ],
)  # fmt: skip
def test_what_is_too_much_is_refused_and_nobody_records(wrong: dict[str, Any], error: type[Exception]) -> None:
    cluster = Cluster()
    refused(cluster.ask(**wrong), error)
    assert cluster.machine.traces.state == TraceState.NONE


def test_it_ends_at_its_time_and_who_does_not_hear_is_told_again() -> None:
    cluster = traced()
    for name in "sab":
        cluster.say(name, TraceState.ON, 1.1)
    ended = cluster.wait(3.3)
    assert told(ended) == {"s": 0.0, "a": 0.0, "b": 0.0}
    cluster.say("s", TraceState.OFF, 3.3)
    cluster.say("a", TraceState.OFF, 3.3)
    assert told(cluster.wait(4.6)) == {"b": 0.0}
    [answer] = sent(cluster.ask(TraceAction.LOOK, 4.6), m.Tracing)
    by_role = {node["name"]: node for node in answer.nodes["nodes"]}
    assert (by_role["a"]["state"], by_role["a"]["nbytes"], by_role["a"]["offset_s"]) == (TraceState.OFF, 100, -2.0)
    assert by_role["b"]["state"] == TraceState.ON
    cluster.wait(4.6 + KEEP_S)
    assert sent(cluster.ask(TraceAction.LOOK, 200.0), m.Tracing)[0].state == TraceState.NONE


def test_it_can_be_ended_early_and_ends_when_all_workers_have_done_their_steps() -> None:
    cluster = Cluster()
    cluster.ask(seconds=60.0)
    assert sent(cluster.ask(TraceAction.STOP, 2.0), m.Tracing)[0].state == TraceState.OFF
    cluster = Cluster()
    cluster.ask(seconds=60.0, steps=10)
    cluster.say("a", TraceState.ON, 2.0, steps=12)
    cluster.say("b", TraceState.ON, 2.0, steps=9)
    cluster.wait(3.0)
    assert cluster.machine.traces.state == TraceState.ON
    cluster.say("b", TraceState.ON, 3.0, steps=10)
    cluster.wait(3.3)
    assert cluster.machine.traces.state == TraceState.OFF


def test_each_sign_of_a_node_is_answered_with_the_time() -> None:
    cluster = traced()
    cluster.machine.traces.recorder.time = lambda: 7.5  # type: ignore[method-assign]
    assert sent(cluster.say("a", TraceState.ON, 1.5), m.Clock) == [m.Clock(NUMBER, TraceState.ON, 1.5, 7.5)]


def test_a_node_that_records_what_nobody_knows_of_is_ended() -> None:
    cluster = Cluster()
    actions = cluster.take(m.SpansRecorded(99, TraceState.ON, 1.0, 0, 0, 0, {}), 1.0, peer("a"))
    assert sent(actions, m.RecordSpans) == [m.RecordSpans(99, 0.0, 0)]


def test_what_a_node_says_of_its_trace_is_a_sign_of_life() -> None:
    cluster = traced()
    cluster.say("a", TraceState.ON, 1.5)
    seen = {got.hello.name: got.seen_at for got in cluster.machine.membership.members.values()}
    assert seen == {"s": 0.0, "a": 1.5, "b": 0.0}


def test_pieces_are_passed_on_to_who_wants_them() -> None:
    cluster = traced(3.3)
    [asked] = sent(cluster.fetch("a", 7), m.Fetch, peer("a"))
    assert (asked.offset, asked.nonce, asked.guard) == (7, b"", b"")
    piece = m.Piece(asked.request, NUMBER, asked.who, 7, 10, b"abc")
    assert sent(cluster.take(piece, 4.1, peer("a")), m.Piece, OPERATOR) == [replace(piece, request=5)]
    assert not sent(cluster.take(piece, 4.2, peer("a")), m.Piece)  # said twice


def test_a_node_hands_out_what_is_its_own() -> None:
    cluster = traced(3.3)
    [asked] = sent(cluster.fetch("a"), m.Fetch, peer("a"))
    [error] = sent(cluster.take(m.Piece(asked.request, NUMBER, asked.who, 0, 3, b"abc"), 4.0, peer("b")), m.Error)
    assert error.code == ProtocolError.code
    cluster.take(m.Piece(asked.request, NUMBER, asked.who, 0, 3, b"abc"), 4.0, peer("a"))


def test_what_is_not_there_is_said_not_to_be() -> None:
    cluster = traced()
    refused(cluster.fetch("a", now=1.5), JobError)  # it goes on
    cluster.wait(3.3)
    refused(cluster.fetch("nobody"), JobError)


def test_questions_that_are_never_answered_take_no_room() -> None:
    cluster = traced(3.3)
    for _ in range(3 * MAX_FETCHES):
        cluster.fetch("a")
    assert len(cluster.machine.traces._fetches) == MAX_FETCHES


def test_only_who_may_end_jobs_may_trace_them() -> None:
    cluster = Cluster(SECRET)
    assert told(cluster.ask()).keys() == {"s", "a", "b"}
    cluster.wait(3.3)
    assert sent(cluster.fetch("a"), m.Fetch)
    cluster.secret = b""
    refused(cluster.ask(nonce=NONCE[::-1]), IdentityError)
    refused(cluster.ask(TraceAction.LOOK), IdentityError)
    refused(cluster.fetch("a"), IdentityError)


@for_each("role, may", [("node", True), ("worker", False), ("observer", False)])
def test_where_there_are_keys_it_takes_a_nodes(role: str, may: bool) -> None:
    cluster = Cluster(keyed=True)
    message = m.Trace(1, TraceAction.START, "", 2.0, 0, 4096, NONCE)
    actions = cluster.take(message, holder=KeyHolder(role, "k"))
    assert bool(sent(actions, m.Tracing)) == may


def test_who_has_not_joined_says_nothing_for_a_node() -> None:
    cluster = traced()
    refused(cluster.take(m.SpansRecorded(NUMBER, TraceState.OFF, 1.0, 0, 0, 0, {})), NotJoinedError)
    cluster.take(m.Heartbeat({}), 1.0, peer("a"))
