"""What the coordinator says of members as plain data, for ``zmqps status --json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from zmqps.core.coordinator.membership import Departure, MemberInfo

#: How many of a member's counters are kept, for each job that it counts them of.
MAX_COUNTERS = 64
#: A server has no more jobs than the coordinator accepts.
MAX_COUNTED_JOBS = 256


def members_status(members: Iterable[MemberInfo], now: float) -> list[dict[str, Any]]:
    """Return who is there."""
    return [
        {**_describe(member), "silent_s": round(now - member.seen_at, 3), "counters": dict(member.counters)}
        for member in members
    ]


def gone_status(gone: Iterable[Departure], now: float) -> list[dict[str, Any]]:
    """Return who has gone, and how."""
    return [
        {
            **_describe(departure.member),
            "how": departure.how,
            "ago_s": round(now - departure.at, 3),
            "last_seen_ago_s": round(now - departure.member.seen_at, 3),
            "counters": dict(departure.member.counters),
        }
        for departure in gone
    ]


def _describe(member: MemberInfo) -> dict[str, Any]:
    hello = member.hello
    facts = {"role": hello.role, "rank": member.rank, "name": hello.name, "host": hello.host, "pid": hello.pid}
    return {**facts, "endpoint": hello.endpoint, "job": member.job}


def presentable(counters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the counters of a member that the status shows: one member must not make it unreadable."""
    items = list(counters.items())[:MAX_COUNTERS]
    return {name[:64]: v[:200] if isinstance(v, str) else v for name, v in items if not isinstance(v, dict | list)}


def by_epoch(counters: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return what a server counts of each job, by the job's epoch."""
    jobs = counters.get("jobs")
    items = list(jobs.items())[:MAX_COUNTED_JOBS] if isinstance(jobs, dict) else []
    return {epoch: presentable(of) for epoch, of in items if isinstance(of, dict)}
