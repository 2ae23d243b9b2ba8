"""The coordinator's machine: who is there, the jobs they train, and the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from zmqps.core.coordinator.jobs import EndedJobs, Epochs, Jobs, is_replaceable
from zmqps.core.coordinator.journal import DirtyKeys, Plain
from zmqps.core.coordinator.members.cluster_end import ClusterEnd
from zmqps.core.coordinator.members.erasures import Erasures
from zmqps.core.coordinator.members.membership import SILENT_BEATS, MemberInfo, Membership, Origin, index_of
from zmqps.core.coordinator.members.news import News
from zmqps.core.coordinator.members.reach import check_advertised, check_in_reach, unreached
from zmqps.core.coordinator.members.telling import Telling
from zmqps.core.coordinator.openings import Opening, Openings
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.placement.drains import Drains
from zmqps.core.coordinator.placement.fallback import ADVICE
from zmqps.core.coordinator.placement.fleet import Fleet
from zmqps.core.coordinator.placement.holders import OF_HOLDERS, Holders
from zmqps.core.coordinator.placement.resumption import Resumption, Resumptions
from zmqps.core.coordinator.placement.scales import Scales
from zmqps.core.coordinator.remembered import dump, restore
from zmqps.core.coordinator.run import JobRun
from zmqps.core.coordinator.saving.checkpoints import HOLD_S, Checkpoints
from zmqps.core.coordinator.saving.files import FileService, Serving, Store
from zmqps.core.coordinator.saving.making import Cadence, Wish
from zmqps.core.coordinator.watching.notes import NoteReceiver
from zmqps.core.coordinator.watching.probes import Probes
from zmqps.core.coordinator.watching.status import (
    MAX_COUNTER_NAME_CHARS,
    Inquiries,
    by_epoch,
    fit_jobs,
    job_of,
    job_status,
    members_status,
    packed,
    waiting,
)
from zmqps.core.coordinator.watching.traces import Traces
from zmqps.core.coordinator.watching.watching import Watching
from zmqps.core.node.member import REMINDER_INTERVAL_S, Identity
from zmqps.core.node.timers import Wheel
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import (
    Action,
    Exit,
    Log,
    NetworkEvent,
    Peer,
    Received,
    Returned,
    Send,
    Stop,
    Undecodable,
    Unreachable,
)
from zmqps.core.protocol.messages import (
    PROTOCOL_VERSION,
    Arrive,
    Back,
    Checkpoint,
    Drain,
    EndJob,
    Enter,
    Error,
    Examine,
    Exited,
    ExitNoted,
    Farewell,
    Fetch,
    FileAsk,
    Followed,
    Heartbeat,
    HeartbeatAck,
    Hello,
    Holding,
    Init,
    Leave,
    Left,
    Lost,
    Message,
    Note,
    Piece,
    Probed,
    RatesSet,
    Resumed,
    Saved,
    Scale,
    SetRates,
    Shutdown,
    SpansRecorded,
    Status,
    StatusRequest,
    Take,
    Trace,
    Watch,
    Welcome,
    Withdraw,
)
from zmqps.core.protocol.messages.hello import check_hello, check_job, check_name
from zmqps.core.protocol.messages.large import Large
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.protocol.security.guard import check_join, check_order, check_server, welcome_guard
from zmqps.core.protocol.security.keys import alias, process_of
from zmqps.core.protocol.security.roles import OPERATOR, STRANGER, WORKER, KeyHolder, check_role, check_sender
from zmqps.errors import NotJoinedError, PeerLostError, ProtocolError, PSError, counted

#: Of many members that are overdue so many are lost at a time, and the next ones so much later: messages of the living
#: are taken in between, and save those whose signs of life have come meanwhile.
MOST_LOST = 32
PIECE_S = 0.005
#: What a view costs, beside the status in it, as if there were so many more members.
WATCHED_AS_MEMBERS = 200
#: Of the members that are lost with one process so many are named.
MOST_NAMED = 8


class CoordinatorMachine:
    """A coordinator process without its sockets.

    ``resumptions`` are the checkpoints that jobs of these names begin from; ``kept`` is what was kept in its journal,
    by key (None: it keeps none), and then ``identity`` is that of the process that has written it.
    """

    def __init__(
        self,
        identity: Identity,
        options: CoordinatorOptions,
        store: Store | None = None,  # where checkpoints are; None: nowhere
        resumptions: Mapping[str, Resumption] = MappingProxyType({}),
        kept: Mapping[str, Plain] | None = None,
    ) -> None:
        self.identity = identity
        options = options if store is not None or resumptions else replace(options, fallback_timeout=0.0)
        self.options = options
        self.changes = DirtyKeys(kept=kept is not None)
        self.is_back = bool(kept)  # it was away, and its members are to be told when they speak
        self._kept = kept or {}
        self.lives = 0  # how often it has come back
        self.membership: Membership = Membership(
            options.heartbeat_timeout, lambda what, who: self.changes.add(what, who.hex())
        )  # fmt: skip
        self.servers: Fleet = Fleet(options.servers)
        self.counts = {"refused": 0, "heartbeats": 0}
        self.started_at = 0.0
        self.wheel = Wheel()
        self.erasures: Erasures = Erasures(self.wheel, lambda server: self.changes.add("erase", server.hex()))
        self.cluster_end = ClusterEnd(
            options.idle_timeout,
            self.membership.members,
            lambda: any(run.members for run in self.runs.values()),
            self.wheel,
            self.changes.of("cluster"),
        )
        self.epochs = Epochs(self.changes.of("cluster"))

        def new_run(name: str, before: str, resumption: Resumption | None) -> JobRun:
            take, root = self.epochs.take, identity.secret
            return JobRun(name, options, self.servers, take, before, root, resumption, self.changes)

        self.jobs = Jobs(
            options,
            self.membership,
            self.erasures,
            self.cluster_end,
            new_run,
            self.changes,
            self.wheel,
            Resumptions(resumptions, self.changes.of("cluster")),
        )
        self.runs, self.touched = self.jobs.runs, self.jobs.touched
        self.touched.ring, self.touched.due_of = self._job_due, self._due_of
        cadence = Cadence(options.checkpoint_seconds, options.checkpoint_steps, options.checkpoint_full_every)
        self.checkpoints = Checkpoints(
            self.runs, self.membership.members, store, cadence, self.wheel, options.heartbeat_timeout, self.touched.add
        )
        self.ended: EndedJobs = self.jobs.ended
        self.watching = Watching()
        self.notes = NoteReceiver(self.watching.history, lambda who: self.changes.add("noted", who.hex()))
        self.files = FileService(self.membership.members, store.serve if store is not None and store.serves else None)
        self.jobs.saver = self.checkpoints
        self.checkpoints.on_unsaved = self.cluster_end.note_unsaved
        self.cluster_end.save, self.cluster_end.is_saving = self.jobs.save_all, lambda: self.jobs.is_saving
        self.cluster_end.close = self.checkpoints.close
        self.drains: Drains = Drains(
            self.servers, self.runs, self.erasures, self.checkpoints, self.changes.of("drains")
        )
        self.scales: Scales = Scales(
            self.servers, self.runs, self.checkpoints, self.drains, identity.endpoint, options.replicas,
            min(HOLD_S, options.heartbeat_timeout), SILENT_BEATS * options.heartbeat_interval, self.changes.of("scale"),
        )  # fmt: skip
        self._moves = self.wheel.timer("what moves", self._move_due)  # after every event it goes on
        self.openings = Openings(self.runs, self.membership, self.wheel)
        self.probes = Probes(self.membership.members, self.wheel)
        self.traces = Traces(identity, self.membership.members, self.runs, self.wheel)
        self._reminder_due = 0.0
        self._reminder = self.wheel.timer("the reminder", lambda: self._reminder_due, self._remind)
        self._lose_due = 0.0  # not before, although members are overdue
        self._inquiries = Inquiries()
        self._news = News()
        self.telling = Telling(self.membership.find, self.wheel)
        self.holders = Holders(self.jobs, self.erasures, self.checkpoints, self.telling)

    @property
    def title(self) -> str:
        return f"the coordinator ({self.identity.name}, {self.identity.host}, pid {self.identity.pid})"

    @property
    def ending(self) -> Exit | None:
        return self.cluster_end.ending

    def start(self, now: float) -> list[Action]:
        """Begin to wait for members."""
        self.started_at = now
        self.cluster_end.note_idle(now)
        self._reminder_due = now + REMINDER_INTERVAL_S
        self._reminder.touch()
        if not self.is_back:
            self.changes.add("cluster")
            text = f"coordinator at {self.identity.endpoint}, {self._waiting()[0]}"
            return self._recorded([Log("info", text, "started")], now)
        restore(self, self._kept, now)
        self.touched.add_all()
        self._kept = {}
        there = f"{counted(len(self.membership.members), 'member')} and {counted(len(self.runs), 'job')}"
        text = f"coordinator at {self.identity.endpoint} is back with {there} from its journal; who is not here again"
        text += f" in {self.membership.begin_again(now):.0f} s is lost"
        return self._recorded([Log("info", text, "started"), *self._settle(now)], now)

    # --- the door ------------------------------------------------------------------------------

    def handle(self, event: NetworkEvent | Stop | Returned, now: float) -> list[Action]:
        """Take an event; every failure becomes an `Error` to its sender, never an exception."""
        actions = self._handle(event, now)
        return self._recorded([*actions, *self._settle(now)], now)

    def _settle(self, now: float) -> list[Action]:
        """Go on with what has become possible for jobs that were touched, and end what was to be saved before."""
        runs, actions = self.touched.note(), list[Action]()
        for run in runs:
            actions += self._settle_job(run, now)
        if self.drains.going or self.touched.moving or self.scales.scaling is not None:
            self._moves.touch()
            actions += self._move(now)
            for run in self.touched.note():
                actions += self._settle_job(run, now)
        elif self._moves.due is not None:
            self._moves.touch()
        if self.jobs.closing:
            actions += self.jobs.look(now)
        if self.cluster_end.asked is not None:
            actions += self.cluster_end.look(now)
        if actions:
            self.touched.note()
        self.touched.settle()
        return actions

    def _settle_job(self, run: JobRun, now: float) -> list[Action]:
        """Go on with what has become possible for one job; end it if it is finished."""
        actions = run.settle(now, tell=self.touched.names.get(run.name, False))
        if run.startup.given_up:
            actions += self.jobs.discard(run, now)
        if self.checkpoints.cadence or self.checkpoints.waiting:
            actions += self.checkpoints.look([run], now)
        if not run.members and run.finished:
            actions += self.jobs.close(run, run.losses.outcome, now)
        return self._news.of_job(actions, run.name, now) if is_said(actions) else actions

    def _move(self, now: float) -> list[Action]:
        """Go on with what is to move from one server to another, or to be cut; any job may be."""
        self.touched.add_all()
        ended: list[Action] = []
        if self.cluster_end.asked is not None:
            ended = [*self.scales.stop(now), *self.drains.stop(now)]
        return [*ended, *self.scales.look(now), *self.drains.look(now)]

    def _move_due(self) -> float | None:
        """Return when what moves is to be looked at, at the latest."""
        dues = (self.drains.next_deadline(), self.scales.next_deadline())
        return min([due for due in dues if due is not None], default=None)

    def _recorded(self, actions: list[Action], now: float) -> list[Action]:
        """Return actions, and before them what is to be kept of what they follow from."""
        if is_said(actions):
            self.watching.note(actions, now)
        if not self.changes.keys:
            return actions
        return [*self.changes.records(lambda what, whose: dump(self, what, whose)), *actions]

    def _handle(self, event: NetworkEvent | Stop | Returned, now: float) -> list[Action]:
        if isinstance(event, Stop):
            return self.cluster_end.begin(Exit(exits.OK, event.reason), now)
        if isinstance(event, Returned) and isinstance(event.tag, Serving):
            return self.files.returned(event.tag, event.value)
        if isinstance(event, Returned) and isinstance(event.tag, Opening):
            return self._opened(event.tag, event.value, now)
        if isinstance(event, Returned):
            return self.checkpoints.returned(event.tag, event.value, now)
        member = self.membership.find(event.peer)
        if isinstance(event, Undecodable):
            return self._refuse(event, member, 0, event.error, now)
        if isinstance(event, Unreachable):  # its key was revoked
            told = Send(event.peer, Error.of(0, event.error))
            return [] if member is None else [told, *self.give_up(member, now, DepartureCause.REVOKED)]
        if not isinstance(event, Received):
            return []  # who is disconnected may come back; whether a member is lost is for its heartbeats to say
        return self._receive(event, member, now)

    def _receive(self, event: Received, member: MemberInfo | None, now: float) -> list[Action]:
        try:
            actions = self._take(event, member, event.message, now)
            return self._news.of_event(actions, event, member, now) if is_said(actions) else actions
        except PSError as error:
            return self._refuse(event, member, getattr(event.message, "request", 0), error, now)

    def _opened(self, opening: Opening, message: Message | PSError, now: float) -> list[Action]:
        """A large message is read: take it, from whoever has its connection now."""
        event, member = opening.event, self.membership.find(opening.event.peer)
        self.openings.next(now)
        if isinstance(message, PSError):
            return self._refuse(event, member, opening.large.request, message, now)
        if (again := self.openings.again(opening, message, member, now)) is not None:
            return again
        return self._receive(replace(event, message=message), member, now)

    def _take(self, event: Received, member: MemberInfo | None, message: Message, now: float) -> list[Action]:
        if isinstance(message, Large):
            found = self.openings.take(event, message, member, now)
            return found if isinstance(found, list) else self._take(replace(event, message=found), member, found, now)
        check_message(self.identity, event, member)
        if isinstance(message, Hello):
            return join(self, event, message, now)
        if isinstance(message, StatusRequest):
            self._inquiries.check(len(self.membership.members), now)
            return [Send(event.peer, Status(message.request, self.status(now)))]
        if isinstance(message, Watch):
            self._inquiries.check(len(self.membership.members) + WATCHED_AS_MEMBERS, now)
            return [Send(event.peer, Status(message.request, self.view(message, now)))]
        if member is not None:
            self.membership.heard(member, now)
        order = ORDERS.get(type(message))
        if order is not None and (done := order(self, event.peer, message, now)) is not None:
            return done
        if isinstance(message, Farewell):
            return self._farewell(event, message, now)
        if member is None and isinstance(message, Leave) and not self.is_back:
            return [Send(event.peer, Left())]  # said again, because the answer was lost
        if member is None:
            self.membership.check_known(event.peer)
            if self.is_back:
                return [Send(event.peer, Back(self.identity.incarnation))]
            what = f"{type(message).__name__} before Hello"
            raise NotJoinedError(f"{what}: the sender has not joined this coordinator, perhaps an earlier one here")
        return self._from_member(member, message, now)

    def next_deadline(self) -> float | None:
        due, silent = self.wheel.next_deadline(), self.membership.next_deadline()
        assert due is not None  # the reminder
        return due if silent is None else min(due, max(silent, self._lose_due))

    def on_deadline(self, now: float) -> list[Action]:
        """Notice lost members, remind of those we wait for, end what nobody uses any more."""
        actions: list[Action] = []
        if now >= self._lose_due:
            for member in self.membership.overdue(now, MOST_LOST):
                actions += self.lose(member, now)
                self._lose_due = now + PIECE_S
        actions += [*self.wheel.on_deadline(now), *self._settle(now), *self.cluster_end.on_deadline(now)]
        return self._recorded(actions, now)

    def _remind(self, now: float) -> list[Action]:
        """Say what is waited for, and what is new of what is said now and then only."""
        self._reminder_due = now + REMINDER_INTERVAL_S
        waits = self._waiting() if self.ending is None else []
        said: list[Action] = [Log("info", text, job=job_of(text, self.runs)) for text in waits]
        return [*said, *self._news.summaries(now)]

    def _due_of(self, name: str) -> float | None:
        run = self.runs[name]
        due, save = run.next_deadline(), self.checkpoints.due_at(run) if self.checkpoints.cadence else None
        return due if save is None else save if due is None else min(due, save)

    def _job_due(self, name: str, now: float) -> list[Action]:
        run = self.runs[name]
        actions = self._news.of_job(run.on_deadline(now), name, now)
        return [*actions, *self.jobs.end_if_over(run, now)]

    def lose(self, member: MemberInfo, now: float) -> list[Action]:
        """A member is lost: it was silent for too long, or its process has ended."""
        told = Send(member.peer, Error.of(0, member.lost(now)))
        return [*self._news.of_member(self.give_up(member, now), member, now), told]

    def give_up(self, member: MemberInfo, now: float, how: DepartureCause = DepartureCause.LOST) -> list[Action]:
        """A member is gone that others count on: tell everybody that waits for it.

        Of one that only trained or looked on, servers hear as of one that has left, and those who wait for it; others
        would have no use for it, and where thousands are lost that would be millions of messages.
        """
        silent = now - member.seen_at
        advice = ADVICE if member.role == "server" else "the others go on without it"
        error = PeerLostError(role=member.role, name=member.title, silent_s=round(silent, 3), advice=advice)
        lost = Lost(member.role, member.rank, member.hello.name, member.incarnation, silent)
        there = [run for run in self.jobs.runs.values() if run.is_on(member)] if member.role == "server" else []
        for run in there:
            self.jobs.touched.add(run.name)
        actions = self.checkpoints.gone(member, now)  # while it is known what it had
        actions += [action for run in there for action in run.lose_server(member, error, now)]
        runs = [run for run in there if run.lost_shard is not None or run.startup.job is None]
        if there and not runs:
            if any(run.fallback.active for run in there):
                advice = "what nobody else has goes back to a checkpoint"
            else:
                begun = any(run.startup.ready for run in there)
                advice = "its backups take over" if begun else "what began on it begins again on others"
            error = PeerLostError(role=member.role, name=member.title, silent_s=round(silent, 3), advice=advice)
        said = Log("warning", str(error), "lost", job=member.job, peer=member.hello.name, error=error.number)
        actions.insert(0, said)
        told = [other for run in runs for other in run.members.values()]
        if member.role == "server" and self.cluster_end.ending is None and (runs or not there):
            stays = "the cluster stays: start another server, and begin again what was trained on this one"
            actions.append(Log("warning", "the cluster ends with its job" if self.options.once and runs else stays))
        actions += self.part(member, how, now, error)
        for run in runs:
            if run.vacant:  # nobody is there who would have to notice before
                actions += self.jobs.end(run, str(error), now)
        return [*actions, *(Send(other.peer, lost) for other in told)]

    def succeed(self, before: MemberInfo, member: MemberInfo, now: float) -> list[Action]:
        """A member comes in the place of an earlier life of its own, which was not known to be lost.

        No loss is announced: a barrier that waited for the one waits for the other.
        """
        text = f"{before.title} had died and was started again (restart {member.hello.life}): {member.title} goes on"
        self.jobs.touched.add(member.job)
        self.jobs.runs[member.job].succeed(before, member)
        said = Log("warning", text, "lost", job=member.job, peer=member.hello.name)
        actions = [said, *self.part(before, DepartureCause.RESTARTED, now)]
        told = before.eviction(now, DepartureCause.RESTARTED)
        return [*actions, *([Send(before.peer, Error.of(0, told))] if told is not None else [])]

    def part(self, member: MemberInfo, how: DepartureCause, now: float, error: PSError | None = None) -> list[Action]:
        """A member has gone; ``error`` is what those get who wait for it."""
        self.jobs.touched.add(member.job)
        actions = self.checkpoints.gone(member, now)
        self.membership.remove(member, how, now, member.eviction(now, how))
        run = self.jobs.runs.get(member.job)
        if run is None:
            self.erasures.leave(member)
            self.drains.lost(member)
        else:
            if member.incarnation in run.startup.told:  # of others servers know nothing
                # before a step that is complete without it: servers take nothing more of it from then on
                servers, members = run.startup.copies.epochs_by_server(), self.membership.members
                there = [servers[who] for who in servers if who in members]
                actions += self.erasures.depart(member.incarnation, there, now, how)
            actions += run.depart(member, how, now, error)
            if run.vacant:
                actions += self.jobs.end(run, str(run.lost_shard or ""), now)
        return [*actions, *self.cluster_end.left(now)]

    def validate(self) -> None:
        self.membership.validate()
        self.wheel.validate()
        self.erasures.validate()
        self.telling.validate()
        self.jobs.validate()
        self.checkpoints.validate()
        self.drains.validate()
        self.scales.validate()
        self.openings.validate()
        self.probes.validate()
        self.traces.validate()
        self.watching.validate()
        here = {who for run in self.runs.values() for who in run.members} | {s.incarnation for s in self.servers}
        assert here == set(self.membership.members)
        over = [name for name, run in self.runs.items() if run.finished and not run.occupancy.is_closing]
        assert not over, f"it was forgotten that {over} are finished"

    # --- members -------------------------------------------------------------------------------

    def _farewell(self, event: Received, message: Farewell, now: float) -> list[Action]:
        """A member leaves that has not come back; or left before, and the answer was lost."""
        member = self.membership.find_farewell(message.incarnation, message.secret, event.peer, event.holder)
        if member is None:
            return [Send(event.peer, Left())]
        return self._from_member(member, Leave(message.reason), now)

    def _from_member(self, member: MemberInfo, message: Message, now: float) -> list[Action]:
        if isinstance(message, REPEATABLE) and message.request in (answered := member.answers.by_request):
            return self.telling.space([Send(member.peer, answered[message.request])], now)  # it was lost
        kind = type(message)
        if (of_holder := OF_HOLDERS.get(kind)) is not None:  # a server's, which is there for no one job
            return of_holder(self.holders, member, message, now)
        job = member.job
        if kind is not Heartbeat:
            self.touched.add(job)
        if (of_run := OF_RUN.get(kind)) is not None:
            return of_run(self.runs[job], member, message, now)
        return HANDLERS[kind](self, member, message, now)

    def _leave(self, member: MemberInfo, message: Leave, now: float) -> list[Action]:
        return (self._server_leaves if member.role == "server" else self._depart)(member, message, now)

    def _depart(self, member: MemberInfo, message: Leave, now: float) -> list[Action]:
        farewell = Send(member.peer, Left())
        how = DepartureCause.said(message.reason)
        said = Log("info", f"{member.title} {how}", "left", job=member.job, peer=member.hello.name)
        return [farewell, said, *self.part(member, how, now)]

    def _server_leaves(self, member: MemberInfo, message: Leave, now: float) -> list[Action]:
        if self.ending is not None:
            return self._depart(member, message, now)
        if message.reason == DepartureCause.DRAINED:
            drained, actions = self.drains.left(member, now)
            if drained:
                return [*actions, *self._depart(member, message, now)]
        lost = self.give_up(member, now, DepartureCause.CLOSED)  # it takes its shards with it
        return [Send(member.peer, Left()), *lost]

    def _drain_own(self, member: MemberInfo, message: Drain, now: float) -> list[Action]:
        if self.cluster_end.asked is not None:
            return []  # it stays until what it has is saved, and is told then
        return self.drains.ask_own(member, message, now)

    def _holds(self, member: MemberInfo, message: Holding, now: float) -> list[Action]:
        if self.runs[member.job].replication.recuts.holds(member, message.number, now):
            return []
        return self.checkpoints.holds(member, message, now)

    # --- failures ------------------------------------------------------------------------------

    def _refuse(
        self, event: Received | Undecodable, member: MemberInfo | None, request: int, error: PSError, now: float
    ) -> list[Action]:
        self.counts["refused"] += 1
        who = member.title if member else self.membership.title_of_gone(event.peer) or f"peer {alias(event.peer)}"
        told = Send(event.peer, Error.of(request, error))
        return [*self._news.refusal(who, error, event, member, now), told]

    # --- what others may look at ---------------------------------------------------------------

    def _waiting(self) -> list[str]:
        return [
            *waiting(self.servers.staying, self.servers.wanted, self.runs),
            *self.drains.texts(),
            *self.scales.texts(),
        ]

    def status(self, now: float) -> dict[str, Any]:
        """Return the coordinator's view of the cluster: what ``zmqps status --json`` prints."""
        servers, ending, left_out = self.servers, self.cluster_end.asked, list[str]()
        members = [member for run in self.runs.values() for roster in (run.workers, run.observers) for member in roster]
        jobs = {
            name: {**job_status(run, list(servers), now), "checkpoint": dict(self.checkpoints.status(run, now))}
            for name, run in self.runs.items()
        }
        there, parted = members_status([*servers, *members], self.membership.gone, now, left_out)
        ready = "ready" if len(servers.staying) >= servers.wanted else "waiting for servers"
        return {
            "state": f"ending: {ending.reason}" if ending else ready,
            "endpoint": self.identity.endpoint,
            "host": self.identity.host,
            "pid": self.identity.pid,
            "uptime_s": round(now - self.started_at, 3),
            "servers": servers.wanted,
            "draining": list(self.drains.status()),
            "scaling": dict(self.scales.status()),
            "workers": self.options.workers or 0,
            "waiting": self._waiting(),
            "jobs": fit_jobs(jobs, left_out),
            "ended": self.ended.status(now),
            "members": there,
            "gone": parted,
            "left_out": left_out,
            "counters": dict(self.counts),
        }

    def view(self, asked: Watch, now: float) -> dict[str, Any]:
        """Return what there is to see for those who watch."""
        return self.watching.view(asked, self.status(now), self.runs, now)


