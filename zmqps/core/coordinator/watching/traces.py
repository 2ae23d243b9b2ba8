"""Traces of a running cluster: which nodes record, until when, and how recordings reach the client.

The coordinator stores nothing of the recordings: it forwards one piece at a time to the client. A trace ends at its
time, whatever happens to clients: each node ends it by itself.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from zmqps.core.coordinator.jobs import unknown_job
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.node.member import Identity
from zmqps.core.node.timers import Wheel
from zmqps.core.node.tracing import AGAIN_S, KEEP_S, LONGEST_S, MAX_RING_NBYTES, REPORT_S, Nothing, Recorder
from zmqps.core.protocol.events import Action, Peer, Send
from zmqps.core.protocol.message import MAX_BLOB_NBYTES
from zmqps.core.protocol.messages import Clock, Fetch, Piece, RecordSpans, SpansRecorded, Trace, Tracing
from zmqps.core.protocol.messages.tracing import TraceAction, TraceState
from zmqps.core.protocol.security.keys import KEY_NBYTES
from zmqps.errors import JobError, LimitError, ProtocolError

if TYPE_CHECKING:
    from zmqps.core.coordinator.run import JobRun

#: The most recording nodes: a larger trace is too much to look at.
MAX_TRACED = 256
#: Pieces on their way to clients.
MAX_FETCHES = 64
#: How often new nodes, and nodes without an answer, are checked.
LOOK_S = REPORT_S


@dataclass(slots=True, eq=False, kw_only=True)
class NodeTrace:
    """The state of a node: its last report, its identity, and when it was asked to start or stop."""

    facts: dict[str, Any]
    told_at: float
    state: TraceState = TraceState.NONE
    nbytes: int = 0
    lost: int = 0
    steps: int = 0
    clock: dict[str, float] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        said = {"state": self.state, "nbytes": self.nbytes, "lost": self.lost, "steps": self.steps}
        return {**self.facts, **said, **self.clock}


class Fetching(NamedTuple):
    """The client of a piece: its connection, and the number there."""

    peer: Peer
    request: int
    who: bytes


class Traces:
    """One trace at a time."""

    def __init__(
        self, identity: Identity, members: Mapping[bytes, MemberInfo], runs: Mapping[str, JobRun], wheel: Wheel
    ) -> None:
        self._timer = wheel.timer("tracing", self.next_deadline, self.on_deadline)
        self.recorder: Recorder = Nothing()  # of the coordinator itself; set by its shell
        self.state = TraceState.NONE
        self.ends_at = 0.0
        self.nodes: dict[bytes, NodeTrace] = {}
        self._identity = identity
        self._members = members
        self._runs = runs
        self._wanted = Trace(0, TraceAction.START, "", 0.0, 0, 0)
        self._look_due: float | None = None
        self._fetches: OrderedDict[int, Fetching] = OrderedDict()  # by the number sent to a node
        self._last_fetch = 0

    @property
    def number(self) -> int:
        """The number of the last one; 0: there was none."""
        return _number_of(self._wanted)

    # --- clients -------------------------------------------------------------------------------

    def ask(self, peer: Peer, message: Trace | Fetch, now: float) -> list[Action]:
        """Start a trace, end it, report its progress, or fetch a piece of it.

        Raises `JobError`: there is no such job, no such node, or no such trace any more; `LimitError`: there is another
        trace, or it would be too long or too large.
        """
        if isinstance(message, Fetch):
            return self._fetch(peer, message)
        actions: list[Action] = []
        if message.action == TraceAction.START:
            actions = self._start(message, now)
        elif message.action == TraceAction.STOP and self.state == TraceState.ON:
            actions = self._stop(now)
        left = max(0.0, self.ends_at - now) if self.state == TraceState.ON else 0.0
        nodes = {"nodes": [node.described() for node in self.nodes.values()]}
        return [*actions, Send(peer, Tracing(message.request, self.number, self.state, left, nodes))]

    def _start(self, message: Trace, now: float) -> list[Action]:
        if len(message.nonce) != KEY_NBYTES:
            raise ProtocolError(f"a trace has a nonce of {KEY_NBYTES} bytes")
        if _number_of(message) == self.number:
            return []  # repeated, because the answer was lost
        if self.state == TraceState.ON:
            raise LimitError(what="number of traces at a time", got=2, limit=1)
        if message.job and message.job not in self._runs:
            raise unknown_job(message.job, self._runs)
        if not 0 < message.seconds <= LONGEST_S:
            raise LimitError(what="seconds of a trace", got=int(message.seconds), limit=int(LONGEST_S))
        if message.nbytes > MAX_RING_NBYTES:
            raise LimitError(what="bytes of a trace on a node", got=message.nbytes, limit=MAX_RING_NBYTES)
        self._forget()
        self._wanted, self.state = message, TraceState.ON
        self.ends_at = now + message.seconds
        own = self._identity
        facts = {"who": own.incarnation.hex(), "role": "coordinator", "rank": 0, "name": own.name, "host": own.host}
        self.nodes[own.incarnation] = NodeTrace(facts={**facts, "job": ""}, told_at=now, state=TraceState.ON)
        self.recorder.start(message.nbytes)
        return self._look(now)

    def _stop(self, now: float) -> list[Action]:
        self.recorder.stop()
        own = self.nodes[self._identity.incarnation]
        own.state, own.nbytes, own.lost = TraceState.OFF, self.recorder.nbytes, self.recorder.lost
        own.clock = {"offset_s": 0.0, "error_s": 0.0}
        self.state, self.ends_at = TraceState.OFF, now
        return self._look(now)

    def _forget(self) -> None:
        if self.state == TraceState.ON:
            self.recorder.stop()
        if self.state != TraceState.NONE:
            self.recorder.forget()
        self.state, self._look_due = TraceState.NONE, None
        self._timer.touch()
        self.nodes.clear()
        self._fetches.clear()

    # --- recording nodes -----------------------------------------------------------------------

    def _is_wanted(self, member: MemberInfo) -> bool:
        return not self._wanted.job or member.role == "server" or member.job == self._wanted.job

    def _look(self, now: float) -> list[Action]:
        """Inform new nodes, and those that have not answered."""
        actions: list[Action] = []
        self._look_due = now + LOOK_S
        self._timer.touch()
        if self.state == TraceState.ON:
            self._look_due = min(self._look_due, self.ends_at)
            for who, member in self._members.items():
                if who not in self.nodes and self._is_wanted(member) and len(self.nodes) < MAX_TRACED:
                    self.nodes[who] = NodeTrace(facts=_described(member), told_at=now)
                    actions.append(self._tell(member, now))
        for who, node in self.nodes.items():
            records_on = self.state == TraceState.OFF and node.state == TraceState.ON and node.told_at < self.ends_at
            unheard = node.state != self.state and now >= node.told_at + AGAIN_S
            if who in self._members and (records_on or unheard):
                actions.append(self._tell(self._members[who], now))
        return actions

    def _tell(self, member: MemberInfo, now: float) -> Action:
        self.nodes[member.incarnation].told_at = now
        left = max(0.0, self.ends_at - now) if self.state == TraceState.ON else 0.0
        return Send(member.peer, RecordSpans(self.number, left, self._wanted.nbytes))

    def told(self, member: MemberInfo, message: SpansRecorded | Piece, now: float) -> list[Action]:
        """A node reports its progress, or sends a requested piece."""
        if isinstance(message, Piece):
            return self._pass_on(member, message)
        clock = Send(member.peer, Clock(message.number, message.state, message.sent, self.recorder.time()))
        node = self.nodes.get(member.incarnation) if message.number == self.number else None
        if node is None or self.state == TraceState.NONE:  # it has been forgotten
            end = [Send(member.peer, RecordSpans(message.number, 0.0, 0))] if message.state == TraceState.ON else []
            return [clock, *end]
        node.state, node.nbytes, node.lost, node.steps = message.state, message.nbytes, message.lost, message.steps
        node.clock = _clock_of(message.facts)
        return [clock]

    def next_deadline(self) -> float | None:
        return self._look_due

    def on_deadline(self, now: float) -> list[Action]:
        """End a trace at its time, or when all have done their steps; repeat unanswered messages; forget old ones."""
        if self._look_due is None or now < self._look_due:
            return []
        if self.state == TraceState.ON and (now >= self.ends_at or self._is_done):
            return self._stop(now)
        if self.state == TraceState.OFF and now >= self.ends_at + KEEP_S:
            self._forget()
            return []
        return self._look(now)

    @property
    def _is_done(self) -> bool:
        """Whether all present workers have done the requested steps."""
        members = self._members
        workers = [n for who, n in self.nodes.items() if who in members and members[who].role == "worker"]
        steps = self._wanted.steps
        return bool(steps and workers) and all(node.steps >= steps for node in workers)

    # --- recordings ----------------------------------------------------------------------------

    def _fetch(self, peer: Peer, message: Fetch) -> list[Action]:
        if message.number != self.number or self.state != TraceState.OFF:
            raise JobError("there is no such trace, or it has expired; start another one: zmqps trace start")
        if message.who == self._identity.incarnation:
            data = self.recorder.read(message.offset, MAX_BLOB_NBYTES)
            total = self.recorder.nbytes
            piece = Piece(message.request, message.number, message.who, message.offset, total, data)
            return [Send(peer, piece)]
        if message.who not in self.nodes or message.who not in self._members:
            raise JobError("the node whose trace is asked for has left, and has taken it along")
        self._last_fetch = self._last_fetch % 0xFFFFFFFF + 1
        self._fetches[self._last_fetch] = Fetching(peer, message.request, message.who)
        while len(self._fetches) > MAX_FETCHES:  # lost in transfer; the client repeats its request
            self._fetches.popitem(last=False)
        asked = Fetch(self._last_fetch, message.number, message.who, message.offset)
        return [Send(self._members[message.who].peer, asked)]

    def _pass_on(self, member: MemberInfo, piece: Piece) -> list[Action]:
        fetching = self._fetches.get(piece.request)
        if fetching is None or piece.number != self.number:
            return []  # another one's by now, or an answer to a repeated request
        if not fetching.who == member.incarnation == piece.who:
            raise ProtocolError("a node hands out what itself has recorded, and nothing else")
        del self._fetches[piece.request]
        passed = Piece(fetching.request, piece.number, piece.who, piece.offset, piece.total, piece.data)
        return [Send(fetching.peer, passed)]

    def validate(self) -> None:
        assert (self._look_due is None) == (self.state == TraceState.NONE)
        assert len(self.nodes) <= MAX_TRACED
        assert len(self._fetches) <= MAX_FETCHES
        assert self.state != TraceState.NONE or not self.nodes


def _number_of(trace: Trace) -> int:
    return (int.from_bytes(trace.nonce[:8], "little") or 1) if trace.nonce else 0


def _clock_of(facts: Mapping[str, Any]) -> dict[str, float]:
    """Return what a node knows of this clock, if plausible."""
    known = {name: facts.get(name, math.inf) for name in ("offset_s", "error_s")}
    return {name: float(value) for name, value in known.items() if type(value) in (int, float) and abs(value) < 1e12}


def _described(member: MemberInfo) -> dict[str, Any]:
    hello = member.hello
    facts = {"who": hello.incarnation.hex(), "role": hello.role, "rank": member.rank, "name": hello.name}
    return {**facts, "host": hello.host, "job": member.job}
