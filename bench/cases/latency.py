"""latency: how long the smallest operation takes, and how many of them fit into a second."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

import zmqps
from bench import models
from bench.children import Child
from bench.limits import PlainSockets
from bench.options import json_option, model_option, optimizer_option, report, transport_option
from bench.results import Row, timed
from bench.stats import Times, percentile
from bench.transfer import CODEC, TransferWorker

#: Operations in a turn; then it is the plain sockets' turn.
BATCH = 50
#: Operations that are started before the first one is waited for.
PIPELINED = 200


def measure(model: str, transport: str, optimizer: str, rounds: int) -> Row:
    """Time push_pulls of one small vector, one after the other and many at once."""
    nbytes = models.num_bytes(models.find(model))
    ours: list[float] = []
    limits: list[float] = []
    rates: list[float] = []
    with ExitStack() as stack:
        cluster = stack.enter_context(zmqps.LocalCluster(servers=1, workers=1))
        limit = stack.enter_context(PlainSockets(transport, 1, 1, nbytes, nbytes))
        arguments = cluster.address, model, optimizer, transport, "push_pull"
        worker = stack.enter_context(Child(TransferWorker, *arguments))
        worker.result()
        worker.call("steps", "warm up", BATCH)
        limit.steps(BATCH)
        for turn in range(-(-rounds // BATCH)):
            ours += worker.call("steps", f"turn {turn}", BATCH)
            limits += limit.steps(BATCH)
            rates.append(PIPELINED / worker.call("pipelined", PIPELINED))
    return Row(
        case="latency",
        model=model,
        servers=1,
        workers=1,
        transport=transport,
        optimizer=optimizer,
        codec=CODEC,
        **timed(Times(tuple(ours)), Times(tuple(limits)), 2 * nbytes),
        extra={
            "p50_s": percentile(ours, 50),
            "p99_s": percentile(ours, 99),
            "max_s": max(ours),
            "pipelined_per_s": percentile(rates, 50),
            "pipelined_best_per_s": max(rates),
        },
    )


@click.command("latency")
@model_option("1KB")
@transport_option
@optimizer_option
@click.option("--rounds", type=click.IntRange(1), default=1000, show_default=True, help="Round trips to measure.")
@json_option
def command(model: str, transport: str, optimizer: str, rounds: int, json_path: Path | None) -> None:
    """Round trip of a 1 KB push_pull, and the rate of many under way at once.

    Beside it the same bytes there and back over a plain socket between two processes.
    """
    report(measure(model, transport, optimizer, rounds), json_path)
