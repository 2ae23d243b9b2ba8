"""The coordinator's options."""

from __future__ import annotations

from dataclasses import dataclass

from zmqps.settings.coordinator import CoordinatorSettings

DEFAULTS = CoordinatorSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorOptions:
    """What the machine knows of `CoordinatorSettings`, which explain each; times are in seconds."""

    servers: int = DEFAULTS.servers  # the placement of a job waits for them
    workers: int | None = DEFAULTS.workers  # if a job's ``init`` does not say; None: any number
    heartbeat_interval: float = DEFAULTS.heartbeat_interval
    heartbeat_timeout: float = DEFAULTS.heartbeat_timeout
    lease: float = DEFAULTS.lease
    idle_timeout: float = DEFAULTS.idle_timeout
    once: bool = DEFAULTS.once  # the cluster ends with an exit code for how its first job has ended
    slice_nbytes: int = DEFAULTS.slice_size
    replicas: int = DEFAULTS.replicas
    fallback_timeout: float = DEFAULTS.fallback_timeout
    #: Seconds that members wait for a journaled coordinator that is away; 0: as for one without a journal, the
    #: heartbeat timeout.
    patience: float = 0.0
    checkpoint_seconds: float | None = None  # the automatic interval of checkpoints; None: not by time
    checkpoint_steps: int | None = None  # … or in steps
    checkpoint_full_every: int = DEFAULTS.checkpoints.full_every
    checkpoint_at_end: bool = DEFAULTS.checkpoints.at_end  # if there is a place for checkpoints