def is_said(actions: Sequence[Action]) -> bool:
    for action in actions:  # without a call for each
        if type(action) is Log:
            return True
    return False


# --- who may join, and whose messages are heard ---------------------------------------------------


def check_admission(identity: Identity, hello: Hello, holder: KeyHolder | None) -> None:
    """Raise unless somebody may join this coordinator's cluster, by its key and by what it knows.

    Raises `IdentityError`: its key does not allow its role, or it does not know the job secret, or as a server the
    servers' key; `ProtocolError`: its `Hello` is not one of ours.
    """
    check_hello(hello, ("worker", "server", "observer"))
    check_role(holder, hello.role, keyed=identity.keyed)
    check_join(identity.job_secret, hello)
    check_server(identity.server_key, hello)
    if hello.role != "server":
        check_job(hello)


def check_message(identity: Identity, event: Received, member: MemberInfo | None) -> None:
    """Raise unless a coordinator listens to a message of a member, or of a stranger, before anything is done about it.

    With keys the sender of an order has a node's, else it knows the job secret or, on the coordinator's host, the
    end key.

    Raises `IdentityError`: its role, or its key, does not allow it; or it does not prove that it is an operator;
    `ProtocolError`: a coordinator takes this from nobody.
    """
    role, holder = (STRANGER, event.holder) if member is None else (member.hello.role, member.origin.holder)
    row = check_sender(event.message, role, holder, keyed=identity.keyed)
    if OPERATOR in row.coordinator:
        check_order(identity.job_secret, b"" if identity.keyed else identity.end_key, event.message)


