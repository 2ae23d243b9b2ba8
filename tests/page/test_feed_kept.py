"""What is kept of series beside the coordinator."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.page.asked import series
from zmqps.core.coordinator.watching.history import TIERS, History
from zmqps.core.coordinator.watching.watching import MAX_POINTS
from zmqps.page.feed import MOST_POINTS, POINTS, SPANS, Kept, encoded


def shown(kept: Kept) -> list[dict[str, Any]]:
    return json.loads(f"[{','.join(kept.texts())}]")


def test_points_are_those_of_a_tier_of_the_history_and_all_of_them() -> None:
    assert list(SPANS.values()) == [every for every, _ in TIERS]
    assert max(number for _, number in TIERS) == POINTS
    assert [every * number for every, number in TIERS] == list(SPANS)
    assert MOST_POINTS == MAX_POINTS


@pytest.mark.parametrize("span", SPANS)
@given(
    looks=st.lists(st.floats(0.3, 40.0), min_size=1, max_size=12),
    names=st.lists(st.sampled_from("abc"), min_size=1, max_size=40),
)
def test_what_is_put_together_of_answers_is_what_the_coordinator_would_tell_of_all(
    span: int, looks: list[float], names: list[str]
) -> None:
    history, kept = History(), Kept(span)
    now, added = 1000.0, 0
    for look in looks:
        for part in range(1, 6):
            history.note("a", "", names[added % len(names)], now + look * part / 6, added, float(added))
            added += 1
        now = round(now + look, 3)
        asked = kept.question(now)
        kept.take(asked, now, 0, history.view(now - asked.span, asked.points, every=asked.every))
    whole = history.view(now - span, POINTS, every=SPANS[span])
    assert [one["name"] for one in shown(kept)] == [one["name"] for one in whole]
    for one, all_ in zip(shown(kept), whole, strict=True):
        assert one["points"] == [json.loads(encoded(point)) for point in all_["points"]]


def test_a_job_that_begins_anew_begins_with_its_own_points() -> None:
    kept = Kept(300)
    kept.take(kept.question(0.0), 1000.0, 1, [series("loss", [990.0, 1.0, 1.0, 1.0, 1])])
    asked = kept.question(1.0)
    kept.take(asked, 1001.0, 2, [series("loss", [1000.5, 2.0, 2.0, 2.0, 1])])
    assert not kept.is_whole
    asked = kept.question(1.0)
    assert asked.span == 300.0
    kept.take(asked, 1001.0, 2, [series("accuracy", [1000.5, 2.0, 2.0, 2.0, 1])])
    assert [(one["name"], len(one["points"])) for one in shown(kept)] == [("accuracy", 1)]


def test_points_of_many_series_stand_for_longer_and_reach_as_far_back() -> None:
    kept = Kept(300)
    many = [series("rss_nbytes", [999.0, 1.0, 1.0, 1.0, None], node=f"worker {n}") for n in range(100)]
    kept.take(kept.question(0.0), 1000.0, 0, many)
    assert not kept.is_whole
    asked = kept.question(0.0)
    assert (asked.span, asked.every) == (300.0, 10.0)
    kept.take(asked, 1000.0, 0, many)
    assert kept.is_whole
    kept.take(kept.question(1.0), 1001.0, 0, many[:3])
    assert kept.question(1.0).every == 1.0


def test_what_is_older_than_the_span_and_series_that_were_given_up_go() -> None:
    kept = Kept(300)
    kept.take(
        kept.question(0.0), 1000.0, 0, [series("a", [701.0, 1.0, 1.0, 1.0, 1]), series("b", [999.0, 1.0, 1.0, 1.0, 1])]
    )
    kept.take(kept.question(2.0), 1002.0, 0, [series("a", [1001.0, 2.0, 2.0, 2.0, 2])])
    assert [(one["name"], [point[0] for point in one["points"]]) for one in shown(kept)] == [("a", [1001.0])]


def test_numbers_of_a_point_lose_digits_but_not_its_time_and_step() -> None:
    assert json.loads(encoded([1234567.891, 0.123456789, 1 / 3, 1e9 + 1, 12345678])) == [
        *(1234567.891, 0.123457, 0.333333, 1e9, 12345678),
    ]
    assert json.loads(encoded([1.5, 2.0, 2.0, 2.0, None])) == [1.5, 2.0, 2.0, 2.0, None]
