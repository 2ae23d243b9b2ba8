"""Servers are asked to erase what is left of a job, or of a member that has gone, until they have."""

from __future__ import annotations

from itertools import chain

from tests.core.machines import hello, peer, receivers
from tests.tables import for_each
from zmqps.core.coordinator.members.erasures import MAX_DEPARTURES, MOST_AGAIN, PIECE_S, RETRY_S, Erasures
from zmqps.core.coordinator.members.membership import MemberInfo, Roster
from zmqps.core.node.timers import Wheel
from zmqps.core.protocol.events import Action, Peer, Send
from zmqps.core.protocol.messages import Departed, Discard

SERVERS = Roster()
A, B = (SERVERS.enter(hello("server", name), peer(name), 0.0) for name in "ab")
W, V = b"w" * 16, b"v" * 16


def said(actions: list[Action]) -> list[tuple[Peer, int | bytes]]:
    """Return who is asked for what: an epoch or an incarnation."""
    sends = [(action.peer, action.message) for action in actions if isinstance(action, Send)]
    return [(to, m.epoch if isinstance(m, Discard) else m.incarnation) for to, m in sends]  # type: ignore[attr-defined]


def again(erasures: Erasures, now: float) -> list[tuple[Peer, int | bytes]]:
    """Return who is asked again for what."""
    found = said(erasures.on_deadline(now))
    erasures.validate()
    return found


def asked(*epochs: int, of: tuple[MemberInfo, ...] = (A, B)) -> Erasures:
    erasures = Erasures(Wheel())
    for epoch in epochs:
        for server in of:
            assert receivers(erasures.discard(epoch, server, 0.0), Discard) == [server.peer]
        erasures.validate()
    return erasures


def depart(erasures: Erasures, who: bytes, *servers: MemberInfo, epoch: int = 3, now: float = 0.0) -> list[Action]:
    actions = erasures.depart(who, [(server, {epoch}) for server in servers or (A, B)], now, how="lost")
    erasures.validate()
    return actions


def test_who_has_not_confirmed_is_asked_again() -> None:
    erasures = asked(3, 5)
    assert erasures.next_deadline() == RETRY_S
    assert again(erasures, 0.9 * RETRY_S) == []
    erasures.discarded(A, 3)
    assert again(erasures, RETRY_S) == [(peer("a"), 5), (peer("b"), 3), (peer("b"), 5)]
    assert erasures.next_deadline() == 2 * RETRY_S
    erasures.discarded(B, 3)
    erasures.discarded(B, 5)
    assert again(erasures, 2 * RETRY_S) == [(peer("a"), 5)]
    erasures.discarded(A, 5)
    assert erasures.next_deadline() is None
    assert again(erasures, 10.0) == []


def test_who_has_gone_is_named_to_every_server_until_it_has_forgotten_it() -> None:
    erasures = Erasures(Wheel())
    first = depart(erasures, W)
    assert [a.message for a in first if isinstance(a, Send)] == [Departed(W, 1)] * 2
    assert said(first) == [(peer("a"), W), (peer("b"), W)]
    depart(erasures, V, B, now=0.5 * RETRY_S)
    erasures.forgotten(A, W)
    assert again(erasures, RETRY_S) == [(peer("b"), W)]
    assert again(erasures, 1.5 * RETRY_S) == [(peer("b"), V)]
    erasures.forgotten(B, W)
    erasures.forgotten(B, V)
    assert erasures.next_deadline() is None


def test_a_confirmation_that_comes_twice_or_unasked_changes_nothing() -> None:
    erasures = asked(3, of=(B,))
    depart(erasures, W, B, epoch=4)
    for _ in range(2):
        erasures.discarded(A, 3)
        erasures.discarded(B, 9)
        erasures.forgotten(A, W)
        erasures.forgotten(B, V)
        erasures.validate()
    assert again(erasures, RETRY_S) == [(peer("b"), 3), (peer("b"), W)]


def test_a_server_that_has_gone_is_asked_no_more() -> None:
    erasures = asked(3, 5)
    depart(erasures, W, A)
    erasures.leave(A)
    erasures.discarded(B, 5)
    assert again(erasures, RETRY_S) == [(peer("b"), 3)]
    erasures.leave(B)
    assert erasures.next_deadline() is None


def test_the_end_of_a_job_makes_the_departures_from_it_moot() -> None:
    erasures = Erasures(Wheel())
    depart(erasures, W, epoch=3)
    depart(erasures, V, epoch=4)
    for server in (A, B):
        erasures.discard(3, server, 0.0)
    assert again(erasures, RETRY_S) == [(peer("a"), 3), (peer("a"), V), (peer("b"), 3), (peer("b"), V)]
    for server in (A, B):
        erasures.discarded(server, 3)
        erasures.forgotten(server, V)
    assert erasures.next_deadline() is None


def test_a_departure_is_moot_when_the_last_shard_of_the_job_goes() -> None:
    erasures = Erasures(Wheel())
    erasures.depart(W, [(A, {3, 4})], 0.0, how="lost")
    erasures.discard(3, A, 0.0)
    assert again(erasures, RETRY_S) == [(peer("a"), 3), (peer("a"), W)]
    erasures.discard(4, A, RETRY_S)
    assert again(erasures, 2 * RETRY_S) == [(peer("a"), 3), (peer("a"), 4)]


@for_each("others", [(), (4,)])
def test_nobody_to_ask_is_nothing_to_wait_for(others: tuple[int, ...]) -> None:
    erasures = asked(*others)
    before = erasures.next_deadline()
    assert erasures.depart(W, [], 0.5, how="closed") == []
    erasures.validate()
    assert erasures.next_deadline() == before


def test_one_more_does_not_put_off_those_who_are_late() -> None:
    erasures = asked(3)
    erasures.discard(5, A, 0.9 * RETRY_S)
    assert erasures.next_deadline() == RETRY_S
    assert again(erasures, RETRY_S) == [(peer("a"), 3), (peer("b"), 3)]


def test_thousands_that_nobody_has_confirmed_are_said_again_a_few_at_a_time() -> None:
    erasures, number = Erasures(Wheel()), 10 * MOST_AGAIN
    for i in range(number):
        depart(erasures, i.to_bytes(16, "big"))
    now, calls = RETRY_S, []
    while len(list(chain(*calls))) < 2 * number:
        due = erasures.next_deadline()
        assert due is not None
        assert due <= now
        calls.append(again(erasures, now))
        now += PIECE_S
    assert {len(call) for call in calls} == {MOST_AGAIN}
    assert len(set(chain(*calls))) == 2 * number, "nobody twice before all have had their turn"


def test_of_too_many_departures_a_server_is_not_told_of_the_oldest_again() -> None:
    erasures = Erasures(Wheel())
    for i in range(MAX_DEPARTURES + 1):
        erasures.depart(i.to_bytes(16, "big"), [(A, {3})], 0.0, how="closed")
    erasures.validate()
    assert again(erasures, RETRY_S)[0] == (peer("a"), (1).to_bytes(16, "big"))
