"""The coordinator's machine: membership, the start of the job, barriers, the end."""

from __future__ import annotations

from dataclasses import dataclass

from zmqps.core.coordinator.barrier import Barriers
from zmqps.core.coordinator.data import DataSets
from zmqps.core.coordinator.membership import MemberInfo, Membership
from zmqps.core.coordinator.startup import Startup
from zmqps.core.coordinator.status import cluster_status, presentable
from zmqps.core.coordinator.steps import Steps
from zmqps.core.coordinator.waits import Waits
from zmqps.core.job.keyspace import SLICE_NBYTES
from zmqps.core.node.member import REMINDER_INTERVAL_S, Identity
from zmqps.core.node.throttle import Throttle
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import Action, Exit, Log, Peer, Received, Send, Stop, Undecodable
from zmqps.core.protocol.hello import check_hello
from zmqps.core.protocol.messages import (
    PROTOCOL_VERSION,
    Arrive,
    Committed,
    Enter,
    Error,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Init,
    Leave,
    Left,
    Lost,
    Message,
    Ready,
    Shutdown,
    Status,
    StatusRequest,
    Take,
    Waiting,
    Welcome,
    Withdraw,
)
from zmqps.errors import (
    ConfigurationError,
    EvictedError,
    JobError,
    NotJoinedError,
    PeerLostError,
    ProtocolError,
    PSError,
    from_wire,
)

#: How long the end of the cluster waits for the servers to say goodbye.
GOODBYE_S = 3.0


@dataclass(frozen=True, slots=True)
class CoordinatorOptions:
    """What the coordinator is told when it starts.

    Parameters
    ----------
    servers
        How many servers make the cluster; placing the job waits for them.
    workers
        How many workers the job expects at its start; None: whoever comes.
    heartbeat_interval, heartbeat_timeout
        Seconds between signs of life, and of silence after which a node is lost.
    idle_timeout
        Seconds without a worker after which the cluster ends; 0 means never.
    slice_nbytes
        Size of a slice.
    """

    servers: int = 1
    workers: int | None = None
    heartbeat_interval: float = 1.0
    heartbeat_timeout: float = 10.0
    idle_timeout: float = 600.0
    slice_nbytes: int = SLICE_NBYTES


