"""The coordinator's machine: who is there, the jobs they train, and the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from zmqps.core.coordinator.ended import EndedJobs
from zmqps.core.coordinator.jobs import Epochs, Jobs, NoSaver
from zmqps.core.coordinator.journal import DirtyKeys, Plain
from zmqps.core.coordinator.members.admission import check_message
from zmqps.core.coordinator.members.cluster_end import ClusterEnd
from zmqps.core.coordinator.members.erasures import Erasures
from zmqps.core.coordinator.members.heartbeats import heartbeat, set_rates
from zmqps.core.coordinator.members.joining import join
from zmqps.core.coordinator.members.membership import SILENT_BEATS, MemberInfo, Membership
from zmqps.core.coordinator.members.news import News
from zmqps.core.coordinator.members.partings import Partings
from zmqps.core.coordinator.members.telling import Telling, init
from zmqps.core.coordinator.openings import Opening, Openings
from zmqps.core.coordinator.operators import ORDERS, save_own
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.placement.drains import Drains
from zmqps.core.coordinator.placement.fleet import Fleet
from zmqps.core.coordinator.placement.holders import OF_HOLDERS, Holders
from zmqps.core.coordinator.placement.resumption import Resumption, Resumptions
from zmqps.core.coordinator.placement.scales import Scales
from zmqps.core.coordinator.remembered import dump, restore
from zmqps.core.coordinator.run import JobRun
from zmqps.core.coordinator.saving.checkpoints import HOLD_S, Checkpoints
from zmqps.core.coordinator.saving.files import FileService, Serving
from zmqps.core.coordinator.saving.making import Cadence
from zmqps.core.coordinator.saving.store import Store
from zmqps.core.coordinator.watching.notes import NoteReceiver
from zmqps.core.coordinator.watching.probes import Probes
from zmqps.core.coordinator.watching.status import (
    Inquiries,
    cluster_status,
    job_of,
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
    Received,
    Returned,
    Send,
    Stop,
    Undecodable,
    Unreachable,
)
from zmqps.core.protocol.messages import (
    Arrive,
    Back,
    Checkpoint,
    Drain,
    Enter,
    Error,
    Farewell,
    FileAsk,
    Followed,
    Heartbeat,
    Hello,
    Holding,
    Init,
    Leave,
    Left,
    Message,
    Note,
    Piece,
    Probed,
    Resumed,
    Saved,
    SetRates,
    SpansRecorded,
    Status,
    StatusRequest,
    Take,
    Watch,
    Withdraw,
)
from zmqps.core.protocol.messages.large import Large
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.protocol.security.keys import alias
from zmqps.errors import NotJoinedError, PSError, counted

#: Of many members that are overdue so many are lost at a time, and the next ones so much later: messages of the living
#: are taken in between, and save those whose signs of life have come meanwhile.
MOST_LOST = 32
PIECE_S = 0.005
#: What a view costs, beside the status in it, as if there were so many more members.
WATCHED_AS_MEMBERS = 200


class CoordinatorMachine:
    """A coordinator process without its sockets.

    Parameters
    ----------
    identity
        Who it is; where it goes on from a journal, whoever has written that.
    options
        What the cluster consists of, and its timeouts.
    store
        Where checkpoints are; None: nowhere.
    resumptions
        The checkpoints that jobs of these names begin from.
    kept
        What was kept in its journal, by key; None: it keeps none.
    """

    def __init__(
        self,
        identity: Identity,
        options: CoordinatorOptions,
        store: Store | None = None,
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
        self.notes = NoteReceiver(lambda who: self.changes.add("noted", who.hex()))
        self.files = FileService(self.membership.members, store.serve if store is not None and store.serves else None)
        self.jobs.saver = self.checkpoints if options.checkpoint_at_end else NoSaver(self.checkpoints.ended)
        self.checkpoints.on_unsaved = self.cluster_end.note_unsaved
        self.cluster_end.save, self.cluster_end.is_saving = self.jobs.save_all, lambda: self.jobs.is_saving
        self.cluster_end.close = self.checkpoints.close
        self.drains = Drains(self.servers, self.runs, self.erasures, self.checkpoints, self.changes.of("drains"))
        self.scales = Scales(
            self.servers, self.runs, self.checkpoints, self.drains, identity.endpoint, options.replicas,
            min(HOLD_S, options.heartbeat_timeout), SILENT_BEATS * options.heartbeat_interval, self.changes.of("scale"),
        )  # fmt: skip
        self._moves = self.wheel.timer("what moves", self._move_due)  # after every event it goes on
        self.partings = Partings(
            self.membership, self.jobs, self.erasures, self.cluster_end, self.checkpoints, self.drains,
            once=options.once,
        )  # fmt: skip
        self.openings = Openings(self.runs, self.membership, self.wheel)
        self.probes = Probes(self.membership.members, self.wheel)
        self.traces = Traces(identity, self.membership.members, self.runs, self.wheel)
        self._reminder_due = 0.0
        self._reminder = self.wheel.timer("the reminder", lambda: self._reminder_due, self._remind)
        self._lose_due = 0.0  # not before, although members are overdue
        self._inquiries = Inquiries()
        self.watching = Watching()
        self.notes.history = self.watching.history
        self._news = News()
        self.telling = Telling(self.membership.find, self.wheel)
        self.holders = Holders(self.jobs, self.erasures, self.checkpoints, self.telling)

    @property
    def title(self) -> str:
        """Who this coordinator is, for errors."""
        return f"the coordinator ({self.identity.name}, {self.identity.host}, pid {self.identity.pid})"

    @property
    def ending(self) -> Exit | None:
        """How the cluster ends, once it is ending."""
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
            return [] if member is None else [told, *self.partings.lose(member, now, DepartureCause.REVOKED)]
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
        """Return when something is due."""
        due, silent = self.wheel.next_deadline(), self.membership.next_deadline()
        assert due is not None  # the reminder
        return due if silent is None else min(due, max(silent, self._lose_due))

    def on_deadline(self, now: float) -> list[Action]:
        """Notice lost members, remind of those we wait for, end what nobody uses any more."""
        return self._recorded(self._on_deadline(now), now)

    def _on_deadline(self, now: float) -> list[Action]:
        actions: list[Action] = []
        if now >= self._lose_due:
            for member in self.membership.overdue(now, MOST_LOST):
                actions += self.lose(member, now)
                self._lose_due = now + PIECE_S
        actions += [*self.wheel.on_deadline(now), *self._settle(now)]
        return actions + self.cluster_end.on_deadline(now)

    def _remind(self, now: float) -> list[Action]:
        """Say what is waited for, and what is new of what is said now and then only."""
        self._reminder_due = now + REMINDER_INTERVAL_S
        waits = self._waiting() if self.ending is None else []
        said: list[Action] = [Log("info", text, job=job_of(text, self.runs)) for text in waits]
        return [*said, *self._news.summaries(now)]

    def _due_of(self, name: str) -> float | None:
        """Return when something of a job is due."""
        run = self.runs[name]
        dues = (run.next_deadline(), self.checkpoints.due_at(run) if self.checkpoints.cadence else None)
        return min([due for due in dues if due is not None], default=None)

    def _job_due(self, name: str, now: float) -> list[Action]:
        """Do what is due of a job."""
        run = self.runs[name]
        actions = self._news.of_job(run.on_deadline(now), name, now)
        return [*actions, *self.jobs.end_if_over(run, now)]

    def lose(self, member: MemberInfo, now: float) -> list[Action]:
        """A member is lost: it was silent for too long, or its process has ended."""
        told = Send(member.peer, Error.of(0, member.lost(now)))
        return [*self._news.of_member(self.partings.lose(member, now), member, now), told]

    def validate(self) -> None:
        """Assert the invariants."""
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
        take = HANDLERS[type(message)]
        if take is not heartbeat:
            self.touched.add(member.job)
        return take(self, member, message, now)

    def _leave(self, member: MemberInfo, message: Leave, now: float) -> list[Action]:
        return (self._server_leaves if member.role == "server" else self._depart)(member, message, now)

    def _depart(self, member: MemberInfo, message: Leave, now: float) -> list[Action]:
        farewell = Send(member.peer, Left())
        how = DepartureCause.said(message.reason)
        said = Log("info", f"{member.title} {how}", "left", job=member.job, peer=member.hello.name)
        return [farewell, said, *self.partings.depart(member, how, now)]

    def _server_leaves(self, member: MemberInfo, message: Leave, now: float) -> list[Action]:
        if self.ending is not None:
            return self._depart(member, message, now)
        if message.reason == DepartureCause.DRAINED:
            drained, actions = self.drains.left(member, now)
            if drained:
                return [*actions, *self._depart(member, message, now)]
        lost = self.partings.lose(member, now, DepartureCause.CLOSED)  # it takes its shards with it
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
        return cluster_status(
            servers=self.servers,
            draining=self.drains.status(),
            scaling=self.scales.status(),
            options=self.options,
            ending=self.cluster_end.asked,
            identity=self.identity,
            uptime_s=round(now - self.started_at, 3),
            waiting=self._waiting(),
            runs=self.runs,
            ended=self.ended.status(now),
            gone=self.membership.gone,
            counters=self.counts,
            checkpoint_of=self.checkpoints.status,
            now=now,
        )

    def view(self, asked: Watch, now: float) -> dict[str, Any]:
        """Return what there is to see for those who watch."""
        return self.watching.view(asked, self.status(now), self.runs, now)


def is_said(actions: Sequence[Action]) -> bool:
    """Whether anything is to be logged."""
    for action in actions:  # without a call for each
        if type(action) is Log:
            return True
    return False


def _of_run(
    take: Callable[[JobRun, MemberInfo, Any, float], list[Action]],
) -> Callable[[CoordinatorMachine, MemberInfo, Any, float], list[Action]]:
    """Return a handler that leaves a message to the job of the member that sent it."""
    return lambda machine, member, message, now: take(machine.runs[member.job], member, message, now)


def _of_holder(
    take: Callable[[Holders, MemberInfo, Any, float], list[Action]],
) -> Callable[[CoordinatorMachine, MemberInfo, Any, float], list[Action]]:
    """Return a handler for what a server says of its copies."""
    return lambda machine, member, message, now: take(machine.holders, member, message, now)


#: Requests whose answer is remembered, so that one that was lost can be said again.
REPEATABLE = (Init, Enter, Arrive, Take, Checkpoint, SetRates)

#: What is done at what a member says; which role may say it is in `zmqps.core.protocol.security.roles`.
HANDLERS: dict[type[Message], Callable[[CoordinatorMachine, MemberInfo, Any, float], list[Action]]] = {
    **{kind: _of_holder(take) for kind, take in OF_HOLDERS.items()},
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
    Resumed: _of_run(JobRun.resumed),
    Init: init,
    Withdraw: _of_run(JobRun.withdraw),
    Followed: _of_run(JobRun.followed),
    Note: lambda machine, who, said, now: machine.notes.take(who, said, now),
    Arrive: _of_run(JobRun.arrive),
    SetRates: _of_run(set_rates),
    Take: _of_run(JobRun.take),
    Enter: _of_run(JobRun.enter),
}
