"""The worker's machine: the user's operations in, messages to coordinator and servers out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from zmqps.core.node.member import GONE, REMINDER_INTERVAL_S, UNSURE, Identity, Member, Standing
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import CODING, Coding
from zmqps.core.protocol.events import (
    COORDINATOR,
    Action,
    Connected,
    Disconnected,
    Exit,
    Log,
    Looked,
    NetworkEvent,
    Peer,
    Received,
    Resolve,
    Send,
    Stop,
    Undecodable,
    Unreachable,
)
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.protocol.security.guard import check_welcome
from zmqps.core.worker.asked import Asked
from zmqps.core.worker.connections.links import Links
from zmqps.core.worker.host import SessionHooks, tell
from zmqps.core.worker.operations import (
    Advance,
    Attached,
    Cancelled,
    Exchange,
    Finish,
    Join,
    Operation,
    Question,
)
from zmqps.core.worker.pace import Gate
from zmqps.core.worker.transfer import all_finite
from zmqps.core.worker.transfers import Transfers
from zmqps.core.worker.waits import Orphaned, Waits
from zmqps.errors import (
    ClosedError,
    KeyRefusedError,
    PSError,
    ShutdownError,
    from_wire,
    printable,
)

#: How long a goodbye waits for its answer: a coordinator that ended with it may have ended before it was read.
FAREWELL_S = 2.0

Event = NetworkEvent | Stop | Operation | Cancelled


@dataclass(slots=True, kw_only=True)
class SessionEnd:
    """The progress of the end of a session."""

    finish: Finish | None = None  # completes with the pending transfers and the answer to the goodbye
    has_parted: bool = False  # the servers got a goodbye
    stops: bool = False  # the process exits as soon as the goodbye is answered
    due: float | None = None  # when to stop waiting for the answer
    error: PSError | None = None  # why no operation can start any more

    @property
    def finishes(self) -> bool:
        """Whether an operation waits for the end."""
        return self.finish is not None and not self.finish.done


class SessionKernel:
    """A worker or observer without its sockets.

    `Operation` objects are events here, in addition to those of `zmqps.core.protocol.events`; each is resolved exactly
    once, by its result, an error, or at its deadline. Before a push sends anything ``all_finite`` checks that its flat
    arrays hold neither NaN nor infinity, so that a refused push changes nothing anywhere.
    """

    def __init__(
        self,
        identity: Identity,
        coordinator: str,
        all_finite: Callable[[Sequence[Array]], bool] = all_finite,
        coding: Coding = CODING,
    ) -> None:
        self.member = Member(identity, coordinator, self.counters)
        self.hooks = SessionHooks()
        self.attached: Attached | None = None
        self.operations: dict[Operation, None] = {}  # in order of arrival
        self.links = Links(self.member, coding)
        self.transfers = Transfers(self, self.links, all_finite)
        self.now = 0.0  # of the event being handled
        self.questions = Asked(self, self.links, self.transfers)  # at the coordinator, arrivals included
        self.news: dict[type[m.Message], Callable[[Any, float], list[Action]]] = {
            m.Welcome: self._on_welcome,
            m.Lost: self.transfers.lose_server,
            m.Shutdown: self._on_shutdown,
            m.Left: self._on_left,
            m.Proceed: self.transfers.proceed,
            m.Hold: self.transfers.pause,
        }
        self._end = SessionEnd()
        self._waits = Waits(self, self.transfers)
        self._orphaned = Orphaned(self.member, self.transfers.pace)

    def start(self, now: float) -> list[Action]:
        """Begin to join."""
        actions = self.member.start(now)
        self._set_alarm()
        return actions

    # --- for other code to read ----------------------------------------------------------------

    def counters(self) -> Mapping[str, Any]:
        """Return the counters shown in the status."""
        links, counts = self.links, self.links.counts
        return {
            **{name: self.transfers.counts[name] for name in ("pushes", "pulls", "nonfinite", "dropped")},
            **{name: counts[name] for name in ("bytes_sent", "bytes_received", "retries")},
            "clock": self.transfers.pace.clock,
            "in_flight_nbytes": links.in_flight_nbytes,
            "saved_nbytes": links.saved_nbytes,
            "oldest_request_s": round(self._waits.oldest_s(self.now), 3),
            "doing": self._waits.doing(),
            "waiting_seconds": round(self._waits.waited_s(self.now), 6),
            **links.counters(self.now),
        }

    @property
    def epoch(self) -> int:
        """The job's epoch; 0 before it is known."""
        return 0 if self.attached is None else self.attached.epoch

    @property
    def title(self) -> str:
        """This worker's identity, for errors."""
        return self.member.title

    # --- the door ------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Action]:
        """Process an event, then all that it makes possible."""
        self.now = now
        if isinstance(event, Received) and event.peer != COORDINATOR:
            actions = self.transfers.handle(event.peer, event.message, now)
        elif isinstance(event, Operation):
            actions = self._begin(event, now)
        else:
            before = self.member.standing
            actions = self._take(event, now)
            if (
                before is not Standing.JOINED
                or not isinstance(event, Received)
                or not isinstance(event.message, m.Proceed)
            ):
                self._set_alarm()
        # what waited for an operation that has just ended: only here, after the event, because ends may let others
        # start, which may end at once and let others start, without a limit
        pace = self.transfers.pace
        if pace.held or pace.gate is Gate.COMPLETE or pace.paused is not None:
            actions += self.transfers.go_on(now)
        return actions if self._end.finish is None else [*actions, *self._finish_if_idle(self._end.finish)]

    def _take(self, event: NetworkEvent | Stop | Cancelled, now: float) -> list[Action]:
        if isinstance(event, Cancelled):
            withdrawn = event.operation in self.operations and self.transfers.can_withdraw(event.operation)
            return self.resolve(event.operation, event) if withdrawn else []
        if isinstance(event, Stop):
            return self._stop()
        if isinstance(event, Undecodable):
            text = f"dropped what {self.links.title_of(event.peer)} sent: {event.error}"
            return [Log("warning", text, error=event.error.number)]
        if isinstance(event, Unreachable):
            return self._unreachable(event.peer, event.error)
        if isinstance(event, Connected):
            if event.peer != COORDINATOR:
                return self.links.connected(event.peer, now)
            return [*self.member.on_connected(now), *self._ask_again(now)]
        if isinstance(event, Disconnected):
            return self.links.disconnected(event.peer, now)
        if isinstance(event, Looked):
            ours = event.peer == COORDINATOR
            return self.member.looked(event.why, now) if ours else self.links.looked(event, now)
        return self._from_coordinator(event.message, now)

    def next_deadline(self) -> float | None:
        """Return the earliest deadline."""
        due = self.links.commons.alarm.due
        return None if due == inf else due

    def _dues(self) -> list[float | None]:
        """Return the deadline of each part outside the path of a step."""
        pause = self.transfers.pace.paused
        parts = (self.member, self.questions, self._waits, self._orphaned, self._end)
        return [*(part.due for part in parts), None if pause is None else pause.due]

    def _set_alarm(self) -> None:
        """A deadline may be earlier than before."""
        alarm = self.links.commons.alarm
        alarm.due = min([alarm.due, *[due for due in self._dues() if due is not None]])

    def on_deadline(self, now: float) -> list[Action]:
        """Heartbeats, resends, timeouts."""
        self.now = now
        actions: list[Action] = []
        if self.member.due is not None and now >= self.member.due:
            actions += self.member.on_deadline(now)
            if self.member.lost:
                actions += self._lose_coordinator(now)
        actions += self.links.on_deadline(now)
        if self._end.due is not None and now >= self._end.due:
            actions += self._on_farewell_due(now)
        actions += self.questions.on_deadline(now)
        actions += self.transfers.on_pause_due(now)
        if self._waits.due is not None and now >= self._waits.due:
            actions += self._waits.remind(now)
        if self._orphaned.due is not None and now >= self._orphaned.due:
            for operation in self._orphaned.look(self.operations, now):
                actions += self.resolve(operation, self._orphaned.error(now))
        for operation in [operation for operation in self.operations if now >= operation.deadline]:
            actions += self._give_up(operation, now)
        actions += self.transfers.go_on(now)
        if self._end.finish is not None:
            actions += self._finish_if_idle(self._end.finish)
        links, operations = self.links.by_shard, self.operations
        dues = [*self._dues(), *(link.next_deadline() for link in links), *(each.deadline for each in operations)]
        self.links.commons.alarm.reset(dues)
        return actions

    def validate(self) -> None:
        """Assert the invariants."""
        for operation in self.operations:
            assert not operation.done
        self.links.commons.alarm.validate([*self._dues(), *(operation.deadline for operation in self.operations)])
        self.questions.validate()
        self.transfers.validate()

    # --- operations ----------------------------------------------------------------------------

    def _begin(self, operation: Operation, now: float) -> list[Action]:
        operation.started_at = now
        if self._end.error is not None:
            return self.resolve(operation, None if isinstance(operation, Finish) else self._end.error)
        if self._end.finish is not None:
            return self.resolve(operation, ClosedError("the worker has finished"))
        alarm, waits = self.links.commons.alarm, self._waits
        if self.member.standing in GONE:
            if isinstance(operation, Question) or self._orphaned.is_ahead(operation):
                return self.resolve(operation, self._orphaned.error(now))
            self._orphaned.add(now)
            alarm.by(self._orphaned.due)
        if not self.operations:
            waits.busy_since = now
        self.operations[operation] = None
        alarm.due = min(alarm.due, operation.deadline)
        if waits.due is None:
            waits.due = now + REMINDER_INTERVAL_S
            alarm.due = min(alarm.due, waits.due)
        if isinstance(operation, (Exchange, Advance)):
            return self.transfers.begin(operation, now)
        if isinstance(operation, Join):
            return self.resolve(operation, None) if self.member.joined else []
        if isinstance(operation, Finish):
            self._end.finish = operation
            actions = tell(self.hooks.finishing, now)
            self._set_alarm()
            return actions
        assert isinstance(operation, Question)
        return self.questions.begin(operation, now)

    def resolve(self, operation: Operation, value: Any) -> list[Action]:
        """Complete an operation; ``value`` is its result or the exception to raise."""
        assert not operation.done
        operation.done = True
        self.operations.pop(operation, None)
        if not self.operations:
            self._waits.busy_s += self.now - self._waits.busy_since
        actions = self.questions.end(operation, value) if isinstance(operation, Question) else []
        if (ended := self.hooks.ended.get(type(operation))) is not None:
            actions += ended(operation, value)
        actions.append(Resolve(operation, value))
        pace = self.transfers.pace
        if operation.transfer is not None or pace.held or pace.step.closing is not None:
            actions += self.transfers.forget(operation)
        return actions

    def _give_up(self, operation: Operation, now: float) -> list[Action]:
        if operation.done:
            return []
        if self.member.lost and operation.transfer is not None:  # its server may have ended for the same reason
            return self.resolve(operation, self._orphaned.error(now))
        return self.resolve(operation, self._waits.late(operation, now))

    def _finish_if_idle(self, finish: Finish) -> list[Action]:
        """Say goodbye once the transfers are done; the coordinator's `Left` completes the operation.

        Not before the coordinator has our last step: it counts although we do not wait for its end.
        """
        if finish.done:
            return []
        busy = any(isinstance(operation, (Exchange, Advance)) for operation in self.operations)
        pace = self.transfers.pace
        stays = any(stays(self.now) for stays in self.hooks.staying)
        unheard = self.member.joined and ((pace.arrive is not None and not pace.awaited) or stays)
        if busy or unheard:
            return []
        actions = self._goodbye(finish.reason)
        return actions if self.member.known else [*actions, *self.resolve(finish, None)]

    def _goodbye(self, reason: DepartureCause) -> list[Action]:
        farewells = [] if self._end.has_parted else self.links.part(reason)
        self._end.has_parted = True
        if self.member.left:
            return farewells
        self._end.due = self.now + FAREWELL_S
        actions = [*farewells, *tell(self.hooks.leaving, self.now), *self.member.leave(reason, self.now)]
        self._set_alarm()
        return actions

    def _on_farewell_due(self, now: float) -> list[Action]:
        """End without an answer, unless a finishing worker waits for an absent coordinator to learn of it.

        Otherwise it would count as lost.
        """
        end, actions = self._end, list[Action]()
        if end.finishes and not end.stops and self.member.is_patient(now):
            end.due = now + FAREWELL_S
            return actions
        end.due = None
        if end.finish is not None and end.finishes:
            actions += self.resolve(end.finish, None)
        if end.stops:
            actions.append(Exit(0, ""))
        return actions

    def _stop(self) -> list[Action]:
        """Fail all waiting operations and say goodbye; exit when that is answered, so that no successor meets us.

        At once if no answer can come, and when called again.
        """
        again, self._end.stops = self._end.stops, True
        actions = [*self._goodbye(DepartureCause.CLOSED), *self._fail_all(ClosedError("the worker was closed"))]
        awaited = self.member.known and self._end.due is not None and not again
        return actions if awaited else [*actions, Exit(0, "")]

    def _fail_all(self, error: PSError) -> list[Action]:
        self._end.error = self._end.error or error
        self.links.forget_servers()
        actions: list[Action] = []
        for operation in list(self.operations):
            if not operation.done:
                actions += self.resolve(operation, None if isinstance(operation, Finish) else error)
        return actions

    # --- the coordinator -----------------------------------------------------------------------

    def _from_coordinator(self, message: m.Message, now: float) -> list[Action]:
        before = self.member.standing
        actions = self.member.on_message(message, now)
        if self.member.standing is Standing.REPLACED:
            return actions if before in GONE else [*actions, *self._lose_coordinator(now)]
        if self.member.standing in UNSURE or before in UNSURE:
            actions += self._ask_again(now, returned=isinstance(message, m.Welcome))
        if (take := self.news.get(type(message))) is not None:
            actions += take(message, now)
        elif isinstance(message, m.Error) and message.request == 0:
            self.member.abandon()
            actions += self._fail_all(from_wire(message.code, message.text, message.facts))
        elif (arrive := self.transfers.pace.arrive) is not None and _answers(message, arrive.request):
            actions += self.transfers.wait(message)
        else:
            actions += self.questions.answer(message, now)
        if self._end.stops and isinstance(message, (m.Left, m.Shutdown, m.Error)):  # it has answered, or will not
            actions.append(Exit(0, ""))
        return actions

    def _ask_again(self, now: float, *, returned: bool = False) -> list[Action]:
        """Repeat unanswered requests, as soon as the coordinator knows this node."""
        if not self.member.joined or self.member.unsure:
            self.questions.held = self.member.unsure
            return []
        actions = [*self.questions.again(now), *tell(self.hooks.back, now)]
        return [*actions, Send(COORDINATOR, m.Resumed(self.transfers.pace.clock))] if returned else actions

    def _on_welcome(self, message: m.Welcome, now: float) -> list[Action]:
        try:
            check_welcome(self.member.identity.job_secret, self.member.handshake.hello, message)
        except PSError as error:
            self.member.abandon()
            return self._fail_all(error)
        actions: list[Action] = []
        for join in [o for o in self.operations if isinstance(o, Join)]:
            actions += self.resolve(join, None)
        return actions

    def _on_shutdown(self, message: m.Shutdown, now: float) -> list[Action]:
        actions = self.member.leave(DepartureCause.CLOSED, now)  # the coordinator waits for it
        return actions + self._fail_all(ShutdownError(f"the cluster has ended: {printable(message.reason)}"))

    def _on_left(self, message: m.Left, now: float) -> list[Action]:
        self._end.due = None
        if self._end.finish is None or not self._end.finishes:
            return []
        return self.resolve(self._end.finish, None) + self._fail_all(ClosedError("the worker has finished"))

    def _unreachable(self, peer: Peer, error: PSError) -> list[Action]:
        told = [] if self._end.error else [Log("error", str(error), error=error.number)]
        if peer == COORDINATOR:
            self.member.abandon()
        elif not isinstance(error, KeyRefusedError):
            return [*told, *self.transfers.fail_links(self.links.by_peer.get(peer, ()), error)]
        return [*([] if self.operations else told), *self._fail_all(error)]

    def coordinator_lost(self, now: float) -> PSError | None:
        """Return the error of requests to the coordinator; None while it is there."""
        return self._orphaned.error(now) if self.member.lost else None

    def _lose_coordinator(self, now: float) -> list[Action]:
        error = self._orphaned.error(now)
        said = Log("error", str(error), error=error.number)
        actions: list[Action] = [said, *self.transfers.unpause(now)]  # no coordinator will end the pause
        for operation in self._orphaned.begin(self.operations, now):
            actions += self.resolve(operation, error)
        return actions


def _answers(message: m.Message, request: int) -> bool:
    """Whether a message is about the arrival with this number; a `Fetch` has other numbers."""
    return isinstance(message, (m.Waiting, m.Error)) and message.request == request
