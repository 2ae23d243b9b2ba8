"""A node's part in a trace: it records while requested, reports, and returns its recording."""

from __future__ import annotations

from typing import Protocol

from zmqps.core.node.clock import Samples
from zmqps.core.node.member import Member, MemberPart
from zmqps.core.protocol.events import COORDINATOR, Action, Send
from zmqps.core.protocol.limits import MAX_BLOB_NBYTES
from zmqps.core.protocol.messages import Clock, Fetch, Piece, RecordSpans, SpansRecorded
from zmqps.core.protocol.messages.tracing import TraceState

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
