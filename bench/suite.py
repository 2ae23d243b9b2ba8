"""Many cases one after the other: a short list for every day, a full one for a release."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeAlias

import click

from bench.cases import apply, core, latency, memory
from bench.plots import OPERATIONS, write_plots
from bench.results import Row, write_rows
from bench.tables import console, print_rows
from bench.transfer import OPTIMIZERS, TRANSPORTS, Setup, measure

Job: TypeAlias = tuple[str, Callable[[], Row]]

SIZES = ("1KB", "4KB", "16KB", "64KB", "256KB", "1MB", "4MB", "16MB", "64MB", "256MB", "1GB")
MODELS = ("resnet50", "gpt2-small", "one-giant", "tiny-10000")
NODES = ((1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (4, 4))
#: ``auto`` is one of these.
EXPLICIT = tuple(transport for transport in TRANSPORTS if transport != "auto")


def _transfer(operation: str, setup: Setup) -> Job:
    return f"{operation} {_title(setup)}", partial(measure, operation, setup)


def _memory(setup: Setup) -> Job:
    return f"memory {_title(setup)}", partial(memory.measure, setup)


def _title(setup: Setup) -> str:
    return f"{setup.model} {setup.servers}×{setup.workers} {setup.transport} {setup.optimizer}"


def short() -> Iterator[Job]:
    """Yield what fits into about five minutes on two cores."""
    for operation in OPERATIONS:
        yield _transfer(operation, Setup())
    yield _transfer("push_pull", Setup(optimizer="adam"))
    yield _transfer("push_pull", Setup(transport="ipc", steps=12))
    yield _transfer("push_pull", Setup(transport="shm"))
    yield _transfer("push_pull", Setup(transport="shm", optimizer="adam"))
    for transport in ("tcp", "shm"):
        yield _transfer("push_pull", Setup(servers=2, workers=2, transport=transport, steps=12))
    yield _transfer("push_pull", Setup(model="gpt2-small", steps=12))
    yield _transfer("push_pull", Setup(model="one-giant", steps=12))
    yield _transfer("push_pull", Setup(model="tiny-10000", steps=12))
    for size in ("64KB", "1MB", "16MB"):  # 1 KB is the latency case's
        yield _transfer("push_pull", Setup(model=size))
    yield from _others(("sgd", "adam"))
    for transport in ("tcp", "shm"):
        yield _memory(Setup(transport=transport, steps=12))


def full() -> Iterator[Job]:
    """Yield every case with every size, model, number of nodes, transport and optimizer that makes sense."""
    for transport in EXPLICIT:
        for operation in OPERATIONS:
            for model in (*MODELS, *SIZES):
                yield _transfer(operation, Setup(model=model, transport=transport))
        for servers, workers in NODES[1:]:
            yield _transfer("push_pull", Setup(servers=servers, workers=workers, transport=transport))
        for optimizer in OPTIMIZERS:
            if optimizer != "sgd":
                yield _transfer("push_pull", Setup(optimizer=optimizer, transport=transport))
    yield from _others(tuple(OPTIMIZERS))
    for transport in EXPLICIT:
        for model in MODELS:
            yield _memory(Setup(model=model, transport=transport))
        yield _memory(Setup(servers=2, workers=2, transport=transport))


def _others(optimizers: tuple[str, ...]) -> Iterator[Job]:
    for transport in EXPLICIT:
        yield f"latency {transport}", partial(latency.measure, "1KB", transport, "sgd", 1000)
    for kernels in apply.BACKENDS:
        for optimizer in optimizers:
            yield f"apply {optimizer} {kernels}", partial(apply.measure, "resnet50", optimizer, kernels, 20)
    for model in ("1KB", "resnet50"):
        yield f"core {model}", partial(core.measure, model, 50)


@click.command("suite")
@click.option("--full", "everything", is_flag=True, help="All sizes, models, nodes and optimizers: an hour or more.")
@click.option("--only", metavar="TEXT", default="", help="Only cases whose title holds this.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/bench"),
    show_default=True,
    help="Where results.json and the plots go.",
)
@click.option("--plots/--no-plots", default=True, show_default=True, help="Draw them (matplotlib).")
def command(everything: bool, only: str, output: Path, plots: bool) -> None:
    """Run many cases, print one table, write JSON and plots.

    A case that fails is reported and the others go on; then the exit code is 1.
    """
    jobs = [job for job in (full() if everything else short()) if only in job[0]]
    rows: list[Row] = []
    failed = []
    for number, (title, run) in enumerate(jobs, start=1):
        console.print(f"{number}/{len(jobs)} {title}", style="dim", highlight=False)
        try:
            rows.append(run())
        except Exception as error:
            failed.append(title)
            console.print(f"{title} failed: {error}", style="red", highlight=False)
        else:
            write_rows(output / "results.json", rows)  # now: an interrupted run is worth something
    print_rows(rows)
    console.print(f"written: {output / 'results.json'}", highlight=False)
    if plots:
        for path in write_plots(rows, output):
            console.print(f"written: {path}", highlight=False)
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(jobs)} cases failed: {', '.join(failed)}")
