"""The coordinator's figures: its own, of members from their heartbeats, and of jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.run import JobRun
from zmqps.core.coordinator.watching.status import MAX_LISTED, counters_of, job_waits
from zmqps.core.coordinator.watching.watching import steps_of
from zmqps.core.node.measured import Counted, Known, Measurements
from zmqps.core.protocol.figures import Scope


def measured(machine: CoordinatorMachine, own: Mapping[str, Any], now: float) -> Measurements:
    """Return all figures of a cluster; of members, and of jobs on servers, no more than the status lists one by one.

    ``own``: the counters of the coordinator's process.
    """
    servers, runs = list(machine.servers), machine.runs
    members = [*servers, *(member for run in runs.values() for member in (*run.workers, *run.observers))]
    told = members[:MAX_LISTED]
    nodes = [Counted(scope="coordinator", role="coordinator", rank=None, job="", counters={**machine.counts, **own})]
    for member in told:
        scope: Scope = "server" if member.role == "server" else "worker"
        nodes.append(
            Counted(scope=scope, role=member.role, rank=member.rank, job=member.job, counters=member.reported.counters)
        )
    for name, run in runs.items():
        for server in servers[: MAX_LISTED - len(told) + len(servers)]:
            if of_job := counters_of(run, server):
                nodes.append(Counted(scope="job", role="server", rank=server.rank, job=name, counters=of_job))
    return Measurements(nodes, [*_of_cluster(machine, members, told, now), *_of_jobs(machine, runs, now)])


def _of_cluster(
    machine: CoordinatorMachine, members: Sequence[MemberInfo], told: Sequence[MemberInfo], now: float
) -> Iterator[Known]:
    for (role, job), number in Counter((member.role, member.job) for member in members).items():
        yield Known("members", number, {"role": role, **_job(job)})
    yield Known("wanted_servers", machine.servers.wanted)
    yield Known("heartbeats", machine.counts["heartbeats"])
    happened = machine.watching.happened
    yield Known("lost", happened["lost"])
    for kind, number in happened.items():
        yield Known("happened", number, {"kind": kind})
    for member in told:
        labels = {"role": member.role, "rank": str(member.rank), **_job(member.job)}
        yield Known("silent_s", now - member.seen_at, labels)
        if member.role == "worker":
            yield Known("awaited_s", member.reported.awaited_s, labels)


def _of_jobs(machine: CoordinatorMachine, runs: Mapping[str, JobRun], now: float) -> Iterator[Known]:
    for name, run in runs.items():
        labels = _job(name)
        yield Known("steps", steps_of(run), labels)
        yield Known("waits", len(job_waits(run, machine.servers.staying)), labels)
        yield Known("step_wait_s", run.steps.awaited(now)[0], labels)
        saved = machine.checkpoints.status(run, now)
        if last := saved.get("last"):
            yield Known("checkpoint_s", last["seconds"], labels)
            yield Known("checkpoint_nbytes", last["nbytes"], labels)
            yield Known("checkpoint_age_s", last["ago_s"], labels)
        yield Known("checkpoint_failed", int("failed" in saved), labels)
    for key, series in machine.watching.history.series.items():
        if key.kind == "value":
            role, _, rank = key.node.partition(" ")
            node = {"role": role, "rank": rank} if rank else {}
            yield Known("value", series.last, {"name": key.name, **node, **_job(key.job)})


def _job(name: str) -> dict[str, str]:
    return {"job": name} if name else {}
