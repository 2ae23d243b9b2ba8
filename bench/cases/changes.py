"""changes: a checkpoint of what has changed since the one before, beside a whole one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import numpy as np

import zmqps
from bench import models
from bench.options import json_option, model_option, optimizer_option, report
from bench.results import Row, timed
from bench.setup import OPTIMIZERS
from bench.stats import Times
from zmqps.checkpoint import LocalStorage, good_ones, prune

TIMEOUT = 120.0
#: Pushes between two checkpoints.
BETWEEN = 3


def measure(model: str, optimizer: str, turns: int, changed: float, slice_nbytes: int, directory: str) -> Row:
    """Save a job whole and what has changed of it, in turns.

    Parameters
    ----------
    model, optimizer
        What is trained.
    turns
        How many checkpoints of each kind.
    changed
        Which part of the elements is pushed between two checkpoints: of the last parameters.
    slice_nbytes
        Bytes of a slice.
    directory
        Where they go.
    """
    rng = np.random.default_rng(0)
    params = {name: rng.standard_normal(shape, np.float32) for name, shape in models.find(model).items()}
    total, gradients = sum(array.size for array in params.values()), dict[str, np.ndarray]()
    for name in reversed(params):
        if sum(array.size for array in gradients.values()) < changed * total:
            gradients[name] = np.ones_like(params[name])
    seconds: dict[bool, list[float]] = {True: [], False: []}
    sizes: dict[bool, list[int]] = {True: [], False: []}
    with (
        zmqps.LocalCluster(
            checkpoint=directory, keep=1000, checkpoint_full_every=2, slice_nbytes=slice_nbytes, heartbeat_timeout=60.0
        ) as cluster,
        zmqps.connect(cluster.address) as worker,
    ):
        worker.init(params, optimizer=OPTIMIZERS[optimizer](), timeout=TIMEOUT)
        for turn in range(-2, 2 * turns):  # the first of each kind makes the buffers
            for _ in range(BETWEEN):
                worker.push(gradients, timeout=TIMEOUT)
            made = worker.checkpoint(timeout=TIMEOUT)
            if turn >= 0:
                seconds[turn % 2 == 0].append(made.seconds)
                sizes[turn % 2 == 0].append(made.nbytes)
            job_path = made.path.rpartition("/")[0]  # removed here, for removing a whole one takes longer
            prune(LocalStorage(), job_path, 1, [found.path for found in good_ones(LocalStorage(), job_path)])
        worker.finish()
    whole, part = max(sizes[True]), max(sizes[False])
    return Row(
        case="changes",
        model=model,
        servers=1,
        workers=1,
        optimizer=optimizer,
        **timed(Times(tuple(seconds[False])), Times(tuple(seconds[True])), part),
        extra={"changed": changed, "whole_mb": whole / 1e6, "changed_mb": part / 1e6, "of_whole": part / whole},
    )


@click.command("changes")
@model_option("resnet50")
@optimizer_option
@click.option("--turns", type=click.IntRange(1), default=10, show_default=True, help="Checkpoints of each kind.")
@click.option(
    "--changed", type=click.FloatRange(0, 1, min_open=True), default=0.1, show_default=True,
    help="Which part of the elements is pushed between two checkpoints.",
)  # fmt: skip
@click.option("--slice-size", type=click.IntRange(4096), default=4 << 20, show_default=True, help="Bytes of a slice.")
@click.option("--directory", type=click.Path(file_okay=False), help="On the disk in question.  [default: runs]")
@json_option
def command(
    model: str,
    optimizer: str,
    turns: int,
    changed: float,
    slice_size: int,
    directory: str | None,
    json_path: Path | None,
) -> None:
    """Checkpoints of what has changed (--checkpoint-full-every), beside whole ones.

    The limit is the median of the whole ones, in turns; ``of_whole`` is the bytes of one beside those of the other.
    """
    Path("runs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory or "runs") as place:
        report(measure(model, optimizer, turns, changed, slice_size, place), json_path)
