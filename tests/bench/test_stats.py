"""Medians, spreads, ratios and bounds."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.stats import Times, network_bound, percentile, ratio_spread
from tests.tables import for_each

SECONDS = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=50)


@given(SECONDS)
def test_the_fiftieth_percentile_is_the_median(seconds: list[float]) -> None:
    assert percentile(seconds, 50) == pytest.approx(statistics.median(seconds))


@given(SECONDS)
def test_percentiles_lie_between_the_extremes_and_ascend(seconds: list[float]) -> None:
    found = [percentile(seconds, percent) for percent in (0, 25, 50, 75, 90, 100)]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (min(seconds), max(seconds))


def test_a_percentile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_times_know_median_minimum_and_the_ninetieth_percentile() -> None:
    times = Times(tuple(float(i) for i in range(1, 12)))
    assert (times.median, times.minimum, times.p90) == (6.0, 1.0, 10.0)


def test_what_disturbs_both_sides_alike_leaves_their_ratio_alone() -> None:
    weather = [1.0, 5.0, 2.0, 1.0, 9.0]
    assert ratio_spread([2 * w for w in weather], weather) == (2.0, 2.0)


def test_ratios_are_taken_between_neighbours_only() -> None:
    with pytest.raises(ValueError, match="shorter"):
        ratio_spread([1.0, 2.0], [1.0])


@for_each(
    "workers, servers, expected",
    [(1, 1, 1.0), (2, 1, 2.0), (2, 2, 1.0), (1, 4, 1.0), (8, 2, 4.0)],
)
def test_the_bound_is_set_by_the_busiest_link(workers: int, servers: int, expected: float) -> None:
    assert network_bound(100, workers, servers, 100.0) == expected
