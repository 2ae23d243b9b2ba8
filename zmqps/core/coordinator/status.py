"""The coordinator's view of the cluster as plain data: what ``zmqps status --json`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from zmqps.core.coordinator.membership import MemberInfo

if TYPE_CHECKING:
    from zmqps.core.coordinator.machine import CoordinatorMachine

#: Of a member's counters, so many are kept.
MAX_COUNTERS = 64


def cluster_status(coordinator: CoordinatorMachine, now: float) -> dict[str, Any]:
    """Return the status; each part of the coordinator describes itself."""
    membership, job = coordinator.membership, coordinator.startup.status()
    return {
        "state": _state(coordinator),
        "mode": job.get("mode", ""),
        "waiting": coordinator.waits.lines(),
        "endpoint": coordinator.identity.endpoint,
        "uptime_s": round(now - coordinator.started_at, 3),
        "epoch": coordinator.startup.epoch,
        "servers": coordinator.options.servers,
        "workers": coordinator.num_workers,
        "job": dict(job),
        "steps": coordinator.steps.status(coordinator.num_missing, now),
        "data": coordinator.data.status(),
        "members": [
            {**_describe(member), "silent_s": round(now - member.seen_at, 3), "counters": dict(member.counters)}
            for member in membership.of("server", "worker", "observer")
        ],
        "gone": [
            {
                **_describe(departure.member),
                "how": departure.how,
                "ago_s": round(now - departure.at, 3),
                "last_seen_ago_s": round(now - departure.member.seen_at, 3),
                "counters": dict(departure.member.counters),
            }
            for departure in membership.gone
        ],
        "counters": dict(coordinator.counts),
    }


def _state(coordinator: CoordinatorMachine) -> str:
    if coordinator.ending is not None:
        return f"ending: {coordinator.ending.reason}"
    if coordinator.lost_shard is not None:
        return f"failed: {coordinator.lost_shard}"
    return "training" if coordinator.startup.ready else "starting"


def _describe(member: MemberInfo) -> dict[str, Any]:
    hello = member.hello
    facts = {"role": hello.role, "rank": member.rank, "name": hello.name, "host": hello.host, "pid": hello.pid}
    return {**facts, "endpoint": hello.endpoint}


def presentable(counters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what of a member's counters may stand in the status: one member must not make it unreadable."""
    items = list(counters.items())[:MAX_COUNTERS]
    return {name[:64]: v[:200] if isinstance(v, str) else v for name, v in items if not isinstance(v, dict | list)}
