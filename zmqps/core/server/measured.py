"""A server's figures, of itself and of each job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from zmqps.core.node.measured import Counted, Measurements
from zmqps.core.protocol.figures import GREATEST
from zmqps.core.server.machine import ServerKernel


def measured(machine: ServerKernel, own: Mapping[str, Any]) -> Measurements:
    """Return a server's figures; those of a job with several copies here are of all of them.

    ``own``: the counters of the server's process.
    """
    counters, rank = machine.counters(), machine.member.rank
    of_jobs: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for epoch, tenant in machine.tenants.items():
        of_jobs[tenant.name].append(counters["jobs"][str(epoch)])
    jobs = [
        Counted(scope="job", role="server", rank=rank, job=name, counters=in_all(copies))
        for name, copies in of_jobs.items()
    ]
    process = Counted(scope="server", role="server", rank=rank, job="", counters={**own, **counters})
    return Measurements([process, *jobs])


def in_all(of_jobs: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the counters of several jobs as one.

    They are sums, except the newest version and the longest wait, whether all are loaded, and the free memory of their
    common device.
    """
    total: dict[str, Any] = {"loaded": True, "version": 0}
    for counters in of_jobs:
        for name, value in counters.items():
            if name in GREATEST:
                total[name] = max(total.get(name, value), value)
            elif name == "device_free_nbytes":
                total[name] = min(total.get(name, value), value)
            elif name == "loaded":
                total[name] = total[name] and value
            else:
                total[name] = total.get(name, 0) + value if type(value) in (int, float) else value
    return total
