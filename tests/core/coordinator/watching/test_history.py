"""Figures over time: the newest in full, older ones in coarser steps, and never more than so many."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zmqps.core.coordinator.watching.history import MAX_SERIES, SERIES_NBYTES, TIERS, History, Key, Series

LOSS = Key("job", "worker 0", "loss", "value")


def test_points_of_the_last_minutes_are_as_they_were_added() -> None:
    series = Series()
    for n in range(10):
        series.add(100.0 + n, n / 2, n)
    every, points = series.points(103.0, 100)
    assert every == 1.0
    assert points == [[100.0 + n, n / 2, n / 2, n / 2, n] for n in range(3, 10)]


def test_values_of_one_span_are_one_point_with_their_mean_least_and_most() -> None:
    series = Series()
    for value, step in ((1.0, 7), (5.0, 9), (3.0, 8)):
        series.add(50.2, value, step)
    assert series.points(0.0, 10_000)[1] == [[50.2, 3.0, 1.0, 5.0, 9]]


def test_a_day_is_seen_in_points_of_two_minutes_and_its_extremes_are_not_lost() -> None:
    series = Series()
    for second in range(86_400):
        series.add(float(second), 100.0 if second == 40_000 else 1.0)
    every, points = series.points(0.0, 720)
    assert (every, len(points)) == (120.0, 720)
    assert max(point[3] or 0.0 for point in points) == 100.0
    every, points = series.points(86_400 - 60, 300)
    assert (every, len(points)) == (1.0, 60)


def test_the_tier_that_is_asked_for_is_told() -> None:
    series = Series()
    for second in range(100):
        series.add(float(second), 1.0)
    assert [series.points(0.0, 1000, every)[0] for every, _ in TIERS] == [every for every, _ in TIERS]


def test_what_is_not_finite_is_counted_and_spoils_no_mean() -> None:
    history = History()
    for value in (1.0, nan, inf, 3.0, nan):
        history.add(LOSS, 10.0, value)
    (shown,) = history.view(0.0, 10)
    assert shown["nonfinite"] == 3
    assert shown["last"] == "nan"
    assert shown["points"] == [[10.0, 2.0, 1.0, 3.0, None]]


def test_a_week_takes_as_much_as_is_promised_and_no_more() -> None:
    series = Series()
    for minute in range(8 * 24 * 60):
        for second in (0.0, 1.0, 2.0):
            series.add(60.0 * minute + second, 1.0)
    assert series.nbytes == SERIES_NBYTES


def test_where_there_are_too_many_series_the_one_that_rests_longest_makes_way() -> None:
    history = History()
    for n in range(MAX_SERIES):
        history.add(Key("job", f"worker {n}", "loss"), 0.0, 1.0)
    history.add(Key("job", "worker 0", "loss"), 1.0, 1.0)
    history.add(Key("job", "new", "loss"), 1.0, 1.0)
    assert len(history.series) == MAX_SERIES
    assert history.num_given_up == 1
    assert Key("job", "worker 1", "loss") not in history.series
    assert Key("job", "worker 0", "loss") in history.series
    history.validate()


def test_a_view_has_no_more_points_than_it_may() -> None:
    history = History()
    for n in range(20):
        for second in range(100):
            history.add(Key("job", f"worker {n}", "loss"), float(second), 1.0)
    assert sum(len(series["points"]) for series in history.view(0.0, 100, most=200)) <= 200


def test_a_job_s_series_are_chosen_and_forgotten_by_its_name() -> None:
    history = History()
    for job in ("a", "b", ""):
        history.note(job, "worker 0", "loss", 0.0, 1, 1.0)
    assert {key.job for key, _ in history.select("a")} == {"a", ""}
    history.forget("a")
    assert {key.job for key in history.series} == {"b", ""}


@given(st.lists(st.tuples(st.floats(0, 100_000), st.floats(-1e6, 1e6)), min_size=1, max_size=200))
@settings(max_examples=50)
def test_no_value_is_lost_in_the_coarsest_tier_while_it_is_kept(values: list[tuple[float, float]]) -> None:
    series, history = Series(), History()
    for at, value in sorted(values):
        series.add(at, value)
        history.add(LOSS, at, value)
    _, points = series.points(-inf, 1000, TIERS[-1][0])
    assert min(point[2] or 0.0 for point in points) == pytest.approx(min(value for _, value in values))
    assert max(point[3] or 0.0 for point in points) == pytest.approx(max(value for _, value in values))
    history.validate()
