"""Who has gone is never forgotten, however many they are, and memory does not grow."""

from __future__ import annotations

import sys

import pytest

from zmqps.core.server import past as module
from zmqps.core.server.past import TABLE_NBYTES, Past


def who(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_few_are_remembered_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EXACT", 100)
    past = Past(b"key")
    for number in [*range(100), *range(100)]:
        past.add(who(number))
    assert past._table is None
    assert [number for number in range(200) if who(number) in past] == list(range(100))


def test_of_many_none_is_missed_and_hardly_anybody_else_is_taken_for_one() -> None:
    past = Past(b"key")
    for number in range(20_000):
        past.add(who(number))
    assert all(who(number) in past for number in range(20_000))
    assert sum(who(number) in past for number in range(20_000, 40_000)) <= 2
    assert past._table is not None
    assert sys.getsizeof(past._table) < TABLE_NBYTES + 100
    assert not past._exact


def test_nobody_can_foresee_the_bits_of_an_incarnation() -> None:
    assert Past(b"a")._bits(who(1)) != Past(b"b")._bits(who(1))
