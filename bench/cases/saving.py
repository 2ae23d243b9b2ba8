"""saving: what a step takes while a checkpoint is made, beside the steps before and after it."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click
import numpy as np

import zmqps
from bench import models
from bench.options import json_option, model_option, optimizer_option, report, transport_option
from bench.results import Row, timed
from bench.setup import OPTIMIZERS
from bench.stats import Times, percentile
from zmqps.client.futures import begins

#: Steps before the first checkpoint, which warm everything up.
WARM_UP = 5
#: Steps between two checkpoints that are measured without one.
BETWEEN = 15
TIMEOUT = 120.0


def measure(model: str, optimizer: str, transport: str, turns: int, directory: str) -> Row:
    """Train, and make a checkpoint every so often: steps with and without one take turns.

    Parameters
    ----------
    model, optimizer, transport
        What is trained, and over what.
    turns
        How many checkpoints.
    directory
        Where they go.
    """
    rng = np.random.default_rng(0)
    shapes = models.find(model)
    params = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    gradients = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    without, during, seconds, worst, versions = [], [], [], [], []
    num_steps, total, plain_total = 0, 0.0, 0.0
    with (
        zmqps.LocalCluster(
            saving=zmqps.Saving(checkpoint=directory, keep=1), limits=zmqps.Limits(heartbeat_timeout=60.0)
        ) as cluster,
        zmqps.connect(cluster.address, transport=transport) as worker,
    ):
        worker.init(params, optimizer=OPTIMIZERS[optimizer](), mode="async", timeout=TIMEOUT)
        values = worker.pull(timeout=TIMEOUT)

        def step() -> float:
            started = time.perf_counter()
            worker.push_pull(gradients, out=values, timeout=TIMEOUT)
            return time.perf_counter() - started

        for _ in range(WARM_UP):
            step()
        for turn in range(1 + turns):
            plain = [step() for _ in range(BETWEEN)]
            future = begins(zmqps.Worker.checkpoint)(worker, timeout=TIMEOUT)
            busy = []
            while not future.done():
                busy.append(step())
            made = future.result()
            if turn:  # the first one makes the buffers
                without.append(percentile(plain, 50))
                during.append(percentile(busy, 50))
                worst.append(max(busy) / without[-1])
                num_steps, total = num_steps + len(busy), total + sum(busy)
                plain_total += len(busy) * float(np.mean(plain))
                seconds.append(made.seconds)
                versions.append(made.version)
        nbytes = made.nbytes
        worker.finish()
    if sorted(set(versions)) != versions:
        raise RuntimeError(f"checkpoints of versions {versions}: training has not gone on between them")
    times, limit = Times(tuple(during)), Times(tuple(without))
    return Row(
        case="saving",
        model=model,
        servers=1,
        workers=1,
        transport=transport,
        optimizer=optimizer,
        **timed(times, limit, 2 * sum(array.nbytes for array in params.values())),
        extra={
            "steps_a_checkpoint": num_steps / turns,
            "mean_ratio": total / plain_total,
            "worst_ratio": percentile(worst, 50),
            "checkpoint_s": percentile(seconds, 50),
            "checkpoint_gb_s": nbytes / percentile(seconds, 50) / 1e9,
        },
    )


@click.command("saving")
@model_option("resnet50")
@optimizer_option
@transport_option
@click.option("--turns", type=click.IntRange(1), default=10, show_default=True, help="Checkpoints.")
@click.option("--directory", type=click.Path(file_okay=False), help="On the disk in question.  [default: runs]")
@json_option
def command(
    model: str, optimizer: str, transport: str, turns: int, directory: str | None, json_path: Path | None
) -> None:
    """Steps while a checkpoint is made, beside those without.

    The limit is the median of the steps without one, in turns; ``mean_ratio`` is of means, ``worst_ratio`` of the
    longest step in a checkpoint, at the median of all checkpoints.
    """
    Path("runs").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory or "runs") as place:
        report(measure(model, optimizer, transport, turns, place), json_path)
