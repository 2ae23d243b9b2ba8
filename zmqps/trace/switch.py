"""Recording that begins and ends while a node runs: what `zmqps.core.node.tracing` is given to record with.

During a recording, wrappers replace the driver's machine and transport, and the doors behind them are open; before and
after, nothing differs from a driver that never recorded. Names of phases, requests and messages are those of
`docs/operations.md`.
"""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any, TypeVar, cast

from zmqps.core.node.member import Identity
from zmqps.core.protocol.events import Action, Machine, Peer, Received, Resolve, Send
from zmqps.core.protocol.messages import Hello
from zmqps.core.protocol.wire import peek
from zmqps.net.driver import Driver
from zmqps.net.system.host import boot
from zmqps.net.transport import Deliver, Transport
from zmqps.trace.doors import DOORS, Doors, Sink
from zmqps.trace.ring import Ring

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
#: From a peer and the number of a request to it to the operation that waits for the answer, if there is one.
OperationOf = Callable[[Peer, int], Any]
clock = time.monotonic_ns


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


log = logging.getLogger("zmqps.trace")


class Switch:
    """The recorder of one node.

    Parameters
    ----------
    driver
        Runs the node; all calls come from its thread.
    identity
        The node's identity.
    operation_of
        Of a worker: which operation a request is a part of.
    known
        Of a server: the incarnation behind a connection.
    doors
        What is called behind the machine's own door.
    """

    def __init__(
        self,
        driver: Driver,
        identity: Identity,
        *,
        operation_of: OperationOf = lambda peer, number: None,
        known: Callable[[Peer], bytes] = lambda peer: b"",
        doors: Doors = DOORS,
    ) -> None:
        self._driver = driver
        self._identity = identity
        self._operation_of = operation_of
        self._known = known
        self._doors = doors
        self._ring: Ring | None = None
        self._before: tuple[Machine, Transport] | None = None  # what the driver runs otherwise

    def start(self, nbytes: int) -> None:
        """Record into that many bytes from now on."""
        self.stop()
        who, driver = self._identity, self._driver
        epoch_ns = time.time_ns() - time.monotonic_ns()
        head = {"title": f"{who.role} {who.name}", "boot": boot(), "pid": os.getpid(), "epoch_ns": epoch_ns}
        try:
            ring = Ring(nbytes, head)
        except MemoryError:
            log.warning("nothing is recorded: there is no memory for %d bytes of spans", nbytes)
            return
        role = "worker" if who.role == "observer" else who.role
        labels = Labels(role, who, self._known)
        self._ring, self._before = ring, (driver.machine, driver.transport)
        within = partial(self._doors.within, ring)
        machine = WatchedMachine(driver.machine, ring, role, labels, self._operation_of, within)
        driver.machine = cast(Machine, machine)
        driver.transport = cast(Transport, WatchedTransport(driver.transport, ring, role, labels))
        self._hand_to()
        self._doors.start(ring)

    def stop(self) -> None:
        """Record no more; what there is can be read."""
        if self._before is None or self._ring is None:
            return
        self._driver.machine, self._driver.transport = self._before
        self._before = None
        self._hand_to()
        self._doors.stop(self._ring)
        self._ring.close()

    def forget(self) -> None:
        """Give the memory back."""
        self.stop()
        self._ring = None

    def time(self) -> float:
        """Return the time by the clock that spans are noted with."""
        return time.monotonic()

    @property
    def nbytes(self) -> int:
        """How many bytes can be read."""
        return 0 if self._ring is None else self._ring.nbytes

    @property
    def lost(self) -> int:
        """How many were overwritten."""
        return 0 if self._ring is None else self._ring.lost

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return that many bytes of the recording."""
        return b"" if self._ring is None else self._ring.read(offset, nbytes)

    def _hand_to(self) -> None:
        """Let the transport deliver through the wrapper of the machine, or to the machine again."""
        hand_to = getattr(self._driver.transport, "hand_to", None)
        if hand_to is not None:
            hand_to(self._driver.deliver)