# --- how somebody becomes a member ----------------------------------------------------------------


def join(machine: CoordinatorMachine, event: Received, hello: Hello, now: float) -> list[Action]:
    """Take somebody in, or once more; return its welcome, and what follows."""
    check_admission(machine.identity, hello, event.holder)
    machine.membership.check_welcome(hello)
    known = hello.incarnation in machine.membership.members
    if (end := machine.cluster_end.asked) is not None and (machine.cluster_end.ending is not None or not known):
        return [Send(event.peer, Shutdown(end.reason))]
    check_advertised(hello, event.origin)
    if (run := None if hello.role == "server" else machine.jobs.named(hello.job)) is not None:
        check_in_reach(hello.role, event.origin, machine.servers)
        roster, num_workers = run.workers if hello.role == "worker" else run.observers, 0
    else:
        roster, num_workers = machine.servers, max((run.num_workers for run in machine.runs.values()), default=0)
    was_absent = known and machine.membership.members[hello.incarnation].absent
    before = None if known or run is None else roster.predecessor(hello, event.holder)
    rival = None if known or before is not None else roster.rival(hello)
    if rival is not None:
        is_new = not roster.is_doubted(rival, hello)
        if roster.awaits(hello, now, machine.options.heartbeat_interval):  # the newcomer says Hello again
            return [Log("info", f"{hello.name} is here again; {rival.title} is looked for first")] if is_new else []
    member = machine.membership.join(hello, event.peer, roster, now, event.holder, before)
    actions: list[Action] = []
    if was_absent:
        actions += _welcome_back(machine, member, now)
    if not known:
        member.origin = Origin(event.origin, event.holder)
        as_spare = " as a spare" if len(machine.servers) > machine.servers.most else ""
        where = f" job {hello.job!r}" if run else as_spare
        actions.append(Log("info", f"{member.title} joined{where}", "joined", job=member.job, peer=hello.name))
        if rival is not None:
            text = f"{member.title} is number {index_of(hello)} of its launcher, but that is {rival.title}"
            advice = "commands that take a name ask which is meant"
            actions.append(Log("warning", f"{text}: {advice}", "joined", job=member.job, peer=hello.name))
        if before is not None:
            actions += machine.succeed(before, member, now)
        elif run is not None:
            machine.runs[run.name] = run
            machine.cluster_end.note_worker()
            actions += run.join(member, now)
        else:
            machine.servers.joined()
            machine.changes.add("drains")
            for other in machine.runs.values():
                actions += other.move_on(now)
    if run is not None:
        machine.jobs.touched.add(run.name)
    elif was_absent or not known:
        machine.jobs.touched.add_all()
    welcome = Welcome(
        PROTOCOL_VERSION, machine.identity.incarnation, machine.identity.name, member.rank,
        machine.options.heartbeat_interval, machine.options.heartbeat_timeout,
        run.num_workers if run else num_workers, machine.servers.wanted,
        proof=welcome_guard(machine.identity.job_secret, hello), patience=machine.options.patience,
    )  # fmt: skip
    return [Send(event.peer, welcome), *actions]


