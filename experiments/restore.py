"""(f) Kill everything, restore onto another number of servers, go on: the loss goes on as if nothing had happened."""

from __future__ import annotations

import os
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import zmqps
from experiments.problems import Digits, Params
from experiments.report import COLORS, Outcome, new_figure, number, save_figure
from zmqps.errors import PSError

WORKERS = 4
STEPS = 240
#: A checkpoint every so many steps; the cluster is killed some steps after one.
EVERY, KILLED_AT = 50, 120
#: What moments and step counts are worth shows in Adam, and in a rate that falls with the steps.
OPTIMIZER = zmqps.optim.adam(zmqps.optim.cosine_decay(0.02, decay_steps=STEPS))

Curve = dict[int, float]  # loss by step


def train(
    servers: int, directory: Path, *, restored: bool = False, optimizer: bool = True, killed_at: int | None = None
) -> tuple[Curve, Params]:
    """Train synchronously with four workers, threads here; return the loss before each step, and the last values.

    Parameters
    ----------
    servers
        How many.
    directory
        Where checkpoints are.
    restored
        Whether to go on from the latest.
    optimizer
        Whether with the optimizer's state.
    killed_at
        The step at which SIGKILL ends coordinator and servers; None: none does.
    """
    problem, curve, last = Digits(), Curve(), Params()
    saving = zmqps.Saving(
        checkpoint=directory, restore=directory if restored else None, every=f"{EVERY}steps",
        restore_values_only=not optimizer,
    )  # fmt: skip
    limits = zmqps.Limits(heartbeat_timeout=3.0)
    cluster = zmqps.LocalCluster(zmqps.Servers(servers, kernels="numpy"), WORKERS, saving=saving, limits=limits)

    def work(worker: zmqps.Worker, rank: int) -> None:
        with worker:
            worker.init(
                problem.start(),
                optimizer=OPTIMIZER,
                mode="sync",
                steps=zmqps.Steps(deterministic=True),
                workers=WORKERS,
            )
            values = worker.pull()
            while values.version < STEPS:
                if rank == 0:
                    curve[values.version] = problem.loss(values)
                    if values.version == killed_at:
                        for pid in cluster.pids.values():
                            os.kill(pid, signal.SIGKILL)
                # a batch for each step and rank, whoever computes it, before the restore or after
                gradients = problem.gradients(values, np.random.default_rng((rank, values.version)))
                values = worker.push_pull(gradients)
            last.update(values)
            worker.finish()

    with cluster, ThreadPoolExecutor(WORKERS) as pool:
        workers = [zmqps.connect(cluster.address, timeout=30.0) for _ in range(WORKERS)]  # by rank
        for future in [pool.submit(work, worker, rank) for rank, worker in enumerate(workers)]:
            with suppress(*[PSError] * (killed_at is not None)):
                future.result()
    return curve, last


def run(directory: Path) -> Outcome:
    """Train through, and with everything killed in the middle."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        results["nothing killed"], through = train(2, Path(place, "through"))
        before, _ = train(2, Path(place, "killed"), killed_at=KILLED_AT)
        outcomes = {}
        for label, servers, optimizer in (
            ("restored onto 2 servers", 2, True),
            ("restored onto 3 servers", 3, True),
            ("values alone restored", 3, False),
        ):
            curve, last = train(servers, Path(place, "killed"), restored=True, optimizer=optimizer)
            results[label] = curve
            outcomes[label] = max(float(np.abs(last[name] - through[name]).max()) for name in through)
            for path in Path(place, "killed", "default").iterdir():  # those of this run; the next begins as this one
                if int(path.name.split("-")[1]) > KILLED_AT:
                    for file in path.iterdir():
                        file.unlink()
                    path.rmdir()
    figure, axes = new_figure(1, 1, 7.0, 4.0)
    (ax,) = axes[0]
    ax.plot(*zip(*results["nothing killed"].items(), strict=True), color="black", label="nothing killed", linewidth=3)
    ax.plot(*zip(*before.items(), strict=True), color="white", linewidth=1, linestyle="--")
    rows = [["nothing killed", "–", number(list(results["nothing killed"].values())[-1], 4), "–"]]
    for color, label in zip((COLORS[0], COLORS[1], COLORS[5]), outcomes, strict=True):
        curve = results[label]
        ax.plot(
            *zip(*curve.items(), strict=True),
            color=color,
            label=label,
            linewidth=1,
            linestyle="--" if color == COLORS[1] else "-",
        )
        rows.append([label, str(min(curve)), number(list(curve.values())[-1], 4), f"{outcomes[label]:.1e}"])
    ax.axvline(KILLED_AT, color="gray", linestyle=":", label="SIGKILL to all")
    ax.set(xlabel="steps", ylabel="training loss", yscale="log")
    ax.legend(fontsize=8)
    save_figure(figure, directory / "restore.png")
    return Outcome(
        "With the optimizer's state, training goes on as if nothing had happened: to the bit in deterministic mode.",
        ("run", "goes on at step", "loss at the end", "largest difference of a value"),
        rows,
        {"workers": WORKERS, "steps": STEPS, "every": EVERY, "killed_at": KILLED_AT, "curves": results},
    )
