"""A flood of bad requests becomes few lines."""

from __future__ import annotations

from zmqps.core.node.throttle import MOST_LINES, WINDOW_S, Throttle


def test_the_first_lines_of_a_window_are_logged_and_the_rest_counted() -> None:
    throttle = Throttle()
    lines = [throttle.admit("refused", 1.0) for _ in range(MOST_LINES + 5)]
    assert lines == ["refused"] * MOST_LINES + [None] * 5
    assert throttle.admit("refused", 1.0 + WINDOW_S) == "refused (5 similar lines were not logged)"
    assert throttle.admit("refused", 1.0 + WINDOW_S) == "refused"
