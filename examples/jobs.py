"""Two jobs at once on one cluster, a name used again, and a flood next to a small job: a notebook's cells, as a script.

    python examples/jobs.py

Run it as often as you like; each run starts its own servers and ends them.
"""

from __future__ import annotations

import logging
import threading
import time

import numpy as np

import zmqps

STEPS = 200


def train_line(worker: zmqps.Worker) -> float:
    """Fit a line to points on one; return the slope that was found."""
    rng = np.random.default_rng(1)
    worker.init({"line": np.zeros(2, np.float32)}, optimizer=zmqps.optim.sgd(0.1), mode="async")
    for _ in range(STEPS):
        slope, offset = worker.pull()["line"]
        x = rng.uniform(-1, 1)
        error = slope * x + offset - (3 * x + 1)
        worker.push({"line": np.array([error * x, error], np.float32)})
    return float(worker.pull()["line"][0])


def train_mean(worker: zmqps.Worker, size: int) -> float:
    """Find the mean of vectors of a size; return how far it is off."""
    rng = np.random.default_rng(2)
    worker.init({"mean": np.zeros(size, np.float32)}, optimizer=zmqps.optim.adam(0.05), mode="sync")
    for _ in range(STEPS):
        mean = worker.pull()["mean"]
        worker.push({"mean": mean - rng.normal(5.0, 0.1, size).astype(np.float32)})
    return float(np.abs(worker.pull()["mean"] - 5.0).max())


def small_steps(worker: zmqps.Worker) -> float:
    """Return the median seconds of a push_pull of 1 KB."""
    gradient, seconds = {"line": np.zeros(256, np.float32)}, []
    for _ in range(STEPS):
        began = time.perf_counter()
        worker.push_pull(gradient)
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds))


def beside_a_flood(address: str) -> tuple[float, float]:
    """Return the median seconds of small steps alone, and while another job pushes 40 MB without a pause."""
    large = {"flood": np.zeros(10_000_000, np.float32)}
    stop = threading.Event()
    with zmqps.connect(address, job="small") as small, zmqps.connect(address, job="flood") as other:
        small.init({"line": np.zeros(256, np.float32)}, optimizer=zmqps.optim.sgd(0.1), mode="async")
        other.init(large, optimizer=zmqps.optim.sgd(0.1), mode="async")
        alone = small_steps(small)

        def flood() -> None:
            while not stop.is_set():
                other.push_pull(large)

        thread = threading.Thread(target=flood)
        thread.start()
        beside = small_steps(small)
        stop.set()
        thread.join()
        small.finish()
        other.finish()
    return alone, beside


def main() -> None:
    """Train two jobs side by side, then one of them again with another model, then measure one during a flood."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    with zmqps.LocalCluster(servers=2) as cluster:
        found: dict[str, float] = {}

        def other() -> None:
            with zmqps.connect(cluster.address, job="two") as worker:
                found["two"] = train_mean(worker, size=1000)
                worker.finish()

        thread = threading.Thread(target=other)
        thread.start()
        with zmqps.connect(cluster.address, job="one") as worker:
            found["one"] = train_line(worker)
            print("under way:", ", ".join(worker.status()["jobs"]))
            worker.finish()
        thread.join()
        print(f"job one: slope {found['one']:.2f} (3); job two: off by {found['two']:.3f}")

        # The cell is changed and run again: job "two" has ended, so its name is free for another model.
        with zmqps.connect(cluster.address, job="two") as worker:
            print(f"job two again, larger: off by {train_mean(worker, size=200_000):.3f}")
            worker.finish()
        alone, beside = beside_a_flood(cluster.address)
        print(f"a step of 1 KB: {1e3 * alone:.2f} ms alone, {1e3 * beside:.2f} ms with a job that floods the servers")
        print("ended:", "; ".join(f"{entry['job']} ({entry['how']})" for entry in cluster.status()["ended"]))


if __name__ == "__main__":
    main()
