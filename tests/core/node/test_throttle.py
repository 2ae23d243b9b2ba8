"""A flood of bad requests becomes few lines."""

from __future__ import annotations

from zmqps.core.node.throttle import MAX_LINE_CHARS, MOST_IN_ALL, MOST_LINES, WINDOW_S, Throttle
from zmqps.core.protocol.events import Log, Send
from zmqps.core.protocol.messages import Left


def test_the_first_lines_of_a_window_are_logged_and_the_rest_counted() -> None:
    throttle = Throttle()
    lines = [throttle.admit("refused", 1.0) for _ in range(MOST_LINES + 5)]
    assert lines == ["refused"] * MOST_LINES + [None] * 5
    assert throttle.admit("refused", 1.0 + WINDOW_S) == "refused (5 similar lines were not logged)"
    assert throttle.admit("refused", 1.0 + WINDOW_S) == "refused"


def test_one_origin_does_not_use_up_the_lines_of_another() -> None:
    throttle = Throttle(most=2)
    assert [throttle.admit("a", 1.0, "host-a") for _ in range(3)] == ["a", "a", None]
    assert throttle.admit("b", 1.0, "host-b") == "b"


def test_many_origins_have_so_many_lines_in_all() -> None:
    throttle = Throttle()
    lines = [throttle.admit("x", 1.0, number) for number in range(MOST_IN_ALL + 100)]
    assert lines == ["x"] * MOST_IN_ALL + [None] * 100
    assert len(throttle._lines) == MOST_IN_ALL, "no more is kept than was logged"


def test_what_was_left_out_is_said_when_the_window_is_over_even_if_nothing_else_is() -> None:
    throttle = Throttle("members", most=1)
    throttle.admit("a", 1.0)
    assert throttle.summary(2.0) is None
    throttle.admit("a", 2.0)
    assert throttle.summary(3.0) is None, "more may come"
    assert throttle.summary(1.0 + WINDOW_S) == "1 line about members was not logged"
    assert throttle.summary(1.0 + 2 * WINDOW_S) is None
    assert throttle.admit("b", 1.0 + 2 * WINDOW_S) == "b"


def test_a_line_is_cut_and_what_is_no_line_stays() -> None:
    throttle = Throttle(most=1)
    send = Send(b"@x", Left())
    assert throttle.spare([Log("info", "y" * 9999), send], 1.0) == [Log("info", "y" * MAX_LINE_CHARS), send]
    assert throttle.spare([Log("info", "z"), send], 1.0) == [send]
