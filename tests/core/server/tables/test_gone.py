"""Ids of rows that have gone, by their numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zmqps.core.server.tables.gone import FOLLOWED_S, GoneLog


def ids(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@given(st.lists(st.integers(0, 12), max_size=12))
def test_the_last_ones_are_known_and_no_others(sizes: list[int]) -> None:
    log = GoneLog(10)
    log.follow(0.0)
    told: list[int] = []
    for size in sizes:
        log.add(np.arange(len(told), len(told) + size))
        told += range(len(told), len(told) + size)
        assert log.end == len(told)
        for number in range(len(told) + 3):
            found = log.since(number)
            if len(told) - 10 <= number <= len(told):
                assert found is not None
                assert found.tolist() == told[number:]
            else:
                assert found is None


def test_while_nobody_follows_they_are_counted_only() -> None:
    log = GoneLog()
    log.add(ids(1, 2))
    assert log.end == 2
    assert [log.since(number) is None for number in range(4)] == [True, True, False, True]
    log.follow(5.0)
    log.add(ids(7))
    assert log.since(1) is None
    assert [found.tolist() for number in (2, 3) if (found := log.since(number)) is not None] == [[7], []]


def test_they_are_forgotten_when_nobody_has_asked_for_long() -> None:
    log = GoneLog()
    log.follow(5.0)
    log.add(ids(7))
    log.tick(5.0 + FOLLOWED_S)
    assert log.since(0) is not None
    log.follow(6.0)
    log.tick(5.5 + FOLLOWED_S)
    assert log.since(0) is not None
    log.tick(6.5 + FOLLOWED_S)
    assert log.since(0) is None
    found = log.since(1)  # who had come so far has missed nothing
    assert found is not None
    assert not found.size


def test_nothing_that_is_kept_depends_on_the_callers_array() -> None:
    log = GoneLog()
    log.follow(0.0)
    array = ids(1, 2)
    log.add(array)
    array[:] = 9
    found = log.since(0)
    assert found is not None
    assert found.tolist() == [1, 2]
