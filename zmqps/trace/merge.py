"""A trace and its file: the spans of all nodes on one clock, with the times that messages were on their way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

from zmqps.errors import ConfigurationError, UnsafeFileError
from zmqps.files import Opener, make_directory, open_to_replace, read_file

#: The way of a message: phase it ends with where it was sent, phase in which it is handled.
WAYS = (("wire there", "send", "serve"), ("wire back", "reply", "land"))
#: Longer files are not traces: a node has at most a million spans, of some hundred bytes each.
MAX_NBYTES = 4 << 30
#: For this phase the receiver's whole delivery counts, from before the message was decoded.
DELIVERY = "receive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that took its time.

    Attributes
    ----------
    name, role
        The phase, and whose; role ``operation``: what the user asked for.
    begin_us, end_us
        Microseconds.
    thread
        Where; nothing for a wait, which may overlap with anything.
    facts
        What else is known, such as the request.
    """

    name: str
    role: str
    begin_us: float
    end_us: float
    thread: int | None
    facts: dict[str, Any]

    def shifted(self, by_us: float) -> Span:
        """Return it on another clock."""
        return replace(self, begin_us=self.begin_us + by_us, end_us=self.end_us + by_us)


@dataclass(slots=True)
class Process:
    """What one process recorded; processes of one ``boot`` share a clock."""

    name: str = ""
    boot: str = ""
    spans: list[Span] = field(default_factory=list)
    _: KW_ONLY
    label: str = ""  # short: role and rank
    incarnation: str = ""  # its first eight digits, which begin the names of its requests

    @property
    def title(self) -> str:
        """What to call it in a sentence."""
        return self.label or self.name


@dataclass(frozen=True, slots=True)
class Clock:
    """How another host's clock was fitted: shifted by so much, which may be wrong by so much."""

    shift_us: float
    error_us: float


@dataclass(slots=True)
class Trace:
    """All processes on the clock of one; ``clocks`` by boot, of those that had another.

    ``notes`` say what is not in it, and why. Add ``epoch_us`` to a time to get that of the calendar, in
    microseconds since 1970; 0 if that is not known.
    """

    processes: list[Process]
    wires: list[Span]
    clocks: dict[str, Clock]
    _: KW_ONLY
    notes: list[str] = field(default_factory=list)
    epoch_us: float = 0.0


def wires_of(processes: Sequence[Process]) -> list[Span]:
    """Return how long each message was on its way that was seen at both ends."""
    return [
        Span(
            name=name,
            role="wire",
            begin_us=min(sent.end_us, came.begin_us),
            end_us=came.begin_us,
            thread=None,
            facts=sent.facts,
        )  # the call may return later
        for name, _, sent, _, came in messages(processes)
    ]


def _add(process: Process, waits: dict[Any, dict[str, Any]], event: dict[str, Any]) -> None:
    """Add what an event says to the spans of its process; ``waits`` are those whose end has not come yet."""
    match event["ph"]:
        case "X":
            process.spans.append(_span(event, float(event["ts"]) + float(event["dur"]), int(event["tid"])))
        case "b" if event["cat"] != "message":
            waits[event["id"]] = event
        case "e" if event["id"] in waits:
            process.spans.append(_span(waits.pop(event["id"]), float(event["ts"]), None))


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except UnsafeFileError:  # it says itself what the file is
        raise
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not a trace that zmqps has written: {error!s:.100}") from None


def messages(processes: Sequence[Process]) -> Iterator[tuple[str, Process, Span, Process, Span]]:
    """Yield (way, sender, its span, receiver, its delivery) of each message that was seen at both ends."""
    for name, sending, handling in WAYS:
        came: dict[str, tuple[Process, Span]] = {}
        for process in processes:
            for request, delivery in _deliveries(process.spans, handling):
                came.setdefault(request, (process, delivery))  # the first one, if it was sent again
        for process in processes:
            seen = set()
            for span in process.spans:
                request = span.facts.get("request", "")
                if span.name == sending and request in came and request not in seen:
                    seen.add(request)
                    yield name, process, span, *came[request]


def _deliveries(spans: Iterable[Span], handling: str) -> Iterator[tuple[str, Span]]:
    """Yield each request that was handled so, and the delivery it came with."""
    open_: dict[int | None, Span] = {}
    for span in sorted(spans, key=lambda span: (span.begin_us, -span.end_us)):
        if span.name == DELIVERY:
            open_[span.thread] = span
        elif span.name == handling and "request" in span.facts and span.thread in open_:
            yield span.facts["request"], open_[span.thread]


