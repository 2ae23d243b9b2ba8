"""What a step costs as a cluster grows: messages, bytes, simulated seconds and those of a processor."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.simulator.jobs.asynchronous import AsyncTraining
from tests.simulator.jobs.bounded import BoundedTraining
from tests.simulator.jobs.synchronous import SyncTraining
from tests.simulator.jobs.training import Training
from tests.simulator.network import Faults
from tests.simulator.simulation import Report, Simulation
from zmqps.core.coordinator.options import CoordinatorOptions

MODES = ("async", "bounded", "sync")
STALENESS = 3
#: Workers of the sweep; a server for every 32 of them, and at least two.
WORKERS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class Size(NamedTuple):
    """A cluster and what it trains; one pull and one push make a step."""

    mode: str
    servers: int
    workers: int
    steps: int = 3
    slice_nbytes: int = 1 << 16


class Row(NamedTuple):
    """What a step of one worker costs in a cluster."""

    size: Size
    messages: float
    nbytes: float
    simulated_s: float
    processor_s: float
    coordinator_messages: float


def measure(size: Size, seed: int, faults: Faults | None = None, *, validate: bool = True) -> Report:
    """Run a cluster of this size once; without faults no node is started again."""
    options = CoordinatorOptions(servers=size.servers, workers=size.workers, once=True, slice_size=size.slice_nbytes)
    simulation = Simulation(
        seed, size.servers, size.workers, faults or Faults(), _training(size, restart=faults is not None),
        options=options, validate=validate, supervised=True,
    )  # fmt: skip
    return simulation.run()


def _training(size: Size, restart: bool) -> Training:
    lives = size.workers * (2 if restart else 1)
    parameters, elements = max(4, size.servers), max(32, lives)  # every worker has elements of its own
    if size.mode == "sync":
        return SyncTraining(
            steps=size.steps,
            parameters=parameters,
            size=elements,
            plain=True,
            slice_nbytes=size.slice_nbytes,
            lives=lives,
            timeout=60.0,
        )
    if size.mode == "async":
        return AsyncTraining(
            size.steps, parameters, elements, lives, slice_nbytes=size.slice_nbytes, restart=restart, timeout=60.0
        )
    return BoundedTraining(
        STALENESS, plain=True, steps=size.steps, parameters=parameters, size=elements, lives=lives,
        slice_nbytes=size.slice_nbytes, restart=restart, timeout=60.0,
    )  # fmt: skip


def sweep(most_workers: int) -> list[Row]:
    """Measure clusters of growing size in each mode, up to so many workers."""
    rows = []
    for mode in MODES:
        for workers in [n for n in WORKERS if n <= most_workers]:
            size = Size(mode, max(2, workers // 32), workers)
            started = time.process_time()
            report = measure(size, 1, validate=False)
            rows.append(_row(size, report, time.process_time() - started))
    return rows


def _row(size: Size, report: Report, processor_s: float) -> Row:
    steps = max(1, report.steps)
    return Row(
        size, report.messages / steps, report.nbytes / steps, report.training_s / size.steps, processor_s / steps,
        report.coordinator_messages / steps,
    )  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """Return the rows as text; what is counted is a worker's step, a simulated second that of all workers."""
    names = (
        ("workers", 8),
        ("servers", 8),
        ("messages", 10),
        ("of coord.", 10),
        ("bytes", 12),
        ("sim. ms", 10),
        ("cpu ms", 9),
    )
    head = f"{'mode':7}" + "".join(f"{name:>{width}}" for name, width in names)
    lines = [
        f"{r.size.mode:7}{r.size.workers:8}{r.size.servers:8}{r.messages:10.1f}{r.coordinator_messages:10.1f}"
        f"{r.nbytes:12.0f}{1e3 * r.simulated_s:10.2f}{1e3 * r.processor_s:9.2f}"
        for r in rows
    ]
    return "\n".join([head, *lines])


def draw(rows: Sequence[Row], path: Path) -> None:
    """Plot the rows over the number of workers, a line a mode, into a file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    titles = {
        "messages": "messages of a worker's step", "coordinator_messages": "… of which the coordinator's",
        "simulated_s": "simulated seconds of a step of all", "processor_s": "processor seconds of a worker's step",
    }  # fmt: skip
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), sharex=True)
    for axis, (name, title) in zip(axes.flat, titles.items(), strict=True):
        for mode in MODES:
            found = [row for row in rows if row.size.mode == mode]
            axis.loglog([row.size.workers for row in found], [getattr(row, name) for row in found], "o-", label=mode)
        axis.set_title(title)
        axis.grid(visible=True, alpha=0.3)
    for axis in axes[1]:
        axis.set_xlabel("workers, with a server for every 32")
    axes[0][0].legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