def _welcome_back(machine: CoordinatorMachine, member: MemberInfo, now: float) -> list[Action]:
    """Go on with a member that was here before this coordinator was away."""
    actions: list[Action] = [Log("info", f"{member.title} is back", "joined", job=member.job, peer=member.hello.name)]
    if member.role == "server":
        actions += machine.erasures.again(member, now)
        for run in machine.runs.values():
            actions += run.again(member)
    return actions


# --- signs of life --------------------------------------------------------------------------------


def heartbeat(machine: CoordinatorMachine, member: MemberInfo, message: Heartbeat, now: float) -> list[Action]:
    """A member gives a sign of life, and tells what it has counted."""
    machine.counts["heartbeats"] += 1
    reported = member.reported
    reported.counters, reported.nbytes = packed(message.counters)
    reported.unreached = unreached(message.counters) if member.role != "server" else ""
    reported.by_epoch = by_epoch(message.counters) if member.role == "server" else {}
    pushes = message.counters.get("pushes")
    if type(pushes) is int:  # it is not said over a connection that is new
        reported.num_pushes = pushes
    reported.memory_nbytes = memory if type(memory := message.counters.get("memory_nbytes")) is int else 0
    doing = message.counters.get("doing", reported.doing)
    reported.doing = doing[:MAX_COUNTER_NAME_CHARS] if type(doing) is str else ""
    run = machine.runs.get(member.job)
    machine.watching.heartbeat(member, message.counters, run, now)
    ack = run.acknowledge(member) if run else HeartbeatAck(0)
    # what it has done since may make a checkpoint due; who was silent may be why copies too many are there
    return [
        Send(member.peer, ack),
        *machine.checkpoints.look([run] if run else [], now, first=True),
        *_tidied(machine, now),
    ]


