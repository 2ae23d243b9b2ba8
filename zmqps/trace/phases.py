"""What a step consists of: the spans of a trace, summed up by phase, and intervals of time without overlaps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from zmqps.trace.merge import Span, Trace

Interval: TypeAlias = tuple[float, float]
#: In microseconds, sorted and apart from each other, but where something else is said.
Intervals: TypeAlias = list[Interval]


def union(intervals: Iterable[Interval]) -> Intervals:
    """Return the time that some of these, which may overlap, cover."""
    merged: Intervals = []
    for start, stop in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(stop, merged[-1][1])
        elif stop > start:
            merged.append((start, stop))
    return merged


def intersection(some: Sequence[Interval], others: Sequence[Interval]) -> Intervals:
    """Return the time that both cover."""
    found: Intervals = []
    i = j = 0
    while i < len(some) and j < len(others):
        start, stop = max(some[i][0], others[j][0]), min(some[i][1], others[j][1])
        if start < stop:
            found.append((start, stop))
        if some[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return found


def difference(some: Sequence[Interval], others: Sequence[Interval]) -> Intervals:
    """Return the time that the first cover and the others do not."""
    return list(_difference(some, others))


def _difference(some: Sequence[Interval], others: Sequence[Interval]) -> Iterator[Interval]:
    j = 0
    for start, stop in some:
        while j < len(others) and others[j][1] <= start:
            j += 1
        k = j
        while k < len(others) and others[k][0] < stop:
            if others[k][0] > start:
                yield start, others[k][0]
            start = max(start, others[k][1])
            k += 1
        if start < stop:
            yield start, stop


def length(intervals: Iterable[Interval]) -> float:
    """Return how long they are together."""
    return sum([stop - start for start, stop in intervals])


#: In the order a message meets them; explained in docs/operations.md.
ORDER = (
    ("worker", "submit"),
    ("worker", "check"),
    ("worker", "queue"),
    ("worker", "encode"),
    ("worker", "send"),
    ("wire", "wire there"),
    ("server", "receive"),
    ("server", "serve"),
    ("server", "decode"),
    ("server", "check"),
    ("server", "apply"),
    ("server", "commit"),
    ("server", "encode"),
    ("server", "reply"),
    ("wire", "wire back"),
    ("worker", "receive"),
    ("worker", "decode"),
    ("worker", "land"),
    ("worker", "control"),
    ("server", "control"),
    ("coordinator", "receive"),
    ("coordinator", "control"),
)
OPERATIONS = ("push", "pull", "push_pull")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of the steps of a trace.

    Attributes
    ----------
    role, name
        Whose, and which.
    count
        How often, a step.
    total_s
        Seconds in all places together, a step; of work, without other phases nested in it.
    median_s, p90_s
        Of one of them.
    share
        Of the time that steps took: how much saw this phase under way somewhere.
    """

    role: str
    name: str
    count: float
    total_s: float
    median_s: float
    p90_s: float
    share: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The steps of a trace: how many, of what, how long the middle one took, and their phases."""

    operation: str
    steps: int
    median_s: float
    phases: tuple[Phase, ...]


def summarize(trace: Trace, operation: str | None = None, skip: int = 0) -> Summary | None:
    """Return the phases of the steps, a step being one operation of a worker; None if there are none.

    Parameters
    ----------
    trace
        What was recorded.
    operation
        ``push``, ``pull`` or ``push_pull``; by default what took most of the time.
    skip
        Operations of each worker that do not count, because they were its first.
    """
    by_name: dict[str, list[Span]] = {name: [] for name in OPERATIONS}
    for process in trace.processes:
        own: dict[str, list[Span]] = {}
        for span in process.spans:
            if span.role == "operation" and span.name in by_name:
                own.setdefault(span.name, []).append(span)
        for name, spans in own.items():
            by_name[name] += sorted(spans, key=lambda span: span.begin_us)[skip:]
    chosen = operation or max(by_name, key=lambda name: sum(s.end_us - s.begin_us for s in by_name[name]))
    steps = by_name[chosen]
    if not steps:
        return None
    windows = union([(step.begin_us, step.end_us) for step in steps])
    begins = [first for first, _ in windows]
    found: dict[tuple[str, str], list[Intervals]] = {}
    for role, name, intervals in _work(trace):
        if _is_in(intervals[0][0], windows, begins):
            found.setdefault((role, name), []).append(intervals)
    phases = [_phase(*key, found[key], len(steps), windows) for key in ORDER if key in found]
    return Summary(chosen, len(steps), float(np.median([s.end_us - s.begin_us for s in steps])) / 1e6, tuple(phases))


def _is_in(at: float, windows: Intervals, begins: Sequence[float]) -> bool:
    number = bisect_right(begins, at) - 1
    return number >= 0 and at < windows[number][1]


def _phase(role: str, name: str, parts: Sequence[Intervals], steps: int, windows: Intervals) -> Phase:
    durations = [sum(stop - start for start, stop in intervals) for intervals in parts]
    under_way = intersection(union([interval for intervals in parts for interval in intervals]), windows)
    return Phase(
        role=role,
        name=name,
        count=len(parts) / steps,
        total_s=sum(durations) / steps / 1e6,
        median_s=float(np.median(durations)) / 1e6,
        p90_s=float(np.percentile(durations, 90)) / 1e6,
        share=sum(stop - start for start, stop in under_way) / sum(stop - start for start, stop in windows),
    )


def _work(trace: Trace) -> Iterator[tuple[str, str, Intervals]]:
    """Yield role, phase and when, without what is nested in it."""
    for wire in trace.wires:
        yield wire.role, wire.name, [(wire.begin_us, wire.end_us)]
    for process in trace.processes:
        roles = [span.role for span in process.spans if (span.role, span.name) in ORDER]
        threads: dict[int, list[Span]] = {}
        for span in process.spans:
            if span.thread is None:
                yield span.role, span.name, [(span.begin_us, span.end_us)]
            else:
                threads.setdefault(span.thread, []).append(span)
        for spans in threads.values():
            for span, intervals in _own_time(spans):
                # a codec does not know whose thread it runs in: it is the process's
                yield (roles[0] if span.role == "codec" and roles else span.role), span.name, intervals


def _own_time(spans: Iterable[Span]) -> Iterator[tuple[Span, Intervals]]:
    """Yield each span of a thread with the intervals of it in which nothing else was nested."""
    stack: list[tuple[Span, Intervals, float]] = []  # span, its intervals, since when it works
    for span in sorted(spans, key=lambda span: (span.begin_us, -span.end_us)):
        while stack and stack[-1][0].end_us <= span.begin_us:
            yield _closed(stack)
        if stack:
            outer, intervals, since = stack.pop()
            intervals.append((since, span.begin_us))
            stack.append((outer, intervals, span.begin_us))
        stack.append((span, [], span.begin_us))
    while stack:
        yield _closed(stack)


def _closed(stack: list[tuple[Span, Intervals, float]]) -> tuple[Span, Intervals]:
    span, intervals, since = stack.pop()
    intervals.append((since, max(since, span.end_us)))
    if stack:
        outer, others, _ = stack.pop()
        stack.append((outer, others, span.end_us))
    return span, intervals
