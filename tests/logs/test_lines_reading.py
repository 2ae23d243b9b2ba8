"""The levels of what scripts print, and which entries are wanted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.tables import for_each
from zmqps.errors import ConfigurationError
from zmqps.logs.lines import Entry, Levels, Wanted, chosen, parse_since

AT = datetime(2025, 11, 21, 1, 4, 5, 123000, UTC)
TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    worker.pull()
zmqps.errors.DeadlineError: pull timed out
zmqps explain Z004 says what happened and what to do next
loss 0.3"""


def levels(text: str) -> list[str]:
    found = Levels()
    return [found.of(line) for line in text.split("\n")]


def test_a_traceback_is_an_error_to_its_last_line_and_no_further() -> None:
    assert levels(TRACEBACK) == ["error"] * 5 + ["info"]
    chained = "Traceback (most recent call last):\n  x\nKeyError: 1\n\nDuring handling of it\n\n"
    assert levels(chained + "Traceback (most recent call last):\n  y\nValueError: 2\nloss") == [
        *["error"] * 3, *["info"] * 3, *["error"] * 3, "info"
    ]  # fmt: skip
    group = "  + Exception Group Traceback (most recent call last):\n  |   File\n  | ExceptionGroup: two\nloss"
    assert levels(group)[:3] == ["error"] * 3


def test_pythons_own_logging_warnings_and_crashes_have_their_level() -> None:
    assert levels("WARNING:root:disk\nERROR:x:y\nDEBUG:x:y\nINFO:x:y\na.py:3: UserWarning: slow\nloss WARNING: x") == [
        "warning", "error", "debug", "info", "warning", "info"
    ]  # fmt: skip
    assert levels("Fatal Python error: Aborted") == ["critical"]


def test_what_is_wanted_is_chosen_by_time_level_and_job() -> None:
    def has(wanted: Wanted, level: str = "info", job: str = "", at: datetime = AT) -> bool:
        return wanted.has(Entry(at=at, level=level, node="x", message="m", fields={"job": job}))

    assert has(Wanted())
    assert has(Wanted(since=AT))
    assert not has(Wanted(since=AT + timedelta(seconds=1)))
    assert [has(Wanted(level="warning"), level) for level in ("debug", "info", "warning", "error", "critical")] == [
        False, False, True, True, True
    ]  # fmt: skip
    assert has(Wanted(job="digits"), job="digits")
    assert not has(Wanted(job="digits"), job="other")
    assert not has(Wanted(job="digits"))


@for_each(
    "text, ago",
    [
        ("5m", timedelta(minutes=5)),
        ("90s", timedelta(seconds=90)),
        ("1h30m", timedelta(hours=1.5)),
        ("1.5h", timedelta(hours=1.5)),
        ("2d", timedelta(days=2)),
        ("250ms", timedelta(seconds=0.25)),
        ("1w", timedelta(weeks=1)),
    ],
)
def test_since_takes_how_long_ago(text: str, ago: timedelta) -> None:
    assert AT - parse_since(text, AT) == ago


def test_since_takes_dates_and_times_of_day() -> None:
    now = datetime(2025, 11, 21, 12, 0, 0).astimezone()
    assert parse_since("2025-11-21T01:24:00+00:00", now) == datetime(2025, 11, 21, 1, 24, tzinfo=UTC)
    assert parse_since("2025-11-21T01:24", now) == datetime(2025, 11, 21, 1, 24).astimezone()
    assert parse_since("2025-11-20", now) == datetime(2025, 11, 20).astimezone()
    assert parse_since("11:30", now) == now - timedelta(minutes=30)
    assert parse_since("12:30:00", now) == now - timedelta(hours=23.5), "the last time that it was that late"
    assert parse_since("99999999w", now).year == 1


@for_each("text", ["", "5", "m", "5 minutes", "yesterday", "25:00", "2025-13-01", "-5m"])
def test_a_time_that_is_none_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ConfigurationError, match="5m"):
        parse_since(text, AT)


def test_nodes_are_chosen_by_name_without_host_and_by_role() -> None:
    names = ["coordinator", "server-0@a", "server-1@b", "worker-0@a", "worker-10@b", "my-worker"]
    assert chosen(names, []) == (sorted(names), [])
    assert chosen(names, ["server-1"]) == (["server-1@b"], [])
    assert chosen(names, ["server 1"]) == (["server-1@b"], []), "as the status calls it"
    assert chosen(names, ["worker", "coordinator"]) == (["coordinator", "worker-0@a", "worker-10@b"], [])
    assert chosen(names, ["worker-1"]) == ([], ["worker-1"])
    assert chosen(names, ["my"]) == ([], ["my"])
