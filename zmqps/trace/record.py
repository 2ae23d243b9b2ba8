"""Spans of this process, written as Chrome trace events; off unless ``ZMQPS_TRACE`` names a directory.

What is watched are doors: a machine's `handle`, a transport's `send` and deliveries, kernels and
codecs. They are replaced by watching ones when a process starts to run them, so that a process
that records nothing runs what it always runs.

A file is a JSON array whose end may be missing, an event a line: chrome://tracing and Perfetto read
it as it is, also when the process was killed.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from zmqps.core.node.member import Identity
from zmqps.core.protocol.encoding import CODING, Coding
from zmqps.core.protocol.events import Action, Machine, Peer, Received, Resolve, Send
from zmqps.core.protocol.messages import Hello
from zmqps.core.protocol.wire import peek
from zmqps.files import create, make_directory, open_to_append
from zmqps.net.system.host import boot
from zmqps.net.transport import Deliver, Noticed, Transport
from zmqps.trace import VARIABLE
from zmqps.trace.doors import DOORS, Sink

#: Spans that a file holds at most, about 150 MB of them: a trace is to look at, not to fill a disk.
MAX_SPANS = 1_000_000
FLUSHED_SPANS = 4096
#: Connections whose workers are named; a server has no more clients.
MAX_LABELLED = 4096
#: What a process does with a message: role -> name of the message -> phase.
HANDLING = {
    "worker": {"Values": "land", "Ack": "land"},
    "server": {
        **dict.fromkeys(("Push", "Pull", "Load", "PushRows", "PullRows", "ScanRows"), "serve"),
        "Commit": "commit",
    },
}
SENDING = {
    "worker": dict.fromkeys(("Push", "Pull", "Load", "PushRows", "PullRows", "ScanRows"), "send"),
    "server": {"Values": "reply", "Ack": "reply"},
}

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")
#: From a peer and the number of a request to it to the operation that waits for the answer, if there is one.
OperationOf = Callable[[Peer, int], Any]
clock = time.monotonic_ns


class Recorder:
    """Writes the spans of one process.

    Parameters
    ----------
    directory
        Where its file goes; made if it is not there.
    """

    def __init__(self, directory: Path) -> None:
        make_directory(directory)
        self._path = directory / f"{os.getpid()}-{clock()}.json"
        self._lock = threading.Lock()
        self._spans: list[tuple[str, str, int, int, int, str, dict[str, Any]]] = []
        self._room = MAX_SPANS
        os.close(create(self._path))
        self._append("[", {"name": "clock", "ph": "M", "pid": os.getpid(), "args": {"boot": boot()}})

    def name(self, title: str) -> None:
        """Set this process's identity; the first call counts."""
        self._append("", {"name": "process_name", "ph": "M", "pid": os.getpid(), "args": {"name": title}})

    def span(self, name: str, role: str, begin: int, end: int, kind: str = "X", **facts: Any) -> None:
        """Note that something lasted from ``begin`` to ``end``, nanoseconds of `clock`.

        Kind ``X`` is work of this thread, in which other work is nested; ``b`` is a wait, which may
        overlap with anything.
        """
        self._spans.append((name, role, begin, end, threading.get_native_id(), kind, facts))
        if len(self._spans) >= FLUSHED_SPANS:
            self.flush()

    def around(self, name: str, role: str, function: F) -> F:
        """Return a function that does the same and is noted."""

        return noted(self, name, role, function)

    def flush(self) -> None:
        """Write what was noted."""
        with self._lock:
            spans, self._spans = self._spans, []
            kept, self._room = spans[: self._room], max(0, self._room - len(spans))
            events = [event for number, span in enumerate(kept) for event in _events(number + self._room, *span)]
            if events:
                self._append("", *events)

    def _append(self, first: str, *events: dict[str, Any]) -> None:
        with open(open_to_append(self._path), "a") as file:
            file.write(first + "".join(f"\n{json.dumps(event)}," for event in events))


def noted(sink: Sink, name: str, role: str, function: F) -> F:
    """Return a function that does the same and whose time is noted."""

    @wraps(function, updated=())
    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = clock()
        try:
            return function(*args, **kwargs)
        finally:
            sink.span(name, role, begin, clock())

    return cast(F, timed)


