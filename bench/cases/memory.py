"""memory: what servers and workers hold while a model is trained."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

import zmqps
from bench.children import call_all
from bench.options import report, transfer_options
from bench.processes import peak_nbytes, resident_nbytes
from bench.results import Row
from bench.setup import Setup
from bench.transfer import start_workers


def measure(setup: Setup) -> Row:
    """Run push_pulls and look at every process before and after."""
    with ExitStack() as stack:
        cluster = stack.enter_context(zmqps.LocalCluster(servers=setup.servers, workers=setup.workers))
        pids = [pid for name, pid in cluster.pids.items() if name.startswith("server")]
        empty = [resident_nbytes(pid) for pid in pids]
        workers = start_workers(stack, cluster.address, setup)
        call_all(workers, "steps", "all", setup.steps)
        servers = [peak_nbytes(pid) for pid in pids]
        of_workers = [peak_nbytes(worker.pid) for worker in workers]
    shard = setup.nbytes / setup.servers
    return Row(
        case="memory",
        **setup.labels,
        steps=setup.steps,
        extra={
            "server_empty_mb": max(empty) / 1e6,
            "server_peak_mb": max(servers) / 1e6,
            "server_shards": max(peak - before for peak, before in zip(servers, empty, strict=True)) / shard,
            "worker_peak_mb": max(of_workers) / 1e6,
            "worker_models": max(of_workers) / setup.nbytes,  # its start values, gradients and out are three
        },
    )


@click.command("memory")
@transfer_options
def command(json_path: Path | None, **fields: Any) -> None:
    """Peak resident memory of servers and workers over some push_pulls.

    ``server_shards`` is what a server gained, in sizes of its shard: one for the values, one for
    each slot of the optimizer, the rest is what travels.
    """
    report(measure(Setup(**fields)), json_path)
