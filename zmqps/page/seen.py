"""What the page shows of a view, as separate plain data: what is not named here does not leave the coordinator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zmqps.core.protocol.figures import BOUNDS

#: Of what has happened, the last.
MOST_EVENTS = 200
#: Of a cluster with more nodes the page shows only this many: a longer table is not read to its end.
MOST_MEMBERS = 256
#: How many jobs, and of each how many shards.
MOST_JOBS, MOST_SHARDS = 64, 256

_CLUSTER = ("state", "endpoint", "host", "uptime_s", "servers")
_JOB = ("state", "mode", "workers", "lost", "idle")
_STEPS = ("step", "arrived", "aggregate", "dropped", "waiting", "since_s")
_SPEC = ("parameters", "nbytes", "staleness")
_SHARD = ("shard", "nbytes", "share", "parameters", "first", "last", "buckets")
_MEMBER = ("role", "rank", "name", "host", "pid", "job", "silent_s")
_COUNTERS = ("doing", "pushes", "clock", "version", "arena_nbytes", "device", *BOUNDS)
_GONE = ("role", "rank", "name", "host", "job", "how", "ago_s")
_CHECKPOINT = ("version", "ago_s", "seconds")


def seen(view: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page shows of a view besides the series, sharing nothing with what the coordinator changes."""
    status = view["status"]
    jobs = dict(list(status["jobs"].items())[:MOST_JOBS])
    left_out = [str(text) for text in status["left_out"]]
    for what, number, most in (
        ("jobs", len(status["jobs"]), MOST_JOBS),
        ("nodes", len(status["members"]), MOST_MEMBERS),
    ):
        left_out += [f"{number - most} of {number} {what}"] if number > most else []
    return {
        "now": view["now"],
        **_some(status, _CLUSTER),
        "waiting": [str(text) for text in status["waiting"]],
        "left_out": left_out,
        "jobs": {name: _job(run) for name, run in jobs.items()},
        "ended": [_some(entry, ("job", "how", "ago_s")) for entry in status["ended"][:MOST_JOBS]],
        "members": [_member(member) for member in status["members"][:MOST_MEMBERS]],
        "gone": [_some(member, _GONE) for member in status["gone"][:MOST_MEMBERS]],
        "waits": [dict(wait) for wait in view["waits"]],
        "awaited_s": {name: dict(awaited) for name, awaited in view["awaited_s"].items()},
        "slowest": {name: dict(slowest) for name, slowest in view["slowest"].items()},
        "events": [dict(event) for event in view["events"][-MOST_EVENTS:]],
        "bounds": {name: list(bounds) for name, bounds in BOUNDS.items()},
    }


def _job(run: Mapping[str, Any]) -> dict[str, Any]:
    spec = run["job"]
    placement = spec.get("placement", ())
    return {
        **_some(run, _JOB),
        "waiting": [str(text) for text in run["waiting"]],
        "steps": _some(run["steps"], _STEPS),
        **_some(spec, _SPEC),
        "optimizer": str(spec.get("optimizer", {}).get("name", "")),
        "placement": [_some(row, _SHARD) for row in placement[:MOST_SHARDS]],
        "num_shards": len(placement),
        "copies": [dict(copy) for copy in run["copies"][: 3 * MOST_SHARDS]],
        "checkpoint": _some(run["checkpoint"].get("last", {}), _CHECKPOINT),
        "checkpoint_failed": str(run["checkpoint"].get("failed", "")),
    }


def _member(member: Mapping[str, Any]) -> dict[str, Any]:
    return {**_some(member, _MEMBER), "counters": _some(member["counters"], _COUNTERS)}


def _some(facts: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: facts[name] for name in names if name in facts}
