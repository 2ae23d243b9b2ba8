"""The coordinator's machine: membership, the start of the job, barriers, the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zmqps.core import exits
from zmqps.core.barrier import Barrier, Barriers
from zmqps.core.data import DataSets
from zmqps.core.events import Action, Exit, Log, Peer, Received, Send, Stop, Undecodable
from zmqps.core.keyspace import SLICE_NBYTES
from zmqps.core.member import REMINDER_INTERVAL_S, Identity
from zmqps.core.membership import MemberInfo, Membership
from zmqps.core.messages import (
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
    Released,
    Shutdown,
    Status,
    StatusRequest,
    Take,
    Waiting,
    Welcome,
    Withdraw,
)
from zmqps.core.server import check_hello
from zmqps.core.startup import Startup
from zmqps.core.steps import Steps
from zmqps.core.throttle import Throttle
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
#: How often those who wait are told for whom, when that changes: one message each, not one each time.
TELL_S = 0.1
#: Of a member's counters, so many are kept.
MAX_COUNTERS = 64
#: Of those who are awaited, so many are named.
MOST_NAMED = 8


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
        self.barriers = Barriers()
        self.data = DataSets(self.membership.members, self.steps.pause, self.steps.resume)
        self._started_at = 0.0
        self._idle_since: float | None = None
        self._reminder_due = 0.0
        self._tell_due: float | None = None
        self._counts = {"refused": 0, "heartbeats": 0}
        self._lost_shard: PSError | None = None  # a server of the running job is gone
        self._throttle = Throttle()
        self._now = 0.0  # of the event being handled
        self._ending: Exit | None = None
        self._end_due = 0.0

    def start(self, now: float) -> list[Action]:
        """Begin to wait for members."""
        self._started_at = self._idle_since = now
        self._reminder_due = now + REMINDER_INTERVAL_S
        return [Log("info", f"coordinator at {self.identity.endpoint}, waiting for {self._missing()}")]

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
                return [Send(event.peer, Status(message.request, self.status(now)))]
            member = self.membership.find(event.peer)
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
        dues = [self._reminder_due, self._tell_due, self.membership.next_deadline(), self.steps.next_deadline()]
        if self._idle_since is not None and self.options.idle_timeout:
            dues.append(self._idle_since + self.options.idle_timeout)
        if self._ending is not None:
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
            actions += self.steps.on_deadline(self._to_come, now)
        if self._tell_due is not None and now >= self._tell_due:
            actions += self._tell()
        if now >= self._reminder_due:
            self._reminder_due = now + REMINDER_INTERVAL_S
            actions += self._remind()
        if self._ending is not None and now >= self._end_due:
            return [*actions, self._ending]
        idle = self.options.idle_timeout
        if self._idle_since is not None and idle and now >= self._idle_since + idle and self._ending is None:
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
        assert all(set(barrier.waiters) <= set(members) for barrier in self.barriers.by_name.values())
        assert not (self.startup.ready and self.startup.parked)

    # --- members -------------------------------------------------------------------------------

    def _join(self, peer: Peer, hello: Hello, now: float) -> list[Action]:
        check_hello(hello, ("worker", "server", "observer"))
        if self.membership.was_lost(hello.incarnation):
            raise EvictedError(f"{hello.name} was silent for too long and taken for dead; connect again")
        if self._ending is not None:
            return [Send(peer, Shutdown(self._ending.reason))]
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
            if hello.role != "server":
                self._idle_since = None
            actions.append(Log("info", f"{member.title} joined"))
            actions += self._place()
            actions += self.steps.advance(self._to_come, now)
            self._tell_soon(now)
        return actions

    def _place(self) -> list[Action]:
        """Place the job as soon as all servers are here."""
        actions = self.startup.place(self.membership.of("server"))
        if actions and self.startup.job is not None:
            self.steps.start(self.startup.job, self.startup.epoch, self.startup.servers)
        return actions

    def _from_member(self, member: MemberInfo, message: Message, now: float) -> list[Action]:
        if isinstance(message, Heartbeat):
            self._counts["heartbeats"] += 1
            member.counters = _flat(message.counters)
            return [Send(member.peer, HeartbeatAck(self.num_workers))]
        if isinstance(message, (Init, Enter, Arrive, Take)) and message.request in member.answered:
            return [Send(member.peer, member.answered[message.request])]  # the answer was lost
        if isinstance(message, Leave):
            farewell = Send(member.peer, Left())
            how = "finished" if message.reason == "finished" else "closed"
            if member.role == "server" and self._ending is None:
                return [farewell, *self._lose(member, how, now)]  # it takes its shard with it
            return [farewell, Log("info", f"{member.title} {how}"), *self._depart(member, how, now)]
        if isinstance(message, Withdraw):
            self.barriers.withdraw(member.incarnation, message.request)
            self.data.withdraw(member, message.request)
            self._tell_soon(now)
            return self.startup.withdraw(member.incarnation, message.request)
        if member.role == "server":
            if isinstance(message, Ready):
                self._tell_soon(now)
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
            if self._lost_shard is not None:
                raise self._lost_shard
            actions = self.startup.init(member, message)
            actions += self._place()
            if (member.incarnation, message.request) in self.startup.parked:
                text = self.startup.waiting_for(self.membership.of("server"))
                actions.append(Send(member.peer, Waiting(message.request, text)))
            return actions
        elif isinstance(message, Arrive) and member.role == "worker":
            self.steps.arrive(member, message, now)
            actions = self.steps.advance(self._to_come, now)
            self._tell_soon(now)
            return actions
        elif isinstance(message, Take) and member.role == "worker":
            if self.startup.job is not None and self.startup.job.deterministic:
                raise ConfigurationError("who takes which range depends on who asks first: use zmqps.data.split")
            self._tell_soon(now)
            return [*self.data.take(member, message), *self.steps.advance(self._to_come, now)]
        elif isinstance(message, Enter) and member.role == "worker":
            barrier = self.barriers.enter(message.barrier, member.incarnation, message.request, now)
            self._tell_soon(now)
            awaited = Waiting(message.request, self._awaited(barrier))
            return self._release(barrier) or [Send(member.peer, awaited)]
        raise ProtocolError(f"the coordinator does not take {type(message).__name__} from a {member.role}")

    def _lose(self, member: MemberInfo, how: str, now: float) -> list[Action]:
        """A member is gone whom others count on: tell everybody who waits for it."""
        silent = now - member.seen_at
        advice = "the values of its shard are gone" if member.role == "server" else "the others go on without it"
        error = PeerLostError(role=member.role, name=member.title, silent_s=round(silent, 3), advice=advice)
        actions: list[Action] = [Log("warning", str(error))]
        awaited = [b for b in self.barriers.by_name.values() if member.incarnation not in b.waiters]
        if member.role == "worker":
            for barrier in awaited:
                waiters = self.barriers.close(barrier)
                actions += [self._fail(self.membership.members[who], request, error) for who, request in waiters]
        elif member.role == "server" and self.startup.placement is not None:
            self._lost_shard = error if self.startup.ready else None
            actions += self._fail_startup(error)
        actions += self._depart(member, how, now)
        lost = Lost(member.role, member.rank, member.hello.name, member.incarnation, silent)
        others = self.membership.members.values()
        return [*actions, *(Send(other.peer, lost) for other in others)]

    def _depart(self, member: MemberInfo, how: str, now: float) -> list[Action]:
        self.membership.remove(member, how, now)
        self.barriers.withdraw(member.incarnation)
        self.steps.leave(member)
        actions = [*self.startup.withdraw(member.incarnation), *self.data.leave(member, finished=how == "finished")]
        actions += self.steps.advance(self._to_come, now)
        for barrier in list(self.barriers.by_name.values()):
            actions += self._release(barrier)
        self._tell_soon(now)
        if self.membership.count("worker", "observer"):
            return actions
        if self._ending is not None:
            return actions if self.membership.members else [*actions, self._ending]
        if self._idle_since is None:
            self._idle_since = now
        finished = any(departure.how == "finished" for departure in self.membership.gone)
        expected = self.options.workers
        if finished and expected is not None and self.membership.num_joined.get("worker", 0) >= expected:
            actions += self._end(Exit(exits.OK, "the job is finished"), now)
        return actions

    @property
    def num_workers(self) -> int:
        """How many workers the job counts on: as many as expected, or who is here."""
        return max(self.options.workers or 0, self.membership.count("worker"))

    @property
    def _to_come(self) -> int:
        """How many of the expected workers have not joined yet."""
        return max(0, (self.options.workers or 0) - self.membership.num_joined.get("worker", 0))

    # --- waiting -------------------------------------------------------------------------------

    def _awaited(self, barrier: Barrier) -> str:
        """Say whom a barrier waits for; nothing when everybody has entered."""
        members = self.membership.members
        awaited = barrier.awaited(member.incarnation for member in self.membership.of("worker"))
        texts = [members[incarnation].title for incarnation in awaited[:MOST_NAMED]]
        if len(awaited) > MOST_NAMED:
            texts.append(f"{len(awaited) - MOST_NAMED} more workers")
        if self._to_come:
            texts.append(f"{self._to_come} workers to join")
        return ", ".join(texts)

    def _release(self, barrier: Barrier) -> list[Action]:
        if self._awaited(barrier):
            return []
        members = self.membership.members
        return [members[who].answer(request, Released(request)) for who, request in self.barriers.close(barrier)]

    def _tell_soon(self, now: float) -> None:
        """Whom somebody waits for may just have changed."""
        waiters = self.startup.parked or self.barriers.by_name or self.steps.waiters or self.data.waits
        if self._tell_due is None and waiters:
            self._tell_due = now + TELL_S

    def _tell(self) -> list[Action]:
        """Tell everybody who waits whom for."""
        self._tell_due = None
        text = self.startup.waiting_for(self.membership.of("server"))
        parked = self.startup.parked.items()
        actions: list[Action] = [Send(member.peer, Waiting(request, text)) for (_, request), (member, _) in parked]
        members = self.membership.members
        for barrier in self.barriers.by_name.values():
            text = self._awaited(barrier)
            actions += [Send(members[who].peer, Waiting(request, text)) for who, request in barrier.waiters.items()]
        text = self.steps.waiting_for(self._to_come)
        actions += [Send(members[who].peer, Waiting(request, text)) for who, request in self.steps.waiters.items()]
        return actions + [Send(who.peer, Waiting(request, text)) for who, request, text in self.data.waiters()]

    def _missing(self) -> str:
        servers = self.options.servers - self.membership.count("server")
        missing = [f"{servers} of {self.options.servers} servers"] if servers > 0 else []
        if self.startup.job is None:
            missing.append("a worker's init")
        return " and ".join(missing)

    def _remind(self) -> list[Action]:
        if self.startup.ready or self._ending is not None:
            barriers = self.barriers.by_name.values()
            texts = [f"barrier {b.name!r} waits for {self._awaited(b)}" for b in barriers]
            step = self.steps.waiting_for(self._to_come)
            texts += [f"step waits for {step}"] if step else []
            texts += dict.fromkeys(f"{who.title} waits for {text}" for who, _, text in self.data.waiters())
        elif self.startup.parked:
            texts = [f"init waits for {self.startup.waiting_for(self.membership.of('server'))}"]
        else:
            texts = [f"waiting for {self._missing()}"] if self._missing() else []
        return [Log("info", text) for text in texts]

    # --- failures and the end ------------------------------------------------------------------

    def _fail_startup(self, error: PSError) -> list[Action]:
        """Tell every parked init; a job that runs already is not touched."""
        if self.startup.ready:
            return []
        self.steps.stop()
        return [self._fail(member, request, error) for member, request, error in self.startup.fail(error)]

    def _end(self, end: Exit, now: float) -> list[Action]:
        if self._ending is not None:
            return []
        self._ending, self._end_due, self._idle_since = end, now + GOODBYE_S, None
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
        self._counts["refused"] += 1
        member = self.membership.find(peer)
        who = member.title if member else f"peer {peer.hex()}"
        line = self._throttle.admit(f"refused a request of {who}: {error}", self._now)
        answer = self._error(peer, request, error)
        return [Log("warning", line), answer] if line else [answer]

    # --- the status ----------------------------------------------------------------------------

    def status(self, now: float) -> dict[str, Any]:
        """Return the whole view of the cluster as plain data."""
        if self._ending is not None:
            state = f"ending: {self._ending.reason}"
        elif self._lost_shard is not None:
            state = f"failed: {self._lost_shard}"
        else:
            state = "training" if self.startup.ready else "starting"
        job = self.startup.status()
        return {
            "state": state,
            "mode": job.get("mode", ""),
            "waiting": [action.text for action in self._remind() if isinstance(action, Log)],
            "endpoint": self.identity.endpoint,
            "uptime_s": round(now - self._started_at, 3),
            "epoch": self.startup.epoch,
            "servers": self.options.servers,
            "workers": self.num_workers,
            "job": dict(job),
            "steps": self.steps.status(self._to_come, now),
            "data": self.data.status(),
            "members": [
                {**_describe(m), "silent_s": round(now - m.seen_at, 3), "counters": dict(m.counters)}
                for m in self.membership.of("server", "worker", "observer")
            ],
            "gone": [
                {
                    **_describe(departure.member),
                    "how": departure.how,
                    "ago_s": round(now - departure.at, 3),
                    "last_seen_ago_s": round(now - departure.member.seen_at, 3),
                    "counters": dict(departure.member.counters),
                }
                for departure in self.membership.gone
            ],
            "counters": dict(self._counts),
        }


def _describe(member: MemberInfo) -> dict[str, Any]:
    hello = member.hello
    facts = {"role": hello.role, "rank": member.rank, "name": hello.name, "host": hello.host, "pid": hello.pid}
    return {**facts, "endpoint": hello.endpoint}


def _flat(counters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what of a member's counters may stand in the status: one member must not make it unreadable."""
    items = list(counters.items())[:MAX_COUNTERS]
    return {name[:64]: v[:200] if isinstance(v, str) else v for name, v in items if not isinstance(v, dict | list)}


def _evicted(member: MemberInfo, silent: float) -> Error:
    error = EvictedError(f"{member.title} was silent for {silent:.1f} s and taken for dead; connect again")
    return Error(0, error.code, str(error), error.facts())
