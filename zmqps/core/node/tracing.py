"""Traces of a running cluster: a node's part in one, and the client that requests it and fetches the recordings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from zmqps.core.node.clock import Samples
from zmqps.core.node.handshake import FIRST_RETRY_S
from zmqps.core.node.inquiry import LOOK_S, RepeatedQuestion
from zmqps.core.node.member import Member, MemberPart
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import (
    COORDINATOR,
    Action,
    Connected,
    Exit,
    Looked,
    NetworkEvent,
    Received,
    Send,
    Stop,
    Unreachable,
)
from zmqps.core.protocol.message import MAX_BLOB_NBYTES
from zmqps.core.protocol.messages import Clock, Error, Fetch, Message, Piece, RecordSpans, SpansRecorded, Trace, Tracing
from zmqps.core.protocol.messages.tracing import TraceAction, TraceState
from zmqps.core.protocol.security.guard import proved
from zmqps.errors import DeadlineError, JobError, PSError, from_wire, presented, printable

#: How often a recording node reports: each time it learns the coordinator's clock.
REPORT_S = 0.25
#: After the end the report is repeated until it is answered.
AGAIN_S = 1.0
#: A recording is kept this long, and then deleted, fetched or not: no cleanup is needed.
KEEP_S = 120.0
#: The longest trace: it is for people to look at.
LONGEST_S = 600.0
#: The largest recording of a node.
MAX_RING_NBYTES = 64 << 20


class Recorder(Protocol):
    """A node's recorder, from its shell."""

    def start(self, nbytes: int) -> None:
        """Record into this many bytes from now on; an earlier recording is deleted."""

    def stop(self) -> None:
        """Stop recording; the recording can be read."""

    def forget(self) -> None:
        """Free the memory."""

    def time(self) -> float:
        """Return the time, in seconds, by the clock of spans: it continues while the node is stopped."""

    @property
    def nbytes(self) -> int:
        """The readable bytes."""

    @property
    def lost(self) -> int:
        """The overwritten bytes, for want of room."""

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return this many bytes of the recording, or the rest of it."""


class Nothing:
    """Records nothing: used without a recorder."""

    nbytes = 0
    lost = 0

    def start(self, nbytes: int) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def forget(self) -> None:
        """Do nothing."""

    def time(self) -> float:
        """Return a dummy time, which is not compared with anything."""
        return 0.0

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return nothing."""
        return b""


def trace(member: Member, recorder: Recorder) -> NodeTracing:
    """Connect a new node to the coordinator's traces; of a worker with ``pushes``."""
    tracing = NodeTracing(member, recorder)
    member.hooks.takes |= {RecordSpans: tracing.take, Clock: tracing.take, Fetch: tracing.take}
    member.hooks.parts.append(tracing)
    return tracing


class NodeTracing(MemberPart):
    """One trace at a time: the last one requested by the coordinator."""

    def __init__(self, member: Member, recorder: Recorder) -> None:
        self.recorder = recorder
        self.number = 0
        self.state = TraceState.NONE  # whether it records, has recorded, or neither
        self.ends_at = 0.0
        self.samples = Samples()
        self._member = member
        self._began_with = 0  # pushes
        self._heard = False  # whether the coordinator knows that it is over
        self._report_due = 0.0

    def take(self, message: RecordSpans | Clock | Fetch, now: float) -> list[Action]:
        """Process the coordinator's messages about traces."""
        if not self._member.joined:
            return []
        if isinstance(message, Fetch):
            return self._fetch(message)
        actions = self._watch(message, now) if isinstance(message, RecordSpans) else self._clock(message)
        self._member.set_due()
        return actions

    def on_deadline(self, now: float) -> list[Action]:
        """End an expired recording, report the progress, and delete what was not fetched."""
        if self.due is None or now < self.due:
            return []
        if self.state == TraceState.ON and now >= self.ends_at:
            self._stop(now)
        if self.state == TraceState.OFF and now >= self.ends_at + KEEP_S:
            self.end()
        report = self.state != TraceState.NONE and not self._heard and now >= self._report_due
        actions = self._report(now) if report else []
        self._set_due()
        return actions

    def end(self) -> None:
        """Stop recording and delete the recording: no coordinator is left to want it."""
        if self.state == TraceState.ON:
            self.recorder.stop()
        if self.state != TraceState.NONE:
            self.recorder.forget()
        self.state, self.due = TraceState.NONE, None

    def validate(self) -> None:
        """Assert that a recording has an end."""
        assert (self.due is None) == (self.state == TraceState.NONE)
        assert self.state == TraceState.NONE or self.due <= self.ends_at + KEEP_S  # type: ignore[operator]
        assert self.recorder.nbytes <= MAX_RING_NBYTES

    def _watch(self, message: RecordSpans, now: float) -> list[Action]:
        seconds = min(message.seconds, LONGEST_S)
        if message.number != self.number and seconds > 0:
            self.end()
            self.number, self.state, self._heard = message.number, TraceState.ON, False
            self.ends_at = now + seconds
            self.samples = Samples()
            self._began_with = self._pushes
            self.recorder.start(min(message.nbytes, MAX_RING_NBYTES))
        elif message.number == self.number and self.state == TraceState.ON:  # repeated, or a request to end
            self.ends_at = min(self.ends_at, now + seconds)
            if now >= self.ends_at:
                self._stop(now)
        elif message.number == self.number:
            self._heard = False  # it does not know yet that this is over
        if message.number != self.number:
            return []
        actions = self._report(now) if self.state != TraceState.NONE else []
        self._set_due()
        return actions

    def _stop(self, now: float) -> None:
        self.recorder.stop()
        self.state, self.ends_at = TraceState.OFF, now
        self._report_due = now

    def _clock(self, message: Clock) -> list[Action]:
        if message.number == self.number and self.state != TraceState.NONE:
            self.samples.add(message.sent, message.at, self.recorder.time())
            if message.state == TraceState.OFF == self.state:
                self._heard = True
                self._set_due()
        return []

    def _fetch(self, message: Fetch) -> list[Action]:
        here = message.number == self.number and self.state == TraceState.OFF
        recorder = self.recorder if here else Nothing()
        data = recorder.read(message.offset, MAX_BLOB_NBYTES)
        piece = Piece(message.request, message.number, message.who, message.offset, recorder.nbytes, data)
        return [Send(COORDINATOR, piece)]

    def _report(self, now: float) -> list[Action]:
        self._report_due = now + (REPORT_S if self.state == TraceState.ON else AGAIN_S)
        offset = self.samples.offset
        facts = {} if offset is None else offset._asdict()
        nbytes, lost = (self.recorder.nbytes, self.recorder.lost) if self.state == TraceState.OFF else (0, 0)
        steps = max(0, self._pushes - self._began_with)
        sent = self.recorder.time()
        return [Send(COORDINATOR, SpansRecorded(self.number, self.state, sent, nbytes, lost, steps, facts))]

    @property
    def _pushes(self) -> int:
        pushes = self._member.counters().get("pushes", 0)
        return pushes if type(pushes) is int else 0

    def _set_due(self) -> None:
        if self.state == TraceState.NONE:
            self.due = None
            return
        end = self.ends_at if self.state == TraceState.ON else self.ends_at + KEEP_S
        self.due = end if self._heard else min(end, self._report_due)


