"""One push followed from the call to the values that show it: what each stage of its messages took.

A push is several messages, one a slice; each has a name that both ends know: the worker's incarnation and a number.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from zmqps.trace.merge import Flow, Process, Span, Trace, messages

#: Operations that push.
PUSHING = ("push", "push_pull")
#: In the order that a message meets them, and what each is.
STAGES = {
    "submit": "from the call to the message: checked, encoded, waiting for the window",
    "send": "handed to the transport; with shared memory the copy into it",
    "wire": "on its way, and waiting until the server has time",
    "server": "read, looked up, applied or kept for the step",
    "commit": "kept until its step was complete, and applied then",
    "acknowledge": "the answer handed to the transport",
    "wire back": "on its way, and waiting until the worker has time",
    "land": "values into the caller's arrays",
}


@dataclass(slots=True, kw_only=True)
class Message:
    """One message of a push and its answer; a span is None where it was not recorded.

    Attributes
    ----------
    label
        Its name.
    queued
        From the call to the message: submitted, checked, encoded, and let wait for the window.
    sent, came, served
        Handed to the transport by the worker, taken by the server, and dealt with: looked up and applied, or kept.
    applied
        The work of kernels for it: within that, or in the commit of its step.
    replied, back, landed
        The answer handed to the transport, taken by the worker, and done with.
    server
        Where it was served.
    """

    label: str
    queued: Span
    sent: Span | None = None
    came: Span | None = None
    served: Span | None = None
    applied: list[Span] = field(default_factory=list)
    committed: Span | None = None
    replied: Span | None = None
    back: Span | None = None
    landed: Span | None = None
    server: Process | None = None

    @property
    def version(self) -> int | None:
        """Of its slice, as the answer has it."""
        return None if self.landed is None else self.landed.facts.get("version")

    @property
    def nbytes(self) -> int:
        """Of the message itself."""
        return 0 if self.sent is None else self.sent.facts.get("nbytes", 0)

    def stages(self) -> Iterator[tuple[str, float, float]]:
        """Yield what follows on each other, with its begin and end; a stage that was not seen is left out."""
        sent, came, served, replied, back = self.sent, self.came, self.served, self.replied, self.back
        marks = [
            ("submit", self.queued.begin_us),
            ("send", sent.begin_us if sent else None),
            ("wire", min(sent.end_us, came.begin_us) if sent and came else None),
            ("server", came.begin_us if came else None),
            ("commit", served.end_us if served and self.committed else None),
            ("acknowledge", replied.begin_us if replied else None),
            ("wire back", min(replied.end_us, back.begin_us) if replied and back else None),
            ("land", back.begin_us if back else None),
            ("", self.landed.end_us if self.landed else None),
        ]
        seen = [(name, at) for name, at in marks if at is not None]
        for (name, begin), (_, end) in pairwise(seen):
            yield name, begin, max(begin, end)


@dataclass(slots=True, kw_only=True)
class Seen:
    """The pull that showed a push first: whose, its message, and when the values were there."""

    worker: Process
    label: str
    at_us: float


@dataclass(slots=True, kw_only=True)
class PushTrace:
    """One push: whose, the user's call, its messages, and what showed it first (None: nothing that was recorded)."""

    worker: Process
    operation: Span
    messages: list[Message]
    seen: Seen | None = None

    @property
    def longest(self) -> Message:
        """The message that was answered last: what the call waited for."""
        return max(self.messages, key=lambda message: message.landed.end_us if message.landed else 0.0)


def pushes(trace: Trace) -> list[PushTrace]:
    """Return the pushes of a trace that were recorded from their begin to their end, in the order they began."""
    parts = followed(trace)
    found: list[PushTrace] = []
    for worker in trace.processes:
        calls = {span.begin_us: span for span in worker.spans if span.role == "operation" and span.name in PUSHING}
        of_call: dict[float, list[Message]] = {}
        for span in worker.spans:
            if span.name == "queue" and span.begin_us in calls and (label := span.facts.get("request")) in parts:
                if "Push" in span.facts.get("message", "Push"):
                    of_call.setdefault(span.begin_us, []).append(parts[label])
        found += [PushTrace(worker=worker, operation=calls[at], messages=some) for at, some in of_call.items()]
    found.sort(key=lambda push: push.operation.begin_us)
    _see(found, parts, trace)
    return found


