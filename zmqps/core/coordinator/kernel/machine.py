"""The coordinator's state machine: its members, the jobs they train, and the end of the cluster.

A subclass adds the rest: `zmqps.core.coordinator.machine.CoordinatorMachine`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Generic

from zmqps.core.coordinator.jobs import EndedJobs, Epochs, Jobs, Run, is_replaceable
from zmqps.core.coordinator.journal import DirtyKeys, Plain
from zmqps.core.coordinator.kernel.run import LOSS_ADVICE
from zmqps.core.coordinator.members.cluster_end import ClusterEnd
from zmqps.core.coordinator.members.erasures import Erasures
from zmqps.core.coordinator.members.membership import Fleet, MemberInfo, Membership, Origin, index_of
from zmqps.core.coordinator.members.news import News
from zmqps.core.coordinator.members.reach import check_advertised, check_in_reach, unreached
from zmqps.core.coordinator.members.telling import Telling
from zmqps.core.coordinator.openings import Opening, Openings
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.placement.resumption import Resumption, Resumptions
from zmqps.core.node.member import REMINDER_INTERVAL_S, Identity
from zmqps.core.node.timers import Wheel
from zmqps.core.protocol import exits
from zmqps.core.protocol import messages as m
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
from zmqps.core.protocol.messages.hello import check_hello, check_job, check_name
from zmqps.core.protocol.messages.large import Large
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.protocol.security.guard import check_join, check_order, check_server, welcome_guard
from zmqps.core.protocol.security.keys import alias, process_of
from zmqps.core.protocol.security.roles import OPERATOR, STRANGER, KeyHolder, check_role, check_sender
from zmqps.errors import NotJoinedError, PeerLostError, ProtocolError, PSError, counted, from_wire

#: Of many overdue members this many are lost at a time, and the next ones this much later: messages of the living
#: are taken in between, and save those whose signs of life have come meanwhile.
MOST_LOST = 32
PIECE_S = 0.005
#: Of the members lost with one process, this many are named.
MOST_NAMED = 8
#: What servers say of copies of shards, not of a job that they are there for.
OF_COPIES = frozenset((m.Ready, m.Committed, m.Measured, m.Leading, m.Yielded))

#: Handles a message from a member; …
OfMember = Callable[[MemberInfo, Any, float], list[Action]]
#: … and one that any peer may send: returns None if a member sent it on its own behalf.
OfAnybody = Callable[[Peer, Any, float], list[Action] | None]


class CoordinatorKernel(Generic[Run]):
    """A coordinator process without its sockets.

    ``resumptions`` are the checkpoints that jobs of these names begin from; ``kept`` is what was kept in its journal,
    by key (None: it keeps none), and then ``identity`` is that of the process that has written it.
    """

    #: Requests whose answer is remembered, so that one that was lost can be said again.
    repeatable: ClassVar[tuple[type[m.Message], ...]] = (m.Init, m.Enter, m.Arrive, m.SetRates)

    def __init__(
        self,
        identity: Identity,
        options: CoordinatorOptions,
        run_class: Callable[..., Run],
        resumptions: Mapping[str, Resumption] = MappingProxyType({}),
        kept: Mapping[str, Plain] | None = None,
    ) -> None:
        self.identity = identity
        self.options = options
        self.changes = DirtyKeys(kept=kept is not None)
        self.is_back = bool(kept)  # it was away, and its members will be informed when they send something
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
            self.changes.add,
        )
        self.epochs = Epochs(self.changes.add)

        def new_run(name: str, before: str, resumption: Resumption | None) -> Run:
            take, root = self.epochs.take, identity.secret
            return run_class(name, options, self.servers, take, before, root, resumption, self.changes)

        self.jobs: Jobs[Run] = Jobs(
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
        self.touched.ring = self._job_due
        self.ended: EndedJobs = self.jobs.ended
        self.cluster_end.save, self.cluster_end.is_saving = self.jobs.save_all, lambda: self.jobs.is_saving
        self.openings = Openings(self.runs, self.membership, self.wheel)
        self._reminder_due = 0.0
        self._reminder = self.wheel.timer("the reminder", lambda: self._reminder_due, self._remind)
        self._lose_due = 0.0  # not before, although members are overdue
        #: What may be said without joining.
        self.from_anybody: dict[type[m.Message], OfAnybody] = {
            m.Exited: self._note_exit,
            m.EndJob: self.jobs.end_asked,
        }
        #: What members say, but of their job: those are in `JobKernel.from_members`. Which role may say it is in
        #: `zmqps.core.protocol.security.roles`.
        self.from_members: dict[type[m.Message], OfMember] = {
            m.Heartbeat: self.heartbeat,
            m.Leave: self._leave,
            m.Init: self._init,
            m.Discarded: self._discarded,
            m.Forgotten: self._forgotten,
            m.Error: self._failed,
        }
        self._news = News()
        self.telling = Telling(self.membership.find, self.wheel)

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
        if self.is_back:
            return self._come_back(now)
        self.changes.add("cluster")
        text = ", ".join([f"coordinator at {self.identity.endpoint}", *self.waiting()[:1]])
        return self._recorded([Log("info", text, "started")], now)

    def _come_back(self, now: float) -> list[Action]:
        """Continue with what was kept when it went away."""
        self._restore(now)
        self.touched.add_all()
        for run in self.runs.values():
            run.story.tell("the coordinator has come back from its journal")
        there = f"{counted(len(self.membership.members), 'member')} and {counted(len(self.runs), 'job')}"
        text = f"coordinator at {self.identity.endpoint} is back with {there} from its journal; a member that does not"
        text += f" return within {self.membership.begin_again(now):.0f} s is lost"
        return self._recorded([Log("info", text, "started"), *self._settle(now)], now)

    # --- what is extended ------------------------------------------------------------------------

    def waiting(self) -> list[str]:
        """Return in words what the cluster and its jobs wait for."""
        return []

    def _restore(self, now: float) -> None:
        """Restore the journaled state: no member is connected yet, and all have time to come back."""

    def _dump(self, what: str, whose: str) -> Plain:
        """Return the state to journal under a key; None deletes it."""

    def _said(self, actions: Sequence[Action], now: float) -> None:
        """Something is logged."""

    def _returned(self, event: Returned, now: float) -> list[Action]:
        """Something that was done aside has an outcome."""
        return []

    def _move(self, now: float) -> list[Action]:
        """Continue with what moves from one server to another."""
        return []

    def _gone(self, member: MemberInfo, now: float) -> list[Action]:
        """A member is about to be forgotten."""
        return []

    def _server_gone(self, server: MemberInfo) -> None:
        """A server has left."""

    def _server_leaves(self, member: MemberInfo, message: m.Leave, now: float) -> list[Action]:
        """A server leaves: it takes its shards with it."""
        return [Send(member.peer, m.Left()), *self.give_up(member, now, DepartureCause.CLOSED)]

    def loss_advice(self, there: Sequence[Run]) -> str:
        """Say what becomes of jobs that continue without a server; it had copies of some of their shards."""
        return "what began on it begins again on others"

    # --- the door ------------------------------------------------------------------------------

    def handle(self, event: NetworkEvent | Stop | Returned, now: float) -> list[Action]:
        """Take an event; every failure becomes an `Error` to its sender, never an exception."""
        actions = self._handle(event, now)
        return self._recorded([*actions, *self._settle(now)], now)

    def _settle(self, now: float) -> list[Action]:
        """Take the steps now possible for touched jobs, and end jobs that have been saved."""
        actions = list[Action]()
        for run in self.touched.note():
            actions += self._settle_job(run, now)
        actions += self._move(now)
        if self.jobs.closing:
            actions += self.jobs.look(now)
        if self.cluster_end.asked is not None:
            actions += self.cluster_end.look(now)
        self.touched.settle()
        return actions

    def _settle_job(self, run: Run, now: float) -> list[Action]:
        """Continue with what has become possible for one job; end it if it is finished."""
        actions = run.settle(now, tell=self.touched.names.get(run.name, False))
        if run.startup.given_up:
            actions += self.jobs.discard(run, now)
        if self.jobs.saver.is_on:
            actions += self.jobs.saver.look([run], now)
        if not run.members and run.finished:
            actions += self.jobs.close(run, run.losses.outcome, now)
        return self._news.of_job(actions, run.name, now) if is_said(actions) else actions

    def _recorded(self, actions: list[Action], now: float) -> list[Action]:
        """Return actions, preceded by the records of the state that they follow from."""
        if is_said(actions):
            self._said(actions, now)
        return [*self.changes.records(self._dump), *actions] if self.changes.keys else actions

    def _handle(self, event: NetworkEvent | Stop | Returned, now: float) -> list[Action]:
        if isinstance(event, Received):
            return self._receive(event, self.membership.find(event.peer), now)
        if isinstance(event, Stop):
            return self.cluster_end.begin(Exit(exits.OK, event.reason), now)
        if isinstance(event, Returned):
            if isinstance(event.tag, Opening):
                return self._opened(event.tag, event.value, now)
            return self._returned(event, now)
        member = self.membership.find(event.peer)
        if isinstance(event, Undecodable):
            return self._refuse(event, member, 0, event.error, now)
        if isinstance(event, Unreachable):  # its key was revoked
            told = Send(event.peer, m.Error.of(0, event.error))
            return [] if member is None else [told, *self.give_up(member, now, DepartureCause.REVOKED)]
        return []  # a disconnected member may come back: only its heartbeats tell whether it is lost

    def _receive(self, event: Received, member: MemberInfo | None, now: float) -> list[Action]:
        try:
            actions = self._take(event, member, event.message, now)
            return self._news.of_event(actions, event, member, now) if is_said(actions) else actions
        except PSError as error:
            return self._refuse(event, member, getattr(event.message, "request", 0), error, now)

    def _opened(self, opening: Opening, message: m.Message | PSError, now: float) -> list[Action]:
        """Handle a large message that has been decoded; the sender may have reconnected meanwhile."""
        event, member = opening.event, self.membership.find(opening.event.peer)
        self.openings.next(now)
        if isinstance(message, PSError):
            return self._refuse(event, member, opening.large.request, message, now)
        if (again := self.openings.again(opening, message, member, now)) is not None:
            return again
        return self._receive(replace(event, message=message), member, now)

    def _take(self, event: Received, member: MemberInfo | None, message: m.Message, now: float) -> list[Action]:
        if isinstance(message, Large):
            found = self.openings.take(event, message, member, now)
            return found if isinstance(found, list) else self._take(replace(event, message=found), member, found, now)
        check_message(self.identity, event, member)
        if isinstance(message, m.Hello):
            return join(self, event, message, now)
        if member is not None:
            self.membership.heard(member, now)
        said = self.from_anybody.get(type(message))
        if said is not None and (done := said(event.peer, message, now)) is not None:
            return done
        if isinstance(message, m.Farewell):
            return self._farewell(event, message, now)
        if member is None and isinstance(message, m.Leave) and not self.is_back:
            return [Send(event.peer, m.Left())]  # said again, because the answer was lost
        if member is None:
            self.membership.check_known(event.peer)
            if self.is_back:
                return [Send(event.peer, m.Back(self.identity.incarnation))]
            what = f"{type(message).__name__} before Hello"
            raise NotJoinedError(f"{what}: the sender has not joined this coordinator, perhaps an earlier one here")
        return self._from_member(member, message, now)

    def _from_member(self, member: MemberInfo, message: m.Message, now: float) -> list[Action]:
        kind = type(message)
        if kind in self.repeatable and (n := message.request) in (known := member.answers.by_request):  # type: ignore[attr-defined]
            return self.telling.space([Send(member.peer, known[n])], now)  # it was lost
        if kind in OF_COPIES:  # a server's, which is there for no one job
            run = self.jobs.of_epoch(message.epoch, member)  # type: ignore[attr-defined]
            return [] if run is None else self._of_copy(run, message, now)
        if kind is not m.Heartbeat:
            self.touched.add(member.job)
        if (taken := self.from_members.get(kind)) is not None:
            return taken(member, message, now)
        return self.runs[member.job].from_members[kind](member, message, now)

    def _of_copy(self, run: Run, message: m.Message, now: float) -> list[Action]:
        """Handle a server's message about a copy of a shard; messages about a copy that was dropped are ignored."""
        actions = run.of_copies[type(message)](message, now)
        if type(message) is m.Committed and self.jobs.saver.is_on:
            actions += self.jobs.saver.look([run], now, first=True)
        return self.telling.space(actions, now) if type(message) is m.Ready else actions

    # --- time ----------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        due, silent = self.wheel.next_deadline(), self.membership.next_deadline()
        assert due is not None  # the reminder
        return due if silent is None else min(due, max(silent, self._lose_due))

    def on_deadline(self, now: float) -> list[Action]:
        """Declare silent members lost, send due reminders, end what is no longer in use."""
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
        waits = self.waiting() if self.ending is None else []
        said: list[Action] = [Log("info", text, job=job_of(text, self.runs)) for text in self._news.waits(waits, now)]
        return [*said, *self._news.summaries(now)]

    def _job_due(self, name: str, now: float) -> list[Action]:
        run = self.runs[name]
        actions = self._news.of_job(run.on_deadline(now), name, now)
        return [*actions, *self.jobs.end_if_over(run, now)]

    # --- members that go -------------------------------------------------------------------------
    #
    # Silence: `lose`, `give_up`, `part`. A goodbye: `_leave`, `_depart`, `part`. All end in the job's `depart`.

    def lose(self, member: MemberInfo, now: float) -> list[Action]:
        """A member is lost: it was silent for too long, or its process has ended."""
        told = Send(member.peer, m.Error.of(0, member.lost(now)))
        return [*self._news.of_member(self.give_up(member, now), member, now), told]

    def give_up(self, member: MemberInfo, now: float, how: DepartureCause = DepartureCause.LOST) -> list[Action]:
        """Declare a member lost that others may depend on, and tell all that wait for it.

        If it only trained or observed, servers see an ordinary departure and only members that wait learn of it; to
        inform all, when thousands are lost at once, would take millions of messages.
        """
        silent = now - member.seen_at
        advice = LOSS_ADVICE if member.role == "server" else "the others continue without it"
        error = PeerLostError(role=member.role, name=member.title, silent_s=round(silent, 3), advice=advice)
        lost = m.Lost(member.role, member.rank, member.hello.name, member.incarnation, silent)
        there = [run for run in self.runs.values() if run.is_on(member)] if member.role == "server" else []
        for run in there:
            self.touched.add(run.name)
        actions = self._gone(member, now)  # while it is known what it had
        actions += [action for run in there for action in run.lose_server(member, error, now)]
        runs = [run for run in there if run.lost_shard is not None or run.startup.job is None]
        if there and not runs:
            advice = self.loss_advice(there)
            error = PeerLostError(role=member.role, name=member.title, silent_s=round(silent, 3), advice=advice)
        said = Log("warning", str(error), "lost", job=member.job, peer=member.hello.name, error=error.number)
        actions.insert(0, said)
        told = [other for run in runs for other in run.members.values()]
        if member.role == "server" and self.ending is None and (runs or not there):
            stays = "the cluster stays: start another server, and begin again what was trained on this one"
            actions.append(Log("warning", "the cluster ends with its job" if self.options.once and runs else stays))
        actions += self.part(member, how, now, error)
        for run in runs:
            if run.vacant:  # no member is left that needs to know first
                actions += self.jobs.end(run, str(error), now)
        return [*actions, *(Send(other.peer, lost) for other in told)]

    def succeed(self, before: MemberInfo, member: MemberInfo, now: float) -> list[Action]:
        """A member replaces its earlier life, which was not known to be lost.

        No loss is announced: a barrier that waited for the one waits for the other.
        """
        text = f"{before.title} had died and was started again (restart {member.hello.life}): {member.title} continues"
        self.touched.add(member.job)
        self.runs[member.job].succeed(before, member)
        said = Log("warning", text, "lost", job=member.job, peer=member.hello.name)
        actions = [said, *self.part(before, DepartureCause.RESTARTED, now)]
        told = before.eviction(now, DepartureCause.RESTARTED)
        return [*actions, *([Send(before.peer, m.Error.of(0, told))] if told is not None else [])]

    def part(self, member: MemberInfo, how: DepartureCause, now: float, error: PSError | None = None) -> list[Action]:
        """Remove a member; ``error`` is the answer to requests that wait for it."""
        self.touched.add(member.job)
        actions = self._gone(member, now)
        self.membership.remove(member, how, now, member.eviction(now, how))
        run = self.runs.get(member.job)
        if run is None:
            self.erasures.leave(member)
            self._server_gone(member)
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

    def _farewell(self, event: Received, message: m.Farewell, now: float) -> list[Action]:
        """A member leaves that has not come back; or left before, and the answer was lost."""
        member = self.membership.find_farewell(message.incarnation, message.secret, event.peer, event.holder)
        if member is None:
            return [Send(event.peer, m.Left())]
        return self._from_member(member, m.Leave(message.reason), now)

    def _leave(self, member: MemberInfo, message: m.Leave, now: float) -> list[Action]:
        stays = member.role == "server" and self.ending is None  # unless it may go
        return (self._server_leaves if stays else self._depart)(member, message, now)

    def _depart(self, member: MemberInfo, message: m.Leave, now: float) -> list[Action]:
        farewell = Send(member.peer, m.Left())
        how = DepartureCause.said(message.reason)
        said = Log("info", f"{member.title} {how}", "left", job=member.job, peer=member.hello.name)
        return [farewell, said, *self.part(member, how, now)]

    def _refuse(
        self, event: Received | Undecodable, member: MemberInfo | None, request: int, error: PSError, now: float
    ) -> list[Action]:
        self.counts["refused"] += 1
        who = member.title if member else self.membership.title_of_gone(event.peer) or f"peer {alias(event.peer)}"
        told = Send(event.peer, m.Error.of(request, error))
        return [*self._news.refusal(who, error, event, member, now), told]

    def validate(self) -> None:
        self.membership.validate()
        self.wheel.validate()
        self.erasures.validate()
        self.telling.validate()
        self.jobs.validate()
        self.openings.validate()
        here = {who for run in self.runs.values() for who in run.members} | {s.incarnation for s in self.servers}
        assert here == set(self.membership.members)
        over = [name for name, run in self.runs.items() if run.finished and not run.occupancy.is_closing]
        assert not over, f"it was forgotten that {over} are finished"

    # --- signs of life ---------------------------------------------------------------------------

    def heartbeat(self, member: MemberInfo, message: m.Heartbeat, now: float) -> list[Action]:
        """A member gives a sign of life, and tells what it has counted."""
        self.counts["heartbeats"] += 1
        member.reported.unreached = unreached(message.counters) if member.role != "server" else ""
        run = self.runs.get(member.job)
        return [Send(member.peer, run.acknowledge(member) if run else m.HeartbeatAck(0))]

    # --- what members say ------------------------------------------------------------------------

    def _init(self, member: MemberInfo, message: m.Init, now: float) -> list[Action]:
        """A member names a job, or asks for the one that there is; it is informed when that can be trained."""
        run, actions = self.runs[member.job], list[Action]()
        if (member.incarnation, message.request) in run.startup.parked and self.telling.too_soon(member, now):
            return []
        if is_replaceable(run, message, self.options.workers):
            actions = self.jobs.replace(run, member, now)
            run = self.runs[member.job]
        if (waits := self.jobs.park(member, message)) is not None:
            return [*actions, waits]
        return self.telling.space([*actions, *run.init(member, message, now)], now)

    def _note_exit(self, peer: Peer, message: m.Exited, now: float) -> list[Action]:
        """Handle a supervisor's report that a process ended; if no member has its token, nothing changes."""
        how = check_name("how a process ended", message.how)
        if not message.token:
            raise ProtocolError("an Exited must carry the token that the process was started with")
        actions, lost = list[Action](), list[str]()
        for member in self.membership.processes.end(process_of(message.token)):
            if member.incarnation in self.membership.members:  # not gone with the job that the one before it has ended
                if len(lost) < MOST_NAMED:
                    lost.append(member.title)
                said = f"{member.title} has ended ({how}), says its supervisor"
                actions.append(Log("info", said, "exited", job=member.job, peer=member.hello.name))
                actions += self.lose(member, now)
        # 0: it is this coordinator's own process that has seen it
        answers = [Send(peer, m.ExitNoted(message.request, tuple(lost)))] if message.request else []
        return [*actions, *answers]

    # --- what servers say of copies ----------------------------------------------------------------

    def _discarded(self, member: MemberInfo, message: m.Discarded, now: float) -> list[Action]:
        """It has freed a copy."""
        self.erasures.discarded(member, message.epoch)
        return []

    def _forgotten(self, member: MemberInfo, message: m.Forgotten, now: float) -> list[Action]:
        """It has forgotten a member."""
        self.erasures.forgotten(member, message.incarnation)
        return []

    def _failed(self, member: MemberInfo, message: m.Error, now: float) -> list[Action]:
        """It could not carry out an order."""
        error = from_wire(message.code, message.text, message.facts)
        actions: list[Action] = [Log("error", f"{member.title}: {error}", peer=member.hello.name, error=error.number)]
        runs = self.runs.values() if message.request == 0 else [self.jobs.of_epoch(message.request, member)]
        if message.request == 0:
            self.touched.add_all()
        for run in runs:
            if run is not None:  # else about the shard of a job that was given up
                actions += run.fail(error, now, message.request)
        return actions


