"""What the coordinator says of one job: whom it waits for, and its part of the status."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.members.reach import complaints
from zmqps.core.protocol.figures import GREATEST
from zmqps.errors import listed

if TYPE_CHECKING:
    from zmqps.core.coordinator.run import JobRun

#: How many waits at barriers, and for data, the status and the log show.
MOST_WAITS = 8
#: Of those who do not count so many are named.
MOST_IDLE = 8


def job_waits(run: JobRun, servers: Sequence[MemberInfo]) -> list[str]:
    """Return in words what a job waits for: a few of many waits."""
    missing, startup = run.num_missing, run.startup
    unreached = list(complaints([*run.workers, *run.observers]))
    unreached += run.fallback.texts()
    if startup.ready:
        barriers, waits_for = run.barriers.by_name, run.barriers.waiting_for
        texts = [f"barrier {b.name!r} waits for {waits_for(b, missing)}" for b in islice(barriers.values(), MOST_WAITS)]
        if len(barriers) > MOST_WAITS:
            texts.append(f"{len(barriers) - MOST_WAITS} more barriers are waited at")
        step = run.steps.waiting_for(missing)
        texts += [f"step waits for {step}"] if step else []
        texts += [f"{who.title} waits for {say()}" for who, _, say in islice(run.data.waiters(), MOST_WAITS)]
        return unreached + texts
    if startup.parked:
        return [*unreached, f"init waits for {startup.waiting_for(servers)}"]
    if startup.job is None:
        return [] if only_observed(run) else ["waiting for a worker's init"]
    return unreached


def job_status(run: JobRun, servers: Sequence[MemberInfo], now: float) -> dict[str, Any]:
    """Return the state of a job for the status."""
    job = run.startup.status()
    return {
        "state": run.state if run.lost_shard is None else f"{run.state}: {run.lost_shard}",
        "mode": job.get("mode", ""),
        "epoch": run.startup.epoch,
        "workers": run.num_workers,
        "chief": "" if run.places.chief is None else run.places.chief.title,
        "observers": len(run.observers),
        "lost": run.losses.text,
        "idle": listed([_idle(run, w) for w in run.workers if w.incarnation not in run.attendance], MOST_IDLE),
        "idle_s": 0.0 if (idle := run.occupancy.idle_since) is None else round(now - idle, 3),
        "waiting": job_waits(run, servers),
        "job": dict(job),
        "steps": run.steps.status(run.num_missing, now),
        "replicas": run.replication.status(now),
        "fallback": run.fallback.status(now),
        "data": run.data.status(),
        "copies": [
            {"shard": copy.shard, "server": f"server {copy.server.rank}", "backup": copy.backup}
            for copy in sorted(run.startup.copies, key=lambda copy: (copy.shard, copy.backup))
        ],
        "servers": {server.hello.name: counted(run, server) for server in servers},
    }


def only_observed(run: JobRun) -> bool:
    """Whether nobody has begun a job, or is there to: as where the tasks of ``zmqps run`` meet."""
    return run.startup.job is None and not run.workers


def _idle(run: JobRun, worker: MemberInfo) -> str:
    return f"{'spare ' * (worker.incarnation in run.attendance.spares)}{worker.title}"


def counted(run: JobRun, server: MemberInfo) -> dict[str, Any]:
    """Return what a server counts of a job: sums over its copies; the newest version, the longest wait."""
    total: dict[str, Any] = {}
    for copy in run.startup.copies.of(server):
        for name, value in server.reported.by_epoch.get(str(copy.epoch), {}).items():
            before = total.get(name, value)
            if name not in total or type(value) is not type(before) or type(value) is str:
                total[name] = value
            elif type(value) is bool:
                total[name] = before and value
            else:
                total[name] = max(before, value) if name in GREATEST else before + value
    return total
