"""A worker whose servers do not answer says which, since when and why; and what is no server of its is told apart."""

from __future__ import annotations

from collections.abc import Callable

from tests.core.machines import failed, logged, resolved, sent
from tests.core.worker.test_session import S0, S1, WELCOME, Session, error
from tests.tables import for_each
from zmqps.core.node.handshake import BROKEN_LOOK_S, LOOK_AGAIN_S, LOOK_S
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import COORDINATOR, Action, Connected, Disconnected, Look, Looked
from zmqps.core.worker.operations import Finish, Join
from zmqps.errors import (
    ConfigurationError,
    DeadlineError,
    EvictedError,
    IdentityError,
    JobEndedError,
    JobError,
    ProtocolError,
    PSError,
    StaleEpochError,
    WrongPeerError,
)

REFUSED = "no process listens at that port (connection refused)"


def looks(actions: list[Action]) -> list[tuple[bytes, str]]:
    return [(action.peer, action.endpoint) for action in actions if isinstance(action, Look)]


def half_attached() -> Session:
    """Return a session of which the second server does not answer."""
    session = Session.joined()
    session.get(session.job(session.start().request))
    session.get(WELCOME, S0)
    return session


def test_a_server_that_does_not_answer_is_named_within_five_seconds_with_the_reason() -> None:
    session = half_attached()
    actions = session.wait(LOOK_S + 1.0, hear=True)
    assert looks(actions) == [(S1, "tcp://s1:1")]
    assert session.now < 5.0
    said = session.handle(Looked(S1, REFUSED))
    assert f"cannot reach server 1 (s1, tcp://s1:1) for 3 s: {REFUSED}" in logged(said)
    beat = sent(session.wait(session.now), m.Heartbeat, COORDINATOR)  # at once, not at the next interval
    assert beat[0].counters["unreached"] == f"server 1 (s1, tcp://s1:1) for 3 s ({REFUSED})"
    assert looks(session.wait(LOOK_S + LOOK_AGAIN_S + 2.0, hear=True)) == [(S1, "tcp://s1:1")], "again"
    assert logged(session.handle(Looked(S1, REFUSED))) == ""
    assert "no answer" in logged(session.handle(Looked(S1, "no answer"))), "when it changes"


def test_a_server_that_does_not_answer_over_a_later_connection_is_named_with_the_time_since_then() -> None:
    session = half_attached()
    session.get(WELCOME, S1)
    session.wait(20.0, hear=True)
    session.handle(Disconnected(S1))
    session.handle(Connected(S1))
    assert looks(session.wait(20.0 + LOOK_S + 1.0, hear=True)) == [(S1, "tcp://s1:1")]
    assert "cannot reach server 1 (s1, tcp://s1:1) for 3 s" in logged(session.handle(Looked(S1, REFUSED)))
    assert session.machine.counters()["unreached"] == f"server 1 (s1, tcp://s1:1) for 3 s ({REFUSED})"
    session.get(WELCOME, S1)
    assert "unreached" not in session.machine.counters()


def test_an_operation_that_times_out_says_why() -> None:
    session = half_attached()
    session.ask(session.transfer("push"), 5.0)
    session.wait(LOOK_S + 1.0, hear=True)
    session.handle(Looked(S1, REFUSED))
    value = failed(session.wait(6.0, hear=True), DeadlineError)
    assert f"server 1 (s1, tcp://s1:1) to accept the connection ({REFUSED})" in str(value)


def test_nothing_is_said_of_a_server_that_answers_in_time_or_meanwhile() -> None:
    session = half_attached()
    session.get(WELCOME, S1)
    assert looks(session.wait(20.0, hear=True)) == []
    assert logged(session.handle(Looked(S1, REFUSED))) == ""
    assert "unreached" not in session.machine.counters()
    assert logged(session.handle(Looked(b"server-9", REFUSED))) == ""


# --- a connection that has ended, and does not come back ------------------------------------------


def attached() -> Session:
    """Return a session whose servers have answered, some time ago."""
    session = Session.attached()
    session.wait(20.0, hear=True)
    return session


