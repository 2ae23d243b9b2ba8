"""drain: how long workers wait while a server hands over what it has."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import numpy as np

import zmqps
from bench import models
from bench.options import json_option, model_option, optimizer_option, report, transport_option
from bench.results import Row, timed
from bench.setup import OPTIMIZERS
from bench.stats import Times, percentile
from zmqps.nodes.inquiry import drain_server

SERVERS = 3
WARM_UP = 10
#: Steps that are measured before each server goes.
BEFORE = 10
TIMEOUT = 120.0


def measure(model: str, optimizer: str, transport: str, staleness: int | None, turns: int) -> Row:
    """Train on three servers, and let two of them go, one after the other.

    Parameters
    ----------
    model, optimizer, transport, staleness
        What is trained, over what, and in which mode.
    turns
        How often, each time with another cluster.
    """
    rng = np.random.default_rng(0)
    shapes = models.find(model)
    params = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    gradients = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    nbytes = sum(array.nbytes for array in params.values())
    medians, during, waits, seconds = [], [], [], []
    for _ in range(turns):
        with (
            zmqps.LocalCluster(servers=SERVERS, heartbeat_timeout=60.0) as cluster,
            zmqps.connect(cluster.address, transport=transport) as worker,
            ThreadPoolExecutor(1) as pool,
        ):
            worker.init(params, optimizer=OPTIMIZERS[optimizer](), staleness=staleness, timeout=TIMEOUT)
            values = worker.pull(timeout=TIMEOUT)

            def step() -> float:
                started = time.perf_counter()
                worker.push_pull(gradients, out=values, timeout=TIMEOUT)  # noqa: B023  (called in this turn)
                return time.perf_counter() - started

            for _ in range(WARM_UP):
                step()
            for left in range(SERVERS, 1, -1):
                plain = percentile([step() for _ in range(BEFORE)], 50)
                began, busy = time.perf_counter(), list[float]()
                gone = pool.submit(drain_server, cluster.address, f"server-{left - 1}", timeout=TIMEOUT)
                while not gone.done():
                    busy.append(step())
                gone.result()
                seconds.append(time.perf_counter() - began)
                medians.append(plain)
                during.append(percentile(busy, 50))
                waits.append((max(busy) - plain) / (nbytes / left / 1e9))
            worker.finish()
    return Row(
        case="drain",
        model=model,
        servers=SERVERS,
        workers=1,
        transport=transport,
        optimizer=optimizer,
        **timed(Times(tuple(during)), Times(tuple(medians)), 2 * nbytes),
        extra={
            "pause_s_a_gb": percentile(waits, 50),
            "worst_pause_s_a_gb": max(waits),
            "drain_s": percentile(seconds, 50),
        },
    )


@click.command("drain")
@model_option("resnet50")
@optimizer_option
@transport_option
@click.option("--staleness", type=click.IntRange(0), help="As for init; 0: synchronous.  [default: asynchronous]")
@click.option("--turns", type=click.IntRange(1), default=3, show_default=True, help="Clusters, each with two drains.")
@json_option
def command(
    model: str, optimizer: str, transport: str, staleness: int | None, turns: int, json_path: Path | None
) -> None:
    """Steps while a server hands over its shard and goes, beside those before.

    ``pause_s_a_gb`` is how much longer than the steps before the longest step took, for each gigabyte of values that
    moved.
    """
    report(measure(model, optimizer, transport, staleness, turns), json_path)
