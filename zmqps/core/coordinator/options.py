"""What the coordinator is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass

from zmqps.core.job.keyspace import SLICE_NBYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorOptions:
    """What the coordinator is told when it starts.

    Parameters
    ----------
    servers
        How many servers make the cluster; placing a job waits for them.
    workers
        How many workers each job expects, where its ``init`` does not say; None: whoever comes.
    heartbeat_interval, heartbeat_timeout
        Seconds between signs of life, and of silence after which a node is lost.
    lease
        Seconds that a job without workers is kept, so that they can come back; 0: until it is ended.
    idle_timeout
        Seconds without a worker or observer of any job after which the cluster ends; 0: it does not.
    once
        End the cluster when its first job has ended; how it ended decides the exit code.
    slice_nbytes
        Size of a slice.
    replicas
        How many servers have a copy of each shard, beside the one that answers for it.
    fallback_timeout
        Seconds that a job waits for a server that can load a shard of which no copy is left from its last checkpoint;
        0: such a job fails.
    patience
        Seconds that members wait for a coordinator that is away, where it keeps a journal to go on from; 0: as long as
        for one that keeps none, the heartbeat timeout.
    checkpoint_seconds, checkpoint_steps
        Save jobs without being asked every so many seconds, or steps; None: not by that.
    checkpoint_full_every
        Every so many-th checkpoint of a job with tables is whole; those between hold only the rows that have changed
        since the one before.
    checkpoint_at_end
        Save each job once more before it ends, where there is a place for checkpoints.
    """

    servers: int = 1
    workers: int | None = None
    heartbeat_interval: float = 1.0
    heartbeat_timeout: float = 10.0
    lease: float = 600.0
    idle_timeout: float = 0.0
    once: bool = False
    slice_nbytes: int = SLICE_NBYTES
    replicas: int = 0
    fallback_timeout: float = 300.0
    patience: float = 0.0
    checkpoint_seconds: float | None = None
    checkpoint_steps: int | None = None
    checkpoint_full_every: int = 1
    checkpoint_at_end: bool = True
