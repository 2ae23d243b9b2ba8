"""cycles: where the interpreter's time goes in one small push_pull, by groups of functions."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from cProfile import Profile
from pathlib import Path
from typing import Any

import click

import zmqps
from bench.cases.walk import MODES, PACKAGE, PATIENCE_S, nodes, on, pushing
from bench.options import json_option, report
from bench.results import Row

WARM_UP, STEPS = 200, 2000
#: The first that a function's file begins with, or has as a folder, says which group it is of.
GROUPS = {
    f"{PACKAGE}core/protocol/": "encode, decode",
    "msgpack": "encode, decode",
    f"{PACKAGE}core/": "core's machines",
    f"{PACKAGE}net/driver.py": "driver",
    f"{PACKAGE}net/": "transport",
    f"{PACKAGE}client/": "client",
    f"{PACKAGE}optim/": "optimizer",
    PACKAGE: "rest of zmqps",
    "asyncio": "asyncio",
    "zmq": "pyzmq",
}
#: Nobody computes meanwhile.
WAITS = ("poll", "acquire", "select")


def group_of(file: str, function: str = "") -> str:
    """Return the group of a function; empty: it waits; ``~``: it is compiled, and of its caller's group."""
    if file == "~":
        if any(word in function for word in WAITS):
            return ""
        return "pyzmq" if "zmq" in function else "~"
    return next((group for part, group in GROUPS.items() if file.startswith(part) or f"/{part}/" in file), "others")


def grouped(stats: Mapping[Any, Any]) -> Counter[str]:
    """Return the seconds of each group, exclusive: what compiled functions take is their caller's."""
    seconds: Counter[str] = Counter()
    for (file, _, function), (_, _, took, _, callers) in stats.items():
        group = group_of(file, function)
        if group == "~":
            for (of, _, name), (_, _, part, _) in callers.items():
                seconds[group_of(of, name)] += part
        elif group:
            seconds[group] += took
    return seconds


def measure(mode: str, steps: int = STEPS) -> dict[str, dict[str, float]]:
    """Return, of the worker and the server, the microseconds of each group in one push_pull.

    They are shares of the processor time that the thread takes without a profiler, of which the profiler says only how
    it is divided.
    """
    with (
        nodes(workers=1) as (address, threads),
        zmqps.connect(address, timeout=PATIENCE_S, transport="tcp") as worker,
    ):
        step = pushing(worker, mode)
        for _ in range(WARM_UP):
            step()
        askers: dict[str, Callable[[Callable[[], Any]], Any]] = {
            "worker": lambda work: work(),  # a caller runs the loop itself
            "server": lambda work: on(threads[1], work),
        }
        before = {name: ask(time.thread_time) for name, ask in askers.items()}
        for _ in range(steps):
            step()
        took = {name: ask(time.thread_time) - before[name] for name, ask in askers.items()}
        profiles = {name: ask(_profiling) for name, ask in askers.items()}
        for _ in range(steps):
            step()
        found = {}
        for name, ask in askers.items():
            ask(profiles[name].disable)
            profiles[name].create_stats()
            seconds = grouped(profiles[name].stats)  # type: ignore[attr-defined]
            scale = 1e6 / steps * took[name] / sum(seconds.values())
            found[name] = {group: of * scale for group, of in seconds.most_common()}
        return found


def _profiling() -> Profile:
    profile = Profile(time.thread_time)
    profile.enable()
    return profile


@click.command("cycles")
@click.option("--mode", type=click.Choice(MODES), default="async", show_default=True, help="Of the job.")
@click.option("--steps", type=click.IntRange(1), default=STEPS, show_default=True, help="Push_pulls to look at.")
@json_option
def command(mode: str, steps: int, json_path: Path | None) -> None:
    """Microseconds of processor time in one push_pull of 1 KB over TCP, by groups of functions.

    One worker and one server, each in a thread of this process, without waiting and without ZeroMQ's own threads.
    """
    found = measure(mode, steps)
    for name, groups in found.items():
        click.echo(f"{name:24}{sum(groups.values()):8.1f} µs")
        for group, of in groups.items():
            click.echo(f"  {group:22}{of:8.1f}")
    extra = {f"{name}_us": {group: round(of, 1) for group, of in groups.items()} for name, groups in found.items()}
    report(Row(case="cycles", model=f"{mode} 1KB", servers=1, workers=1, extra=extra), json_path)
