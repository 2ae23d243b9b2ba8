"""Which workers may proceed when: one policy per file, chosen by the job's ``mode``.

A worker that has completed a step *arrives*; the policy says when it may *proceed* to its next read, and, in
synchronous mode, when a step is committed and with whose gradients. Policies know workers by incarnation and never
count messages. They know no sockets and no shards: the coordinator carries their decisions out.
"""

from __future__ import annotations

from zmqps.core.coordinator.consistency.asynchronous import Asynchronous
from zmqps.core.coordinator.consistency.base import Commitment, Decision, Grant, Policy
from zmqps.core.coordinator.consistency.bounded import Bounded
from zmqps.core.coordinator.consistency.synchronous import Synchronous
from zmqps.core.job.spec import JobSpec

__all__ = ["Asynchronous", "Bounded", "Commitment", "Decision", "Grant", "Policy", "Synchronous", "make_policy"]


def make_policy(job: JobSpec) -> Policy:
    if job.mode == "async":
        return Asynchronous()
    if job.mode == "bounded":
        assert job.staleness is not None
        return Bounded(job.staleness)
    return Synchronous(job.aggregate, job.on_straggler)
