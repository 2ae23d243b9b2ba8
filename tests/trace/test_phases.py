"""From spans to one clock and to phases, on traces made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zmqps.errors import ConfigurationError
from zmqps.trace.merge import Process, Span, Trace, read, write
from zmqps.trace.phases import summarize

REQUEST = {"request": "w-1"}


def line(name: str, role: str, begin: float, end: float, facts: dict[str, Any] | None = None) -> str:
    event = {"name": name, "cat": role, "ph": "X", "ts": begin, "dur": end - begin, "tid": 7, "args": facts or {}}
    return json.dumps(event)


def wait(name: str, role: str, begin: float, end: float, number: int = 1) -> str:
    event = {"name": name, "cat": role, "ph": "b", "ts": begin, "id": number, "tid": 7, "args": {}}
    return json.dumps(event) + ",\n" + json.dumps({**event, "ph": "e", "ts": end})


def record(path: Path, name: str, boot: str, *lines: str) -> None:
    head = [
        json.dumps({"name": "clock", "ph": "M", "args": {"boot": boot}}),
        json.dumps({"name": "process_name", "ph": "M", "args": {"name": name}}),
    ]
    path.write_text("[\n" + "".join(f"{text},\n" for text in (*head, *lines)))


def round_trip(directory: Path, ahead: float = 0.0, boot: str = "here") -> None:
    """One push_pull: 10 µs there, 30 µs back; the server's clock may be ahead."""
    record(
        directory / "1.json", "worker w", "here",
        wait("push_pull", "operation", 0, 100),
        line("submit", "worker", 0, 20), line("encode", "codec", 5, 15), line("send", "worker", 20, 25, REQUEST),
        line("receive", "worker", 80, 100), line("land", "worker", 85, 100, REQUEST),
    )  # fmt: skip
    record(
        directory / "2.json", "server s", boot,
        line("receive", "server", 35 + ahead, 51 + ahead), line("serve", "server", 36 + ahead, 46 + ahead, REQUEST),
        line("apply", "server", 40 + ahead, 44 + ahead), line("reply", "server", 46 + ahead, 50 + ahead, REQUEST),
    )  # fmt: skip


def test_every_phase_counts_without_what_is_nested_in_it(tmp_path: Path) -> None:
    round_trip(tmp_path)
    summary = summarize(read(tmp_path))
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


def test_another_hosts_clock_is_fitted_to_within_half_the_way(tmp_path: Path) -> None:
    round_trip(tmp_path, ahead=5e6, boot="there")
    trace = read(tmp_path)
    # of 40 µs on the way nobody can tell which share was there: half of it is believed
    clocks = [(clock.shift_us, clock.error_us) for clock in trace.clocks.values()]
    [(shift, error)] = clocks
    assert abs(abs(shift) - 5e6) <= error == 20
    assert [wire.end_us - wire.begin_us for wire in trace.wires] == pytest.approx([20, 20])


def test_a_resent_message_is_on_its_way_until_it_first_came(tmp_path: Path) -> None:
    round_trip(tmp_path)
    path = tmp_path / "2.json"
    again = (line("receive", "server", 900, 910), line("serve", "server", 901, 909, REQUEST))
    path.write_text(path.read_text() + ",\n".join(again))
    assert [wire.end_us - wire.begin_us for wire in read(tmp_path).wires] == [10, 30]


def test_a_killed_process_loses_its_last_line_only(tmp_path: Path) -> None:
    round_trip(tmp_path)
    path = tmp_path / "2.json"
    path.write_text(path.read_text()[:-30])
    server, worker = read(tmp_path).processes
    assert (server.name, len(server.spans), len(worker.spans)) == ("server s", 3, 6)


def test_first_steps_need_not_count(tmp_path: Path) -> None:
    steps = [wait("push", "operation", 100 * i, 100 * i + 10 * (i + 1), number=i) for i in range(3)]
    record(tmp_path / "1.json", "worker w", "here", *steps)
    summary = summarize(read(tmp_path), skip=2)
    assert summary is not None
    assert (summary.steps, summary.median_s) == (1, pytest.approx(30e-6))
    assert summarize(read(tmp_path), skip=3) is None


def test_without_a_recording_it_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="ZMQPS_TRACE="):
        read(tmp_path)


def test_the_merged_file_has_every_span_and_an_arrow_a_message(tmp_path: Path) -> None:
    round_trip(tmp_path)
    trace = read(tmp_path)
    write(tmp_path / "out" / "trace.json", trace)
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
