"""The coordinator with everything besides training: moves, checkpoints, traces, probes, views for users.

Extensions of the kernel are registered here: their messages, their journaled state, and their work after an event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from zmqps.core.coordinator.journal import Plain
from zmqps.core.coordinator.kernel.machine import CoordinatorKernel
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.placement.drains import Drains
from zmqps.core.coordinator.placement.resumption import Resumption
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
    job_status,
    members_status,
    packed,
    waiting,
)
from zmqps.core.coordinator.watching.traces import Traces
from zmqps.core.coordinator.watching.watching import Watching
from zmqps.core.node.member import SILENT_BEATS, Identity
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action, Peer, Returned, Send
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.protocol.security.roles import OPERATOR, WORKER

#: The cost of a view, besides the status in it, in additional members.
WATCHED_AS_MEMBERS = 200


class CoordinatorMachine(CoordinatorKernel[JobRun]):
    """A coordinator process without its sockets, with all extensions."""

    repeatable: ClassVar[tuple[type[m.Message], ...]] = (*CoordinatorKernel.repeatable, m.Take, m.Checkpoint)

    def __init__(
        self,
        identity: Identity,
        options: CoordinatorOptions,
        store: Store | None = None,  # where checkpoints are; None: nowhere
        resumptions: Mapping[str, Resumption] = MappingProxyType({}),
        kept: Mapping[str, Plain] | None = None,
    ) -> None:
        options = options if store is not None or resumptions else replace(options, fallback_timeout=0.0)
        super().__init__(identity, options, JobRun, resumptions, kept)
        self._kept = kept or {}
        self.lives = 0  # how often it has come back
        cadence = Cadence(options.checkpoint_seconds, options.checkpoint_steps, options.checkpoint_full_every)
        self.checkpoints = Checkpoints(
            self.runs, self.membership.members, store, cadence, self.wheel, options.heartbeat_timeout, self.touched.add
        )
        if store is not None:
            self.jobs.saver = self.checkpoints
        if self.checkpoints.cadence:
            self.touched.due_of = self._due_of
        self.checkpoints.on_unsaved = self.cluster_end.note_unsaved
        self.cluster_end.close = self.checkpoints.close
        self.watching = Watching()
        self.notes = NoteReceiver(self.watching.history, lambda who: self.changes.add("noted", who.hex()))
        self.files = FileService(self.membership.members, store.serve if store is not None and store.serves else None)
        self.drains: Drains = Drains(
            self.servers, self.runs, self.erasures, self.checkpoints, self.changes.of("drains")
        )
        self.scales: Scales = Scales(
            self.servers, self.runs, self.checkpoints, self.drains, identity.endpoint, options.replicas,
            min(HOLD_S, options.heartbeat_timeout), SILENT_BEATS * options.heartbeat_interval, self.changes.of("scale"),
        )  # fmt: skip
        self._moves = self.wheel.timer("what moves", self._move_due)  # it continues after every event
        self.probes = Probes(self.membership.members, self.wheel)
        self.traces = Traces(identity, self.membership.members, self.runs, self.wheel)
        self._inquiries = Inquiries()
        self.from_anybody.update({
            m.StatusRequest: self._tell_status,
            m.Watch: self._tell_status,
            m.Trace: self.traces.ask,
            m.Fetch: self.traces.ask,
            m.Checkpoint: self._save,
            m.Examine: self.probes.examine,
            m.Drain: self._drain,
            m.Scale: self._scale,
        })  # fmt: skip
        self.from_members.update({
            m.Drain: self._drain_own,
            m.Saved: self.checkpoints.saved,
            m.FileAsk: self.files.ask,
            m.Holding: self._holds,
            m.Checkpoint: self._save_own,
            m.Probed: self.probes.probed,
            m.SpansRecorded: self.traces.told,
            m.Piece: self.traces.told,
            m.Note: self.notes.take,
        })  # fmt: skip

    # --- journaled state -------------------------------------------------------------------------

    def _restore(self, now: float) -> None:
        restore(self, self._kept, now)
        self._kept = {}

    def _dump(self, what: str, whose: str) -> Plain:
        return dump(self, what, whose)

    # --- after an event --------------------------------------------------------------------------

    def _move(self, now: float) -> list[Action]:
        """Continue moves between servers, and divisions; of any job."""
        if not (self.drains.going or self.touched.moving or self.scales.scaling is not None):
            if self._moves.due is not None:
                self._moves.touch()
            return []
        self._moves.touch()
        self.touched.add_all()
        actions: list[Action] = []
        if self.cluster_end.asked is not None:
            actions = [*self.scales.stop(now), *self.drains.stop(now)]
        actions += [*self.scales.look(now), *self.drains.look(now)]
        for run in self.touched.note():
            actions += self._settle_job(run, now)
        return actions

    def _move_due(self) -> float | None:
        """Return when moves must be checked, at the latest."""
        dues = (self.drains.next_deadline(), self.scales.next_deadline())
        return min([due for due in dues if due is not None], default=None)

    def _said(self, actions: Sequence[Action], now: float) -> None:
        self.watching.note(actions, now)

    def _returned(self, event: Returned, now: float) -> list[Action]:
        if isinstance(event.tag, Serving):
            return self.files.returned(event.tag, event.value)
        return self.checkpoints.returned(event.tag, event.value, now)

    def _due_of(self, name: str) -> float | None:
        run = self.runs[name]
        due, save = run.next_deadline(), self.checkpoints.due_at(run)
        return due if save is None else save if due is None else min(due, save)

    def validate(self) -> None:
        super().validate()
        self.checkpoints.validate()
        self.drains.validate()
        self.scales.validate()
        self.probes.validate()
        self.traces.validate()
        self.watching.validate()

    # --- members ---------------------------------------------------------------------------------

    def heartbeat(self, member: MemberInfo, message: m.Heartbeat, now: float) -> list[Action]:
        reported, counters = member.reported, message.counters
        reported.counters, reported.nbytes = packed(counters)
        reported.by_epoch = by_epoch(counters) if member.role == "server" else {}
        pushes = counters.get("pushes")
        if type(pushes) is int:  # it is missing over a new connection
            reported.num_pushes = pushes
        reported.memory_nbytes = memory if type(memory := counters.get("memory_nbytes")) is int else 0
        doing = counters.get("doing", reported.doing)
        reported.doing = doing[:MAX_COUNTER_NAME_CHARS] if type(doing) is str else ""
        actions, run = super().heartbeat(member, message, now), self.runs.get(member.job)
        self.watching.heartbeat(member, counters, run, now)
        # its work since may make a checkpoint due; its silence may be why there are superfluous copies
        return [*actions, *self.checkpoints.look([run] if run else [], now, first=True), *self._tidied(now)]

    def _tidied(self, now: float) -> list[Action]:
        """Drop superfluous copies, if there are any."""
        actions: list[Action] = []
        for name in sorted(self.touched.spare - self.touched.moving):
            self.touched.add(name)
            actions += self.scales.tidy(self.runs[name], now)
        return actions

    def _gone(self, member: MemberInfo, now: float) -> list[Action]:
        return self.checkpoints.gone(member, now)

    def _server_gone(self, server: MemberInfo) -> None:
        self.drains.lost(server)

    def _server_leaves(self, member: MemberInfo, message: m.Leave, now: float) -> list[Action]:
        if message.reason == DepartureCause.DRAINED:
            drained, actions = self.drains.left(member, now)
            if drained:
                return [*actions, *self._depart(member, message, now)]
        return super()._server_leaves(member, message, now)

    def loss_advice(self, there: Sequence[JobRun]) -> str:
        if any(run.fallback.active for run in there):
            return "shards without another copy go back to a checkpoint"
        begun = any(run.startup.ready for run in there)
        return "its backups take over" if begun else super().loss_advice(there)

    def _holds(self, member: MemberInfo, message: m.Holding, now: float) -> list[Action]:
        if self.runs[member.job].replication.recuts.holds(member, message.number, now):
            return []
        return self.checkpoints.holds(member, message, now)

    # --- requests of operators, and of workers -----------------------------------------------------

    def _drain(self, peer: Peer, message: m.Drain, now: float) -> list[Action] | None:
        """An operator drains a server; None: a server drains itself."""
        self.touched.add_all()  # any job may have to move
        if not message.server:
            return None
        answer, actions = self.drains.ask(None, message, now)
        return [*actions, Send(peer, answer)]

    def _drain_own(self, member: MemberInfo, message: m.Drain, now: float) -> list[Action]:
        if self.cluster_end.asked is not None:
            return []  # it stays until its shards are saved, and is informed then
        return self.drains.ask_own(member, message, now)

    def _scale(self, peer: Peer, message: m.Scale, now: float) -> list[Action]:
        """An operator places jobs on another number of servers."""
        self.touched.add_all()
        answer, actions = self.scales.ask(message, now)
        return [*actions, Send(peer, answer)]

    def _save(self, peer: Peer, message: m.Checkpoint, now: float) -> list[Action] | None:
        """An operator requests a checkpoint of a job; None: a worker requests one of its job."""
        if not message.job:
            return None
        wish = Wish(job=message.job, consistent=bool(message.consistent), state=message.state, by=OPERATOR)
        wish.askers[message.nonce or peer, message.request] = peer
        return self.checkpoints.ask(wish, now)

    def _save_own(self, member: MemberInfo, message: m.Checkpoint, now: float) -> list[Action]:
        wish = Wish(job=member.job, consistent=bool(message.consistent), state=message.state, by=WORKER)
        wish.askers[member.incarnation, message.request] = member.peer
        return self.checkpoints.ask(wish, now)

    # --- for other code to read --------------------------------------------------------------------

    def waiting(self) -> list[str]:
        texts = waiting(self.servers.staying, self.servers.wanted, self.runs)
        return [*texts, *self.drains.texts(), *self.scales.texts()]

    def _tell_status(self, peer: Peer, message: m.StatusRequest | m.Watch, now: float) -> list[Action]:
        """A client asks for the status, or for everything."""
        is_view = isinstance(message, m.Watch)
        self._inquiries.check(len(self.membership.members) + is_view * WATCHED_AS_MEMBERS, now)
        told = self.view(message, now) if isinstance(message, m.Watch) else self.status(now)
        return [Send(peer, m.Status(message.request, told))]

    def status(self, now: float) -> dict[str, Any]:
        """Return the coordinator's view of the cluster: the output of ``zmqps status --json``."""
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
            "waiting": self.waiting(),
            "jobs": fit_jobs(jobs, left_out),
            "ended": self.ended.status(now),
            "members": there,
            "gone": parted,
            "left_out": left_out,
            "counters": dict(self.counts),
        }

    def view(self, asked: m.Watch, now: float) -> dict[str, Any]:
        """Return the view for watchers."""
        return self.watching.view(asked, self.status(now), self.runs, now)