#: Once a trace is over, nodes have this long to report; then their recordings are fetched without the others.
GRACE_S = 3.0
#: The most of a node, with the names in its head.
MAX_NODE_NBYTES = MAX_RING_NBYTES + (1 << 20)


@dataclass(frozen=True, slots=True)
class TraceKey:
    """The proof that a tracer may ask: the job secret or the end key (empty: keys do), and sixteen random bytes."""

    secret: bytes
    nonce: bytes


class Recordings:
    """The nodes' recordings, fetched piece by piece: all by incarnation, in hexadecimal digits.

    `data` has the fetched ones, `missing` the reason if one is not; `waiting` is still to be fetched, in order.
    """

    def __init__(self) -> None:
        self.data: dict[str, bytearray] = {}
        self.missing: dict[str, str] = {}
        self.waiting: list[str] = []
        self._totals: dict[str, int] = {}

    def add(self, piece: Piece) -> bool:
        """Add a piece of the next recording; return whether to request more, or another recording."""
        who = self.waiting[0]
        data = self.data.setdefault(who, bytearray())
        if piece.who.hex() != who or piece.offset != len(data):
            return False  # the answer to a repeated request
        if self._totals.setdefault(who, piece.total) != piece.total or piece.total > MAX_NODE_NBYTES:
            self.leave_out("what it has recorded has changed meanwhile, or is too much")
            return True
        data += piece.data
        if len(data) >= piece.total > 0:
            self.waiting.pop(0)
        elif not piece.total:
            self.leave_out("it has recorded nothing")
        elif not piece.data:
            self.leave_out("its recording was freed meanwhile")
        return True

    def leave_out(self, why: str) -> None:
        """The next recording is not available."""
        who = self.waiting.pop(0)
        self.data.pop(who, None)
        self.missing[who] = why

    def validate(self) -> None:
        """Assert the invariants."""
        assert all(len(data) <= MAX_NODE_NBYTES for data in self.data.values())
        assert self.data.keys().isdisjoint(self.missing)


