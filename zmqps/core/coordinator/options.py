"""The coordinator's options."""

from __future__ import annotations

from dataclasses import dataclass

from zmqps.settings.coordinator import CoordinatorSettings, Limits

DEFAULTS = CoordinatorSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorOptions(Limits):
    """What the machine knows of `CoordinatorSettings`, which explain each; times are in seconds."""

    servers: int = DEFAULTS.servers  # the placement of a job waits for them
    workers: int | None = DEFAULTS.workers  # if a job's ``init`` does not say; None: any number
    replicas: int = DEFAULTS.replicas
    slice_size: int = DEFAULTS.slice_size  # tests have smaller ones than people may
    once: bool = DEFAULTS.once  # the cluster ends with an exit code for how its first job has ended
    #: Seconds that members wait for a journaled coordinator that is away; 0: as for one without a journal, the
    #: heartbeat timeout.
    patience: float = 0.0
    checkpoint_seconds: float | None = None  # the automatic interval of checkpoints; None: not by time
    checkpoint_steps: int | None = None  # … or in steps
    checkpoint_full_every: int = DEFAULTS.saving.full_every
    checkpoint_at_end: bool = DEFAULTS.saving.at_end  # if there is a place for checkpoints
