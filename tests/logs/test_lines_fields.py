"""The fields of a log entry, written and read back."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from zmqps.logs.lines import RESERVED, Entry, read_entry

AT = datetime(2025, 11, 21, 1, 4, 5, 123000, UTC)
NAMES = st.text(min_size=1, max_size=9).filter(lambda name: name not in RESERVED)
FACTS = st.one_of(
    st.text(min_size=1, max_size=30),
    st.booleans(),
    st.integers(-(2**63), 2**64),
    st.floats(allow_nan=False, allow_infinity=False),
)


@given(
    message=st.text(max_size=30),
    level=st.sampled_from(["info", "debug", "warning", "error", "critical"]),
    fields=st.dictionaries(NAMES, FACTS, max_size=4),
)
def test_whatever_is_written_is_one_line_and_read_back(message: str, level: str, fields: dict[str, object]) -> None:
    written = Entry(at=AT, level=level, node="worker-1", message=message, fields=fields)  # type: ignore[arg-type]
    line = written.line()
    assert line.isascii()
    assert line.isprintable()
    assert read_entry(line) == written
    assert all(part.isprintable() for part in written.text().replace("\t", "").split("\n") if "\x1b" not in message)


def test_the_fields_are_those_of_one_object_and_none_replaces_what_every_entry_has() -> None:
    fields = {"job": "j", "peer": "", "error": "Z004", "time": "forged"}
    entry = Entry(at=AT, level="error", node="s", message="m", fields=fields)
    assert json.loads(entry.line()) == {
        "time": "2025-11-21T01:04:05.123+00:00", "level": "error", "node": "s", "job": "j", "error": "Z004",
        "message": "m",
    }  # fmt: skip


@given(st.text(max_size=60))
def test_no_line_of_anybody_is_too_much_for_the_reader(text: str) -> None:
    for each in (text, "{" + text, '{"time": "2025-11-21", "node": 1}' + text, '{"time": [' + text):
        entry = read_entry(each)
        assert entry is None or isinstance(entry, Entry)
