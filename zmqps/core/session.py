"""The worker's machine: the user's operations in, messages to coordinator and servers out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np

from zmqps.core.arrays import Array
from zmqps.core.events import (
    COORDINATOR,
    Action,
    Exit,
    Log,
    Peer,
    Received,
    Resolve,
    Send,
    Stop,
    Undecodable,
    Unreachable,
    server_peer,
)
from zmqps.core.job import JobSpec
from zmqps.core.keyspace import KeySpace, Placement
from zmqps.core.link import Link
from zmqps.core.member import REMINDER_INTERVAL_S, Handshake, Identity, Member
from zmqps.core.messages import (
    Ack,
    Error,
    Job,
    Left,
    Lost,
    Message,
    Released,
    Shutdown,
    Status,
    StatusRequest,
    Values,
    Waiting,
    Welcome,
    Withdraw,
)
from zmqps.core.messages import Enter as EnterMessage
from zmqps.core.messages import Init as InitMessage
from zmqps.core.messages import Leave as LeaveMessage
from zmqps.core.operations import (
    AskStatus,
    Attached,
    Enter,
    Finish,
    Init,
    Join,
    Operation,
    Statistics,
    Tally,
    Transfer,
    plan,
)
from zmqps.errors import (
    ClosedError,
    DeadlineError,
    NonFiniteGradientError,
    PeerLostError,
    ProtocolError,
    PSError,
    ShutdownError,
    from_wire,
)


def _all_finite(array: Array) -> bool:
    return bool(np.isfinite(array).all())


class SessionMachine:
    """A worker or observer without its sockets.

    `Operation` objects are events here, besides those of `zmqps.core.events`; each is resolved
    exactly once, by its result, an error, or at its deadline.

    Parameters
    ----------
    identity
        Who this is.
    coordinator
        The coordinator's endpoint.
    all_finite
        Whether a flat array holds neither NaN nor infinity; asked before a push sends anything, so
        that a refused push changes nothing anywhere.
    """

    def __init__(self, identity: Identity, coordinator: str, all_finite: Callable[[Array], bool] = _all_finite) -> None:
        self.member = Member(identity, coordinator, self.counters)
        self.links: list[Link] = []
        self.attached: Attached | None = None
        self._by_peer: dict[Peer, Link] = {}
        self._endpoints: dict[str, Peer] = {}  # connections to servers
        self._numbers = count(1)  # of requests to servers
        self._epoch = 0
        self._all_finite = all_finite
        self.tally = Tally()
        self._operations: dict[Operation, None] = {}  # in the order they came
        self._requests: dict[int, Operation] = {}  # at the coordinator
        self._next_request = 1
        self._fatal: PSError | None = None
        self._finishing: Finish | None = None
        self._reminder_due: float | None = None

    def start(self, now: float) -> list[Action]:
        """Begin to join."""
        return self.member.start(now)

    # --- what others may look at ---------------------------------------------------------------

    def statistics(self) -> Statistics:
        """Return what was done so far."""
        counts: Counter[str] = sum((link.counts for link in self.links), Counter())
        for name in ("bytes_sent", "bytes_received", "retries"):
            self.tally.counts[name] = counts[name]
        in_flight = sum(link.in_flight_nbytes for link in self.links)
        return self.tally.statistics(in_flight, self.attached.job.mode if self.attached else "")

    def counters(self) -> Mapping[str, Any]:
        """Return the counters shown in the status."""
        s = self.statistics()
        names = ("pushes", "pulls", "bytes_sent", "bytes_received", "retries", "nonfinite", "staleness_max")
        return {**{name: getattr(s, name) for name in names}, "staleness_mean": round(s.staleness_mean, 3)}

    # --- the door ------------------------------------------------------------------------------

    def handle(self, event: Received | Undecodable | Unreachable | Stop | Operation, now: float) -> list[Action]:
        """Take an event."""
        if isinstance(event, Operation):
            return self._begin(event, now)
        if isinstance(event, Stop):
            return [*self._goodbye(event.reason), *self._fail_all(ClosedError("the worker was closed")), Exit(0, "")]
        if isinstance(event, Undecodable):
            return [Log("warning", f"dropped what {event.peer!r} sent: {event.error}")]
        link = self._by_peer.get(event.peer)
        if isinstance(event, Unreachable):
            return [Log("error", str(event.error)), *(self._fail_link(link, event.error) if link is not None else [])]
        if event.peer == COORDINATOR:
            return self._from_coordinator(event.message, now)
        return self._from_server(link, event.message, now) if link is not None else []

    def next_deadline(self) -> float | None:
        """Return when something is due."""
        dues = [self.member.next_deadline(), self._reminder_due, *(link.next_deadline() for link in self.links)]
        dues += [operation.deadline for operation in self._operations]
        return min((due for due in dues if due is not None), default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Heartbeats, resends, timeouts."""
        actions: list[Action] = []
        due = self.member.next_deadline()
        if due is not None and now >= due:
            actions += self.member.on_deadline(now)
            if self.member.lost:
                actions += self._lose_coordinator(now)
        for link in self.links:
            due = link.next_deadline()
            if due is not None and now >= due:
                actions += link.on_deadline(now)
        if self._reminder_due is not None and now >= self._reminder_due:
            actions += self._remind(now)
        for operation in [operation for operation in self._operations if now >= operation.deadline]:
            actions += self._give_up(operation, now)
        return actions

    def validate(self) -> None:
        """Assert the invariants."""
        for link in self.links:
            link.validate()
        assert all(not operation.done for operation in self._operations)
        assert set(self._requests.values()) <= set(self._operations)
        for operation in self._operations:
            if isinstance(operation, Transfer):
                requests = [r for link in self.links for r in [*link.queue, *link.in_flight.values()]]
                assert operation.remaining == sum(r.transfer is operation for r in requests)

    # --- operations ----------------------------------------------------------------------------

    def _begin(self, operation: Operation, now: float) -> list[Action]:
        operation.started_at = now
        if self._fatal is not None:
            return self._resolve(operation, None if isinstance(operation, Finish) else self._fatal)
        if self._finishing is not None:
            return self._resolve(operation, ClosedError("the worker has finished"))
        if self.member.lost and isinstance(operation, (Init, Enter, AskStatus)):
            return self._resolve(operation, self._coordinator_lost(now))
        self._operations[operation] = None
        if self._reminder_due is None:
            self._reminder_due = now + REMINDER_INTERVAL_S
        if isinstance(operation, Transfer):
            return self._transfer(operation, now)
        if isinstance(operation, Join):
            return self._resolve(operation, None) if self.member.joined else []
        if isinstance(operation, Finish):
            self._finishing = operation
            return self._finish_if_idle()
        assert isinstance(operation, (Init, Enter, AskStatus))
        operation.request = self._next_request
        self._requests[operation.request] = operation
        self._next_request += 1
        if isinstance(operation, Init):
            job = operation.job.to_wire() if operation.job else {}
            return [Send(COORDINATOR, InitMessage(operation.request, job))]
        if isinstance(operation, Enter):
            return [Send(COORDINATOR, EnterMessage(operation.request, operation.barrier))]
        return [Send(COORDINATOR, StatusRequest(operation.request))]

    def _transfer(self, transfer: Transfer, now: float) -> list[Action]:
        for link, cargoes in zip(self.links, transfer.cargoes, strict=True):
            if link.lost is not None and cargoes:
                return self._resolve(self._owner(transfer), link.lost)
        if transfer.kind in ("push", "push_pull") and (error := self._nonfinite(transfer)) is not None:
            self.tally.refused()
            return self._resolve(transfer, error)
        actions: list[Action] = []
        for link, cargoes in zip(self.links, transfer.cargoes, strict=True):
            link.enqueue(transfer, cargoes)
        for link in self.links:
            actions += link.pump(now)
        return actions or self._complete(transfer)

    def _nonfinite(self, transfer: Transfer) -> PSError | None:
        if self.attached is None or self.attached.job.nonfinite != "reject":
            return None
        parameters = self.attached.job.parameters
        pairs = zip(parameters, transfer.source, strict=True)
        names = [repr(p.name) for p, array in pairs if array is not None and not self._all_finite(array)]
        if not names:
            transfer.checked = True
            return None
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
        identity = self.member.identity
        worker = f"worker {self.member.rank} ({identity.name}, {identity.host}, pid {identity.pid})"
        return NonFiniteGradientError(worker=worker, parameters=shown)

    def _complete(self, transfer: Transfer) -> list[Action]:
        if transfer.remaining:
            return []
        if transfer.kind == "load":
            transfer.done = True
            self._operations.pop(transfer, None)
            return []  # the coordinator answers the init
        self.tally.completed(transfer)
        return self._resolve(transfer, None)

    def _resolve(self, operation: Operation, value: Any) -> list[Action]:
        assert not operation.done
        operation.done = True
        self._operations.pop(operation, None)
        if isinstance(operation, (Init, Enter, AskStatus)):
            self._requests.pop(operation.request, None)
        if isinstance(operation, Init) and operation.load is not None and not operation.load.done:
            operation.load.done = True
            self._operations.pop(operation.load, None)
        if isinstance(operation, Transfer):
            for link in self.links:
                # in flight stays in flight: its bytes are on the way and its answer makes room
                if any(request.transfer is operation for request in link.queue):
                    link.queue = type(link.queue)(r for r in link.queue if r.transfer is not operation)
        actions: list[Action] = [Resolve(operation, value)]
        if isinstance(value, Exception) and isinstance(operation, (Init, Enter)) and not self.member.lost:
            actions.insert(0, Send(COORDINATOR, Withdraw(operation.request)))
        if operation is not self._finishing:
            actions += self._finish_if_idle()
        return actions

    def _give_up(self, operation: Operation, now: float) -> list[Action]:
        if operation.done:
            return []
        seconds, awaited = round(now - operation.started_at, 3), self._awaited(operation, now)
        error = DeadlineError(operation=operation.title, seconds=seconds, waiting_for=awaited)
        return self._resolve(operation, error)

    def _remind(self, now: float) -> list[Action]:
        """Say what has been waited for long, so that nobody stares at a silent terminal."""
        self._reminder_due = now + REMINDER_INTERVAL_S if self._operations else None
        slow = [
            operation
            for operation in self._operations
            if now - operation.started_at >= REMINDER_INTERVAL_S and not isinstance(operation, Join)
        ]
        texts = [f"{o.title}: {now - o.started_at:.0f} s so far, waiting for {self._awaited(o, now)}" for o in slow]
        return [Log("warning", text) for text in texts]

    def _awaited(self, operation: Operation, now: float) -> str:
        """Say whom an operation waits for."""
        if isinstance(operation, Init) and operation.load is not None and not operation.load.done:
            operation = operation.load
        if isinstance(operation, Transfer):
            texts = [link.waiting_for(operation, now) for link in self.links]
            return "; ".join(text for text in texts if text) or "nobody"
        others = [other.title for other in self._operations if isinstance(other, Transfer)]
        if isinstance(operation, Finish) and others:
            return f"operations under way: {', '.join(others)}"
        if isinstance(operation, Join) or not self.member.joined:
            return f"the coordinator at {self.member.handshake.endpoint}"
        return operation.waiting_for or "the coordinator's answer"

    def _finish_if_idle(self) -> list[Action]:
        """Say goodbye once the transfers are done; the coordinator's `Left` completes the operation."""
        finishing = self._finishing
        busy = any(isinstance(operation, Transfer) for operation in self._operations)
        if finishing is None or finishing.done or busy:
            return []
        actions = self._goodbye(finishing.reason)
        return actions if self.member.known else [*actions, *self._resolve(finishing, None)]

    def _goodbye(self, reason: str) -> list[Action]:
        if self.member.left:
            return []
        known = [link for link in self.links if link.handshake.welcome is not None and link.lost is None]
        reason = "finished" if reason == "finished" else "closed"
        return [*(Send(link.peer, LeaveMessage(reason)) for link in known), *self.member.leave(reason)]

    def _fail_all(self, error: PSError) -> list[Action]:
        self._fatal = self._fatal or error
        actions: list[Action] = []
        for operation in list(self._operations):
            if not operation.done:
                is_finish = isinstance(operation, Finish)
                actions += self._resolve(operation, None if is_finish else error)
        return actions

    # --- the coordinator -----------------------------------------------------------------------

    def _from_coordinator(self, message: Message, now: float) -> list[Action]:
        actions = self.member.on_message(message, now)
        if isinstance(message, Welcome):
            for join in [o for o in self._operations if isinstance(o, Join)]:
                actions += self._resolve(join, None)
        elif isinstance(message, Lost):
            if message.role == "server":
                actions += self._lose_server(message)
        elif isinstance(message, Shutdown):
            actions += self.member.leave("closed")  # the coordinator waits for it
            actions += self._fail_all(ShutdownError(f"the cluster has ended: {message.reason}"))
        elif isinstance(message, Left):
            if self._finishing is not None and not self._finishing.done:
                actions += self._resolve(self._finishing, None)
                actions += self._fail_all(ClosedError("the worker has finished"))
        elif isinstance(message, Error) and message.request == 0:
            self.member.leave("closed")
            actions += self._fail_all(from_wire(message.code, message.text, message.facts))
        else:
            operation = self._requests.get(getattr(message, "request", 0))
            if operation is not None:
                actions += self._answer(operation, message, now)
        return actions

    def _answer(self, operation: Operation, message: Message, now: float) -> list[Action]:
        if isinstance(message, Waiting):
            operation.waiting_for = message.text
            return []
        if isinstance(message, Error):
            return self._resolve(operation, from_wire(message.code, message.text, message.facts))
        if isinstance(message, Job) and isinstance(operation, Init):
            try:
                return self._job(operation, message, now)
            except PSError as error:
                return self._resolve(operation, error)
        if isinstance(message, Released) and isinstance(operation, Enter):
            return self._resolve(operation, None)
        if isinstance(message, Status) and isinstance(operation, AskStatus):
            return self._resolve(operation, message.status)
        return []

    def _job(self, init: Init, message: Job, now: float) -> list[Action]:
        actions: list[Action] = []
        if self.attached is None or message.epoch != self._epoch:  # another one if the first could not be started
            job = JobSpec.from_wire(message.job)
            placement = Placement.from_wire(KeySpace(job.parameters), message.placement)
            actions += self._connect(placement, message, now)
            self.attached, self._epoch = Attached(job, placement), message.epoch
        if not message.load:
            return actions + self._resolve(init, self.attached)
        if init.load is None:
            assert init.job is not None
            # our order of the parameters may differ from the job's
            index = {parameter.name: i for i, parameter in enumerate(init.job.parameters)}
            values = [init.values[index[parameter.name]] for parameter in self.attached.job.parameters]
            init.load = Transfer(init.deadline, kind="load", cargoes=plan(self.attached.placement), source=values)
            init.load.started_at = now
            self._operations[init.load] = None
            actions += self._transfer(init.load, now)
        return actions

    def _connect(self, placement: Placement, message: Job, now: float) -> list[Action]:
        servers = message.placement.get("servers")
        if type(servers) is not list or len(servers) != placement.num_shards:
            raise ProtocolError("a job names one server a shard")
        for server in servers:
            if type(server) is not dict or any(type(server.get(key)) is not str for key in ("name", "endpoint")):
                raise ProtocolError("a server has a name and an endpoint")
        actions: list[Action] = []
        self.links = []
        for rank, server in enumerate(servers):
            endpoint = server["endpoint"]
            title = f"server {rank} ({server['name']}, {endpoint})"
            is_open = endpoint in self._endpoints  # a second connection would take the first one's place
            peer = self._endpoints.setdefault(endpoint, server_peer(len(self._endpoints)))
            handshake = Handshake(self.member.identity, peer, endpoint)
            self.links.append(Link(title, handshake, message.epoch, len(placement.slices[rank]), self._numbers))
            actions += handshake.on_deadline(now) if is_open else handshake.start(now)
        self._by_peer = {link.peer: link for link in self.links}
        return actions

    def _coordinator_lost(self, now: float) -> PSError:
        name, silent_s = f"the coordinator at {self.member.handshake.endpoint}", round(self.member.silence(now), 3)
        advice = "pull and push go on while the servers live; start the cluster again"
        return PeerLostError(role="coordinator", name=name, silent_s=silent_s, advice=advice)

    def _lose_coordinator(self, now: float) -> list[Action]:
        error = self._coordinator_lost(now)
        actions: list[Action] = [Log("error", str(error))]
        for operation in list(self._operations):
            if not isinstance(operation, (Transfer, Finish)) and not operation.done:
                actions += self._resolve(operation, error)
        return actions + self._finish_if_idle()

    # --- servers -------------------------------------------------------------------------------

    def _lose_server(self, lost: Lost) -> list[Action]:
        if lost.rank >= len(self.links):
            return []
        link = self.links[lost.rank]
        advice = "the values of its shard are gone; start the cluster again"
        error = PeerLostError(role="server", name=link.title, silent_s=round(lost.silent_s, 3), advice=advice)
        return [Log("error", str(error)), *self._fail_link(link, error)]

    def _fail_link(self, link: Link, error: PSError) -> list[Action]:
        actions: list[Action] = []
        for transfer in link.fail(error):
            if not transfer.done:
                actions += self._resolve(self._owner(transfer), error)
        return actions

    def _owner(self, transfer: Transfer) -> Operation:
        """Return the init that a transfer uploads values for, or the transfer itself."""
        return next((o for o in self._operations if isinstance(o, Init) and o.load is transfer), transfer)

    def _from_server(self, link: Link, message: Message, now: float) -> list[Action]:
        if isinstance(message, Welcome):
            return link.on_welcome(message, now)
        if isinstance(message, (Ack, Values)):
            try:
                transfer = link.on_answer(message, now)
            except ProtocolError as broken:
                return self._fail_link(link, broken)
            return [*link.pump(now), *(self._complete(transfer) if transfer is not None else [])]
        if isinstance(message, Error):
            error = from_wire(message.code, message.text, message.facts)
            if message.request == 0:
                return self._fail_link(link, error)
            if isinstance(error, NonFiniteGradientError):
                self.tally.refused()
            request = link.answered(message.request, now)
            actions = link.pump(now)
            if request is not None and not request.transfer.done:
                actions += self._resolve(self._owner(request.transfer), error)
            return actions
        return []
