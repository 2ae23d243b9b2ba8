"""Many cases one after the other: a short list for every day, a full one for a release."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.cases import apply, codecs, core, fairness, latency, memory, sync_step
from bench.phases import phases_of, print_phases
from bench.plots import OPERATIONS, write_plots
from bench.results import Row, check_environment, environment, read_rows, write_rows
from bench.setup import OPTIMIZERS, TRANSPORTS, Setup
from bench.tables import console, print_key_figures, print_rows
from bench.transfer import measure, record
from zmqps.codecs import CODECS, parse
from zmqps.trace import merge

SIZES = ("1KB", "4KB", "16KB", "64KB", "256KB", "1MB", "4MB", "16MB", "64MB", "256MB", "1GB")
#: Of these a step takes long enough that fewer will do.
LARGE_STEPS = {"256MB": 10, "1GB": 6, "gpt2-small": 12}
MODELS = ("resnet50", "gpt2-small", "one-giant", "tiny-10000")
NODES = ((1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (4, 4))
#: ``auto`` is one of these.
EXPLICIT = tuple(transport for transport in TRANSPORTS if transport != "auto")
LOSSY = tuple(name for name in CODECS if name != "raw")

#: Seconds of a case, to tell how long the rest takes: what this machine makes of them shows as it goes.
SECONDS = {
    "push": 6.0, "pull": 7.0, "push_pull": 8.0, "push_pull in place": 10.0, "sync_step": 25.0, "latency": 7.0,
    "fairness": 12.0, "apply": 4.0, "codecs": 1.0, "core": 2.0, "memory": 10.0, "phases": 12.0,
}  # fmt: skip
#: … and how many times as long it takes with this model.
LONGER = {"gpt2-small": 3.0}
EXPECTED_S = 8.0
#: What so many seconds have shown counts as much as what is expected.
SURE_S = 15.0


@dataclass(frozen=True, slots=True)
class Job:
    """A case to run, the title its row will have, and how long it took on two quiet cores, in seconds."""

    title: str
    run: Callable[[], Row]
    expected_s: float = EXPECTED_S


def _job(case: str, run: Callable[[], Row], **labels: Any) -> Job:
    return Job(
        Row(case=case, **labels).title, run, SECONDS.get(case, EXPECTED_S) * LONGER.get(labels.get("model", ""), 1.0)
    )


def _of(case: str, run: Callable[[Setup], Row], setup: Setup) -> Job:
    return _job(case, partial(run, setup), **setup.labels)


def _transfer(operation: str, setup: Setup) -> Job:
    return _of(operation, partial(measure, operation), setup)


def _in_place(setup: Setup) -> Job:
    return _of("push_pull in place", partial(measure, "push_pull"), setup)


def _phases(setup: Setup, output: Path) -> Job:
    def run() -> Row:
        trace = record("push_pull", setup)
        found = phases_of(trace, "push_pull")
        nodes = f"{setup.servers}x{setup.workers}"
        merge.write(output / f"trace-{setup.model}-{nodes}-{setup.transport}-{setup.optimizer}.json", trace)
        return Row(case="phases", **setup.labels, steps=found["steps"], extra={"phases": found})

    return _job("phases", run, **setup.labels)


def _sized(setup: Setup) -> Setup:
    return replace(setup, steps=LARGE_STEPS.get(setup.model, setup.steps))


def short(output: Path) -> Iterator[Job]:
    """Yield what fits into about five minutes on two cores: each dimension once, beside the plain case."""
    for operation in OPERATIONS:
        yield _transfer(operation, Setup())
    for changed in (
        Setup(optimizer="adam"),
        Setup(transport="ipc", steps=12),
        Setup(transport="shm"),
        Setup(transport="shm", optimizer="adam"),
        Setup(servers=2, workers=2, steps=12),
        Setup(servers=2, workers=2, transport="shm", steps=12),
        *(Setup(codec=codec, steps=8) for codec in ("bf16", "int8", "topk")),
        *(Setup(model=model, steps=8) for model in MODELS if model != "resnet50"),
        *(Setup(model=size) for size in ("64KB", "1MB", "16MB")),  # 1 KB is the latency case's
    ):
        yield _transfer("push_pull", changed)
    yield _in_place(Setup(transport="shm", in_place=True))
    yield _of("sync_step", sync_step.measure, Setup(servers=2, workers=2, transport="shm", steps=8))
    yield from _others(("sgd", "adam"), ("numba",))
    for transport in ("tcp", "shm"):
        yield _of("memory", memory.measure, Setup(transport=transport, steps=8))
        yield _phases(Setup(transport=transport), output)


def full(output: Path) -> Iterator[Job]:
    """Yield all values of every dimension, each with all transports, but not their product."""
    for transport in EXPLICIT:
        plain = Setup(transport=transport)
        for operation in OPERATIONS:
            for model in (*MODELS, *SIZES):
                yield _transfer(operation, _sized(replace(plain, model=model)))
        for servers, workers in NODES[1:]:
            yield _transfer("push_pull", replace(plain, servers=servers, workers=workers))
            yield _of("sync_step", sync_step.measure, replace(plain, servers=servers, workers=workers))
        for optimizer in OPTIMIZERS:
            if optimizer != "sgd":
                yield _transfer("push_pull", replace(plain, optimizer=optimizer))
        for codec in LOSSY:
            for operation in OPERATIONS if transport == "tcp" else ("push_pull",):
                yield _transfer(operation, replace(plain, codec=codec))
    for model in ("resnet50", "gpt2-small", "one-giant"):
        yield _in_place(_sized(Setup(model=model, transport="shm", in_place=True)))
    yield from _others(tuple(OPTIMIZERS), codecs.BACKENDS)
    for transport in EXPLICIT:
        plain = Setup(transport=transport)
        for model in MODELS:
            yield _of("memory", memory.measure, _sized(replace(plain, model=model)))
        yield _of("memory", memory.measure, replace(plain, servers=2, workers=2))
        for optimizer in ("sgd", "adam"):
            yield _phases(replace(plain, optimizer=optimizer), output)
        yield _phases(replace(plain, servers=2, workers=2), output)


def _others(optimizers: tuple[str, ...], codec_kernels: tuple[Any, ...]) -> Iterator[Job]:
    """Yield what runs in a moment: latency, and the parts alone."""
    for transport in EXPLICIT:
        yield _of("latency", latency.measure, Setup(model="1KB", transport=transport))
    yield _of("fairness", fairness.measure, Setup(model="1KB"))
    for kernels in apply.BACKENDS:
        for optimizer in optimizers:
            run = partial(apply.measure, "resnet50", optimizer, kernels, 20)
            yield _job("apply", run, model="resnet50", optimizer=optimizer, kernels=kernels)
    for kernels in codec_kernels:
        for codec in LOSSY:
            run = partial(codecs.measure, "16MB", codec, kernels, 10)
            yield _job("codecs", run, model="16MB", codec=parse(codec).spec, kernels=kernels)
    for model in ("1KB", "resnet50"):
        yield _job("core", partial(core.measure, model, 50), model=model)


def _kept(path: Path) -> list[Row]:
    """Return the rows of an interrupted run of this very commit on this machine."""
    if not path.exists():
        return []
    rows, found = read_rows(path)
    check_environment(path, found)
    return rows


@click.command("suite")
@click.option("--full", "everything", is_flag=True, help="All of every dimension: hours.")
@click.option("--only", metavar="TEXT", multiple=True, help="Only cases whose title holds this; may be repeated.")
@click.option("--list", "listing", is_flag=True, help="Only list the titles.")
@click.option("--resume", is_flag=True, help="Keep what an interrupted run of this commit has written, do the rest.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/bench"),
    show_default=True,
    help="Where results.json, the plots and the traces go.",
)
@click.option("--plots/--no-plots", default=True, show_default=True, help="Draw them (matplotlib).")
def command(everything: bool, only: tuple[str, ...], listing: bool, resume: bool, output: Path, plots: bool) -> None:
    """Run many cases, print one table, write JSON, plots and traces.

    A case that fails is reported and the others go on; then the exit code is 1. Results are written
    after each case.
    """
    jobs = list(full(output) if everything else short(output))
    if only:
        jobs = [job for job in jobs if any(text in job.title for text in only)]
    if listing:
        for job in jobs:
            click.echo(job.title)
        return
    path = output / "results.json"
    rows = _kept(path) if resume else []
    done = {row.title for row in rows}
    failed = run_all([job for job in jobs if job.title not in done], rows, path)
    print_key_figures(rows, environment()["machine"])
    print_rows(rows)
    for row in rows:
        if "phases" in row.extra:
            print_phases(row)
    console.print(f"written: {path}", highlight=False)
    if plots:
        for drawn in write_plots(rows, output):
            console.print(f"written: {drawn}", highlight=False)
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(jobs)} cases failed: {', '.join(failed)}")


def run_all(jobs: list[Job], rows: list[Row], path: Path) -> list[str]:
    """Run jobs, add their rows and write them after each; return the titles of those that failed."""
    failed = []
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )  # fmt: skip
    started = time.monotonic()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(jobs), left="")
        for number, job in enumerate(jobs, start=1):
            left = time_left(jobs, number - 1, time.monotonic() - started)
            progress.update(task, description=job.title, left=left)
            if not console.is_terminal:
                console.print(f"{number}/{len(jobs)} {job.title}, {left}", style="dim", highlight=False)
            try:
                rows.append(job.run())
            except Exception as error:
                failed.append(job.title)
                console.print(f"{job.title} failed: {error}", style="red", highlight=False, markup=False)
            else:
                write_rows(path, rows)  # now: an interrupted run is worth something
            progress.advance(task)
    return failed


def time_left(jobs: Sequence[Job], done: int, elapsed_s: float) -> str:
    """Say how long the jobs that are not done take, as those that are took longer or shorter than expected."""
    expected = [job.expected_s for job in jobs]
    pace = (elapsed_s + SURE_S) / (sum(expected[:done]) + SURE_S)
    left = pace * sum(expected[done:])
    return f"about {left / 60:.0f} min left" if left >= 90 else f"about {math.ceil(left / 10) * 10} s left"