class CoordinatorMachine:
    """A coordinator process without its sockets."""

    def __init__(self, identity: Identity, options: CoordinatorOptions) -> None:
        self.identity = identity
        self.options = options
        self.membership = Membership(options.heartbeat_timeout)
        self.steps = Steps(self.membership.members)
        self.startup = Startup(options.servers, options.slice_nbytes, self.steps.begin, options.workers)
        self.barriers = Barriers(self.membership.members, self.steps.pause, self.steps.resume)
        self.data = DataSets(self.membership.members, self.steps.pause, self.steps.resume)
        self.waits = Waits(self)
        self.counts = {"refused": 0, "heartbeats": 0}
        self.lost_shard: PSError | None = None  # a server of the running job is gone
        self.ending: Exit | None = None
        self.started_at = 0.0
        self._idle_since: float | None = None
        self._reminder_due = 0.0
        self._throttle = Throttle()
        self._now = 0.0  # of the event being handled
        self._end_due = 0.0
        self._all_joined = False  # as many workers as are expected

    @property
    def title(self) -> str:
        """Who this coordinator is, for errors."""
        return f"the coordinator ({self.identity.name}, {self.identity.host}, pid {self.identity.pid})"

    def start(self, now: float) -> list[Action]:
        """Begin to wait for members."""
        self.started_at = self._idle_since = now
        self._reminder_due = now + REMINDER_INTERVAL_S
        return [Log("info", f"coordinator at {self.identity.endpoint}, {self.waits.lines()[0]}")]

    # --- the door ------------------------------------------------------------------------------

    def handle(self, event: Received | Undecodable | Stop, now: float) -> list[Action]:
        """Take an event; every failure becomes an `Error` to its sender, never an exception."""
        self._now = now
        if isinstance(event, Stop):
            return self._end(Exit(exits.OK, event.reason), now)
        if isinstance(event, Undecodable):
            return self._refuse(event.peer, 0, event.error)
        message = event.message
        try:
            if isinstance(message, Hello):
                return self._join(event.peer, message, now)
            if isinstance(message, StatusRequest):
                return [Send(event.peer, Status(message.request, cluster_status(self, now)))]
            member = self.membership.find(event.peer)
            if member is None and isinstance(message, Leave):
                return [Send(event.peer, Left())]  # said again, because the answer was lost
            if member is None:
                if self.membership.was_lost_at(event.peer):
                    raise EvictedError("this node was silent for too long and taken for dead; connect again")
                raise NotJoinedError(f"{type(message).__name__} before Hello")
            self.membership.heard(member, now)
            return self._from_member(member, message, now)
        except PSError as error:
            return self._refuse(event.peer, getattr(message, "request", 0), error)

    def next_deadline(self) -> float | None:
        """Return when something is due."""
        parts = (self.membership, self.steps, self.waits)
        dues = [self._reminder_due, *(part.next_deadline() for part in parts)]
        if self._idle_since is not None and self.options.idle_timeout:
            dues.append(self._idle_since + self.options.idle_timeout)
        if self.ending is not None:
            dues.append(self._end_due)
        return min(due for due in dues if due is not None)

    def on_deadline(self, now: float) -> list[Action]:
        """Notice the lost, remind of whom we wait for, end an idle cluster."""
        actions: list[Action] = []
        for member in self.membership.overdue(now):
            silent = now - member.seen_at
            actions += [*self._lose(member, "lost", now), Send(member.peer, _evicted(member, silent))]
        due = self.steps.next_deadline()
        if due is not None and now >= due:
            actions += self.steps.on_deadline(self.num_missing, now)
        due = self.waits.next_deadline()
        if due is not None and now >= due:
            actions += self.waits.on_deadline()
        if now >= self._reminder_due:
            self._reminder_due = now + REMINDER_INTERVAL_S
            actions += [Log("info", text) for text in self.waits.lines()] if self.ending is None else []
        if self.ending is not None and now >= self._end_due:
            return [*actions, self.ending]
        idle = self.options.idle_timeout
        if self._idle_since is not None and idle and now >= self._idle_since + idle and self.ending is None:
            actions += self._end(Exit(exits.IDLE, f"no worker for {idle:.0f} s"), now)
        return actions

    def validate(self) -> None:
        """Assert the invariants."""
        self.membership.validate()
        self.barriers.validate()
        self.data.validate()
        self.steps.validate()
        members = self.membership.members
        assert {incarnation for incarnation, _ in self.startup.parked} <= set(members)
        assert not (self.startup.ready and self.startup.parked)

    # --- members -------------------------------------------------------------------------------

    def _join(self, peer: Peer, hello: Hello, now: float) -> list[Action]:
        check_hello(hello, ("worker", "server", "observer"))
        if self.membership.was_lost(hello.incarnation):
            raise EvictedError(f"{hello.name} was silent for too long and taken for dead; connect again")
        if self.ending is not None:
            return [Send(peer, Shutdown(self.ending.reason))]
        known = hello.incarnation in self.membership.members
        if hello.role == "server" and not known:
            servers = self.membership.of("server")
            if self.startup.placement is not None or len(servers) >= self.options.servers:
                raise JobError(f"all {self.options.servers} servers are here already; start the coordinator for more")
        member = self.membership.join(hello, peer, now)
        welcome = Welcome(
            PROTOCOL_VERSION, self.identity.incarnation, self.identity.name, member.rank,
            self.options.heartbeat_interval, self.options.heartbeat_timeout, self.num_workers, self.options.servers,
        )  # fmt: skip
        actions: list[Action] = [Send(peer, welcome)]
        if not known:
            expected = self.options.workers
            self._all_joined |= expected is not None and self.membership.num_joined("worker") >= expected
            if hello.role != "server":
                self._idle_since = None
            actions.append(Log("info", f"{member.title} joined"))
            actions += self._place()
            actions += self.steps.advance(self.num_missing, now)
            self.waits.tell_soon(now)
        return actions

    def _place(self) -> list[Action]:
        """Place the job as soon as all servers are here."""
        actions = self.startup.place(self.membership.of("server"))
        if actions and self.startup.job is not None:
            job, epoch, servers = self.startup.job, self.startup.epoch, self.startup.servers
            self.steps.start(job, epoch, servers, waits_for_all=self.options.workers is not None)
        return actions

    def _from_member(self, member: MemberInfo, message: Message, now: float) -> list[Action]:
        if isinstance(message, Heartbeat):
            self.counts["heartbeats"] += 1
            member.counters = presentable(message.counters)
            return [Send(member.peer, HeartbeatAck(self.num_workers))]
        if isinstance(message, (Init, Enter, Arrive, Take)) and message.request in member.answered:
            return [Send(member.peer, member.answered[message.request])]  # the answer was lost
        if isinstance(message, Leave):
            farewell = Send(member.peer, Left())
            how = "finished" if message.reason == "finished" else "closed"
            if member.role == "server" and self.ending is None:
                return [farewell, *self._lose(member, how, now)]  # it takes its shard with it
            return [farewell, Log("info", f"{member.title} {how}"), *self._depart(member, how, now)]
        if isinstance(message, Withdraw):
            self.barriers.withdraw(member, message.request)
            self.data.withdraw(member, message.request)
            self.waits.tell_soon(now)
            return self.startup.withdraw(member.incarnation, message.request)
        if member.role == "server":
            if isinstance(message, Ready):
                self.waits.tell_soon(now)
                return self.startup.progress(member, message.epoch, bool(message.loaded))
            if isinstance(message, Committed):
                if message.epoch == self.startup.epoch:
                    self.steps.confirmed(member, message.step)
                return []
            if isinstance(message, Error):
                error = from_wire(message.code, message.text, message.facts)
                if message.request not in (0, self.startup.epoch):
                    return []  # about the shard of a job that was given up
                return [Log("error", f"{member.title}: {error}"), *self._fail_startup(error)]
        elif isinstance(message, Init):
            if self.lost_shard is not None:
                raise self.lost_shard
            actions = self.startup.init(member, message)
            actions += self._place()
            if (member.incarnation, message.request) in self.startup.parked:
                text = self.startup.waiting_for(self.membership.of("server"))
                actions.append(Send(member.peer, Waiting(message.request, text)))
            return actions
        elif isinstance(message, Arrive) and member.role == "worker":
            if self.lost_shard is not None:
                raise self.lost_shard  # no step can be applied to the whole model any more
            self.steps.arrive(member, message, now)
            actions = self.steps.advance(self.num_missing, now)
            self.waits.tell_soon(now)
            return actions
        elif isinstance(message, Take) and member.role == "worker":
            if self.startup.job is not None and self.startup.job.deterministic:
                raise ConfigurationError("who takes which range depends on who asks first: use zmqps.data.split")
            self.waits.tell_soon(now)
            return [*self.data.take(member, message), *self.steps.advance(self.num_missing, now)]
        elif isinstance(message, Enter) and member.role == "worker":
            actions = self.barriers.enter(member, message, self.num_missing)
            self.waits.tell_soon(now)
            return [*actions, *self.steps.advance(self.num_missing, now)]
        raise ProtocolError(f"the coordinator does not take {type(message).__name__} from a {member.role}")

    def _lose(self, member: MemberInfo, how: str, now: float) -> list[Action]:
        """A member is gone whom others count on: tell everybody who waits for it."""
        silent = now - member.seen_at
        advice = "the values of its shard are gone" if member.role == "server" else "the others go on without it"
        error = PeerLostError(role=member.role, name=member.title, silent_s=round(silent, 3), advice=advice)
        actions: list[Action] = [Log("warning", str(error))]
        if member.role == "worker":
            actions += self.barriers.lose(member, error)
        elif member.role == "server" and self.startup.placement is not None:
            if self.startup.ready:
                self.lost_shard = error
                waiters = list(self.steps.waiters(self.num_missing))
                self.steps.stop()
                actions += [self._fail(worker, request, error) for worker, request, _ in waiters]
            else:
                actions += self._fail_startup(error)
        actions += self._depart(member, how, now)
        lost = Lost(member.role, member.rank, member.hello.name, member.incarnation, silent)
        others = self.membership.members.values()
        return [*actions, *(Send(other.peer, lost) for other in others)]

    def _depart(self, member: MemberInfo, how: str, now: float) -> list[Action]:
        self.barriers.withdraw(member)
        self.membership.remove(member, how, now)
        self.steps.leave(member)
        actions = [*self.startup.withdraw(member.incarnation), *self.data.leave(member, finished=how == "finished")]
        actions += self.steps.advance(self.num_missing, now)
        actions += self.barriers.release(self.num_missing)
        self.waits.tell_soon(now)
        if self.membership.count("worker", "observer"):
            return actions
        if self.ending is not None:
            return actions if self.membership.members else [*actions, self.ending]
        if self._idle_since is None:
            self._idle_since = now
        finished = any(departure.how == "finished" for departure in self.membership.gone)
        if finished and self._all_joined:
            actions += self._end(Exit(exits.OK, "the job is finished"), now)
        return actions

    @property
    def num_workers(self) -> int:
        """How many workers the job counts on: as many as expected, or who is here."""
        return max(self.options.workers or 0, self.membership.count("worker"))

    @property
    def num_missing(self) -> int:
        """How many of the expected workers have not joined yet; none, once all were here."""
        return 0 if self._all_joined else max(0, (self.options.workers or 0) - self.membership.num_joined("worker"))

    # --- failures and the end ------------------------------------------------------------------

    def _fail_startup(self, error: PSError) -> list[Action]:
        """Tell every parked init; a job that runs already is not touched."""
        if self.startup.ready:
            return []
        self.steps.stop()
        return [self._fail(member, request, error) for member, request, error in self.startup.fail(error)]

    def _end(self, end: Exit, now: float) -> list[Action]:
        if self.ending is not None:
            return []
        self.ending, self._end_due, self._idle_since = end, now + GOODBYE_S, None
        members = self.membership.members.values()
        shutdowns: list[Action] = [Send(member.peer, Shutdown(end.reason)) for member in members]
        return [Log("info", f"ending: {end.reason}"), *shutdowns, *([] if shutdowns else [end])]

    @staticmethod
    def _error(peer: Peer, request: int, error: PSError) -> Action:
        return Send(peer, Error(request, error.code, str(error), error.facts()))

    @staticmethod
    def _fail(member: MemberInfo, request: int, error: PSError) -> Action:
        return member.answer(request, Error(request, error.code, str(error), error.facts()))

    def _refuse(self, peer: Peer, request: int, error: PSError) -> list[Action]:
        self.counts["refused"] += 1
        member = self.membership.find(peer)
        who = member.title if member else f"peer {peer.hex()}"
        line = self._throttle.admit(f"refused a request of {who}: {error}", self._now)
        answer = self._error(peer, request, error)
        return [Log("warning", line), answer] if line else [answer]


def _evicted(member: MemberInfo, silent: float) -> Error:
    error = EvictedError(f"{member.title} was silent for {silent:.1f} s and taken for dead; connect again")
    return Error(0, error.code, str(error), error.facts())
