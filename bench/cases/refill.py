"""refill: steps while new backups are filled, in the place of those that a server had that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np

import zmqps
from bench import models
from bench.options import json_option, model_option, optimizer_option, report, transport_option
from bench.results import Row, timed
from bench.setup import OPTIMIZERS
from bench.stats import Times, percentile
from zmqps.nodes.inquiry import ask_status

SERVERS = 2
WARM_UP = 10
#: Steps that are measured before a server is killed, and again when all backups are there.
STEPS = 10
TIMEOUT = 120.0
HEARTBEAT_TIMEOUT = 2.0


def measure(model: str, optimizer: str, transport: str, mode: str, turns: int) -> Row:
    """Train with a backup of each shard; kill a server, start another one, and look how long steps take meanwhile.

    Parameters
    ----------
    model, optimizer, transport, mode
        What is trained, over what, and in which mode.
    turns
        How often, each time with another cluster.
    """
    rng = np.random.default_rng(0)
    shapes = models.find(model)
    params = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    gradients = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    before, filling, after, seconds = list[float](), list[float](), list[float](), list[float]()
    for _ in range(turns):
        with (
            zmqps.LocalCluster(
                servers=SERVERS, replicas=1, limits=zmqps.Limits(heartbeat_timeout=HEARTBEAT_TIMEOUT)
            ) as cluster,
            zmqps.connect(cluster.address, transport=transport) as worker,
        ):
            worker.init(params, optimizer=OPTIMIZERS[optimizer](), mode=mode, timeout=TIMEOUT)
            values = worker.pull(timeout=TIMEOUT)

            def step() -> float:
                started = time.perf_counter()
                worker.push_pull(gradients, out=values, timeout=TIMEOUT)  # noqa: B023  (called in this turn)
                return time.perf_counter() - started

            for _ in range(WARM_UP):
                step()
            plain = percentile([step() for _ in range(STEPS)], 50)
            os.kill(_last_server(cluster.address), signal.SIGKILL)
            while not _degraded(cluster.address):
                step()
            with _server(cluster.address):
                meanwhile = list[float]()
                began, deadline = 0.0, time.perf_counter() + TIMEOUT
                while degraded := _degraded(cluster.address):
                    if "is being filled" not in degraded:
                        step()
                    else:
                        began = began or time.perf_counter()
                        meanwhile.append(step())
                    if time.perf_counter() > deadline:
                        raise RuntimeError(f"after {TIMEOUT:g} s: {degraded}")
                if not meanwhile:
                    raise RuntimeError("the backups were filled before a step was over; take a larger model")
                seconds.append(time.perf_counter() - began)
                filling += meanwhile
                before += [plain] * len(meanwhile)
                after += [percentile([step() for _ in range(STEPS)], 50)] * len(meanwhile)
                worker.finish()
    return Row(
        case="refill",
        model=model,
        servers=SERVERS,
        workers=1,
        transport=transport,
        optimizer=optimizer,
        **timed(Times(tuple(filling)), Times(tuple(after)), 2 * sum(array.nbytes for array in params.values())),
        extra={
            "refill_s": percentile(seconds, 50),
            "steps": len(filling),
            "of_before": percentile([a / b for a, b in zip(filling, before, strict=True)], 50),
        },
    )


def _last_server(address: str) -> int:
    """Return the process of the server with the highest rank."""
    members = ask_status(address)["members"]
    return int(max((m for m in members if m["role"] == "server"), key=lambda m: int(m["rank"]))["pid"])


def _degraded(address: str) -> str:
    """Return which shards lack a backup, and why; empty: none does."""
    jobs = ask_status(address)["jobs"]
    return " ".join(text for job in jobs.values() for text in job["replicas"]["degraded"])


@contextmanager
def _server(address: str) -> Iterator[None]:
    """Have one more server, until the block is left."""
    command = [sys.executable, "-m", "zmqps", "server", "--coordinator", address]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        server.kill()
        server.wait()


@click.command("refill")
@model_option("512MB")
@optimizer_option
@transport_option
@click.option("--mode", type=click.Choice(("sync", "async")), default="sync", show_default=True, help="As for init.")
@click.option("--turns", type=click.IntRange(1), default=3, show_default=True, help="Clusters, one loss each.")
@json_option
def command(model: str, optimizer: str, transport: str, mode: str, turns: int, json_path: Path | None) -> None:
    """Steps while backups are filled on a new server, beside steps once they are there.

    A server was killed, so another one answers for all shards, before and after. of_before compares with steps before
    that, when each of two servers answered for one and had a backup of the other.
    """
    report(measure(model, optimizer, transport, mode, turns), json_path)