@for_each("busy", [False, True])
def test_a_server_whose_connection_does_not_come_back_is_named_within_five_seconds_with_the_reason(busy: bool) -> None:
    session = attached()
    if busy:
        session.ask(session.transfer("push"), timeout=60.0)
    assert session.handle(Disconnected(S1)) == []
    actions = session.wait(20.0 + BROKEN_LOOK_S, hear=True)  # the end may have taken seconds to be noticed
    assert looks(actions) == [(S1, "tcp://s1:1")]
    assert sent(actions, m.Hello) == [], "it would go nowhere"
    session.wait(21.5, hear=True)
    said = session.handle(Looked(S1, REFUSED))
    assert f"cannot reach server 1 (s1, tcp://s1:1) for 2 s: {REFUSED}" in logged(said)
    beat = sent(session.wait(session.now), m.Heartbeat, COORDINATOR)
    assert beat[0].counters["unreached"] == f"server 1 (s1, tcp://s1:1) for 2 s ({REFUSED})"
    again = session.wait(20.0 + BROKEN_LOOK_S + LOOK_AGAIN_S, hear=True)
    assert looks(again) == [(S1, "tcp://s1:1")]
    assert logged(session.handle(Looked(S1, REFUSED))) == ""
    assert "no answer" in logged(session.handle(Looked(S1, "no answer")))


def test_a_server_that_comes_back_late_is_greeted_and_not_named_any_more() -> None:
    session = attached()
    session.handle(Disconnected(S1))
    session.wait(30.0, hear=True)
    session.handle(Looked(S1, REFUSED))
    assert "unreached" in session.machine.counters()
    assert len(sent(session.handle(Connected(S1)), m.Hello, S1)) == 1
    assert "for 10 s" in session.machine.counters()["unreached"], "not before it has answered"
    session.get(WELCOME, S1)
    assert "unreached" not in session.machine.counters()
    assert looks(session.wait(50.0, hear=True)) == []


def test_nothing_is_said_of_a_connection_that_comes_back_soon() -> None:
    session = attached()
    for _ in range(20):
        session.handle(Disconnected(S1))
        actions = session.wait(session.now + BROKEN_LOOK_S - 0.1, hear=True)
        assert "unreached" not in session.machine.counters()
        actions += session.handle(Connected(S1))
        actions += session.wait(session.now + 0.1, hear=True)
        actions += session.get(WELCOME, S1)
        assert looks(actions) == []
        assert "unreached" not in session.machine.counters()


def test_a_connection_that_comes_back_only_to_end_again_does_not_end_the_silence() -> None:
    session = attached()
    found: list[Action] = []
    while session.now < 20.0 + LOOK_S + 1.0:
        session.handle(Disconnected(S1))
        found += session.wait(session.now + 0.3, hear=True)
        found += session.handle(Connected(S1))
        found += session.wait(session.now + 0.1, hear=True)
    assert looks(found) == [(S1, "tcp://s1:1")]
    assert "cannot reach server 1 (s1, tcp://s1:1) for 3 s" in logged(session.handle(Looked(S1, REFUSED)))


def test_the_time_counts_from_the_first_hello_where_a_connection_ends_before_it_was_answered() -> None:
    session = half_attached()
    session.wait(1.0, hear=True)
    session.handle(Connected(S1))
    session.handle(Disconnected(S1))
    actions = session.wait(LOOK_S + 1.0, hear=True)
    assert looks(actions) == [(S1, "tcp://s1:1")]
    assert sent(actions, m.Hello, S1) == []
    assert "for 3 s" in logged(session.handle(Looked(S1, REFUSED)))


def test_an_answer_that_came_over_the_connection_that_has_ended_does_not_end_the_silence() -> None:
    session = attached()
    session.ask(session.transfer("push"), timeout=60.0)
    session.handle(Disconnected(S1))
    assert session.get(WELCOME, S1) == []
    assert looks(session.wait(20.0 + LOOK_S, hear=True)) == [(S1, "tcp://s1:1")]
    session.handle(Connected(S1))
    assert sent(session.get(WELCOME, S1), m.Push, S1)


def test_an_operation_that_times_out_says_why_the_connection_does_not_come_back() -> None:
    session = attached()
    session.ask(session.transfer("push"), timeout=6.0)
    session.handle(Disconnected(S1))
    session.wait(20.0 + LOOK_S + 1.0, hear=True)
    session.handle(Looked(S1, REFUSED))
    value = failed(session.wait(26.0, hear=True), DeadlineError)
    assert "the connection to server 1 (s1, tcp://s1:1) to come back, last heard from 26.0 s ago" in str(value)
    assert f"({REFUSED})" in str(value)


