"""The case that lets a day go by at a coordinator."""

from __future__ import annotations

import pytest

from bench.cases.day import CHANGE_S, STEP_S, WORKERS, Day, measure
from zmqps.core.coordinator.watching.history import MAX_SERIES, SERIES_NBYTES


def test_members_beat_log_take_steps_and_come_and_go() -> None:
    day = Day()
    day.run(CHANGE_S)
    assert day.failed == ""
    assert day.machine.runs["default"].steps.clock == CHANGE_S // STEP_S
    watching = day.machine.watching
    assert watching.happened["left"] == 1
    names = {(key.node, key.name) for key in watching.history.series}
    assert {
        ("worker 3", "loss"),
        ("worker 3", "step_seconds"),
        ("server 1", "rss_nbytes"),
        ("", "steps_per_second"),
    } <= names
    day.machine.validate()


@pytest.mark.repeats
def test_a_row_for_each_mark_says_what_is_held() -> None:
    rows = measure(0.03, marks=(0.02,))
    assert [row.extra["hours"] for row in rows] == [0.02, 0.03]
    assert all(row.extra["history_mb"] <= MAX_SERIES * SERIES_NBYTES / 1e6 for row in rows)
    assert all(row.extra["series"] > WORKERS for row in rows)