def _tidied(machine: CoordinatorMachine, now: float) -> list[Action]:
    """Give up copies too many, where there are any."""
    actions: list[Action] = []
    for name in sorted(machine.jobs.touched.spare - machine.jobs.touched.moving):
        machine.jobs.touched.add(name)
        actions += machine.scales.tidy(machine.runs[name], now)
    return actions


def set_rates(run: JobRun, member: MemberInfo, message: SetRates, now: float) -> list[Action]:
    """Take numbers of the optimizer from the chief of a job, and from nobody else."""
    told = list[MemberInfo]()
    if run.places.find_chief() is member and message.terms[1:] != run.rates.latest:
        run.rates.set(message.step, run.steps.clock, message.terms[1:])
        told = [other for other in run.members.values() if other is not member]
    answer = member.answer(message.request, RatesSet(message.request, run.rates.terms))
    return [answer, *(Send(other.peer, run.acknowledge(other)) for other in told)]


def init(machine: CoordinatorMachine, member: MemberInfo, message: Init, now: float) -> list[Action]:
    """A member names a job, or asks for the one that there is; it is told when that can be trained."""
    run, actions = machine.jobs.runs[member.job], list[Action]()
    if (member.incarnation, message.request) in run.startup.parked and machine.telling.too_soon(member, now):
        return []
    if is_replaceable(run, message, machine.options.workers):
        actions = machine.jobs.replace(run, member, now)
        run = machine.jobs.runs[member.job]
    if (waits := machine.jobs.park(member, message)) is not None:
        return [*actions, waits]
    return machine.telling.space([*actions, *run.init(member, message, now)], now)


