"""How members go: those who wait for them are told, servers forget them, and what nobody uses any more ends."""

from __future__ import annotations

from dataclasses import dataclass

from zmqps.core.coordinator.jobs import Jobs
from zmqps.core.coordinator.members.cluster_end import ClusterEnd
from zmqps.core.coordinator.members.erasures import Erasures
from zmqps.core.coordinator.members.membership import MemberInfo, Membership
from zmqps.core.coordinator.placement.drains import Drains
from zmqps.core.coordinator.placement.missing import ADVICE
from zmqps.core.coordinator.saving.checkpoints import Checkpoints
from zmqps.core.protocol.events import Action, Log, Send
from zmqps.core.protocol.messages import Error, Lost
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.errors import PeerLostError, PSError


@dataclass(frozen=True, slots=True, kw_only=True)
class Partings:
    """What is done when a member leaves or is lost."""

    membership: Membership
    jobs: Jobs
    erasures: Erasures  # lets servers forget who has gone
    cluster_end: ClusterEnd
    checkpoints: Checkpoints
    drains: Drains
    once: bool  # the cluster is there for one job, and ends with it

    def lose(self, member: MemberInfo, now: float, how: DepartureCause = DepartureCause.LOST) -> list[Action]:
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
            actions.append(Log("warning", "the cluster ends with its job" if self.once and runs else stays))
        actions += self.depart(member, how, now, error)
        for run in runs:
            if run.vacant:  # nobody is there who would have to notice before
                actions += self.jobs.end(run, str(error), now)
        return [*actions, *(Send(other.peer, lost) for other in told)]

    def succeed(self, before: MemberInfo, member: MemberInfo, now: float) -> list[Action]:
        """A member comes in the place of an earlier life of its own, which was not known to be lost.

        Nobody is told of a loss, and who waits for the one at a barrier waits for the other.
        """
        text = f"{before.title} had died and was started again (restart {member.hello.life}): {member.title} goes on"
        self.jobs.touched.add(member.job)
        self.jobs.runs[member.job].succeed(before, member)
        said = Log("warning", text, "lost", job=member.job, peer=member.hello.name)
        actions = [said, *self.depart(before, DepartureCause.RESTARTED, now)]
        told = before.eviction(now, DepartureCause.RESTARTED)
        return [*actions, *([Send(before.peer, Error.of(0, told))] if told is not None else [])]

    def depart(self, member: MemberInfo, how: DepartureCause, now: float, error: PSError | None = None) -> list[Action]:
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
