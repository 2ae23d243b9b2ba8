"""Facts that repeat: said a few times, then counted, in bounded memory."""

from __future__ import annotations

from zmqps.logs.handler import Repeats, fact_of


def test_the_first_few_are_said_and_the_rest_is_counted() -> None:
    repeats: Repeats[str] = Repeats(window=10.0, burst=3)
    said = [repeats.admit("lost", f"lost {i}", 0.1 * i) for i in range(44)]
    assert said == [True] * 3 + [False] * 41
    assert repeats.holds
    assert repeats.over(9.9) == []
    assert repeats.over(10.0) == [("lost 43", 41)]
    assert not repeats.holds
    assert repeats.admit("lost", "again", 10.0)


def test_what_was_not_repeated_too_often_is_not_told_of() -> None:
    repeats: Repeats[str] = Repeats(window=10.0, burst=3)
    assert all(repeats.admit("a", "a", float(i)) for i in range(3))
    assert repeats.over(None) == []


def test_facts_do_not_count_for_each_other() -> None:
    repeats: Repeats[str] = Repeats(window=10.0, burst=1)
    assert [repeats.admit(fact, fact, 0.0) for fact in ("a", "b", "a", "b", "a")] == [True, True, False, False, False]
    assert repeats.over(20.0) == [("a", 2), ("b", 1)]


def test_at_the_end_everything_that_is_held_back_is_told() -> None:
    repeats: Repeats[str] = Repeats(window=10.0, burst=1)
    for _ in range(3):
        repeats.admit("a", "a", 0.0)
    assert repeats.over(None) == [("a", 2)]
    assert repeats.over(None) == []


def test_the_table_is_bounded_and_forgets_nothing_that_it_held_back() -> None:
    repeats: Repeats[int] = Repeats(window=10.0, burst=1, most=8)
    told = []
    for number in range(1000):
        told += repeats.over(0.0)
        repeats.admit(number, number, 0.0)
        repeats.admit(number, number, 0.0)
        assert len(repeats._windows) <= 8
        assert len(repeats._made_way) <= 1
    told += repeats.over(None)
    assert sorted(told) == [(number, 1) for number in range(1000)]


def test_how_long_and_how_much_does_not_make_another_fact() -> None:
    assert fact_of("pull: 5 s so far, waiting for worker 2") == fact_of("pull: 10 s so far, waiting for worker 2")
    assert fact_of("last sign of life 10.2 s ago") == fact_of("last sign of life 11.9 s ago")
    assert fact_of("needs 1,024 bytes") == fact_of("needs 2,048 bytes")
    assert fact_of("server 0 joined") != fact_of("server 1 joined")
    assert fact_of("step 412 waits") != fact_of("step 413 waits")
