"""A node's membership: hello until welcome, heartbeats after, and silence noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.machines import identity, logged, sent
from tests.tables import for_each
from zmqps.core.node.handshake import FIRST_RETRY_S, SLOWEST_RETRY_S
from zmqps.core.node.member import MAX_GOODBYES, REMINDER_INTERVAL_S, Member
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import COORDINATOR, Action, Connect
from zmqps.errors import CoordinatorRestartedError, EvictedError, NotJoinedError

WELCOME = m.Welcome(1, b"i" * 16, "c", 5, 1.0, 10.0, 4, 2)


def member() -> Member:
    return Member(identity("worker"), "tcp://c:1", lambda: {"pushes": 3})


def started() -> Member:
    got = member()
    got.start(0.0)
    return got


def joined(patience: float = 0.0) -> Member:
    """Return a member that is welcome; with patience, the coordinator may be away for so long."""
    got = started()
    got.on_message(replace(WELCOME, patience=patience), 0.0)
    return got


def pass_time(got: Member, until: float, *, hear: bool = False) -> list[tuple[float, Action]]:
    happened = []
    while (due := got.next_deadline()) is not None and due <= until:
        happened += [(due, action) for action in got.on_deadline(due)]
        if hear:
            got.on_message(m.HeartbeatAck(4), due)
    return happened


def test_it_connects_and_says_hello_ever_more_slowly_until_it_is_welcome() -> None:
    got = member()
    first, hello = got.start(0.0)
    assert first == Connect(COORDINATOR, "tcp://c:1")
    assert len(sent([hello], m.Hello)) == 1
    times = [time for time, action in pass_time(got, 5.0) if sent([action], m.Hello)]
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    expected = [min(FIRST_RETRY_S * 2**i, SLOWEST_RETRY_S) for i in range(len(gaps))]
    assert gaps == pytest.approx(expected)
    got.on_message(WELCOME, 5.0)
    assert [a for _, a in pass_time(got, 9.0, hear=True) if sent([a], m.Hello)] == []


def test_a_report_is_due_at_once() -> None:
    got = joined()
    due = got.next_deadline()
    assert due is not None
    got.report(due / 2)
    assert got.next_deadline() == due / 2
    assert sent(got.on_deadline(due / 2), m.Heartbeat)


def test_it_says_whom_it_waits_for_every_few_seconds() -> None:
    got = started()
    texts = [logged([a]) for _, a in pass_time(got, 2 * REMINDER_INTERVAL_S) if logged([a])]
    assert texts == [f"waiting for the coordinator at tcp://c:1, {n} s so far" for n in (5, 10)]


def test_the_welcome_tells_rank_and_sizes() -> None:
    got = started()
    assert not got.joined
    got.on_message(WELCOME, 0.1)
    assert (got.joined, got.rank, got.cluster.num_workers, got.cluster.num_servers) == (True, 5, 4, 2)
    got.on_message(m.HeartbeatAck(9), 0.2)
    assert got.cluster.num_workers == 9


def test_a_coordinator_that_knows_a_welcome_member_no_more_is_another_one() -> None:
    unknown = m.Error.of(0, NotJoinedError("Heartbeat before Hello"))
    got = started()
    got.on_message(unknown, 0.1)
    assert not got.restarted, "it has not been welcomed by any yet"
    got.on_message(WELCOME, 0.2)
    got.on_message(m.Error.of(0, EvictedError("gone")), 0.3)
    assert not got.restarted
    got.on_message(unknown, 0.4)
    assert (got.restarted, got.lost, got.next_deadline()) == (True, True, None)
    error = got.loss("connect again", 0.5)
    assert isinstance(error, CoordinatorRestartedError)
    assert str(error).startswith(
        "the coordinator at tcp://c:1 is a new one: the one that worker 5 (a, host, pid 7) had"
    )


def test_it_sends_its_counters_at_every_heartbeat() -> None:
    got = joined()
    beats = [(t, sent([a], m.Heartbeat)[0].counters) for t, a in pass_time(got, 3.0, hear=True)]
    assert beats == [(t, {"pushes": 3}) for t in (1.0, 2.0, 3.0)]


def test_who_has_joined_answers_a_probe_at_once() -> None:
    got = started()
    assert sent(got.on_message(m.Probe(3, 1), 0.5), m.Probed) == []
    got.on_message(WELCOME, 1.0)
    assert sent(got.on_message(m.Probe(3, 1), 1.5), m.Probed) == [m.Probed(3, 1)]
    got.leave("closed", 2.0)
    assert sent(got.on_message(m.Probe(4, 0), 2.5), m.Probed) == []


def test_silence_beyond_the_timeout_means_the_coordinator_is_lost() -> None:
    got = joined()
    pass_time(got, 10.0)
    assert not got.lost
    pass_time(got, 11.0)
    assert got.lost
    assert not got.joined
    assert got.next_deadline() is None


def test_any_message_is_a_sign_of_life() -> None:
    got = joined()
    pass_time(got, 100.0, hear=True)
    assert not got.lost
    assert got.silence(101.0) == 1.0


def test_goodbye_is_said_again_until_it_is_answered_but_not_for_ever() -> None:
    got = joined()
    assert [message.reason for message in sent(got.leave("finished", 1.0), m.Leave)] == ["finished"]
    assert got.leave("finished", 1.0) == []
    assert len(sent([a for _, a in pass_time(got, 60.0)], m.Leave)) == MAX_GOODBYES - 1
    assert got.next_deadline() is None


def test_an_answered_goodbye_is_the_last_word() -> None:
    got = joined()
    got.leave("finished", 1.0)
    got.on_message(m.Left(), 1.1)
    assert got.next_deadline() is None


def test_who_gives_up_to_join_says_goodbye_for_it_may_be_known_already() -> None:
    got = started()
    actions = got.leave("closed", 1.0)
    assert len(sent(actions, m.Leave)) == 1
    assert sent(actions, m.Heartbeat) == [], "who knows us not yet takes nothing else"


def test_nobody_says_goodbye_to_a_coordinator_that_is_lost_or_that_ended_it() -> None:
    for ended in (False, True):
        got = joined()
        if ended:
            got.abandon()
        else:
            pass_time(got, 60.0)
        assert got.leave("closed", 61.0) == []
        assert got.next_deadline() is None


PATIENT = replace(WELCOME, patience=60.0)


def test_a_coordinator_with_a_journal_may_be_away_for_longer_than_a_heartbeat_timeout() -> None:
    got = joined(60.0)
    said = [(time, action) for time, action in pass_time(got, 59.0) if logged([action])]
    assert not got.lost
    assert [time for time, _ in said] == list(range(3, 59, 5))
    assert logged([said[1][1]]) == (
        "the coordinator at tcp://c:1 has been away for 8 s; restarted there, it continues from its journal: waiting "
        "for it for 52 s more"
    )
    assert logged(got.on_message(m.HeartbeatAck(4), 59.5)) == "the coordinator at tcp://c:1 is back after 59.5 s"
    pass_time(got, 119.0)
    assert not got.lost
    pass_time(got, 121.0)
    assert got.lost
    assert not got.restarted


def test_over_a_new_connection_little_is_said_until_the_coordinator_has_answered() -> None:
    got = joined(60.0)
    (heartbeat,) = sent(got.on_connected(5.0), m.Heartbeat)
    assert (heartbeat.counters, got.unsure) == ({}, True)
    got.on_message(m.HeartbeatAck(4), 5.1)
    assert not got.unsure
    assert sent(got.on_deadline(5.1), m.Heartbeat)[0].counters == {"pushes": 3}


def test_to_a_coordinator_that_is_back_a_member_says_who_it_is_until_it_is_welcome() -> None:
    got = joined(60.0)
    got.on_connected(5.0)
    assert len(sent(got.on_message(m.Back(WELCOME.incarnation), 5.1), m.Hello)) == 1
    assert got.on_message(m.Back(WELCOME.incarnation), 5.11) == []
    assert sent([action for _, action in pass_time(got, 5.5)], m.Hello)
    assert got.unsure
    got.on_message(replace(PATIENT, rank=5), 5.6)
    assert (got.unsure, got.joined, got.rank) == (False, True, 5)
    assert not sent([action for _, action in pass_time(got, 9.0, hear=True)], m.Hello)


@for_each("answer", [m.Back(b"j" * 16), m.Error.of(0, NotJoinedError("Heartbeat before Hello"))])
def test_another_coordinator_there_is_none_to_wait_for(answer: m.Back | m.Error) -> None:
    got = joined(60.0)
    got.on_connected(5.0)
    got.on_message(answer, 5.1)
    assert (got.restarted, got.lost, got.next_deadline()) == (True, True, None)
    got = joined(60.0)
    got.on_message(m.Back(WELCOME.incarnation), 5.0)
    got.on_message(replace(PATIENT, incarnation=b"j" * 16), 5.1)
    assert got.restarted, "a Welcome of another one"


def test_a_goodbye_waits_for_a_coordinator_that_is_away() -> None:
    got = joined(60.0)
    got.leave("finished", 1.0)
    assert len(sent([action for _, action in pass_time(got, 30.0)], m.Leave)) > MAX_GOODBYES
    (farewell,) = sent(got.on_message(m.Back(WELCOME.incarnation), 30.1), m.Farewell)
    assert farewell == m.Farewell(got.identity.incarnation, got.identity.secret, "finished")
    assert got.on_message(m.Back(b"j" * 16), 30.2) == []
    got.on_message(m.Left(), 30.3)
    assert got.next_deadline() is None
