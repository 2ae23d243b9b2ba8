"""Signs of life: what members count, and what they are told in return, the chief's numbers among it."""

from __future__ import annotations

from typing import Protocol

from zmqps.core.coordinator.jobs import Jobs
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.members.reach import unreached
from zmqps.core.coordinator.placement.scales import Scales
from zmqps.core.coordinator.run import JobRun
from zmqps.core.coordinator.saving.checkpoints import Checkpoints
from zmqps.core.coordinator.watching.status import MAX_COUNTER_NAME_CHARS, by_epoch, packed
from zmqps.core.coordinator.watching.watching import Watching
from zmqps.core.protocol.events import Action, Send
from zmqps.core.protocol.messages import Heartbeat, HeartbeatAck, RatesSet, SetRates


class HeartbeatsHost(Protocol):
    """What is needed of the machine."""

    counts: dict[str, int]
    jobs: Jobs
    runs: dict[str, JobRun]
    watching: Watching
    checkpoints: Checkpoints
    scales: Scales


def heartbeat(host: HeartbeatsHost, member: MemberInfo, message: Heartbeat, now: float) -> list[Action]:
    """A member gives a sign of life, and tells what it has counted."""
    host.counts["heartbeats"] += 1
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
    run = host.runs.get(member.job)
    host.watching.heartbeat(member, message.counters, run, now)
    ack = run.acknowledge(member) if run else HeartbeatAck(0)
    # what it has done since may make a checkpoint due; who was silent may be why copies too many are there
    return [Send(member.peer, ack), *host.checkpoints.look([run] if run else [], now, first=True), *_tidied(host, now)]


def _tidied(host: HeartbeatsHost, now: float) -> list[Action]:
    """Give up copies too many, where there are any."""
    actions: list[Action] = []
    for name in sorted(host.jobs.touched.spare - host.jobs.touched.moving):
        host.jobs.touched.add(name)
        actions += host.scales.tidy(host.runs[name], now)
    return actions


def set_rates(run: JobRun, member: MemberInfo, message: SetRates, now: float) -> list[Action]:
    """Take numbers of the optimizer from the chief of a job, and from nobody else."""
    told = list[MemberInfo]()
    if run.places.find_chief() is member and message.terms[1:] != run.rates.latest:
        run.rates.set(message.step, run.steps.clock, message.terms[1:])
        told = [other for other in run.members.values() if other is not member]
    answer = member.answer(message.request, RatesSet(message.request, run.rates.terms))
    return [answer, *(Send(other.peer, run.acknowledge(other)) for other in told)]