# --- what somebody may ask for without joining ----------------------------------------------------


def drain(machine: CoordinatorMachine, peer: Peer, message: Drain, now: float) -> list[Action] | None:
    """An operator lets a server go; None: a server says it of itself."""
    machine.jobs.touched.add_all()  # what moves may be of any job
    if not message.server:
        return None
    answer, actions = machine.drains.ask(None, message, now)
    return [*actions, Send(peer, answer)]


def scale(machine: CoordinatorMachine, peer: Peer, message: Scale, now: float) -> list[Action]:
    """An operator lets jobs lie on another number of servers."""
    machine.jobs.touched.add_all()
    answer, actions = machine.scales.ask(message, now)
    return [*actions, Send(peer, answer)]


def note_exit(machine: CoordinatorMachine, peer: Peer, message: Exited, now: float) -> list[Action]:
    """A supervisor saw a process end, as its token shows; where nobody lives in that, nothing changes."""
    how = check_name("how a process ended", message.how)
    if not message.token:
        raise ProtocolError("whoever says that a process has ended shows the token that it was started with")
    actions, lost = list[Action](), list[str]()
    for member in machine.membership.processes.end(process_of(message.token)):
        if member.incarnation in machine.membership.members:  # not gone with the job that the one before it has ended
            if len(lost) < MOST_NAMED:
                lost.append(member.title)
            said = f"{member.title} has ended ({how}), says its supervisor"
            actions.append(Log("info", said, "exited", job=member.job, peer=member.hello.name))
            actions += machine.lose(member, now)
    # 0: it is this coordinator's own process that has seen it
    answers = [Send(peer, ExitNoted(message.request, tuple(lost)))] if message.request else []
    return [*actions, *answers]


