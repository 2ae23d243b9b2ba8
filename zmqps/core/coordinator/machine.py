"""The coordinator's machine: who is there, the jobs they train, and the end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from zmqps.core.coordinator.admission import check_admission, check_ending
from zmqps.core.coordinator.ended import EndedJobs, unknown_job
from zmqps.core.coordinator.erasures import Erasures
from zmqps.core.coordinator.losses import ASKED, DOWN, end_of_cluster
from zmqps.core.coordinator.membership import MemberInfo, Membership, Roster, no_place
from zmqps.core.coordinator.news import News
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.reach import check_advertised, check_in_reach, unreached
from zmqps.core.coordinator.run import JobRun
from zmqps.core.coordinator.status import Inquiries, by_epoch, cluster_status, packed, waiting
from zmqps.core.coordinator.telling import Telling
from zmqps.core.node.member import REMINDER_INTERVAL_S, Identity
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import (
    Action,
    Exit,
    Log,
    NetworkEvent,
    Peer,
    Received,
    Send,
    Stop,
    Undecodable,
    Unreachable,
)
from zmqps.core.protocol.guard import welcome_guard
from zmqps.core.protocol.keys import alias
from zmqps.core.protocol.messages import (
    PROTOCOL_VERSION,
    Arrive,
    Committed,
    Discarded,
    EndJob,
    Enter,
    Error,
    Forgotten,
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
    Welcome,
    Withdraw,
)
from zmqps.errors import (
    JobEndedError,
    LimitError,
    NotJoinedError,
    PeerLostError,
    ProtocolError,
    PSError,
    from_wire,
)

GOODBYE_S = 3.0  # how long the end of the cluster waits for the servers to say goodbye
#: Of many members that are overdue so many are lost at a time, and the next ones so much later: messages of the living
#: are taken in between, and save those whose signs of life have come meanwhile.
MOST_LOST = 32
PIECE_S = 0.005
#: Jobs at the same time; each has a shard on every server.
MAX_JOBS = 256


class CoordinatorMachine:
    """A coordinator process without its sockets."""

    def __init__(self, identity: Identity, options: CoordinatorOptions) -> None:
        self.identity = identity
        self.options = options
        self.membership = Membership(options.heartbeat_timeout)
        self.servers = Roster()
        self.runs: dict[str, JobRun] = {}
        self.counts = {"refused": 0, "heartbeats": 0}
        self.ending: Exit | None = None
        self.started_at = 0.0
        self._epochs = count(1)
        self._erasures = Erasures()
        self.ended = EndedJobs()
        self._idle_since: float | None = None
        self._reminder_due = 0.0
        self._lose_due = 0.0  # not before, although members are overdue
        self._inquiries = Inquiries()
        self._news = News()
        self._telling = Telling(self.membership.find)
        self._end_due = 0.0

    @property
    def title(self) -> str:
        """Who this coordinator is, for errors."""
        return f"the coordinator ({self.identity.name}, {self.identity.host}, pid {self.identity.pid})"

    def start(self, now: float) -> list[Action]:
        """Begin to wait for members."""
        self.started_at = self._idle_since = now
        self._reminder_due = now + REMINDER_INTERVAL_S
        return [Log("info", f"coordinator at {self.identity.endpoint}, {self._waiting()[0]}")]

    # --- the door ------------------------------------------------------------------------------

    def handle(self, event: NetworkEvent | Stop, now: float) -> list[Action]:
        """Take an event; every failure becomes an `Error` to its sender, never an exception."""
        if isinstance(event, Stop):
            return self._end(Exit(exits.OK, event.reason), now)
        member = self.membership.find(event.peer)
        if isinstance(event, Undecodable):
            return self._refuse(event, member, 0, event.error, now)
        if isinstance(event, Unreachable):  # its key was revoked
            told = Send(event.peer, Error.of(0, event.error))
            return [] if member is None else [told, *self._lose(member, now, "revoked")]
        if not isinstance(event, Received):
            return []  # who is disconnected may come back; whether a member is lost is for its heartbeats to say
        try:
            return self._news.of_event(self._take(event, member, event.message, now), event, member, now)
        except PSError as error:
            return self._refuse(event, member, getattr(event.message, "request", 0), error, now)

    def _take(self, event: Received, member: MemberInfo | None, message: Message, now: float) -> list[Action]:
        if isinstance(message, Hello):
            return self._join(event, message, now)
        if isinstance(message, StatusRequest):
            self._inquiries.check(len(self.membership.members), now)
            return [Send(event.peer, Status(message.request, self.status(now)))]
        if isinstance(message, EndJob):
            check_ending(self.identity, message, event.holder)
            return self._end_job(event.peer, message, now)
        if member is None and isinstance(message, Leave):
            return [Send(event.peer, Left())]  # said again, because the answer was lost
        if member is None:
            self.membership.check_known(event.peer)
            what = f"{type(message).__name__} before Hello"
            raise NotJoinedError(f"{what}: the sender has not joined this coordinator, perhaps an earlier one here")
        self.membership.heard(member, now)
        return self._from_member(member, message, now)

    def next_deadline(self) -> float | None:
        """Return when something is due."""
        overdue = self.membership.next_deadline()
        dues = [self._reminder_due, self._erasures.next_deadline(), self._telling.next_deadline()]
        dues += [run.next_deadline() for run in self.runs.values()]
        if overdue is not None:
            dues.append(max(overdue, self._lose_due))
        if self._idle_since is not None and self.options.idle_timeout:
            dues.append(self._idle_since + self.options.idle_timeout)
        if self.ending is not None:
            dues.append(self._end_due)
        return min(due for due in dues if due is not None)

    def on_deadline(self, now: float) -> list[Action]:
        """Notice lost members, remind of those we wait for, end what nobody uses any more."""
        actions: list[Action] = []
        if now >= self._lose_due:
            for member in self.membership.overdue(now, MOST_LOST):
                actions += self._news.of_member(self._lose(member, now), member, now)
                actions.append(Send(member.peer, Error.of(0, member.lost(now))))
                self._lose_due = now + PIECE_S
        for run in list(self.runs.values()):
            actions += self._news.of_job(run.on_deadline(now), run.name, now)
            if run.expired(now):
                actions += self._end_run(run, f"no worker for {self.options.lease:.0f} s", now)
        actions += [*self._discard_given_up(now), *self._erasures.on_deadline(now), *self._telling.on_deadline(now)]
        if now >= self._reminder_due:
            self._reminder_due = now + REMINDER_INTERVAL_S
            actions += [Log("info", text) for text in self._waiting()] if self.ending is None else []
            actions += self._news.summaries(now)
        if self.ending is not None and now >= self._end_due:
            return [*actions, self.ending]
        idle = self.options.idle_timeout
        if self._idle_since is not None and idle and now >= self._idle_since + idle and self.ending is None:
            actions += self._end(Exit(exits.IDLE, f"no worker for {idle:.0f} s"), now)
        return actions

    def validate(self) -> None:
        """Assert the invariants."""
        self.membership.validate()
        self._erasures.validate()
        self._telling.validate()
        for run in self.runs.values():
            run.validate()
        here = {who for run in self.runs.values() for who in run.members} | {s.incarnation for s in self.servers}
        assert here == set(self.membership.members)
        epochs = [run.startup.epoch for run in self.runs.values() if run.startup.placement is not None]
        assert len(set(epochs)) == len(epochs)

    # --- members -------------------------------------------------------------------------------

    def _join(self, event: Received, hello: Hello, now: float) -> list[Action]:
        check_admission(self.identity, hello, event.holder)
        self.membership.check_welcome(hello.incarnation)
        if self.ending is not None:
            return [Send(event.peer, Shutdown(self.ending.reason))]
        known = hello.incarnation in self.membership.members
        check_advertised(hello, event.origin)
        if (run := None if hello.role == "server" else self._run_for(hello.job)) is not None:
            check_in_reach(hello.role, event.origin, self.servers)
            roster, num_workers = run.workers if hello.role == "worker" else run.observers, 0
        else:
            roster, num_workers = self.servers, max((run.num_workers for run in self.runs.values()), default=0)
            if not known and len(roster) >= self.options.servers:
                raise no_place(roster, self.options.heartbeat_interval, self.options.heartbeat_timeout, now)
        member = self.membership.join(hello, event.peer, roster, now, event.holder)
        actions: list[Action] = []
        if not known:
            member.origin = event.origin
            actions.append(Log("info", f"{member.title} joined{f' job {hello.job!r}' if run else ''}"))
            if run is not None:
                self.runs[run.name] = run
                self._idle_since = None
                actions += run.join(member, now)
            else:
                for other in self.runs.values():
                    actions += other.move_on(now)
        welcome = Welcome(
            PROTOCOL_VERSION, self.identity.incarnation, self.identity.name, member.rank,
            self.options.heartbeat_interval, self.options.heartbeat_timeout,
            run.num_workers if run else num_workers, self.options.servers,
            proof=welcome_guard(self.identity.job_secret, hello),
        )  # fmt: skip
        return [Send(event.peer, welcome), *actions]

    def _run_for(self, name: str) -> JobRun:
        """Return the job of this name, or one that begins with its first member."""
        if name in self.runs:
            return self.runs[name]
        if len(self.runs) >= MAX_JOBS:
            raise LimitError(what="number of jobs", got=len(self.runs) + 1, limit=MAX_JOBS)
        before, root = self.ended.how(name), self.identity.secret
        return JobRun(name, self.options, self.servers, lambda: next(self._epochs), before, root)

    def _from_member(self, member: MemberInfo, message: Message, now: float) -> list[Action]:
        if isinstance(message, REPEATABLE) and message.request in member.answered:
            return self._telling.space([Send(member.peer, member.answered[message.request])], now)  # it was lost
        take = HANDLERS.get((member.role, type(message)))
        if take is None:
            raise ProtocolError(f"the coordinator takes no {type(message).__name__} from {member.title}")
        return [*take(self, member, message, now), *self._discard_given_up(now)]

    def _heartbeat(self, member: MemberInfo, message: Heartbeat, now: float) -> list[Action]:
        self.counts["heartbeats"] += 1
        member.counters, member.counters_nbytes = packed(message.counters)
        member.unreached = unreached(message.counters) if member.role != "server" else ""
        member.counters_of = by_epoch(message.counters) if member.role == "server" else {}
        run = self.runs.get(member.job)
        return [Send(member.peer, HeartbeatAck(run.num_workers if run else 0))]

    def _leave(self, member: MemberInfo, message: Leave, now: float) -> list[Action]:
        farewell = Send(member.peer, Left())
        how = "finished" if message.reason == "finished" else "closed"
        return [farewell, Log("info", f"{member.title} {how}"), *self._depart(member, how, now)]

    def _server_leaves(self, member: MemberInfo, message: Leave, now: float) -> list[Action]:
        if self.ending is not None:
            return self._leave(member, message, now)
        return [Send(member.peer, Left()), *self._lose(member, now, "closed")]  # it takes its shards with it

    def _init(self, member: MemberInfo, message: Init, now: float) -> list[Action]:
        run, actions = self.runs[member.job], list[Action]()
        if (member.incarnation, message.request) in run.startup.parked and self._telling.too_soon(member, now):
            return []
        if run.replaceable(member, message):
            actions = self._replace(run, member, now)
            run = self.runs[member.job]
        return self._telling.space([*actions, *run.init(member, message, now)], now)

    def _ready(self, member: MemberInfo, message: Ready, now: float) -> list[Action]:
        run = self._run_of(message.epoch)
        return self._telling.space(run.progress(member, message, now), now) if run else []

    def _committed(self, member: MemberInfo, message: Committed, now: float) -> list[Action]:
        run = self._run_of(message.epoch)
        if run is None:
            return []
        run.committed(member, message)
        return self._end_run(run, run.losses.outcome, now) if run.finished else []

    def _discarded(self, member: MemberInfo, message: Discarded, now: float) -> list[Action]:
        self._erasures.discarded(member, message.epoch)
        return []

    def _forgotten(self, member: MemberInfo, message: Forgotten, now: float) -> list[Action]:
        self._erasures.forgotten(member, message.incarnation)
        return []

    def _server_failed(self, member: MemberInfo, message: Error, now: float) -> list[Action]:
        error = from_wire(message.code, message.text, message.facts)
        actions: list[Action] = [Log("error", f"{member.title}: {error}")]
        runs = self.runs.values() if message.request == 0 else [self._run_of(message.request)]
        for run in runs:
            if run is not None:  # else about the shard of a job that was given up
                actions += run.fail(error)
        return actions

    def _run_of(self, epoch: int) -> JobRun | None:
        runs = (run for run in self.runs.values() if run.startup.placement is not None and run.startup.epoch == epoch)
        return next(runs, None)

    # --- who goes ------------------------------------------------------------------------------

    def _lose(self, member: MemberInfo, now: float, how: str = "lost") -> list[Action]:
        """A member is gone that others count on: tell everybody that waits for it.

        Of one that only trained or looked on, servers hear as of one that has left, and those who wait for it; others
        would have no use for it, and where thousands are lost that would be millions of messages.
        """
        silent = now - member.seen_at
        advice = "the values of its shard are gone" if member.role == "server" else "the others go on without it"
        error = PeerLostError(role=member.role, name=member.title, silent_s=round(silent, 3), advice=advice)
        actions: list[Action] = [Log("warning", str(error))]
        lost = Lost(member.role, member.rank, member.hello.name, member.incarnation, silent)
        runs = [run for run in self.runs.values() if run.is_on(member)] if member.role == "server" else []
        for run in runs:
            actions += run.lose_server(member, error)
        told = [other for run in runs for other in run.members.values()]
        if member.role == "server" and self.ending is None:
            stays = "the cluster stays: start another server, and begin again what was trained on this one"
            actions.append(Log("warning", "the cluster ends with its job" if self.options.once and runs else stays))
        actions += self._depart(member, how, now, error)
        for run in runs:
            if run.vacant:  # nobody is there who would have to notice before
                actions += self._end_run(run, str(error), now)
        return [*actions, *(Send(other.peer, lost) for other in told)]

    def _depart(self, member: MemberInfo, how: str, now: float, error: PSError | None = None) -> list[Action]:
        self.membership.remove(member, how, now, member.eviction(now, how))
        actions: list[Action] = []
        run = self.runs.get(member.job)
        if run is None:
            self._erasures.leave(member)
        else:
            if member.incarnation in run.startup.told:  # of others servers know nothing
                # before a step that is complete without it: servers take nothing more of it from then on
                there = [server for server in run.startup.servers if server.incarnation in self.membership.members]
                gone, epoch = member.incarnation, run.startup.epoch
                actions += self._erasures.depart(gone, epoch, there, now, how)
            actions += run.depart(member, how, now, error)
            if run.finished:
                actions += self._end_run(run, run.losses.outcome, now)
            elif run.vacant:
                actions += self._end_run(run, str(run.lost_shard or ""), now)
        if not any(other.members for other in self.runs.values()):
            if self.ending is not None:
                return actions if self.membership.members else [*actions, self.ending]
            self._note_idle(now)
        return actions

    def _note_idle(self, now: float) -> None:
        if self._idle_since is None and self.ending is None and not any(run.members for run in self.runs.values()):
            self._idle_since = now

    # --- the end of a job ----------------------------------------------------------------------

    def _end_run(self, run: JobRun, how: str, now: float, *, moved: bool = False) -> list[Action]:
        """End a job: its members are told, its servers free what they keep of it; ``moved``: another one has begun."""
        actions: list[Action] = []
        del self.runs[run.name]
        trained = run.startup.placement is not None
        if trained:
            self.ended.add(run.name, how, run.startup.epoch, now)
            well = run.lost_shard is None and not run.losses
            actions.append(Log("info" if well else "error", f"job {run.name!r} has ended: {how}"))
        error = JobEndedError(job=run.name, reason=how)
        told = Error.of(0, error)
        for member in run.members.values():
            self.membership.remove(member, "ended", now, error)
            actions.append(Send(member.peer, told))
        run.startup.give_up()
        actions += self._discard(run, now)
        if self.options.once and trained and not moved:
            actions += self._end(end_of_cluster(how, run.losses, run.lost_shard), now)
        return actions

    def _discard_given_up(self, now: float) -> list[Action]:
        """See to the shards of jobs that could not be started."""
        runs = [run for run in self.runs.values() if run.startup.given_up]
        return [action for run in runs for action in self._discard(run, now)]

    def _discard(self, run: JobRun, now: float) -> list[Action]:
        """Let servers free the shards of what a job was given up as."""
        given_up, run.startup.given_up = run.startup.given_up, []
        there = set(self.membership.members)
        return [
            action
            for epoch, servers in given_up
            for action in self._erasures.discard(epoch, [s for s in servers if s.incarnation in there], now)
        ]

    def _replace(self, run: JobRun, member: MemberInfo, now: float) -> list[Action]:
        """A worker begins another job under the name of one that was left alone; the others there move with it."""
        moved = list(run.workers)  # they keep their ranks: nobody would tell them others
        for worker in moved:
            del run.members[worker.incarnation]
            run.workers.leave(worker, "moved")
        actions = self._end_run(run, f"left by its workers, and {member.hello.name} began another one", now, moved=True)
        new = self.runs[run.name] = self._run_for(run.name)
        for worker in moved:
            new.workers.take(worker, worker.rank)
            actions += new.join(worker, now)
        return actions

    def _end_job(self, peer: Peer, message: EndJob, now: float) -> list[Action]:
        """Somebody asks for the end of a job, or of all; asked again, because the answer was lost, it ends no other."""
        if (known := self.ended.answered(peer, message)) is not None:
            return [Send(peer, known)]
        if not message.job:  # all of them, and the cluster
            answer = Send(peer, self.ended.answer(peer, message, "the cluster is ending"))
            return [answer, *self._end(Exit(exits.OK, DOWN), now)]
        run, actions = self.runs.get(message.job), list[Action]()
        if run is not None:
            actions = self._end_run(run, ASKED, now)
            self._note_idle(now)
            text = f"job {message.job!r} has ended"
        elif not (text := self.ended.describe(message.job, now)):
            raise unknown_job(message.job, self.runs)
        return [*actions, Send(peer, self.ended.answer(peer, message, text))]

    # --- failures and the end ------------------------------------------------------------------

    def _end(self, end: Exit, now: float) -> list[Action]:
        if self.ending is not None:
            return []
        self.ending, self._end_due, self._idle_since = end, now + GOODBYE_S, None
        members = self.membership.members.values()
        shutdowns: list[Action] = [Send(member.peer, Shutdown(end.reason)) for member in members]
        return [Log("info", f"ending: {end.reason}"), *shutdowns, *([] if shutdowns else [end])]

    def _refuse(
        self, event: Received | Undecodable, member: MemberInfo | None, request: int, error: PSError, now: float
    ) -> list[Action]:
        self.counts["refused"] += 1
        peer = event.peer
        who = member.title if member else self.membership.title_of_gone(peer) or f"peer {alias(peer)}"
        told = Send(peer, Error.of(request, error))
        return [*self._news.refusal(f"refused a request of {who}: {error}", event, member, now), told]

    # --- what others may look at ---------------------------------------------------------------

    def _waiting(self) -> list[str]:
        """Return in words what is waited for."""
        return waiting(self.options.servers - len(self.servers), self.options.servers, self.runs)

    def status(self, now: float) -> dict[str, Any]:
        """Return the coordinator's view of the cluster: what ``zmqps status --json`` prints."""
        return cluster_status(
            servers=self.servers,
            options=self.options,
            ending=self.ending,
            endpoint=self.identity.endpoint,
            uptime_s=round(now - self.started_at, 3),
            waiting=self._waiting(),
            runs=self.runs,
            ended=self.ended.status(now),
            gone=self.membership.gone,
            counters=self.counts,
            now=now,
        )


