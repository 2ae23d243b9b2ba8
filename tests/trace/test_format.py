"""The file that a browser draws is in the Trace Event Format, and what were not would be noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.tables import for_each
from tests.trace.format import violations
from tests.trace.made import Made
from zmqps.trace.merge import write
from zmqps.trace.pushes import flows, pushes


def test_a_written_trace_is_in_the_trace_event_format(tmp_path: Path) -> None:
    made, at = Made(2), 0.0
    for step in range(3):
        ends = [made.push_pull(w, at + w, check=3.0, until=at + 40.0, commit=2.0, version=step + 1) for w in range(2)]
        at = max(ends) + 5.0
    trace = made.trace()
    write(tmp_path / "trace.json", trace, flows=list(flows(pushes(trace))))
    assert violations(tmp_path / "trace.json") == []
    phases = {event["ph"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert phases >= {"M", "X", "b", "e", "s", "t", "f"}


SPAN = {"name": "n", "cat": "c", "ph": "X", "ts": 1.0, "dur": 5.0, "pid": 1, "tid": 1}
ARROW = {"name": "a", "cat": "flow", "id": 1, "pid": 1, "tid": 1}


@for_each(
    "events, text",
    [
        ([{**SPAN, "ph": "Z"}], "no such phase"),
        ([{**SPAN, "dur": -1.0}], "ends before it begins"),
        ([{**SPAN, "ts": "1"}], "no numbers"),
        ([{**SPAN, "pid": "one"}], "no number"),
        ([{"name": "n", "ph": "X", "pid": 1}], "lacks"),
        ([SPAN, {**SPAN, "ts": 3.0}], "longer than what it is within"),
        ([{**ARROW, "ph": "b", "ts": 1.0}], "has b"),
        ([SPAN, {**ARROW, "ph": "s", "ts": 2.0}, {**ARROW, "ph": "f", "bp": "e", "ts": 9.0}], "leads to nothing"),
    ],
)
def test_what_is_not_is_noticed(events: list[dict[str, Any]], text: str, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    assert any(text in what for what in violations(tmp_path / "trace.json"))