def save(machine: CoordinatorMachine, peer: Peer, message: Checkpoint, now: float) -> list[Action] | None:
    """An operator asks for a checkpoint of a job; None: a worker asks for one of its own."""
    if not message.job:
        return None
    wish = Wish(job=message.job, consistent=bool(message.consistent), state=message.state, by=OPERATOR)
    wish.askers[message.nonce or peer, message.request] = peer
    return machine.checkpoints.ask(wish, now)


def save_own(machine: CoordinatorMachine, member: MemberInfo, message: Checkpoint, now: float) -> list[Action]:
    wish = Wish(job=member.job, consistent=bool(message.consistent), state=message.state, by=WORKER)
    wish.askers[member.incarnation, message.request] = member.peer
    return machine.checkpoints.ask(wish, now)


#: What may be asked for without joining, and what is done then; None: a member says it of itself.
ORDERS: dict[type[Message], Callable[[Any, Peer, Any, float], list[Action] | None]] = {
    Trace: lambda machine, peer, message, now: machine.traces.ask(peer, message, now),
    Fetch: lambda machine, peer, message, now: machine.traces.ask(peer, message, now),
    Exited: note_exit,
    EndJob: lambda machine, peer, message, now: machine.jobs.end_asked(peer, message, now),
    Checkpoint: save,
    Examine: lambda machine, peer, message, now: machine.probes.examine(peer, message, now),
    Drain: drain,
    Scale: scale,
}


