"""zmqps and other systems doing the same work in turns: A B A B."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

import zmqps
from bench.children import ChildError
from bench.peers.process import PeerError, PeerMissing
from bench.peers.works import TARGETS, Pair, Result, combine, pairs
from bench.results import check_environment, environment
from bench.tables import console, machine_text, new_table, seconds

#: A pair that failed is tried again: a machine in use by others is no reason to measure all anew.
TRIES = 2


def print_results(results: Sequence[Result]) -> None:
    """Print what both took; below 1 zmqps is faster."""
    table = new_table(
        "work",
        "beside",
        "zmqps",
        "other",
        "zmqps, min",
        "other, min",
        "ratio",
        "quartiles",
        "of minima",
        "of processors",
    )
    for r in results:
        times = [seconds(value) for value in (r.zmqps_s, r.peer_s, r.zmqps_min_s, r.peer_min_s)]
        minima = f"{r.zmqps_min_s / r.peer_min_s:.2f}" if r.zmqps_min_s and r.peer_min_s else ""
        peer = f"{r.peer} ({r.form})" if r.form else r.peer
        processors = f"{r.processor_ratio:.2f}" if r.processor_ratio else ""
        table.add_row(r.work, peer, *times, f"{r.ratio:.2f}", _quartiles(r), minima, processors)
    console.print(table)


def print_targets(results: Sequence[Result]) -> None:
    """Print what was to be reached, and whether it was."""
    found = {(result.work, result.peer): result for result in results}
    table = new_table("work", "beside", "ratio", "quartiles", "at most", "verdict")
    for (work, peer), target in TARGETS.items():
        result = found.get((work, peer))
        if result is None:
            table.add_row(work, peer, "", "", f"{target:.2f}", "[dim]not measured[/]")
            continue
        colour = "green" if result.ratio <= target else "red"
        table.add_row(
            work, peer, f"{result.ratio:.2f}", _quartiles(result), f"{target:.2f}", f"[{colour}]{result.verdict}[/]"
        )
    console.print(table)


def _quartiles(result: Result) -> str:
    return f"{result.ratio_low:.2f}–{result.ratio_high:.2f}"


def combined(results: Sequence[Result]) -> list[Result]:
    """Return one result for each pair, whatever number of runs there was of it."""
    runs: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        runs.setdefault((result.work, result.peer), []).append(result)
    return [combine(found) for found in runs.values()]


def write_results(path: Path, results: Sequence[Result], missing: Mapping[str, str]) -> None:
    """Write them with machine, versions and commit: each pair with its target and verdict, and each run of it.

    ``missing`` has the reason for each peer that is not installed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{**asdict(result), "target": result.target, "verdict": result.verdict} for result in combined(results)]
    runs = [asdict(result) for result in results]
    content = {**environment(), "rows": rows, "missing": missing, "runs": runs}
    path.write_text(json.dumps(content, indent=1) + "\n")


def read_results(path: Path) -> list[Result]:
    """Return what an interrupted run of this commit on this machine has written."""
    if not path.exists():
        return []
    content = json.loads(path.read_text())
    check_environment(path, content)
    return [Result(**run) for run in content["runs"]]


def run_pair(pair: Pair, steps: int) -> list[Result]:
    """Do what a pair does, again if it fails; return nothing if it keeps failing.

    Raises
    ------
    PeerMissing
        What the peer needs is not installed.
    """
    for attempt in range(1, TRIES + 1):
        try:
            return pair.run(steps)
        except PeerMissing:
            raise
        except (PeerError, ChildError, zmqps.PSError, RuntimeError) as error:
            words = f"{pair.title} failed, attempt {attempt} of {TRIES}: {error}"
            console.print(words, style="red", highlight=False, markup=False)
    return []


@click.command("peers")
@click.option(
    "--python",
    type=click.Path(exists=True, path_type=Path),
    default=Path(".venv-peers/bin/python"),
    show_default=True,
    help="The interpreter of the peers' environment; `make bench-peers` makes it.",
)
@click.option(
    "--only",
    metavar="TEXT",
    multiple=True,
    help='Only pairs whose title ("sgd-1x1-tcp torch-rpc-uv") holds this; may be repeated.',
)
@click.option("--targets", is_flag=True, help="Only pairs for which a target is set.")
@click.option("--list", "listing", is_flag=True, help="Only list the titles.")
@click.option("--steps", type=click.IntRange(1), default=20, show_default=True, help="Turns, after three to warm up.")
@click.option(
    "--runs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Do all that often, with fresh processes, and print the medians and quartiles of the runs.",
)
@click.option("--resume", is_flag=True, help="Keep what an interrupted run of this commit has written, do the rest.")
@click.option(
    "--json",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("runs/bench/peers.json"),
    show_default=True,
    help="Results, written after each pair.",
)
def command(
    python: Path, only: tuple[str, ...], targets: bool, listing: bool, steps: int, runs: int, resume: bool, path: Path
) -> None:
    """Let zmqps and other systems do the same work in turns; print zmqps' time over theirs.

    How each peer is set up: bench/peers/README.md. Each is compared in the form that is fastest here. What is not
    installed is named, and the others go on. What fails twice is reported, the others go on; then the exit code is 1.
    A target that is missed is no failure. A machine is as it is for minutes: several runs, one after the other over
    all pairs, say more than as many steps at once.
    """
    chosen = [
        pair
        for pair in pairs(python.absolute())
        if (not only or any(text in pair.title for text in only)) and (not targets or (pair.work, pair.peer) in TARGETS)
    ]
    if listing:
        for pair in chosen:
            click.echo(pair.title)
        return
    results = read_results(path) if resume else []
    done = Counter((result.work, result.peer) for result in results)
    failed = list[str]()
    missing = dict[str, str]()
    for run in range(runs):
        for number, pair in enumerate(chosen, start=1):
            if done[pair.work, pair.peer] > run or pair.title in failed or pair.peer in missing:
                continue
            of_runs = f"run {run + 1}/{runs}, " if runs > 1 else ""
            console.print(f"{of_runs}{number}/{len(chosen)} {pair.title}", style="dim", highlight=False)
            try:
                found = run_pair(pair, steps)
            except PeerMissing as error:
                missing[pair.peer] = str(error)
                console.print(f"{pair.peer} is not installed: {error}", style="yellow", highlight=False, markup=False)
                continue
            if not found:
                failed.append(pair.title)
            results += found
            write_results(path, results, missing)  # now: an interrupted run is worth something
    console.print(machine_text(environment()["machine"]), highlight=False)
    print_results(combined(results))
    print_targets(combined(results))
    for peer, reason in missing.items():
        console.print(f"not compared with {peer}, which is not installed: {reason}", highlight=False, markup=False)
    if failed:
        raise click.ClickException(f"these could not be compared: {', '.join(failed)}")
