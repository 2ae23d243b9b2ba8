"""copies: what steps cost with backups of shards, beside the same without."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

import zmqps
from bench.children import Child, call_all
from bench.options import report, transfer_options
from bench.results import Row, timed
from bench.setup import WARM_UP, Setup
from bench.stats import Times
from bench.transfer import check_values, start_workers


def _start(stack: ExitStack, setup: Setup, mode: str, replicas: int) -> list[Child]:
    cluster = stack.enter_context(
        zmqps.LocalCluster(setup.servers, setup.workers, limits=zmqps.Limits(heartbeat_timeout=60.0), replicas=replicas)
    )
    return start_workers(stack, cluster.address, setup, mode=mode)


def measure(setup: Setup, mode: str, replicas: int) -> Row:
    """Let steps of two clusters take turns: with backups, and without.

    Parameters
    ----------
    setup, mode
        The workload and its mode.
    replicas
        Backups of each shard.
    """
    ours: list[float] = []
    plain: list[float] = []
    with ExitStack() as stack:
        copied, other = _start(stack, setup, mode, replicas), _start(stack, setup, mode, 0)
        for turn in range(WARM_UP + setup.steps):
            measured = [call_all(workers, "steps", f"step {turn}", 1) for workers in (copied, other)]
            if turn >= WARM_UP:
                for times, found in zip((ours, plain), measured, strict=True):
                    times += [seconds for steps in found for seconds in steps]
        checked = check_values(setup, copied[0]) if mode == "async" else False
    return Row(
        case="copies",
        **setup.labels,
        **timed(Times(tuple(ours)), Times(tuple(plain)), 2 * setup.nbytes),
        extra={"replicas": replicas, "mode": mode, "checked": checked},
    )


@click.command("copies")
@transfer_options
@click.option("--replicas", type=click.IntRange(0, 2), default=1, show_default=True, help="Backups of each shard.")
@click.option("--mode", type=click.Choice(("sync", "async")), default="sync", show_default=True, help="As for init.")
def command(json_path: Path | None, replicas: int, mode: str, **fields: Any) -> None:
    """Steps with backups of shards, beside steps of a cluster without, in turns.

    The limit is the step without, so the ratio is the price.
    """
    report(measure(Setup(**fields), mode, replicas), json_path)