@dataclass(slots=True, kw_only=True)
class Flow:
    """An arrow through spans: where each is, and when it passes through it."""

    name: str
    stops: list[tuple[Process, Span, float]]


def write(path: Path, trace: Trace, opener: Opener | None = None, flows: Sequence[Flow] = ()) -> None:
    """Write one file for chrome://tracing or Perfetto; arrows lead from a message's sending to its delivery.

    Parameters
    ----------
    path
        Where to.
    trace
        What to write.
    opener
        Opens it, by its path and the flags of `os.open`; by default any plain file.
    flows
        More arrows: the way of pushes, say.
    """
    events: list[dict[str, Any]] = []
    number = 0
    for pid, process in enumerate(trace.processes, start=1):
        events.append({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": process.name}})
        known = {"boot": process.boot, "label": process.label, "incarnation": process.incarnation}
        events.append({"name": "process", "ph": "M", "pid": pid, "args": known})
        for span in process.spans:
            number += 1
            events += _events(span, pid, number)
    places = {id(process): pid for pid, process in enumerate(trace.processes, start=1)}
    for flow in flows:
        number += 1
        arrow = {"name": flow.name, "cat": "flow", "id": number}
        kinds = ["s", *["t"] * (len(flow.stops) - 2), "f"]
        for kind, (process, span, at) in zip(kinds, flow.stops, strict=True):
            event = {**arrow, "ph": kind, "ts": at, "pid": places[id(process)], "tid": span.thread or 0}
            events.append({**event, "bp": "e"} if kind == "f" else event)
    for _, sender, sent, receiver, came in messages(trace.processes):
        number += 1
        arrow = {"name": "message", "cat": "message", "id": number}
        events.append({**arrow, "ph": "s", "ts": sent.begin_us, "pid": places[id(sender)], "tid": sent.thread})
        events.append(
            {**arrow, "ph": "f", "bp": "e", "ts": came.begin_us, "pid": places[id(receiver)], "tid": came.thread}
        )
    make_directory(path.parent)
    with open(path, "w", opener=opener or open_to_replace) as file:
        clocks = {boot: [clock.shift_us, clock.error_us] for boot, clock in trace.clocks.items()}
        more = {"clocks": clocks, "notes": trace.notes, "epoch_us": trace.epoch_us}
        file.write(json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": more}) + "\n")


def load(path: Path, opener: Opener | None = None) -> Trace:
    """Return the trace that `write` has written into a file.

    Raises
    ------
    ConfigurationError
        It has written no such file.
    UnsafeFileError
        It is a FIFO, a device or the like, or too long.
    """
    processes: dict[Any, Process] = {}
    waits: dict[Any, dict[str, Any]] = {}
    with _explained(path):
        whole = json.loads(read_file(path, MAX_NBYTES, opener))
        for event in whole["traceEvents"]:
            process = processes.setdefault(event["pid"], Process())
            facts = event.get("args") or {}
            match event["ph"]:
                case "M" if event["name"] == "process_name":
                    process.name = str(facts["name"])
                case "M" if event["name"] == "process":
                    process.boot, process.label = str(facts["boot"]), str(facts["label"])
                    process.incarnation = str(facts["incarnation"])
                case _:
                    _add(process, waits, event)
        more = whole.get("otherData") or {}
        clocks = {str(boot): Clock(float(fit[0]), float(fit[1])) for boot, fit in more.get("clocks", {}).items()}
        notes, epoch_us = [str(note) for note in more.get("notes", [])], float(more.get("epoch_us", 0.0))
    found = list(processes.values())
    return Trace(found, wires_of(found), clocks, notes=notes, epoch_us=epoch_us)


def _span(event: dict[str, Any], end_us: float, thread: int | None) -> Span:
    facts = dict(event.get("args") or {})
    if type(facts.get("request", "")) is not str:
        raise ValueError("a request that is not text")
    return Span(
        name=str(event["name"]), role=str(event["cat"]), begin_us=float(event["ts"]), end_us=end_us, thread=thread,
        facts=facts,
    )  # fmt: skip


def _events(span: Span, pid: int, number: int) -> list[dict[str, Any]]:
    event = {"name": span.name, "cat": span.role, "ts": span.begin_us, "pid": pid, "args": span.facts}
    if span.thread is not None:
        return [{**event, "ph": "X", "dur": span.end_us - span.begin_us, "tid": span.thread}]
    wait = {**event, "id": number, "tid": 0}  # it is in no thread, but the format wants one
    return [{**wait, "ph": "b"}, {**wait, "ph": "e", "ts": span.end_us}]
