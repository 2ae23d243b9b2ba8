"""drain, rescale: how long workers wait while a server hands over what it has, or shards are cut for others."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
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

#: Servers at first, by case.
SERVERS = {"drain": 3, "rescale": 2}
#: To how many jobs are scaled, one after the other.
SCALES = (4, 2)
WARM_UP = 10
#: Steps that are measured before each change.
BEFORE = 10
TIMEOUT = 120.0


def _changes(case: str, cluster: zmqps.LocalCluster) -> Iterator[tuple[Callable[[], object], float]]:
    """Yield what is to be done, one after the other, and which part of all values moves by it."""
    servers = SERVERS[case]
    if case == "drain":
        for left in range(servers, 1, -1):
            yield lambda: drain_server(cluster.address, f"server-{left - 1}", timeout=TIMEOUT), 1 / left  # noqa: B023
        return
    for wanted in SCALES:
        yield lambda: cluster.scale(wanted, timeout=TIMEOUT), abs(wanted - servers) / max(wanted, servers)  # noqa: B023
        servers = wanted


def measure(case: str, model: str, optimizer: str, transport: str, mode: str, turns: int) -> Row:
    """Train while servers go, or come.

    Parameters
    ----------
    case
        What is done meanwhile: ``drain`` or ``rescale``.
    model, optimizer, transport, mode
        What is trained, over what, and in which mode.
    turns
        How often, each time with another cluster.
    """
    rng = np.random.default_rng(0)
    shapes = models.find(model)
    params = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    gradients = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    nbytes = sum(array.nbytes for array in params.values())
    medians, during, waits, held, seconds = [], [], [], [], []
    for _ in range(turns):
        with (
            zmqps.LocalCluster(servers=SERVERS[case], limits=zmqps.Limits(heartbeat_timeout=60.0)) as cluster,
            zmqps.connect(cluster.address, transport=transport) as worker,
            ThreadPoolExecutor(1) as pool,
        ):
            worker.init(params, optimizer=OPTIMIZERS[optimizer](), mode=mode, timeout=TIMEOUT)
            values = worker.pull(timeout=TIMEOUT)

            def step() -> float:
                started = time.perf_counter()
                worker.push_pull(gradients, out=values, timeout=TIMEOUT)  # noqa: B023  (called in this turn)
                return time.perf_counter() - started

            for _ in range(WARM_UP):
                step()
            for change, part in _changes(case, cluster):
                plain = percentile([step() for _ in range(BEFORE)], 50)
                began, busy = time.perf_counter(), list[float]()
                changed = pool.submit(change)
                while not changed.done():
                    busy.append(step())
                held.append(_held_s(str(changed.result())) / (nbytes * part / 1e9))
                seconds.append(time.perf_counter() - began)
                medians.append(plain)
                during.append(percentile(busy, 50))
                waits.append((max(busy) - plain) / (nbytes * part / 1e9))
            worker.finish()
    return Row(
        case=case,
        model=model,
        servers=SERVERS[case],
        workers=1,
        transport=transport,
        optimizer=optimizer,
        **timed(Times(tuple(during)), Times(tuple(medians)), 2 * nbytes),
        extra={
            "longest_step_s_a_gb": percentile(waits, 50),
            "worst_step_s_a_gb": max(waits),
            **({"pause_s_a_gb": percentile(held, 50), "worst_pause_s_a_gb": max(held)} if any(held) else {}),
            f"{case}_s": percentile(seconds, 50),
        },
    )


def _held_s(text: str) -> float:
    """Return for how long no push began, of what the coordinator says when all is done; 0 where it had none held."""
    found = re.search(r"longest pause of pushes ([0-9.]+) s", text)
    return float(found[1]) if found else 0.0


def _command(case: str, text: str) -> click.Command:
    @click.command(case, help=text)
    @model_option("resnet50")
    @optimizer_option
    @transport_option
    @click.option(
        "--mode", type=click.Choice(("sync", "async")), default="sync", show_default=True, help="As for init."
    )
    @click.option("--turns", type=click.IntRange(1), default=3, show_default=True, help="Clusters, two changes each.")
    @json_option
    def command(model: str, optimizer: str, transport: str, mode: str, turns: int, json_path: Path | None) -> None:
        report(measure(case, model, optimizer, transport, mode, turns), json_path)

    return command


PAUSE = """\b
longest_step_s_a_gb is how much longer than the steps before the longest step
took, for each gigabyte of values that moved; pause_s_a_gb how long the
coordinator had workers begin no push, once shards were cut."""
drain = _command("drain", f"Steps while a server hands over its shard and goes, beside those before.\n\n{PAUSE}")
rescale = _command("rescale", f"Steps while jobs come to lie on 4 servers, then on 2, beside those before.\n\n{PAUSE}")
