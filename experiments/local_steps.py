"""(e) Local steps: bytes moved against loss; threads with `zmqps.local` against a real coordinator and server."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import zmqps
from experiments.problems import Digits
from experiments.report import COLORS, Outcome, new_figure, number, save_figure
from zmqps.local import ElasticAveraging, LocalSteps
from zmqps.optim import OptimizerSpec

WORKERS = 4
STEPS = 512
RATE = 0.4
TARGET = 0.15
#: Exchanges of the workers' values in the inner steps; the rest of each step is alone.
PERIODS = (4, 16, 64)
POINTS = 32

Curve = dict[str, list[float]]


def train(optimizer: OptimizerSpec, step: Callable[[zmqps.Worker], Any], mode: str) -> Curve:
    """Train with four workers, threads here; return the loss of the servers' values over steps and bytes."""
    problem = Digits()

    def work(rank: int) -> Curve:
        with zmqps.connect(cluster.address, timeout=30.0) as worker:
            worker.init(problem.start(), optimizer=optimizer, mode=mode)
            rng, advance = np.random.default_rng(rank), step(worker)
            curve: Curve = {"steps": [], "nbytes": [], "loss": []}
            worker.barrier("start", timeout=60.0)
            for number_ in range(1, STEPS + 1):
                advance(problem, rng)
                if number_ % (STEPS // POINTS) == 0:
                    statistics = worker.statistics()
                    curve["steps"].append(number_)
                    curve["nbytes"].append(WORKERS * (statistics.bytes_sent + statistics.bytes_received))
                    # an observer sees the values without being held by, or counted in, the steps
                    curve["loss"].append(problem.loss(eye.pull()) if rank == 0 else 0.0)
            worker.finish(timeout=60.0)
            return curve

    with (
        zmqps.LocalCluster(zmqps.Servers(kernels="numpy"), workers=WORKERS) as cluster,
        zmqps.connect(cluster.address, observer=True) as eye,
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        return next(iter(list(pool.map(work, range(WORKERS)))))


def every_step(worker: zmqps.Worker) -> Any:
    """Push every gradient: what local steps are compared with."""
    params = dict(worker.pull())

    def advance(problem: Digits, rng: np.random.Generator) -> None:
        worker.push_pull(problem.gradients(params, rng), out=params)

    return advance


def local(make: Callable[[zmqps.Worker], LocalSteps | ElasticAveraging]) -> Callable[[zmqps.Worker], Any]:
    """Train alone with plain SGD, exchange now and then."""

    def start(worker: zmqps.Worker) -> Any:
        helper = make(worker)

        def advance(problem: Digits, rng: np.random.Generator) -> None:
            for name, g in problem.gradients(helper.params, rng).items():
                helper.params[name] -= np.float32(RATE) * g
            helper.step()

        return advance

    return start


def run(directory: Path) -> Outcome:
    """Train with every gradient pushed, with local steps, with elastic averaging."""
    sgd = zmqps.optim.sgd
    results = {
        "every gradient": train(sgd(RATE), every_step, "sync"),
        "every gradient, momentum": train(sgd(RATE / 4, momentum=0.9, nesterov=True), every_step, "sync"),
    }
    for k in PERIODS:
        results[f"DiLoCo, k = {k}"] = train(
            sgd(0.7, momentum=0.9, nesterov=True), local(lambda worker, k=k: LocalSteps(worker, k)), "sync"
        )
    results["averaging, k = 16"] = train(sgd(1.0), local(lambda worker: LocalSteps(worker, 16)), "sync")
    results["elastic averaging, k = 16"] = train(
        sgd(1.0), local(lambda worker: ElasticAveraging(worker, 0.9 / WORKERS, 16)), "async"
    )
    figure, axes = new_figure(1, 2, 6.0, 4.0)
    rows = []
    for color, (label, curve) in zip(("black", "gray", *COLORS), results.items(), strict=False):
        megabytes = np.array(curve["nbytes"]) / 1e6
        axes[0, 0].plot(curve["steps"], curve["loss"], color=color, label=label)
        axes[0, 1].plot(megabytes, curve["loss"], ".-", color=color, label=label, markersize=4)
        there = next((i for i, loss in enumerate(curve["loss"]) if loss < TARGET), None)
        to_target = [None, None] if there is None else [curve["steps"][there], megabytes[there]]
        rows.append(
            [
                label, number(megabytes[-1], 2), number(to_target[0], 0), number(to_target[1], 2),
                number(float(np.mean(curve["loss"][-4:]))),
            ]
        )  # fmt: skip
    axes[0, 0].set(xlabel="steps of each worker", ylabel="training loss", yscale="log")
    axes[0, 1].set(xlabel="megabytes moved, all workers", ylabel="training loss", xscale="log", yscale="log")
    for ax in axes[0]:
        ax.axhline(TARGET, color="gray", linestyle=":", linewidth=1)
    axes[0, 0].legend(fontsize=8, ncols=2)
    save_figure(figure, directory / "local_steps.png")
    return Outcome(
        "Local steps reach the same loss with a small part of the bytes; the longer alone, the fewer bytes, the more "
        "steps.",
        ("exchange", "MB in all", f"steps to {TARGET}", "MB to it", "final loss"),
        rows,
        {"workers": WORKERS, "steps": STEPS, "rate": RATE, "target": TARGET, "curves": results},
    )
