"""Figures of a small cluster as its coordinator would say them."""

from __future__ import annotations

import json
from typing import Any

from zmqps.core.node.measured import Counted, Known, Measurements
from zmqps.core.protocol.figures import BOUNDS


def of_worker(rank: int = 0, job: str = "a", **counters: Any) -> Counted:
    told = {"pushes": 3, "step_seconds": [1.5, 0, 2, *[0] * (len(BOUNDS["step_seconds"]) - 1)], **counters}
    return Counted(scope="worker", role="worker", rank=rank, job=job, counters=json.dumps(told))


def of_job(rank: int = 0, job: str = "a", **counters: Any) -> Counted:
    return Counted(scope="job", role="server", rank=rank, job=job, counters={"pushes": 6, **counters})


def small() -> Measurements:
    coordinator = Counted(scope="coordinator", role="coordinator", rank=None, job="", counters={"cpu_seconds": 0.5})
    server = Counted(scope="server", role="server", rank=0, job="", counters={"cpu_seconds": 2.0, "clients": 2})
    known = [
        Known("members", 2, {"role": "worker", "job": "a"}),
        Known("steps", 7, {"job": "a"}),
        Known("value", float("nan"), {"name": 'loss "x"\n', "job": "a"}),
    ]
    return Measurements([coordinator, server, of_worker(0), of_worker(1), of_job()], known)
