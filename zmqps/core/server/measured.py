"""What a server has counted, of itself and of each job, in figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from zmqps.core.node.measured import Counted, Measurements
from zmqps.core.server.machine import ServerMachine
from zmqps.core.server.tenant import in_all


def measured(machine: ServerMachine, own: Mapping[str, Any]) -> Measurements:
    """Return a server's figures; of a job with several copies here they are of all of them.

    ``own``: what the server's process has counted.
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
