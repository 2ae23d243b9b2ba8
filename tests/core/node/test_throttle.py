"""A flood of bad requests becomes few lines."""

from __future__ import annotations

from zmqps.core.node.throttle import FEW_LINES, MAX_LINE_CHARS, MOST_IN_ALL, MOST_LINES, MOST_OF_FEW, WINDOW_S, Throttle
from zmqps.core.protocol.events import Log, Send
from zmqps.core.protocol.messages import Left


def test_the_first_lines_of_a_window_are_logged_and_the_rest_counted() -> None:
    throttle = Throttle()
    lines = [throttle.admit(f"refused {i}", 1.0) for i in range(MOST_LINES + 5)]
    assert lines == [f"refused {i}" for i in range(MOST_LINES)] + [None] * 5
    assert throttle.admit("refused", 1.0 + WINDOW_S) == "refused (5 similar lines were not logged)"
    assert throttle.admit("refused again", 1.0 + WINDOW_S) == "refused again"


def test_the_same_line_is_not_logged_twice_in_a_row() -> None:
    throttle = Throttle()
    said = [throttle.admit(text, 1.0, "host-a") for text in ("a", "a", "b", "a")]
    assert said == ["a", None, "b", "a"]
    assert throttle.admit("a", 1.0, "host-b") == "a"
    assert throttle.admit("a", 1.0 + WINDOW_S, "host-a") == "a (1 similar line was not logged)"


def test_one_origin_does_not_use_up_the_lines_of_another() -> None:
    throttle = Throttle(most=2)
    assert [throttle.admit(text, 1.0, "host-a") for text in "abc"] == ["a", "b", None]
    assert throttle.admit("b", 1.0, "host-b") == "b"


def test_many_origins_have_so_many_lines_in_all() -> None:
    throttle = Throttle()
    most = MOST_IN_ALL + MOST_OF_FEW
    lines = [throttle.admit("x", 1.0, number) for number in range(most + 100)]
    assert lines == ["x"] * most + [None] * 100
    assert len(throttle._lines) == most, "no more is kept than was logged"


def test_when_some_origins_have_used_up_all_lines_those_with_few_still_come_through() -> None:
    throttle = Throttle(most=MOST_IN_ALL // 2)
    for origin in ("flood-a", "flood-b"):
        assert all(throttle.admit(f"x{i}", 1.0, origin) for i in range(MOST_IN_ALL // 2))
    for origin in ("host-a", "host-b"):
        said = [throttle.admit(f"x{i}", 1.0, origin) for i in range(FEW_LINES + 5)]
        assert said == [f"x{i}" for i in range(FEW_LINES)] + [None] * 5
    assert throttle.admit("y", 1.0, "flood-a") is None
    assert throttle.admit("y", 1.0 + WINDOW_S, "flood-a") == "y (11 similar lines were not logged)"
    assert all(throttle.admit(f"x{i}", 1.0 + WINDOW_S, "host-a") for i in range(FEW_LINES + 5)), "all begins anew"


def test_a_connection_has_half_of_the_lines_of_its_origin() -> None:
    throttle = Throttle(most=8)
    said = [throttle.admit(f"x{i}", 1.0, "host", b"a") for i in range(6)]
    assert said == [f"x{i}" for i in range(4)] + [None] * 2
    assert [throttle.admit(text, 1.0, "host", b"b") for text in "yz"] == ["y", "z"]
    assert throttle.admit("x9", 1.0, "other host", b"a") == "x9"
    assert [throttle.admit(f"v{i}", 1.0, "host", b"c") for i in range(3)] == ["v0", "v1", None], "the host has 8"


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
