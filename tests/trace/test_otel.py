"""Pushes as spans of OpenTelemetry, where its packages are installed."""

from __future__ import annotations

import sys

import pytest

from tests.trace.made import Made
from zmqps.errors import ConfigurationError
from zmqps.trace.otel import export, send


def test_a_push_is_a_trace_with_a_span_for_each_stage() -> None:
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    made = Made(2)
    made.push_pull(0, 100.0, there=10.0, back=500.0)
    made.push_pull(1, 110.0, version=2)
    trace = made.trace()
    trace.epoch_us = 1e9
    exporter = memory.InMemorySpanExporter()
    number, failed = export(trace, exporter)
    spans = exporter.get_finished_spans()
    assert (number, failed) == (len(spans), False)
    calls = [span for span in spans if span.parent is None]
    assert [span.name for span in calls] == ["push_pull", "push_pull"]
    assert len({span.context.trace_id for span in spans}) == 2
    assert {span.resource.attributes["service.name"] for span in spans} == {"zmqps worker 0", "zmqps worker 1"}
    first = min(calls, key=lambda span: span.start_time)
    assert (first.start_time, first.end_time) == ((10**9 + 100) * 1000, (10**9 + 611) * 1000)
    assert [event.name for event in first.events] == ["first seen"]
    assert first.events[0].attributes["worker"] == "worker 1"
    wire = next(span for span in spans if span.name == "wire" and span.context.trace_id == first.context.trace_id)
    assert wire.end_time - wire.start_time == 10_000
    message = next(span for span in spans if span.context.span_id == wire.parent.span_id)
    assert (message.name, message.attributes["server"], message.attributes["nbytes"]) == ("message", "server 0", 1000)
    assert message.parent.span_id == first.context.span_id


def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not a URL"):
        send(Made().trace(), "localhost:4318")


def test_without_the_packages_it_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk.trace.export"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=r"pip install .*\[otel\]"):
        send(Made().trace(), "http://localhost:4318")
    with pytest.raises(ConfigurationError, match=r"pip install .*\[otel\]"):
        export(Made().trace(), None)  # type: ignore[arg-type]
