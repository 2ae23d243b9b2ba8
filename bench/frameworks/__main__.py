"""Run the scripts in turn, and print the table of docs/frameworks.md: ``python -m bench.frameworks``."""

from __future__ import annotations

import difflib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import torch

import zmqps
from bench.results import environment
from bench.tables import machine_text

HERE = Path(__file__).resolve().parent
WORKERS = 2
#: Name in the table -> script.
SCRIPTS = {
    "plain PyTorch": "plain",
    "DDP (gloo)": "ddp",
    "zmqps sync": "synchronous",
    "zmqps overlap": "overlapped",
    "zmqps async": "asynchronous",
}
PATIENCE_S = 600


def changed_lines(script: str) -> int:
    """Return how many lines of a script are not those of plain PyTorch; the title does not count."""
    texts = [(HERE / f"{name}.py").read_text().splitlines()[1:] for name in ("plain", script)]
    return sum(line.startswith("+ ") for line in difflib.ndiff(*texts))


def run(script: str, task: str, dtype: str, steps: int, result: str, servers: int) -> list[float]:
    """Run a script in as many processes as it has; return the median seconds of a step of each."""
    common = {
        "FRAMEWORKS_TASK": task, "FRAMEWORKS_DTYPE": dtype, "FRAMEWORKS_STEPS": str(steps),
        "FRAMEWORKS_RESULT": result, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1]),
    }  # fmt: skip
    command = [sys.executable, "-m", f"bench.frameworks.{script}"]
    if script in ("plain", "halves"):
        environments: list[dict[str, str]] = [{}]
    elif script == "ddp":
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        peers = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(WORKERS)}
        environments = [{**peers, "RANK": str(rank)} for rank in range(WORKERS)]
    else:
        with zmqps.LocalCluster(servers=servers, workers=WORKERS) as cluster:
            return _run(command, [common | {"ZMQPS_COORDINATOR": cluster.address}] * WORKERS, result)
    return _run(command, [common | environment for environment in environments], result)


def _run(command: list[str], environments: list[dict[str, str]], result: str) -> list[float]:
    processes = [subprocess.Popen(command, env={**os.environ, **environment}) for environment in environments]
    try:
        codes = [process.wait(PATIENCE_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(codes):
        raise click.ClickException(f"{command[-1]} has ended with {codes}")
    return [
        statistics.median(json.loads(Path(f"{result}-{rank}.json").read_text())["seconds"])
        for rank in range(len(environments))
    ]


def difference(result: str, other: str) -> float:
    """Return the largest difference of a parameter between two runs, relative to the largest number in it."""
    ours, theirs = torch.load(result), torch.load(other)
    return max(float(((ours[n] - theirs[n]).abs().max() / theirs[n].abs().max()).detach()) for n in theirs)


@click.command()
@click.option("--steps", default=60, show_default=True, help="Of the comparison of values, in float64.")
@click.option("--rounds", default=5, show_default=True, help="How often each script is timed, in turn, in float32.")
@click.option("--servers", default=1, show_default=True, help="Servers of zmqps.")
@click.option("--task", "tasks", multiple=True, default=["gpt-8", "gpt-2", "cnn-64"], help="A model and its batch.")
def main(steps: int, rounds: int, servers: int, tasks: tuple[str, ...]) -> None:
    """Compare PyTorch alone, DistributedDataParallel and zmqps, with two workers on this host."""
    os.environ["FRAMEWORKS_STEPS"] = str(steps)
    print(machine_text(environment()["machine"]) + "\n")
    print("| task | script | changed lines | final loss | difference to plain | ms a step | to DDP |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for task in tasks:
            rows: dict[str, list[str]] = {}
            run("halves", task, "float64", steps, f"{folder}/{task}-halves", servers)
            for title, script in SCRIPTS.items():
                result = f"{folder}/{task}-{script}"
                run(script, task, "float64", steps, result, servers)
                there = difference(f"{result}-0.pt", f"{folder}/{task}-halves-0.pt")
                loss = json.loads(Path(f"{result}-0.json").read_text())["loss"]
                rows[title] = [str(changed_lines(script)), f"{loss:.6f}", f"{there:.1e}"]
            times: dict[str, list[float]] = {title: [] for title in SCRIPTS}
            for number in range(rounds):
                for title in list(SCRIPTS) if number % 2 else reversed(SCRIPTS):
                    seconds = run(SCRIPTS[title], task, "float32", 2 * steps, f"{folder}/timed", servers)
                    times[title].append(statistics.mean(seconds))
            for title, row in rows.items():
                ratios = [ours / ddp for ours, ddp in zip(times[title], times["DDP (gloo)"], strict=True)]
                took = f"{1e3 * statistics.median(times[title]):.1f}"
                spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                print(f"| {task} | {title} | {' | '.join(row)} | {took} | {spread} |")


if __name__ == "__main__":
    main()