class Tracer(RepeatedQuestion):
    """One trace: started, awaited, and fetched; or one of these.

    It is started with ``start`` (job, seconds, steps and bytes on each node), unless the existing trace is used;
    ``stop`` ends it at once; without ``fetch`` it is done as soon as it was started or ended. After ``patience``
    seconds without an answer the coordinator is considered lost.
    """

    def __init__(
        self,
        endpoint: str,
        key: TraceKey,
        start: tuple[str, float, int, int] | None = None,
        *,
        stop: bool = False,
        fetch: bool = True,
        patience: float = math.inf,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(endpoint)
        self.patience = patience
        self.number = 0
        self.nodes: list[Mapping[str, Any]] = []
        self.recordings = Recordings()
        self._key = key
        self._start = start
        self._fetches = fetch
        self._progress = progress
        self._action = TraceAction.START if start is not None else TraceAction.STOP if stop else TraceAction.LOOK
        self._request = 1
        self._over_at: float | None = None
        self._asked_at: float | None = None  # when the pending question was first sent

    @property
    def title(self) -> str:
        """This client's identity, for errors."""
        return f"a tracer at {self.endpoint}"

    @property
    def awaited(self) -> str:
        """To answer, or to return the recordings."""
        return "to hand out what was recorded" if self.number else "to answer"

    def handle(self, event: NetworkEvent | Stop, now: float) -> list[Action]:
        """Process an answer; any other message is ignored."""
        if isinstance(event, Stop):
            return self._end(event.reason)
        if isinstance(event, Connected) and self._due is not None:
            return self.on_deadline(now)  # the earlier question could not be sent
        if isinstance(event, Looked):
            self.why = printable(event.why)
            return []
        if isinstance(event, Unreachable):
            self.error = event.error
            return self._end(str(event.error), exits.FAILED)
        message = event.message if isinstance(event, Received) else None
        if message is None or self._due is None or getattr(message, "request", 0) != self._request:
            return []
        self._look_due = None
        if isinstance(message, Error):
            return self._refused(from_wire(message.code, message.text, message.facts), now)
        if isinstance(message, Tracing) and not self._is_fetching:
            return self._told(message, now)
        if isinstance(message, Piece) and self._is_fetching:
            return self._fetch_next(now) if self.recordings.add(message) else []
        return []

    def on_deadline(self, now: float) -> list[Action]:
        """Repeat the question, or give up a node that has not answered for too long."""
        self._asked_at = now if self._asked_at is None else self._asked_at
        if now - self._asked_at < self.patience:
            return super().on_deadline(now)
        why = f" ({self.why})" if self.why else ""
        waited = f"the coordinator at {self.endpoint} {self.awaited}{why}"
        self.error = DeadlineError(operation="trace", seconds=self.patience, waiting_for=waited)
        return self._end(str(self.error), exits.FAILED)

    def validate(self) -> None:
        """Assert the invariants."""
        super().validate()
        self.recordings.validate()

    def _next_question(self) -> Message:
        message: Trace | Fetch
        if self._is_fetching:
            who = self.recordings.waiting[0]
            offset = len(self.recordings.data.get(who, b""))
            message = Fetch(self._request, self.number, bytes.fromhex(who), offset, self._key.nonce)
        else:
            job, seconds, steps, nbytes = self._start or ("", 0.0, 0, 0)
            message = Trace(self._request, self._action, job, seconds, steps, nbytes, self._key.nonce)
        return proved(self._key.secret, message)

    def _ask_next(self, now: float, after: float = 0.0) -> list[Action]:
        """Ask the next question, later or at once."""
        self._request += 1
        self._retry_s = FIRST_RETRY_S
        self._asked_at, self._look_due = None, now + after + LOOK_S
        if after:
            self._due = now + after
            return []
        return self.on_deadline(now)

    def _told(self, message: Tracing, now: float) -> list[Action]:
        nodes = presented(message.nodes).get("nodes", [])
        self.nodes = [node for node in nodes if isinstance(node, dict) and _is_hex(node.get("who"))]
        if message.state == TraceState.NONE or (self.number and message.number != self.number):
            self.error = JobError("there is no trace, or it has expired; zmqps trace start begins one")
            return self._end(str(self.error), exits.FAILED)
        self.number = message.number
        if not self._fetches:
            return self._end("answered")
        self._action = TraceAction.LOOK
        if message.state != TraceState.OFF:
            self._progress(f"recording on {len(self.nodes)} nodes, {message.left:.0f} s more")
            return self._ask_next(now, REPORT_S)
        if self._over_at is None:
            self._over_at = now
        late = [str(node["who"]) for node in self.nodes if node.get("state") != TraceState.OFF]
        if late and now < self._over_at + GRACE_S:
            return self._ask_next(now, REPORT_S)
        self.recordings.missing |= dict.fromkeys(late, "it has not said that it has recorded anything")
        self.recordings.waiting = [str(node["who"]) for node in self.nodes if node.get("state") == TraceState.OFF]
        return self._fetch_next(now)

    @property
    def _is_fetching(self) -> bool:
        return bool(self.recordings.waiting)

    def _fetch_next(self, now: float) -> list[Action]:
        return self._ask_next(now) if self._is_fetching else self._end("fetched")

    def _refused(self, error: PSError, now: float) -> list[Action]:
        if self._is_fetching and isinstance(error, JobError):
            self.recordings.leave_out(str(error))
            return self._fetch_next(now)
        self.error = error
        return self._end(str(error), exits.FAILED)

    def _end(self, reason: str, code: int = exits.OK) -> list[Action]:
        self._due = None
        return [Exit(code, reason)]


def _is_hex(text: Any) -> bool:
    """Whether this is an incarnation, in the form of reports about nodes."""
    return isinstance(text, str) and len(text) == 32 and all(character in "0123456789abcdef" for character in text)