def _of_run(
    take: Callable[[JobRun, MemberInfo, Any, float], list[Action]],
) -> Callable[[CoordinatorMachine, MemberInfo, Any, float], list[Action]]:
    """Return a handler that leaves a message to the job of the member that sent it."""
    return lambda machine, member, message, now: take(machine.runs[member.job], member, message, now)


#: Requests whose answer is remembered, so that one that was lost can be said again.
REPEATABLE = (Init, Enter, Arrive, Take)

#: (role, message) -> what is done. Anything else is a `ProtocolError`.
HANDLERS: dict[tuple[str, type[Message]], Callable[[CoordinatorMachine, MemberInfo, Any, float], list[Action]]] = {
    **{(role, Heartbeat): CoordinatorMachine._heartbeat for role in ("server", "worker", "observer")},
    ("server", Leave): CoordinatorMachine._server_leaves,
    ("server", Ready): CoordinatorMachine._ready,
    ("server", Committed): CoordinatorMachine._committed,
    ("server", Discarded): CoordinatorMachine._discarded,
    ("server", Forgotten): CoordinatorMachine._forgotten,
    ("server", Error): CoordinatorMachine._server_failed,
    **{(role, Leave): CoordinatorMachine._leave for role in ("worker", "observer")},
    **{(role, Init): CoordinatorMachine._init for role in ("worker", "observer")},
    **{(role, Withdraw): _of_run(JobRun.withdraw) for role in ("worker", "observer")},
    ("worker", Arrive): _of_run(JobRun.arrive),
    ("worker", Take): _of_run(JobRun.take),
    ("worker", Enter): _of_run(JobRun.enter),
}
