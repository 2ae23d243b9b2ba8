"""Named barriers, by identity."""

from __future__ import annotations

import pytest

from zmqps.core.barrier import MAX_BARRIERS, Barriers
from zmqps.errors import LimitError

A, B, C = b"a", b"b", b"c"


def test_who_has_not_entered_is_awaited_in_the_order_asked() -> None:
    barriers = Barriers()
    barrier = barriers.enter("x", B, 1, 0.0)
    assert barrier.awaited([A, B, C]) == [A, C]
    barriers.enter("x", C, 7, 1.0)
    assert barrier.awaited([A, B, C]) == [A]
    assert barrier.since == 0.0


def test_entering_twice_counts_once_and_the_last_request_is_answered() -> None:
    barriers = Barriers()
    barriers.enter("x", A, 1, 0.0)
    barrier = barriers.enter("x", A, 2, 0.0)
    assert barriers.close(barrier) == [(A, 2)]
    assert barriers.by_name == {}


def test_a_barrier_can_be_used_again() -> None:
    barriers = Barriers()
    barriers.close(barriers.enter("x", A, 1, 0.0))
    assert barriers.enter("x", B, 1, 5.0).awaited([A, B]) == [A]


@pytest.mark.parametrize(
    ("incarnation", "request_", "left"),
    [
        (A, None, {"x": [B]}),
        (A, 1, {"x": [B], "y": [A]}),
        (A, 9, {"x": [A, B], "y": [A]}),
        (C, None, {"x": [A, B], "y": [A]}),
    ],
)
def test_who_withdraws_no_longer_waits(incarnation: bytes, request_: int | None, left: dict[str, list[bytes]]) -> None:
    barriers = Barriers()
    barriers.enter("x", A, 1, 0.0)
    barriers.enter("x", B, 1, 0.0)
    barriers.enter("y", A, 2, 0.0)
    barriers.withdraw(incarnation, request_)
    assert {name: list(barrier.waiters) for name, barrier in barriers.by_name.items()} == left
    barriers.validate()


def test_the_number_of_barriers_is_bounded() -> None:
    barriers = Barriers()
    for i in range(MAX_BARRIERS):
        barriers.enter(str(i), A, i, 0.0)
    with pytest.raises(LimitError):
        barriers.enter("one more", A, 1, 0.0)
    barriers.enter("0", B, 1, 0.0)
