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


def measure(setup: Setup, operation: str = "push_pull") -> Row:
    """Run an operation some times and look at every process before and after."""
    with ExitStack() as stack:
        cluster = stack.enter_context(zmqps.LocalCluster(servers=setup.servers, workers=setup.workers))
        pids = [pid for name, pid in cluster.pids.items() if name.startswith("server")]
        empty = [resident_nbytes(pid) for pid in pids]
        workers = start_workers(stack, cluster.address, setup, operation)
        call_all(workers, "steps", "all", setup.steps)
        servers = [peak_nbytes(pid) for pid in pids]
        of_workers = [peak_nbytes(worker.pid) for worker in workers]
        if operation == "layers" and setup.optimizer == "sgd" and setup.codec == "raw" and setup.workers == 1:
            workers[0].call("check_layers")
        without = [worker.call("empty_nbytes") for worker in workers]
    shard = setup.nbytes / setup.servers
    return Row(
        case="memory" if operation == "push_pull" else f"memory of {operation}",
        **setup.labels,
        steps=setup.steps,
        extra={
            "server_empty_mb": max(empty) / 1e6,
            "server_peak_mb": max(servers) / 1e6,
            "server_shards": max(peak - before for peak, before in zip(servers, empty, strict=True)) / shard,
            "worker_empty_mb": max(without) / 1e6,
            "worker_peak_mb": max(of_workers) / 1e6,
            # its gradients and out are two, and before them its start values one; of layers the values alone
            "worker_models": max(peak - before for peak, before in zip(of_workers, without, strict=True))
            / setup.nbytes,
        },
    )


@click.command("memory")
@transfer_options
@click.option(
    "--operation",
    type=click.Choice(["push_pull", "push", "pull", "layers"]),
    default="push_pull",
    show_default=True,
    help="push: the worker has gradients and no values; layers: values, and gradients of one parameter at a time. Both "
    "leave room for a larger model.",
)
def command(json_path: Path | None, operation: str, **fields: Any) -> None:
    """Peak resident memory of servers and workers over some push_pulls, or pushes, or pulls.

    ``server_shards`` is what a server gained, in sizes of its shard: one for the values, one for
    each slot of the optimizer, the rest is what travels. ``worker_models`` is what a worker gained, in sizes of the
    model: one for the gradients, one for the values, the rest is what travels. Both with what kernels need, compiled:
    some 50 MB, whatever the size.
    """
    report(measure(Setup(**fields), operation), json_path)
