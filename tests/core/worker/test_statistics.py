"""What a worker says it has done."""

from __future__ import annotations

from zmqps.core.worker.statistics import Statistics, Tally
from zmqps.core.worker.transfer import Push, Source


def test_who_has_done_nothing_has_zeros() -> None:
    assert Tally().statistics(0, "async") == Statistics(mode="async")


def test_staleness_is_told_as_mean_largest_last_and_how_often() -> None:
    tally = Tally()
    for staleness in (4, 1, 1):
        tally.completed(Push(source=Source(), staleness=staleness), None)
    told = tally.statistics(0, "async")
    assert (told.pushes, told.pulls) == (3, 0)
    assert (told.staleness_mean, told.staleness_max, told.staleness_last) == (2.0, 4, 1)
    assert told.staleness_histogram == {1: 2, 4: 1}
