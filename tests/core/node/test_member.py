"""A node's membership: hello until welcome, heartbeats after, and silence noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.machines import identity, logged, sent
from zmqps.core.node.handshake import FIRST_RETRY_S, SLOWEST_RETRY_S
from zmqps.core.node.member import MAX_GOODBYES, REMINDER_INTERVAL_S, Member
from zmqps.core.protocol.events import COORDINATOR, Action, Connect
from zmqps.core.protocol.messages import (
    Back,
    Error,
    Farewell,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Leave,
    Left,
    Probe,
    Probed,
    Welcome,
)
from zmqps.errors import CoordinatorRestartedError, EvictedError, NotJoinedError

WELCOME = Welcome(1, b"i" * 16, "c", 5, 1.0, 10.0, 4, 2)


def member() -> Member:
    return Member(identity("worker"), "tcp://c:1", lambda: {"pushes": 3})


def pass_time(m: Member, until: float, *, hear: bool = False) -> list[tuple[float, Action]]:
    happened = []
    while (due := m.next_deadline()) is not None and due <= until:
        happened += [(due, action) for action in m.on_deadline(due)]
        if hear:
            m.on_message(HeartbeatAck(4), due)
    return happened


def test_it_connects_and_says_hello_ever_more_slowly_until_it_is_welcome() -> None:
    m = member()
    first, hello = m.start(0.0)
    assert first == Connect(COORDINATOR, "tcp://c:1")
    assert len(sent([hello], Hello)) == 1
    times = [time for time, action in pass_time(m, 5.0) if sent([action], Hello)]
    gaps = [b - a for a, b in zip([0.0, *times], times, strict=False)]
    expected = [min(FIRST_RETRY_S * 2**i, SLOWEST_RETRY_S) for i in range(len(gaps))]
    assert gaps == pytest.approx(expected)
    m.on_message(WELCOME, 5.0)
    assert [a for _, a in pass_time(m, 9.0, hear=True) if sent([a], Hello)] == []


def test_it_says_whom_it_waits_for_every_few_seconds() -> None:
    m = member()
    m.start(0.0)
    texts = [logged([a]) for _, a in pass_time(m, 2 * REMINDER_INTERVAL_S) if logged([a])]
    assert texts == [f"waiting for the coordinator at tcp://c:1, {n} s so far" for n in (5, 10)]


def test_the_welcome_tells_rank_and_sizes() -> None:
    m = member()
    m.start(0.0)
    assert not m.joined
    m.on_message(WELCOME, 0.1)
    assert (m.joined, m.rank, m.cluster.num_workers, m.cluster.num_servers) == (True, 5, 4, 2)
    m.on_message(HeartbeatAck(9), 0.2)
    assert m.cluster.num_workers == 9


def test_a_coordinator_that_knows_a_welcome_member_no_more_is_another_one() -> None:
    unknown = Error.of(0, NotJoinedError("Heartbeat before Hello"))
    m = member()
    m.start(0.0)
    m.on_message(unknown, 0.1)
    assert not m.restarted, "it has not been welcomed by any yet"
    m.on_message(WELCOME, 0.2)
    m.on_message(Error.of(0, EvictedError("gone")), 0.3)
    assert not m.restarted
    m.on_message(unknown, 0.4)
    assert (m.restarted, m.lost, m.next_deadline()) == (True, True, None)
    error = m.loss("connect again", 0.5)
    assert isinstance(error, CoordinatorRestartedError)
    assert str(error).startswith(
        "the coordinator at tcp://c:1 is a new one: the one that worker 5 (a, host, pid 7) had"
    )


def test_it_sends_its_counters_at_every_heartbeat() -> None:
    m = member()
    m.start(0.0)
    m.on_message(WELCOME, 0.0)
    beats = [(t, sent([a], Heartbeat)[0].counters) for t, a in pass_time(m, 3.0, hear=True)]
    assert beats == [(t, {"pushes": 3}) for t in (1.0, 2.0, 3.0)]


def test_who_has_joined_answers_a_probe_at_once() -> None:
    m = member()
    m.start(0.0)
    assert sent(m.on_message(Probe(3, 1), 0.5), Probed) == []
    m.on_message(WELCOME, 1.0)
    assert sent(m.on_message(Probe(3, 1), 1.5), Probed) == [Probed(3, 1)]
    m.leave("closed", 2.0)
    assert sent(m.on_message(Probe(4, 0), 2.5), Probed) == []


def test_silence_beyond_the_timeout_means_the_coordinator_is_lost() -> None:
    m = member()
    m.start(0.0)
    m.on_message(WELCOME, 0.0)
    pass_time(m, 10.0)
    assert not m.lost
    pass_time(m, 11.0)
    assert m.lost
    assert not m.joined
    assert m.next_deadline() is None


def test_any_message_is_a_sign_of_life() -> None:
    m = member()
    m.start(0.0)
    m.on_message(WELCOME, 0.0)
    pass_time(m, 100.0, hear=True)
    assert not m.lost
    assert m.silence(101.0) == 1.0


def test_goodbye_is_said_again_until_it_is_answered_but_not_for_ever() -> None:
    m = member()
    m.start(0.0)
    m.on_message(WELCOME, 0.0)
    assert [message.reason for message in sent(m.leave("finished", 1.0), Leave)] == ["finished"]
    assert m.leave("finished", 1.0) == []
    assert len(sent([a for _, a in pass_time(m, 60.0)], Leave)) == MAX_GOODBYES - 1
    assert m.next_deadline() is None


def test_an_answered_goodbye_is_the_last_word() -> None:
    m = member()
    m.start(0.0)
    m.on_message(WELCOME, 0.0)
    m.leave("finished", 1.0)
    m.on_message(Left(), 1.1)
    assert m.next_deadline() is None


def test_who_gives_up_to_join_says_goodbye_for_it_may_be_known_already() -> None:
    m = member()
    m.start(0.0)
    actions = m.leave("closed", 1.0)
    assert len(sent(actions, Leave)) == 1
    assert sent(actions, Heartbeat) == [], "who knows us not yet takes nothing else"


def test_nobody_says_goodbye_to_a_coordinator_that_is_lost_or_that_ended_it() -> None:
    for ended in (False, True):
        m = member()
        m.start(0.0)
        m.on_message(WELCOME, 0.0)
        if ended:
            m.abandon()
        else:
            pass_time(m, 60.0)
        assert m.leave("closed", 61.0) == []
        assert m.next_deadline() is None


PATIENT = replace(WELCOME, patience=60.0)


def joined() -> Member:
    """Return a member of a coordinator that may be away for a minute."""
    m = member()
    m.start(0.0)
    m.on_message(PATIENT, 0.0)
    return m


def test_a_coordinator_with_a_journal_may_be_away_for_longer_than_a_heartbeat_timeout() -> None:
    m = joined()
    said = [(time, action) for time, action in pass_time(m, 59.0) if logged([action])]
    assert not m.lost
    assert [time for time, _ in said] == list(range(3, 59, 5))
    assert logged([said[1][1]]) == (
        "the coordinator at tcp://c:1 has been away for 8 s; started again there, it goes on from its journal: waiting "
        "for it for 52 s more"
    )
    assert logged(m.on_message(HeartbeatAck(4), 59.5)) == "the coordinator at tcp://c:1 is back after 59.5 s"
    pass_time(m, 119.0)
    assert not m.lost
    pass_time(m, 121.0)
    assert m.lost
    assert not m.restarted


def test_over_a_new_connection_little_is_said_until_the_coordinator_has_answered() -> None:
    m = joined()
    (heartbeat,) = sent(m.on_connected(5.0), Heartbeat)
    assert (heartbeat.counters, m.unsure) == ({}, True)
    m.on_message(HeartbeatAck(4), 5.1)
    assert not m.unsure
    assert sent(m.on_deadline(5.1), Heartbeat)[0].counters == {"pushes": 3}


def test_to_a_coordinator_that_is_back_a_member_says_who_it_is_until_it_is_welcome() -> None:
    m = joined()
    m.on_connected(5.0)
    assert len(sent(m.on_message(Back(WELCOME.incarnation), 5.1), Hello)) == 1
    assert m.on_message(Back(WELCOME.incarnation), 5.11) == []
    assert sent([action for _, action in pass_time(m, 5.5)], Hello)
    assert m.unsure
    m.on_message(replace(PATIENT, rank=5), 5.6)
    assert (m.unsure, m.joined, m.rank) == (False, True, 5)
    assert not sent([action for _, action in pass_time(m, 9.0, hear=True)], Hello)


@pytest.mark.parametrize("answer", [Back(b"j" * 16), Error.of(0, NotJoinedError("Heartbeat before Hello"))])
def test_another_coordinator_there_is_none_to_wait_for(answer: Back | Error) -> None:
    m = joined()
    m.on_connected(5.0)
    m.on_message(answer, 5.1)
    assert (m.restarted, m.lost, m.next_deadline()) == (True, True, None)


def test_a_welcome_of_another_coordinator_is_none() -> None:
    m = joined()
    m.on_message(Back(WELCOME.incarnation), 5.0)
    m.on_message(replace(PATIENT, incarnation=b"j" * 16), 5.1)
    assert m.restarted


def test_a_goodbye_waits_for_a_coordinator_that_is_away() -> None:
    m = joined()
    m.leave("finished", 1.0)
    assert len(sent([action for _, action in pass_time(m, 30.0)], Leave)) > MAX_GOODBYES
    (farewell,) = sent(m.on_message(Back(WELCOME.incarnation), 30.1), Farewell)
    assert farewell == Farewell(m.identity.incarnation, m.identity.secret, "finished")
    assert m.on_message(Back(b"j" * 16), 30.2) == []
    m.on_message(Left(), 30.3)
    assert m.next_deadline() is None