def _events(
    number: int, name: str, role: str, begin: int, end: int, thread: int, kind: str, facts: dict[str, Any]
) -> list[dict[str, Any]]:
    event = {"name": name, "cat": role, "ph": kind, "ts": begin / 1e3, "pid": os.getpid(), "tid": thread, "args": facts}
    if kind == "X":
        return [{**event, "dur": (end - begin) / 1e3}]
    return [{**event, "id": number}, {**event, "id": number, "ph": "e", "ts": end / 1e3}]


@cache
def recorder() -> Recorder | None:
    """Return this process's recorder, or None: nothing is recorded."""
    directory = os.environ.get(VARIABLE)
    if not directory:
        return None
    return Recorder(Path(directory))


def around(name: str, role: str, function: F) -> F:
    """Return a function that is noted, or the function itself where nothing is recorded."""
    found = recorder()
    return function if found is None else found.around(name, role, function)


def watched_coding(coding: Coding = CODING) -> Coding:
    """Return the door to the codecs, noted where this process records; a codec does not know whose thread it is in."""
    if recorder() is None:
        return DOORS.coding(coding)
    return coding._replace(
        compress=around("encode", "codec", coding.compress), decompress=around("decode", "codec", coding.decompress)
    )


def watch(
    machine: Machine, transport: Transport, identity: Identity, operation_of: OperationOf = lambda peer, number: None
) -> tuple[Machine, Transport]:
    """Return both as they are, or, where this process records, such that what they do is noted.

    ``operation_of`` is for machines with operations: how long each of their requests waited is noted, too.
    """
    found = recorder()
    if found is None:
        return machine, transport
    found.name(f"{identity.role} {identity.name}")
    role = "worker" if identity.role == "observer" else identity.role
    labels = Labels(role, identity)
    return (
        cast(Machine, WatchedMachine(machine, found, role, labels, operation_of)),
        cast(Transport, WatchedTransport(transport, found, role, labels)),
    )


def watch_rules(rules: R) -> R:
    """Return a shard's rules as they are, or, where this process records, with kernels that are noted."""
    found = recorder()
    return rules if found is None else cast(R, WatchedRules(rules, found))


def watch_row_kernel(kernel: R) -> R:
    """Return the rule of a sparse table as it is, or, where this process records, such that its work is noted."""
    found = recorder()
    return kernel if found is None else cast(R, WatchedRowKernel(kernel, found))


def _of_message(message: Any) -> dict[str, int]:
    """Return what is noted of a message with arrays: its first slice, the step it is for, the version it tells of."""
    facts: dict[str, int] = {}
    if parts := getattr(message, "parts", ()):
        facts["slice"] = parts[0][0]
    if (step := getattr(message, "step", None)) is not None:
        facts["step"] = step
    if versions := getattr(message, "versions", ()):
        facts["version"] = versions[0]
    return facts


class Labels:
    """What names a request at both ends: its number and the worker's incarnation, which its `Hello` has said.

    Parameters
    ----------
    role, identity
        Of this process.
    known
        Returns the incarnation behind a connection whose `Hello` came before anything was noted; empty for none.
    """

    def __init__(self, role: str, identity: Identity, known: Callable[[Peer], bytes] = lambda peer: b"") -> None:
        self._own = identity.incarnation if role == "worker" else None
        self._known = known
        self._behind: OrderedDict[Peer, bytes] = OrderedDict()

    def heard(self, peer: Peer, hello: Hello) -> None:
        """A connection is of this worker."""
        self._behind[peer] = hello.incarnation
        while len(self._behind) > MAX_LABELLED:
            self._behind.popitem(last=False)

    def of(self, peer: Peer, number: int) -> str:
        """Return the label of a request."""
        incarnation = self._own or self._behind.get(peer) or self._known(peer)
        return f"{incarnation.hex()[:8]}-{number}"


