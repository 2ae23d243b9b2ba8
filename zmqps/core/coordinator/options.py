"""The coordinator's options."""

from __future__ import annotations

from dataclasses import dataclass

from zmqps.core.job.keyspace import SLICE_NBYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorOptions:
    """The coordinator's options; times are in seconds."""

    servers: int = 1  # how many make the cluster; the placement of a job waits for them
    workers: int | None = None  # how many each job expects, if its ``init`` does not say; None: any number
    heartbeat_interval: float = 1.0  # between heartbeats
    heartbeat_timeout: float = 10.0  # of silence, after which a node is lost
    lease: float = 600.0  # for which a job without workers is kept, so that they can come back; 0: until it is ended
    idle_timeout: float = 0.0  # without a worker or observer of any job, after which the cluster ends; 0: never
    once: bool = False  # the cluster ends when its first job has ended, with an exit code for how that ended
    slice_nbytes: int = SLICE_NBYTES
    replicas: int = 0  # how many servers have a copy of each shard, besides its leader
    #: Seconds that a job waits for a server that can load a shard without any copy left from its last checkpoint; 0:
    #: such a job fails.
    fallback_timeout: float = 300.0
    #: Seconds that members wait for a journaled coordinator that is away; 0: as for one without a journal, the
    #: heartbeat timeout.
    patience: float = 0.0
    checkpoint_seconds: float | None = None  # the automatic interval of checkpoints; None: not by time
    checkpoint_steps: int | None = None  # … or in steps
    #: Every N-th checkpoint of a job with tables is complete; those between hold only the rows changed since the one
    #: before.
    checkpoint_full_every: int = 1
    checkpoint_at_end: bool = True  # save each job once more before it ends, if there is a place for checkpoints
