"""One push followed from end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tables import for_each
from tests.trace.made import Made
from zmqps.errors import ConfigurationError
from zmqps.trace.merge import load, write
from zmqps.trace.pushes import flows, pushes


def test_the_stages_of_a_push_follow_on_each_other_and_make_the_whole_call() -> None:
    made = Made()
    end = made.push_pull(0, 100.0, check=20.0, encode=5.0, there=10.0, apply=30.0, back=7.0)
    [push] = pushes(made.trace())
    stages = list(push.longest.stages())
    assert [name for name, _, _ in stages] == ["submit", "send", "wire", "server", "acknowledge", "wire back", "land"]
    took = {name: stop - start for name, start, stop in stages}
    assert took == {"submit": 25, "send": 0, "wire": 10, "server": 30, "acknowledge": 0, "wire back": 7, "land": 0}
    assert sum(took.values()) == end - push.operation.begin_us
    assert push.longest.nbytes == 1000
    assert sum(span.end_us - span.begin_us for span in push.longest.applied) == 30


def test_a_step_is_applied_at_its_commit() -> None:
    made = Made()
    made.push_pull(0, 0.0, until=500.0, commit=40.0)
    [push] = pushes(made.trace())
    assert push.longest.committed is not None
    assert {name for name, _, _ in push.longest.stages()} >= {"server", "commit", "acknowledge"}
    assert [span.begin_us for span in push.longest.applied] == [460.0]


def test_the_pull_that_first_shows_it_may_be_anothers() -> None:
    made = Made(2)
    made.push_pull(0, 0.0, version=1, back=500.0)
    made.push_pull(1, 10.0, version=2)  # is there before the answer of the first
    first, second = pushes(made.trace())
    assert first.seen is not None
    assert (first.seen.worker.title, first.seen.at_us) == ("worker 1", 13.0)
    assert second.seen is not None
    assert second.seen.worker.title == "worker 1"


def test_a_push_that_no_pull_shows_says_so() -> None:
    made = Made()
    made.push_pull(0, 0.0, version=7)
    made.workers[0].spans = [span for span in made.workers[0].spans if span.name != "land"]
    [push] = pushes(made.trace())
    assert push.seen is None


def test_a_trace_that_was_written_is_read_again_with_its_arrows_left_out(tmp_path: Path) -> None:
    made = Made(2)
    made.push_pull(0, 0.0, version=1, back=500.0)
    made.push_pull(1, 10.0, version=2)
    trace = made.trace()
    trace.notes, trace.epoch_us = ["something is not in it"], 5.0
    path = tmp_path / "trace.json"
    write(path, trace, flows=list(flows(pushes(trace))))
    again = load(path)
    assert [(p.name, p.boot, p.label, p.incarnation) for p in again.processes] == [
        (p.name, p.boot, p.label, p.incarnation) for p in trace.processes
    ]
    for process, before in zip(again.processes, trace.processes, strict=True):
        found, expected = (sorted(map(str, some.spans)) for some in (process, before))
        assert found == expected
    assert (again.notes, again.epoch_us) == (trace.notes, 5.0)
    arrows = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "flow"]
    assert [event["ph"] for event in arrows if event["name"] == "push 0"] == ["s", "t", "t", "f"]
    assert len({event["id"] for event in arrows}) == 2


@for_each("text", ["", "[]", "{}", '{"traceEvents": 3}', '{"traceEvents": [{"ph": "X"}]}', "no"])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other").write_text(text)
    with pytest.raises(ConfigurationError, match="not a trace"):
        load(tmp_path / "other")
