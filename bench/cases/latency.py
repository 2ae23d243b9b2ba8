"""latency: how long the smallest operation takes, and how many of them fit into a second."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

import zmqps
from bench.echo import ZmqEcho
from bench.limits import PlainSockets
from bench.options import json_option, model_option, optimizer_option, report, transport_option
from bench.results import Row, timed
from bench.setup import Setup
from bench.stats import Times, percentile, ratio_spread
from bench.transfer import check_values, start_workers

ROUNDS = 1000
#: Operations in a turn; then it is the plain sockets' turn.
BATCH = 50
#: Operations that are started before the first one is waited for.
PIPELINED = 200


def measure(setup: Setup, rounds: int = ROUNDS) -> Row:
    """Time push_pulls of one small vector between one server and one worker, one by one and many at once."""
    nbytes = setup.nbytes
    ours: list[float] = []
    limits: list[float] = []
    echoes: list[float] = []
    rates: list[float] = []
    with ExitStack() as stack:
        cluster = stack.enter_context(zmqps.LocalCluster(servers=1, workers=1))
        limit = stack.enter_context(PlainSockets(setup.transport, 1, 1, nbytes, nbytes))
        echo = stack.enter_context(ZmqEcho(nbytes)) if setup.transport == "tcp" else None
        [worker] = start_workers(stack, cluster.address, setup)
        worker.call("steps", "warm up", BATCH)
        limit.steps(BATCH)
        for turn in range(-(-rounds // BATCH)):
            ours += worker.call("steps", f"turn {turn}", BATCH)
            limits += limit.steps(BATCH)
            echoes += echo.steps(BATCH) if echo is not None else []
            rates.append(PIPELINED / worker.call("pipelined", PIPELINED))
        checked = check_values(setup, worker)
    return Row(
        case="latency",
        **setup.labels,
        **timed(Times(tuple(ours)), Times(tuple(limits)), 2 * nbytes),
        extra={
            "p50_s": percentile(ours, 50),
            "p99_s": percentile(ours, 99),
            "p999_s": percentile(ours, 99.9),
            "max_s": max(ours),
            **_beside(ours, echoes),
            "pipelined_per_s": percentile(rates, 50),
            "pipelined_best_per_s": max(rates),
            "checked": checked,
        },
    )


def _beside(ours: Sequence[float], echoes: Sequence[float]) -> dict[str, float]:
    if not echoes:
        return {}
    low, high = ratio_spread(ours, echoes)
    echo_s = percentile(echoes, 50)
    ratio = percentile(ours, 50) / echo_s
    return {
        "zmq_echo_s": echo_s,
        "ratio_to_zmq_echo": ratio,
        "ratio_to_zmq_echo_low": low,
        "ratio_to_zmq_echo_high": high,
    }


@click.command("latency")
@model_option("1KB")
@transport_option
@optimizer_option
@click.option("--rounds", type=click.IntRange(1), default=ROUNDS, show_default=True, help="Round trips to measure.")
@json_option
def command(rounds: int, json_path: Path | None, **fields: Any) -> None:
    """Round trip of a 1 KB push_pull (percentiles 50, 90, 99, 99.9), and the rate of many under way at once.

    Beside it the same bytes there and back over a plain socket between two processes, and over TCP a plain ZeroMQ
    echo between the same kinds of ends: a client that blocks, a server in an asyncio loop.
    """
    report(measure(Setup(**fields), rounds), json_path)