def is_said(actions: Sequence[Action]) -> bool:
    for action in actions:  # without a call for each
        if type(action) is Log:
            return True
    return False


def job_of(text: str, jobs: Mapping[str, object]) -> str:
    """Return which job a text of `CoordinatorKernel.waiting` is about; empty: none."""
    return next((name for name in jobs if text.startswith(f"job {name!r}: ")), "")


# --- which peers may join, and whose messages count -----------------------------------------------


def check_admission(identity: Identity, hello: m.Hello, holder: KeyHolder | None) -> None:
    """Raise unless a peer may join this coordinator's cluster, by its key and the secrets it knows.

    Raises `IdentityError`: its key does not allow its role, or it does not know the job secret, or as a server the
    servers' key; `ProtocolError`: its `Hello` is not of this protocol.
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
    `ProtocolError`: a coordinator takes this from no peer.
    """
    role, holder = (STRANGER, event.holder) if member is None else (member.hello.role, member.origin.holder)
    row = check_sender(event.message, role, holder, keyed=identity.keyed)
    if OPERATOR in row.coordinator:
        check_order(identity.job_secret, b"" if identity.keyed else identity.end_key, event.message)


# --- joining --------------------------------------------------------------------------------------


def join(machine: CoordinatorKernel[Run], event: Received, hello: m.Hello, now: float) -> list[Action]:
    """Admit a peer, or welcome a member again; return its welcome, and what follows."""
    check_admission(machine.identity, hello, event.holder)
    machine.membership.check_welcome(hello)
    known = hello.incarnation in machine.membership.members
    if (end := machine.cluster_end.asked) is not None and (machine.cluster_end.ending is not None or not known):
        return [Send(event.peer, m.Shutdown(end.reason))]
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
    welcome = m.Welcome(
        m.PROTOCOL_VERSION, machine.identity.incarnation, machine.identity.name, member.rank,
        machine.options.heartbeat_interval, machine.options.heartbeat_timeout,
        run.num_workers if run else num_workers, machine.servers.wanted,
        proof=welcome_guard(machine.identity.job_secret, hello), patience=machine.options.patience,
    )  # fmt: skip
    return [Send(event.peer, welcome), *actions]


def _welcome_back(machine: CoordinatorKernel[Run], member: MemberInfo, now: float) -> list[Action]:
    """Continue with a member that was here before this coordinator was away."""
    actions: list[Action] = [Log("info", f"{member.title} is back", "joined", job=member.job, peer=member.hello.name)]
    if member.role == "server":
        actions += machine.erasures.again(member, now)
        for run in machine.runs.values():
            actions += run.again(member)
    return actions
