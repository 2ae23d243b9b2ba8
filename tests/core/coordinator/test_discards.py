"""Servers are asked to free what is left of a job until they have."""

from __future__ import annotations

import pytest

from tests.core.machines import hello, peer, receivers, sent
from zmqps.core.coordinator.discards import RETRY_S, Discards
from zmqps.core.coordinator.membership import MemberInfo, Roster
from zmqps.core.protocol.messages import Discard

SERVERS = Roster()
A, B = (SERVERS.enter(hello("server", name), peer(name), 0.0) for name in "ab")


def again(discards: Discards, now: float) -> list[tuple[bytes, int]]:
    """Return who is asked again for what."""
    actions = discards.on_deadline(now)
    discards.validate()
    return list(zip(receivers(actions, Discard), (m.epoch for m in sent(actions, Discard)), strict=True))


def asked(*epochs: int, of: tuple[MemberInfo, ...] = (A, B)) -> Discards:
    discards = Discards()
    for epoch in epochs:
        assert receivers(discards.add(epoch, of, 0.0), Discard) == [server.peer for server in of]
        discards.validate()
    return discards


def test_who_has_not_confirmed_is_asked_again() -> None:
    discards = asked(3, 5)
    assert discards.next_deadline() == RETRY_S
    assert again(discards, 0.9 * RETRY_S) == []
    discards.confirmed(A, 3)
    assert again(discards, RETRY_S) == [(peer("b"), 3), (peer("a"), 5), (peer("b"), 5)]
    assert discards.next_deadline() == 2 * RETRY_S
    discards.confirmed(B, 3)
    discards.confirmed(B, 5)
    assert again(discards, 2 * RETRY_S) == [(peer("a"), 5)]
    discards.confirmed(A, 5)
    assert discards.next_deadline() is None
    assert again(discards, 10.0) == []


def test_a_confirmation_that_comes_twice_or_unasked_changes_nothing() -> None:
    discards = asked(3)
    for _ in range(2):
        discards.confirmed(A, 3)
        discards.confirmed(A, 9)
        discards.validate()
    assert again(discards, RETRY_S) == [(peer("b"), 3)]


def test_who_has_gone_is_asked_no_more() -> None:
    discards = asked(3, 5)
    discards.leave(A)
    discards.confirmed(B, 5)
    assert again(discards, RETRY_S) == [(peer("b"), 3)]
    discards.leave(B)
    assert discards.next_deadline() is None


@pytest.mark.parametrize("others", [(), (4,)])
def test_nobody_to_ask_is_nothing_to_wait_for(others: tuple[int, ...]) -> None:
    discards = asked(*others)
    before = discards.next_deadline()
    assert discards.add(7, [], 0.5) == []
    discards.validate()
    assert discards.next_deadline() == before


def test_one_more_does_not_put_off_those_who_are_late() -> None:
    discards = asked(3)
    discards.add(5, [A], 0.9 * RETRY_S)
    assert discards.next_deadline() == RETRY_S
