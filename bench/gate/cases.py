"""The few cases that the gate looks at: one of each kind of work that was ever made slower by mistake."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is done, by what every version can be asked for.

    Attributes
    ----------
    model, servers, workers, transport, optimizer
        As in `bench.setup.Setup`.
    mode
        As `Worker.init` takes it.
    window
        How many steps of a worker are under way at once.
    batch
        Steps in a turn, of each worker.
    """

    model: str = "resnet50"
    servers: int = 1
    workers: int = 1
    transport: str = "auto"
    optimizer: str = "sgd"
    mode: str = "async"
    window: int = 1
    batch: int = 2


CASES = {
    "latency-tcp": Case(model="1KB", transport="tcp", batch=200),
    "pipelined-tcp": Case(model="1KB", transport="tcp", window=200, batch=1000),
    "sgd-1x1-tcp": Case(transport="tcp"),
    "sgd-1x1": Case(),
    "adam-1x1": Case(optimizer="adam"),
    "tiny-10000-tcp": Case(model="tiny-10000", transport="tcp"),
    "sync-2x2": Case(servers=2, workers=2, mode="sync"),
}
