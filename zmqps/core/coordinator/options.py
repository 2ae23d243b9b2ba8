"""What the coordinator is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass

from zmqps.core.job.keyspace import SLICE_NBYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorOptions:
    """What the coordinator is told when it starts; times are in seconds."""

    servers: int = 1  # how many make the cluster; placing a job waits for them
    workers: int | None = None  # how many each job expects, where its ``init`` does not say; None: whoever comes
    heartbeat_interval: float = 1.0  # between signs of life
    heartbeat_timeout: float = 10.0  # of silence, after which a node is lost
    lease: float = 600.0  # that a job without workers is kept, so that they can come back; 0: until it is ended
    idle_timeout: float = 0.0  # without a worker or observer of any job, after which the cluster ends; 0: it does not
    once: bool = False  # the cluster ends when its first job has ended; how that ended decides the exit code
    slice_nbytes: int = SLICE_NBYTES
    replicas: int = 0  # how many servers have a copy of each shard, beside the one that answers for it
    #: That a job waits for a server that can load a shard of which no copy is left from its last checkpoint; 0: such a
    #: job fails.
    fallback_timeout: float = 300.0
    #: That members wait for a coordinator that is away, where it keeps a journal to go on from; 0: as long as for one
    #: that keeps none, the heartbeat timeout.
    patience: float = 0.0
    checkpoint_seconds: float | None = None  # jobs are saved without being asked so often; None: not by time
    checkpoint_steps: int | None = None  # … or every so many steps
    #: Every so many-th checkpoint of a job with tables is whole; those between hold only the rows that have changed
    #: since the one before.
    checkpoint_full_every: int = 1
    checkpoint_at_end: bool = True  # save each job once more before it ends, where there is a place for checkpoints
