"""For whom each operation of a worker waits: said every few seconds, and in the error at its deadline."""

from __future__ import annotations

from typing import Protocol

from zmqps.core.node.member import REMINDER_INTERVAL_S
from zmqps.core.protocol.events import Action, Log
from zmqps.core.worker.operations import Advance, Exchange, Finish, Join, Operation, SessionHost
from zmqps.core.worker.transfers import Transfers
from zmqps.errors import DeadlineError, PSError

#: After so many heartbeats without an answer an error at a deadline tells of the coordinator's silence.
SILENT_BEATS = 2.5


class WaitsHost(SessionHost, Protocol):
    """What is needed of the session."""

    transfers: Transfers


class Waits:
    """What the operations of one session wait for, and for how long there were any before those there are now."""

    def __init__(self, host: WaitsHost) -> None:
        self.due: float | None = None
        self.busy_s = self.busy_since = 0.0
        self._host = host

    def remind(self, now: float) -> list[Action]:
        """Name what has been awaited for long, so that nobody stares at a silent terminal."""
        operations = self._host.operations
        self.due = now + REMINDER_INTERVAL_S if operations else None
        long = [o for o in operations if now - o.started_at >= REMINDER_INTERVAL_S]
        slow = [operation for operation in long if not isinstance(operation, Join)]
        text = "{}: {:.0f} s so far, waiting for {}"
        return [Log("warning", text.format(o.title, now - o.started_at, self._awaited(o, now))) for o in slow]

    def late(self, operation: Operation, now: float) -> PSError:
        """Return the error of an operation whose deadline has come."""
        seconds, awaited = round(now - operation.started_at, 3), self._awaited(operation, now)
        member = self._host.member
        welcome, silent_s = member.welcome, member.silence(now)
        if welcome is not None and member.joined and silent_s > SILENT_BEATS * welcome.heartbeat_interval:
            awaited += f"; the coordinator has been silent for {silent_s:.1f} s"
        return DeadlineError(operation=operation.title, seconds=seconds, waiting_for=awaited)

    def doing(self) -> str:
        """Return in a few words what this worker does at the moment."""
        operations, pace = self._host.operations, self._host.transfers.pace
        first = next(iter(operations), None)
        if first is None:
            return "computing"
        if isinstance(first, (Exchange, Advance)) and first in pace.held:
            return "waiting for the step to end" if pace.arrive is not None else "waiting"
        return first.title

    def waited_s(self, now: float) -> float:
        """Return for how many seconds there was an operation under way, in all."""
        return self.busy_s + (now - self.busy_since if self._host.operations else 0.0)

    def oldest_s(self, now: float) -> float:
        """Return for how many seconds the first operation has been under way; 0: there is none."""
        first = next(iter(self._host.operations), None)
        return 0.0 if first is None else now - first.started_at

    def _awaited(self, operation: Operation, now: float) -> str:
        """Say whom an operation waits for."""
        transfers, member = self._host.transfers, self._host.member
        pace = transfers.pace
        if isinstance(operation, (Exchange, Advance)) and operation in pace.held:
            return pace.awaited or "the step before it"
        if operation.transfer is not None:
            return transfers.waiting_for(operation.transfer, now)
        others = [other.title for other in self._host.operations if isinstance(other, Exchange)]
        if isinstance(operation, Finish) and others:
            return f"operations under way: {', '.join(others)}"
        if isinstance(operation, Join) or not member.joined:
            return f"the coordinator at {member.handshake.endpoint}{member.handshake.because}"
        return operation.waiting_for or "the coordinator's answer"
