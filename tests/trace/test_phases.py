"""From spans to phases, on traces made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zmqps.trace.merge import Process, Span, Trace, wires_of, write
from zmqps.trace.phases import summarize

REQUEST = {"request": "w-1"}


def work(name: str, role: str, begin: float, end: float, facts: dict[str, Any] | None = None) -> Span:
    return Span(name=name, role=role, begin_us=begin, end_us=end, thread=7, facts=facts or {})


def wait(name: str, role: str, begin: float, end: float) -> Span:
    return Span(name=name, role=role, begin_us=begin, end_us=end, thread=None, facts={})


def merged(*processes: Process) -> Trace:
    return Trace([*processes], wires_of(processes), {})


def round_trip(*again: Span) -> Trace:
    """One push_pull: 10 µs there, 30 µs back; ``again``: what the server does once more."""
    worker = [
        wait("push_pull", "operation", 0, 100),
        work("submit", "worker", 0, 20), work("encode", "codec", 5, 15), work("send", "worker", 20, 25, REQUEST),
        work("receive", "worker", 80, 100), work("land", "worker", 85, 100, REQUEST),
    ]  # fmt: skip
    server = [
        work("receive", "server", 35, 51), work("serve", "server", 36, 46, REQUEST),
        work("apply", "server", 40, 44), work("reply", "server", 46, 50, REQUEST),
    ]  # fmt: skip
    return merged(Process("server s", "here", [*server, *again]), Process("worker w", "here", worker))


def test_every_phase_counts_without_what_is_nested_in_it() -> None:
    summary = summarize(round_trip())
    assert summary is not None
    found = {(phase.role, phase.name): phase.total_s * 1e6 for phase in summary.phases}
    expected = {
        ("worker", "submit"): 10, ("worker", "encode"): 10, ("worker", "send"): 5, ("wire", "wire there"): 10,
        ("server", "receive"): 2, ("server", "serve"): 6, ("server", "apply"): 4, ("server", "reply"): 4,
        ("wire", "wire back"): 30, ("worker", "receive"): 5, ("worker", "land"): 15,
    }  # fmt: skip
    assert found == pytest.approx(expected)
    assert list(found) == list(expected)  # in the order a message meets them
    assert (summary.operation, summary.steps, summary.median_s) == ("push_pull", 1, pytest.approx(1e-4))
    assert {phase.name: phase.share for phase in summary.phases}["wire back"] == pytest.approx(0.3)


def test_a_resent_message_is_on_its_way_until_it_first_came() -> None:
    trace = round_trip(work("receive", "server", 900, 910), work("serve", "server", 901, 909, REQUEST))
    assert [wire.end_us - wire.begin_us for wire in trace.wires] == [10, 30]


def test_first_steps_need_not_count() -> None:
    steps = [wait("push", "operation", 100 * i, 100 * i + 10 * (i + 1)) for i in range(3)]
    trace = merged(Process("worker w", "here", steps))
    summary = summarize(trace, skip=2)
    assert summary is not None
    assert (summary.steps, summary.median_s) == (1, pytest.approx(30e-6))
    assert summarize(trace, skip=3) is None


def test_the_file_has_every_span_and_an_arrow_a_message(tmp_path: Path) -> None:
    write(tmp_path / "out" / "trace.json", round_trip())
    events = json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]
    kinds = [event["ph"] for event in events]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"M": 4, "X": 9, "b": 1, "e": 1, "s": 2, "f": 2}
    arrows = [(event["pid"], event["ts"]) for event in events if event["name"] == "message"]
    assert arrows == [(2, 20), (1, 35), (1, 46), (2, 80)]


def test_a_codec_belongs_to_the_process_it_works_in() -> None:
    spans = [
        Span(name="reply", role="server", begin_us=0, end_us=1, thread=1, facts={}),
        Span(name="encode", role="codec", begin_us=2, end_us=3, thread=1, facts={}),
    ]
    worker = [Span(name="pull", role="operation", begin_us=0, end_us=10, thread=None, facts={})]
    summary = summarize(Trace([Process("server", "", spans), Process("worker", "", worker)], [], {}))
    assert summary is not None
    assert [(phase.role, phase.name) for phase in summary.phases] == [("server", "encode"), ("server", "reply")]
