"""What a log line is about: fields that are written at its end, and read back."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqps.logs.lines import RESERVED, Entry, read_entry, read_message, split_fields, without_known, write_line

AT = datetime(2025, 11, 21, 1, 4, 5, 123000, UTC)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(lambda name: name not in RESERVED)
PRINTABLE = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), max_size=30).filter(str.isprintable)
FACTS = st.one_of(
    PRINTABLE.filter(bool), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)
)


def line(message: str, **fields: object) -> str:
    return write_line("server-0", "info", message, AT, as_json=False, fields=fields)  # type: ignore[arg-type]


def test_what_a_line_is_about_stands_in_brackets_at_its_end() -> None:
    assert line("lost it", job="digits", peer="worker-2", error="Z006", repeats=41).endswith(
        " lost it [job=digits peer=worker-2 error=Z006 repeats=41]"
    )
    assert line("x", job="my job", n="7", empty="").endswith(' x [job="my job" n="7"]')
    assert line("x").endswith(" x")


@pytest.mark.parametrize("as_json", [False, True])
@given(
    message=PRINTABLE,
    level=st.sampled_from(["info", "debug", "warning", "error", "critical"]),
    fields=st.dictionaries(NAMES, FACTS, max_size=4),
)
def test_whatever_is_written_is_read_back(as_json: bool, message: str, level: str, fields: dict[str, object]) -> None:
    if level == "info" and not as_json and message.partition(": ")[0] in ("debug", "warning", "error", "critical"):
        message = f"- {message}"  # such a line is what it says
    entry = read_entry(write_line("worker-1", level, message, AT, as_json=as_json, fields=fields))  # type: ignore[arg-type]
    assert entry is not None
    assert (entry.node, entry.level, entry.message, dict(entry.fields)) == ("worker-1", level, message, fields)


def test_a_message_that_ends_like_fields_has_none() -> None:
    for message in ("loss [epoch=3]", "[]", "[a=1]", "x []", "x [job=a] []"):
        entry = read_entry(line(message))
        assert entry is not None
        assert (entry.message, dict(entry.fields)) == (message, {})
    assert split_fields("weights [1, 2]") == ("weights [1, 2]", "")


def test_of_a_message_of_several_lines_each_has_the_fields() -> None:
    lines = line("a\nb", job="j").split("\n")
    assert [entry.fields if (entry := read_entry(each)) else None for each in lines] == [{"job": "j"}] * 2


def test_a_json_line_has_the_fields_under_the_same_names() -> None:
    text = write_line("s", "error", "m", AT, as_json=True, fields={"job": "j", "error": "Z004", "time": "forged"})
    assert json.loads(text) == {
        "time": "2025-11-21T01:04:05.123+00:00", "level": "error", "node": "s", "job": "j", "error": "Z004",
        "message": "m",
    }  # fmt: skip


def test_the_time_is_that_moment_wherever_it_was_written() -> None:
    there = AT.astimezone(timezone(timedelta(hours=5)))
    entry = read_entry(write_line("s", "info", "m", there, as_json=True))
    assert entry is not None
    assert entry.at == AT
    local = read_entry(write_line("s", "info", "m", AT.astimezone(), as_json=False))
    assert local is not None
    assert local.at == AT


def test_a_tail_shows_messages_without_what_they_are_about() -> None:
    assert read_message(line("lost it", job="digits")) == "lost it"
    assert read_message(write_line("s", "error", "oh", AT, as_json=False)) == "error: oh"


def test_a_person_does_not_see_twice_what_the_message_says() -> None:
    assert without_known(line("job 'digits' has ended", job="digits", error="Z048")).endswith(" has ended [error=Z048]")
    assert without_known(line("job 'digits' has ended", job="digits")).endswith(" has ended")
    assert without_known("a print [job=x]") == "a print [job=x]"


@given(st.text(max_size=60))
def test_no_line_of_anybody_is_too_much_for_the_reader(text: str) -> None:
    for each in (text, "{" + text, line("x") + text, f"{line('')}[{text}]", '{"time": "2025-11-21", "node": 1}' + text):
        entry = read_entry(each)
        assert entry is None or isinstance(entry, Entry)


def test_a_long_line_that_looks_like_fields_is_read_quickly_enough_to_end() -> None:
    assert split_fields("x" + " [a=b c=d" * 8000 + "]")[1] == " [a=b c=d]"
