"""The workload of most cases: nodes, model and transport."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmqps
from bench import models
from zmqps import codecs

TRANSPORTS = ("tcp", "ipc", "shm", "auto")
LEARNING_RATE = 1e-3
GRADIENT_SCALE = 1e-2
OPTIMIZERS: dict[str, Callable[[], zmqps.optim.OptimizerSpec]] = {
    "sgd": lambda: zmqps.optim.sgd(LEARNING_RATE),
    "momentum": lambda: zmqps.optim.sgd(LEARNING_RATE, momentum=0.9),
    "adagrad": lambda: zmqps.optim.adagrad(LEARNING_RATE),
    "adam": lambda: zmqps.optim.adam(LEARNING_RATE),
}
#: Steps before those that count: pages get mapped, sockets find their buffer sizes.
WARM_UP = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A cluster and what it trains.

    Attributes
    ----------
    model, optimizer
        By their names in `bench.models` and `OPTIMIZERS`.
    servers, workers
        Processes of each.
    transport
        As `zmqps.connect` takes it.
    codec
        How gradients travel, and values too where the codec may carry them.
    steps
        To measure, after `WARM_UP`.
    in_place
        Gradients are computed where servers of this host read them, and values looked at where they lie.
    new
        Values come in new arrays of each call, without ``out``; not in place.
    device
        Where servers keep their shards and workers their arrays, as `zmqps.gpu.device.open_device` takes it;
        None: on the processor; a bus's bound is not measured.
    keyed
        Whether nodes have keys: all that goes over sockets is encrypted.
    io_threads
        Of each server and worker, for sockets; None: as they come.
    """

    model: str = "resnet50"
    servers: int = 1
    workers: int = 1
    transport: str = "tcp"
    optimizer: str = "sgd"
    codec: str = "raw"
    steps: int = 20
    in_place: bool = False
    new: bool = False
    device: str | None = None
    keyed: bool = False
    io_threads: int | None = None

    @property
    def labels(self) -> dict[str, Any]:
        """The fields of a row that say what was done."""
        names = ("model", "servers", "workers", "transport", "optimizer", "codec")
        return {name: getattr(self, name) for name in names}

    @property
    def arrays(self) -> str:
        """What the name of a case says of where arrays are."""
        return " in place" if self.in_place else " new" if self.new else ""

    @property
    def secured(self) -> str:
        """What stands behind the name of a case with keys, or with a number of I/O threads."""
        threads = "" if self.io_threads is None else f" {self.io_threads} I/O"
        return f"{' keys' if self.keyed else ''}{threads}"

    @property
    def pull_codec(self) -> str:
        """How values travel: those that leave something out are for gradients only."""
        return "raw" if codecs.parse(self.codec).error_feedback else self.codec

    @property
    def nbytes(self) -> int:
        """Size of the model."""
        return models.num_bytes(models.find(self.model))