def finish(session: Session) -> None:
    session.ask(Finish(0.0))
    session.get(m.Left())


def lose(session: Session) -> None:
    session.get(m.Lost("server", 1, "s1", b"s" * 16, 10.0))


def end(session: Session) -> None:
    session.get(m.Shutdown("the end"))


@for_each("over", [finish, lose, end])
@for_each("before", [False, True])
def test_nobody_misses_a_server_that_is_given_up_or_was_said_goodbye_to(
    over: Callable[[Session], None], before: bool
) -> None:
    session = attached()
    if before:
        session.handle(Disconnected(S1))
    over(session)
    actions = session.handle(Disconnected(S1))
    actions += session.wait(40.0, hear=True)
    assert looks(actions) == []
    assert session.handle(Connected(S1)) == []
    assert looks(session.wait(60.0, hear=True)) == []
    assert "unreached" not in session.machine.counters()


# --- the coordinator ------------------------------------------------------------------------------


def test_a_coordinator_that_does_not_answer_is_named_with_the_reason() -> None:
    session = Session()
    session.ask(Join(0.0), 8.0)
    assert looks(session.wait(LOOK_S + 1.0)) == [(COORDINATOR, "tcp://coordinator:1")]
    why = "the name 'coordinator' does not resolve on here (not known)"
    said = logged(session.handle(Looked(COORDINATOR, why)))
    assert said == f"no answer from the coordinator at tcp://coordinator:1 for 3 s: {why}"
    actions = session.wait(8.0)
    assert f"waiting for the coordinator at tcp://coordinator:1, 5 s so far ({why})" in logged(actions)
    ((_, value),) = resolved(actions)
    assert f"the coordinator at tcp://coordinator:1 ({why})" in str(value)


def test_the_reason_of_a_peer_is_bounded_and_printable() -> None:
    session = half_attached()
    session.wait(3.0, hear=True)
    text = logged(session.handle(Looked(S1, "\n\x1b[0m" + "x" * 10_000)))
    assert text.isprintable()
    assert len(text) < 1000


# --- somebody else listens there -----------------------------------------------------------------


@for_each(
    "refusal",
    [
        error(IdentityError, reason="worker w has no ticket for this server and the job of epoch 1"),  # of this cluster
        error(JobError, reason="this server has no shard yet; call worker.init(...) first"),  # begun anew
        error(StaleEpochError, ours=9, theirs=1),
        error(ProtocolError, reason="epoch 1 is not of the job 'default'"),
    ],
)
def test_a_server_that_is_not_the_one_that_was_meant_is_named_at_once_and_gets_nothing(refusal: object) -> None:
    session = half_attached()
    session.ask(push := session.transfer("push"))
    actions = session.get(refusal, S1)
    value = failed(actions, WrongPeerError, push)
    assert "what listens at the endpoint of server 1 (s1, tcp://s1:1) is not the server" in str(value)
    assert str(value) in logged(actions)
    assert not sent(actions, m.Push, S1)


def test_a_welcome_without_the_proof_is_the_wrong_servers_and_nothing_is_sent_there() -> None:
    session = half_attached()
    session.ask(session.transfer("push"))
    other = m.Welcome(WELCOME.version, b"x" * 16, "other", 0, 1.0, 10.0, 4, 2, proof=b"q" * 16)
    actions = session.get(other, S1)
    failed(actions, WrongPeerError)
    assert not sent(actions, m.Push, S1)


@for_each(
    "refusal",
    [error(EvictedError, reason="evicted"), error(JobEndedError, job="default", reason="its workers have finished")],
)
def test_what_the_right_server_says_is_not_taken_for_anothers(refusal: object) -> None:
    session = half_attached()
    session.ask(session.transfer("push"))
    value = failed(session.get(refusal, S1), PSError)
    assert not isinstance(value, WrongPeerError)


def test_two_servers_of_one_job_at_one_endpoint_fail_the_init() -> None:
    session = Session.joined()
    init = session.start()
    value = failed(session.get(session.job(init.request, names="00")), ConfigurationError)
    assert "two servers of this job advertise tcp://s0:1" in str(value)