#: Requests whose answer is remembered, so that one that was lost can be said again.
REPEATABLE = (Init, Enter, Arrive, Take, Checkpoint, SetRates)

#: What is done at what a member says; which role may say it is in `zmqps.core.protocol.security.roles`. …
HANDLERS: dict[type[Message], Callable[[CoordinatorMachine, MemberInfo, Any, float], list[Action]]] = {
    Heartbeat: heartbeat,
    Leave: CoordinatorMachine._leave,
    Drain: CoordinatorMachine._drain_own,
    Saved: lambda machine, member, message, now: machine.checkpoints.saved(member, message, now),
    FileAsk: lambda machine, member, message, now: machine.files.ask(member, message),
    Holding: CoordinatorMachine._holds,
    Checkpoint: save_own,
    Probed: lambda machine, member, message, now: machine.probes.probed(member, message, now),
    SpansRecorded: lambda machine, member, message, now: machine.traces.told(member, message, now),
    Piece: lambda machine, member, message, now: machine.traces.told(member, message, now),
    Init: init,
    Note: lambda machine, who, said, now: machine.notes.take(who, said, now),
}
#: … by the job of the member. What servers say of their copies is in `OF_HOLDERS`.
OF_RUN: dict[type[Message], Callable[[JobRun, MemberInfo, Any, float], list[Action]]] = {
    Resumed: JobRun.resumed,
    Withdraw: JobRun.withdraw,
    Followed: JobRun.followed,
    Arrive: JobRun.arrive,
    SetRates: set_rates,
    Take: JobRun.take,
    Enter: JobRun.enter,
}
