"""What somebody may ask for without joining: jobs end, are saved or traced, servers go or become more, nodes
answer, processes have ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from zmqps.core.coordinator.jobs import Jobs
from zmqps.core.coordinator.members.membership import MemberInfo, Membership
from zmqps.core.coordinator.placement.drains import Drains
from zmqps.core.coordinator.placement.scales import Scales
from zmqps.core.coordinator.saving.checkpoints import Checkpoints
from zmqps.core.coordinator.saving.making import Wish
from zmqps.core.coordinator.watching.probes import Probes
from zmqps.core.coordinator.watching.traces import Traces
from zmqps.core.protocol.events import Action, Log, Peer, Send
from zmqps.core.protocol.messages import (
    Checkpoint,
    Drain,
    EndJob,
    Examine,
    Exited,
    ExitNoted,
    Fetch,
    Message,
    Scale,
    Trace,
)
from zmqps.core.protocol.messages.hello import check_name
from zmqps.core.protocol.security.keys import process_of
from zmqps.core.protocol.security.roles import OPERATOR, WORKER
from zmqps.errors import ProtocolError

#: Of the members that are lost with one process so many are named.
MOST_NAMED = 8


class OperatorsHost(Protocol):
    """What is needed of the machine."""

    membership: Membership
    jobs: Jobs
    checkpoints: Checkpoints
    drains: Drains
    scales: Scales
    probes: Probes
    traces: Traces

    def lose(self, member: MemberInfo, now: float) -> list[Action]:
        """A member is lost."""


def drain(host: OperatorsHost, peer: Peer, message: Drain, now: float) -> list[Action] | None:
    """An operator lets a server go; None: a server says it of itself."""
    host.jobs.touched.add_all()  # what moves may be of any job
    if not message.server:
        return None
    answer, actions = host.drains.ask(None, message, now)
    return [*actions, Send(peer, answer)]


def scale(host: OperatorsHost, peer: Peer, message: Scale, now: float) -> list[Action]:
    """An operator lets jobs lie on another number of servers."""
    host.jobs.touched.add_all()
    answer, actions = host.scales.ask(message, now)
    return [*actions, Send(peer, answer)]


def note_exit(host: OperatorsHost, peer: Peer, message: Exited, now: float) -> list[Action]:
    """A supervisor saw a process end, as its token shows; where nobody lives in that, nothing changes."""
    how = check_name("how a process ended", message.how)
    if not message.token:
        raise ProtocolError("whoever says that a process has ended shows the token that it was started with")
    actions, lost = list[Action](), list[str]()
    for member in host.membership.processes.end(process_of(message.token)):
        if member.incarnation in host.membership.members:  # not gone with the job that the one before it has ended
            if len(lost) < MOST_NAMED:
                lost.append(member.title)
            said = f"{member.title} has ended ({how}), says its supervisor"
            actions.append(Log("info", said, "exited", job=member.job, peer=member.hello.name))
            actions += host.lose(member, now)
    # 0: it is this coordinator's own process that has seen it
    answers = [Send(peer, ExitNoted(message.request, tuple(lost)))] if message.request else []
    return [*actions, *answers]


def save(host: OperatorsHost, peer: Peer, message: Checkpoint, now: float) -> list[Action] | None:
    """An operator asks for a checkpoint of a job; None: a worker asks for one of its own."""
    if not message.job:
        return None
    wish = Wish(job=message.job, consistent=bool(message.consistent), state=message.state, by=OPERATOR)
    wish.askers[message.nonce or peer, message.request] = peer
    return host.checkpoints.ask(wish, now)


def save_own(host: OperatorsHost, member: MemberInfo, message: Checkpoint, now: float) -> list[Action]:
    """A worker asks for a checkpoint of its job."""
    wish = Wish(job=member.job, consistent=bool(message.consistent), state=message.state, by=WORKER)
    wish.askers[member.incarnation, message.request] = member.peer
    return host.checkpoints.ask(wish, now)


#: What may be asked for without joining, and what is done then; None: a member says it of itself.
ORDERS: dict[type[Message], Callable[[Any, Peer, Any, float], list[Action] | None]] = {
    Trace: lambda host, peer, message, now: host.traces.ask(peer, message, now),
    Fetch: lambda host, peer, message, now: host.traces.ask(peer, message, now),
    Exited: note_exit,
    EndJob: lambda host, peer, message, now: host.jobs.end_asked(peer, message, now),
    Checkpoint: save,
    Examine: lambda host, peer, message, now: host.probes.examine(peer, message, now),
    Drain: drain,
    Scale: scale,
}