def followed(trace: Trace) -> dict[str, Message]:
    """Return each request by its name, with what was seen of it at both ends."""
    parts: dict[str, Message] = {}
    for process in trace.processes:
        for span in process.spans:
            if span.name == "queue" and (label := span.facts.get("request")) is not None:
                parts.setdefault(label, Message(label=label, queued=span))
    for way, _, sent, receiver, came in messages(trace.processes):
        if (part := parts.get(sent.facts["request"])) is not None and way == "wire there":
            part.sent, part.came, part.server = sent, came, receiver
        elif part is not None:
            part.replied, part.back = sent, came
    for process in trace.processes:
        commits = sorted([span for span in process.spans if span.name == "commit"], key=lambda span: span.begin_us)
        kernels = sorted([span for span in process.spans if span.name == "apply"], key=lambda span: span.begin_us)
        begins, commit_begins = [span.begin_us for span in kernels], [span.begin_us for span in commits]
        for span in process.spans:
            part = parts.get(span.facts.get("request", ""))
            if part is None:
                continue
            if span.name == "send" and part.sent is None:
                part.sent = span
            elif span.name == "land" and part.landed is None:
                part.landed = span
            elif span.name == "serve" and part.served is None:
                part.served, part.server = span, process
                part.applied = _within(kernels, begins, span)
                if commits and not part.applied and "Push" in span.facts.get("message", ""):
                    at = bisect_left(commit_begins, span.end_us)
                    part.committed = commits[at] if at < len(commits) else None
                    part.applied = _within(kernels, begins, part.committed) if part.committed else []
    return parts


def _within(spans: Sequence[Span], begins: Sequence[float], outer: Span) -> list[Span]:
    return [*spans[bisect_left(begins, outer.begin_us) : bisect_left(begins, outer.end_us)]]


def _see(found: Sequence[PushTrace], parts: dict[str, Message], trace: Trace) -> None:
    """Find for each push the first answer that has the version it made, or a later one."""
    owners = {process.incarnation or label.partition("-")[0]: process for process, label in _owners(trace)}
    shown: dict[tuple[int, int], list[tuple[float, int, Message]]] = {}  # by server and slice: when, version
    for part in parts.values():
        version, landed = part.version, part.landed
        if version is not None and landed is not None and landed.facts.get("message") == "Values":
            key = id(part.server), part.queued.facts.get("slice", 0)
            shown.setdefault(key, []).append((landed.end_us, version, part))
    for answers in shown.values():
        answers.sort(key=lambda answer: answer[0])
    for push in found:
        first = min(push.messages, key=lambda part: part.queued.facts.get("slice", 0))
        made = first.version
        if first.committed is not None:
            made = first.queued.facts.get("step", 0) + 1
        served = first.committed or first.served
        if made is None or served is None:
            continue
        for at, version, part in shown.get((id(first.server), first.queued.facts.get("slice", 0)), ()):
            if version >= made and at >= served.begin_us:
                worker = owners.get(part.label.partition("-")[0], push.worker)
                push.seen = Seen(worker=worker, label=part.label, at_us=at)
                break


def _owners(trace: Trace) -> Iterator[tuple[Process, str]]:
    """Yield each worker and the name of one of its requests."""
    for process in trace.processes:
        for span in process.spans:
            if span.name == "queue" and "request" in span.facts:
                yield process, span.facts["request"]
                break


def flows(found: Sequence[PushTrace]) -> Iterator[Flow]:
    """Yield for each push an arrow along its longest message, and on to the pull that showed it first."""
    by_label = {part.label: (push.worker, part) for push in found for part in push.messages}
    for number, push in enumerate(found):
        part = push.longest
        ends = [(push.worker, part.sent), (part.server, part.served), (part.server, part.committed)]
        ends += [(part.server, part.replied), (push.worker, part.landed)]
        if push.seen is not None and push.seen.label != part.label and push.seen.label in by_label:
            worker, shows = by_label[push.seen.label]
            if part.landed is not None and shows.landed is not None and shows.landed.end_us > part.landed.end_us:
                ends.append((worker, shows.landed))
        stops = [(process, span, span.begin_us) for process, span in ends if process is not None and span is not None]
        if len(stops) > 1:
            yield Flow(name=f"push {number}", stops=stops)
