"""Views of clusters for tests: plain data as a coordinator answers them, and a terminal's questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NOW = 1000.0


def member(role: str, rank: int, job: str = "default", **more: Any) -> dict[str, Any]:
    facts = {"role": role, "rank": rank, "name": f"{role}-{rank}", "host": "host-a", "pid": 100 + rank, "endpoint": ""}
    own = {"job": "" if role == "server" else job, "silent_s": 0.2, "counters": {"pushes": 12}}
    return {**facts, **own, **more}


def series(
    job: str, node: str, name: str, values: Sequence[float], kind: str = "figure", step: int | None = None
) -> Any:
    points = [[NOW - len(values) + n, value, value, value, step] for n, value in enumerate(values)]
    return {"job": job, "node": node, "name": name, "kind": kind, "step": step, "last": values[-1], "every": 1.0,
            "points": points}  # fmt: skip


def job(**more: Any) -> dict[str, Any]:
    known = {"state": "training", "mode": "sync", "workers": 4, "servers": {"server-0": {"version": 7}}, "lost": ""}
    return {**known, **more}


def training(slow: float = 0.0) -> dict[str, Any]:
    """Return the view of a synchronous job of four workers, the third of which may be slow."""
    members = [member("server", 0), member("server", 1, host="host-b"), *[member("worker", n) for n in range(4)]]
    found = [
        series("default", "", "steps_per_second", [3.0, 3.5], step=412),
        series("default", "worker 0", "loss", [2.3, 1.9, 1.2, 0.8, 0.4], "value", 411),
        series("default", "worker 0", "accuracy", [0.1, 0.5], "value", 411),
        series("", "server 0", "bytes_sent_per_second", [2.5e6]),
        series("", "server 0", "bytes_received_per_second", [1.5e6]),
    ]
    for n in range(4):
        found += [
            series("default", f"worker {n}", "step_seconds", [0.1 + (slow if n == 2 else 0.0)]),
            series("default", f"worker {n}", "cpu", [0.87]),
            series("default", f"worker {n}", "rss_nbytes", [2.1e8]),
            series("default", f"worker {n}", "staleness", [0.5]),
        ]
    status = {
        "state": "ready", "endpoint": "tcp://127.0.0.1:5570", "host": "host-a", "uptime_s": 184.0, "waiting": [],
        "jobs": {"default": job()}, "members": members, "gone": [], "ended": [],
    }  # fmt: skip
    return {"now": NOW, "status": status, "series": found, "events": [], "waits": [], "slowest": {}}


def waits(view: Mapping[str, Any], since_s: float, node: str = "worker 2", doing: str = "computing") -> dict[str, Any]:
    """Return a view in which a step waits for somebody."""
    text = f"step 412 waits {since_s:.1f} s for {node} on host-a: last sign of life 0.4 s ago, {doing}"
    wait = {"job": "default", "step": 412, "since_s": since_s, "node": node, "host": "host-a", "seen_s": 0.4}
    return {**view, "waits": [{**wait, "doing": doing, "text": text}]}


HEALTH = {
    "seconds": 2.0, "lag_s": 0.0004, "left_out": 0,
    "nodes": [
        {"role": "worker", "rank": 2, "job": "default", "name": "worker-2", "host": "host-a", "pid": 102,
         "state": "silent", "seen_s": 7.3},
        {"role": "worker", "rank": 0, "job": "default", "name": "worker-0", "host": "host-a", "pid": 100,
         "state": "answered", "seen_s": 0.0, "latency_s": 0.0042, "lag_s": 0.0001},
    ],
}  # fmt: skip
