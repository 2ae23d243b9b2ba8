"""Pushes of a trace as spans of OpenTelemetry: one trace a push, a span for the call, one for each message and stage.

They need the extra ``otel``: the SDK, and its exporter by OTLP over HTTP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from zmqps.errors import ConfigurationError
from zmqps.extras import advice
from zmqps.trace.merge import Trace
from zmqps.trace.pushes import PushTrace, pushes

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

#: Spans that a collector takes at a time: with their attributes some 100 KB.
BATCH = 512


def send(trace: Trace, endpoint: str, timeout: float = 10.0) -> int:
    """Send a trace's pushes to a collector; return how many spans that were.

    Parameters
    ----------
    trace
        What was recorded.
    endpoint
        The collector's URL: ``http://HOST:4318``; what has a path is taken as it is.
    timeout
        Seconds that a piece may take.

    Raises
    ------
    ConfigurationError
        The packages are not installed, the URL is invalid, or no collector accepts them there.
    """
    if not endpoint.startswith(("http://", "https://")):
        raise ConfigurationError(f"{endpoint!r:.200} is not a URL of a collector; give http://HOST:4318")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise _missing() from error
    url = endpoint if endpoint.partition("://")[2].strip("/").count("/") else f"{endpoint.rstrip('/')}/v1/traces"
    exporter = OTLPSpanExporter(endpoint=url, timeout=timeout)
    try:
        number, failed = export(trace, exporter)
    finally:
        exporter.shutdown()
    if failed:
        raise ConfigurationError(f"no collector accepts spans at {url}: is one there, and does it take OTLP over HTTP?")
    return number


def export(trace: Trace, exporter: SpanExporter) -> tuple[int, bool]:
    """Hand a trace's pushes to an exporter; return how many spans that were, and whether some were not taken.

    Raises
    ------
    ConfigurationError
        The SDK is not installed.
    """
    try:
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    except ImportError as error:
        raise _missing() from error
    number, failed, found = 0, False, pushes(trace)
    for title in dict.fromkeys(push.worker.title for push in found):
        collected = InMemorySpanExporter()
        provider = _provider(title)
        provider.add_span_processor(SimpleSpanProcessor(collected))
        for push in found:
            if push.worker.title == title:
                _add(provider, push, trace.epoch_us)
        spans = collected.get_finished_spans()
        for first in range(0, len(spans), BATCH):
            if not failed:  # else it would be tried in vain for each of the others
                failed = exporter.export(spans[first : first + BATCH]) is not SpanExportResult.SUCCESS
        number += len(spans)
        provider.shutdown()
    return number, failed


def _provider(title: str) -> TracerProvider:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider

    return TracerProvider(resource=Resource({"service.name": f"zmqps {title}"}), shutdown_on_exit=False)


def _add(provider: TracerProvider, push: PushTrace, epoch_us: float) -> None:
    """Add the spans of a push, on the clock of the calendar where that is known."""
    from opentelemetry.trace import set_span_in_context

    def nanoseconds(at_us: float) -> int:
        return max(0, round((epoch_us + at_us) * 1e3))

    tracer = provider.get_tracer("zmqps")
    call = push.operation
    root = tracer.start_span(call.name, start_time=nanoseconds(call.begin_us), attributes={"worker": push.worker.title})
    if push.seen is not None:
        seen = {"worker": push.seen.worker.title, "request": push.seen.label}
        root.add_event("first seen", seen, timestamp=nanoseconds(push.seen.at_us))
    within = set_span_in_context(root)
    for part in push.messages:
        stages = list(part.stages())
        if not stages:
            continue
        facts = {"request": part.label, "nbytes": part.nbytes, "slice": part.queued.facts.get("slice", -1)}
        if part.server is not None:
            facts["server"] = part.server.title
        begin, end = stages[0][1], stages[-1][2]
        message = tracer.start_span("message", within, start_time=nanoseconds(begin), attributes=facts)
        for name, start, stop in stages:
            stage = tracer.start_span(name, set_span_in_context(message), start_time=nanoseconds(start))
            stage.end(nanoseconds(stop))
        message.end(nanoseconds(end))
    root.end(nanoseconds(call.end_us))


def _missing() -> ConfigurationError:
    return ConfigurationError(f"OpenTelemetry's packages are not installed: {advice('otel')}")