class WatchedMachine:
    """A machine whose work is noted, and for how long operations and their requests waited."""

    def __init__(
        self,
        machine: Machine,
        recorder: Sink,
        role: str,
        labels: Labels,
        operation_of: OperationOf,
        within: Callable[..., Any] = lambda work, *args: work(*args),
    ) -> None:
        self._within = within
        self._machine = machine
        self._recorder = recorder
        self._role = role
        self._labels = labels
        self._operation_of = operation_of
        self._begun: dict[Any, int] = {}  # operation -> when it came

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)

    def handle(self, event: Any, now: float) -> list[Action]:
        """Pass an event on."""
        name, facts = self._describe(event)
        begin = clock()
        if name == "submit":
            self._begun[event] = begin
        actions: list[Action] = self._within(self._machine.handle, event, now)
        self._recorder.span(name, self._role, begin, clock(), **facts)
        return self._noted(actions)

    def on_deadline(self, now: float) -> list[Action]:
        """Pass it on; resends come from here."""
        return self._noted(self._within(self._machine.on_deadline, now))

    def _describe(self, event: Any) -> tuple[str, dict[str, Any]]:
        if (title := getattr(event, "title", None)) is not None:  # operations alone have one
            return "submit", {"operation": title}
        if not isinstance(event, Received):
            return "control", {"event": type(event).__name__}
        if isinstance(event.message, Hello):
            self._labels.heard(event.peer, event.message)
        kind = type(event.message).__name__
        facts: dict[str, Any] = {"message": kind}
        phase = HANDLING.get(self._role, {}).get(kind, "control")
        if phase != "control" and (number := getattr(event.message, "request", 0)):
            facts |= {"request": self._labels.of(event.peer, number), **_of_message(event.message)}
        return phase, facts

    def _noted(self, actions: list[Action]) -> list[Action]:
        if self._role != "worker":
            return actions
        end = clock()
        for action in actions:
            if isinstance(action, Send):
                operation = self._operation_of(action.peer, getattr(action.message, "request", 0))
                if operation in self._begun:
                    label = self._labels.of(action.peer, action.message.request)  # type: ignore[attr-defined]
                    facts = {"message": type(action.message).__name__, **_of_message(action.message)}
                    self._recorder.span("queue", self._role, self._begun[operation], end, "b", request=label, **facts)
            elif isinstance(action, Resolve) and action.operation in self._begun:
                begun = self._begun.pop(action.operation)
                self._recorder.span(action.operation.title, "operation", begun, end, "b")
        return actions


class WatchedTransport:
    """A transport whose sends and deliveries are noted."""

    def __init__(self, transport: Transport, recorder: Sink, role: str, labels: Labels) -> None:
        self._transport = transport
        self._recorder = recorder
        self._role = role
        self._labels = labels

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def start(self, deliver: Deliver, delivered: Callable[[], None], noticed: Noticed) -> None:
        """Begin to deliver."""
        self._transport.start(noted(self._recorder, "receive", self._role, deliver), delivered, noticed)

    def hand_to(self, deliver: Deliver) -> None:
        """Deliver to another receiver from now on, where the transport can."""
        hand_to = getattr(self._transport, "hand_to", None)
        if hand_to is not None:
            hand_to(noted(self._recorder, "receive", self._role, deliver))

    def send(self, peer: Peer, frames: Sequence[Any], readers: Sequence[Any]) -> bool:
        """Pass a message on."""
        nbytes = sum([memoryview(frame).nbytes for frame in frames])
        begin = clock()
        sent = self._transport.send(peer, frames, readers)
        end = clock()
        kind, number = peek(frames)
        phase = SENDING.get(self._role, {}).get(kind, "control")
        facts: dict[str, Any] = {"message": kind}
        if phase != "control":
            facts |= {"request": self._labels.of(peer, number), "nbytes": nbytes}
        self._recorder.span(phase, self._role, begin, end, **facts)
        return sent

    def close(self, linger: float) -> None:
        """Close it, and write what was noted."""
        self._transport.close(linger)
        if isinstance(self._recorder, Recorder):
            self._recorder.flush()


class WatchedRules:
    """Rules whose kernels are noted."""

    def __init__(self, rules: Any, recorder: Recorder) -> None:
        self._rules = rules
        self._recorder = recorder
        self.all_finite = recorder.around("check", "server", rules.all_finite)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rules, name)

    def kernels(self, names: Sequence[str]) -> tuple[Sequence[Any], Sequence[int], Sequence[int]]:
        """Return them, the index of each parameter's, and the number of its group."""
        kernels, *numbers = self._rules.kernels(names)
        return [kernel and self._recorder.around("apply", "server", kernel) for kernel in kernels], *numbers


class WatchedRowKernel:
    """A rule for rows whose work is noted."""

    def __init__(self, kernel: Any, recorder: Recorder) -> None:
        self._kernel = kernel
        self._apply = recorder.around("apply", "server", kernel.__call__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def __call__(self, *arguments: Any) -> None:
        """Update rows."""
        self._apply(*arguments)
