"""How somebody becomes a member: what it is asked for at the door, its place, and its welcome."""

from __future__ import annotations

from typing import Protocol

from zmqps.core.coordinator.jobs import Jobs
from zmqps.core.coordinator.journal import DirtyKeys
from zmqps.core.coordinator.members.admission import check_admission
from zmqps.core.coordinator.members.cluster_end import ClusterEnd
from zmqps.core.coordinator.members.erasures import Erasures
from zmqps.core.coordinator.members.membership import MemberInfo, Membership, Origin
from zmqps.core.coordinator.members.partings import Partings
from zmqps.core.coordinator.members.reach import check_advertised, check_in_reach
from zmqps.core.coordinator.members.roster import index_of
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.placement.fleet import Fleet
from zmqps.core.coordinator.run import JobRun
from zmqps.core.node.member import Identity
from zmqps.core.protocol.events import Action, Log, Received, Send
from zmqps.core.protocol.messages import PROTOCOL_VERSION, Hello, Shutdown, Welcome
from zmqps.core.protocol.security.guard import welcome_guard


class JoiningHost(Protocol):
    """What is needed of the host."""

    identity: Identity
    options: CoordinatorOptions
    membership: Membership
    servers: Fleet
    jobs: Jobs
    runs: dict[str, JobRun]
    erasures: Erasures
    cluster_end: ClusterEnd
    changes: DirtyKeys
    partings: Partings


def join(host: JoiningHost, event: Received, hello: Hello, now: float) -> list[Action]:
    """Take somebody in, or once more; return its welcome, and what follows."""
    check_admission(host.identity, hello, event.holder)
    host.membership.check_welcome(hello)
    known = hello.incarnation in host.membership.members
    if (end := host.cluster_end.asked) is not None and (host.cluster_end.ending is not None or not known):
        return [Send(event.peer, Shutdown(end.reason))]
    check_advertised(hello, event.origin)
    if (run := None if hello.role == "server" else host.jobs.named(hello.job)) is not None:
        check_in_reach(hello.role, event.origin, host.servers)
        roster, num_workers = run.workers if hello.role == "worker" else run.observers, 0
    else:
        roster, num_workers = host.servers, max((run.num_workers for run in host.runs.values()), default=0)
    was_absent = known and host.membership.members[hello.incarnation].absent
    before = None if known or run is None else roster.predecessor(hello, event.holder)
    rival = None if known or before is not None else roster.rival(hello)
    if rival is not None:
        is_new = not roster.is_doubted(rival, hello)
        if roster.awaits(hello, now, host.options.heartbeat_interval):  # the newcomer says Hello again
            return [Log("info", f"{hello.name} is here again; {rival.title} is looked for first")] if is_new else []
    member = host.membership.join(hello, event.peer, roster, now, event.holder, before)
    actions: list[Action] = []
    if was_absent:
        actions += _welcome_back(host, member, now)
    if not known:
        member.origin = Origin(event.origin, event.holder)
        as_spare = " as a spare" if len(host.servers) > host.servers.most else ""
        where = f" job {hello.job!r}" if run else as_spare
        actions.append(Log("info", f"{member.title} joined{where}", "joined", job=member.job, peer=hello.name))
        if rival is not None:
            text = f"{member.title} is number {index_of(hello)} of its launcher, but that is {rival.title}"
            advice = "commands that take a name ask which is meant"
            actions.append(Log("warning", f"{text}: {advice}", "joined", job=member.job, peer=hello.name))
        if before is not None:
            actions += host.partings.succeed(before, member, now)
        elif run is not None:
            host.runs[run.name] = run
            host.cluster_end.note_worker()
            actions += run.join(member, now)
        else:
            host.servers.joined()
            host.changes.add("drains")
            for other in host.runs.values():
                actions += other.move_on(now)
    if run is not None:
        host.jobs.touched.add(run.name)
    elif was_absent or not known:
        host.jobs.touched.add_all()
    welcome = Welcome(
        PROTOCOL_VERSION, host.identity.incarnation, host.identity.name, member.rank,
        host.options.heartbeat_interval, host.options.heartbeat_timeout,
        run.num_workers if run else num_workers, host.servers.wanted,
        proof=welcome_guard(host.identity.job_secret, hello), patience=host.options.patience,
    )  # fmt: skip
    return [Send(event.peer, welcome), *actions]


def _welcome_back(host: JoiningHost, member: MemberInfo, now: float) -> list[Action]:
    """Go on with a member that was here before this coordinator was away."""
    actions: list[Action] = [Log("info", f"{member.title} is back", "joined", job=member.job, peer=member.hello.name)]
    if member.role == "server":
        actions += host.erasures.again(member, now)
        for run in host.runs.values():
            actions += run.again(member)
    return actions
