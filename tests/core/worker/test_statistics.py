"""What a worker says it has done."""

from __future__ import annotations

from collections import Counter

from zmqps.core.worker.operations import Exchange
from zmqps.core.worker.statistics import MAX_EXACT, Statistics, Tally
from zmqps.core.worker.transfer import PushTransfer, Source


def test_who_has_done_nothing_has_zeros() -> None:
    assert Tally(Counter()).statistics(mode="async") == Statistics(mode="async")


def test_staleness_is_told_as_mean_largest_last_and_how_often() -> None:
    tally = Tally(Counter())
    for staleness in (4, 1, 1):
        tally.pushed(PushTransfer(source=Source(), staleness=staleness), Exchange(), 0.0)
    told = tally.statistics()
    assert (told.staleness_mean, told.staleness_max, told.staleness_last) == (2.0, 4, 1)
    assert told.staleness_histogram == {1: 2, 4: 1}


def test_of_a_worker_that_never_pulls_it_takes_no_more_memory_with_each_push() -> None:
    tally = Tally(Counter())
    for staleness in range(20_000):
        tally.pushed(PushTransfer(source=Source(), staleness=staleness), Exchange(), 0.0)
    told = tally.statistics()
    assert len(told.staleness_histogram) == MAX_EXACT + 1 + 5
    assert sum(told.staleness_histogram.values()) == 20_000
    assert told.staleness_histogram[2048] == 1023, "from 1,025 to 2,047"
    assert (told.staleness_mean, told.staleness_max, told.staleness_last) == (9999.5, 19_999, 19_999)
    total, *counts = tally.counters()["staleness"]
    assert total == sum(range(20_000))
    assert counts[-2:] == [512, 20_000 - 1025], "those from 513 to 1,024, and those behind"
