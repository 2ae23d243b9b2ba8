"""How long workers wait while a job comes to lie on more servers, and on fewer: ``python -m bench.scaling``.

Two workers train all the time; what is shown is the longest `push_pull` of either, beside the median before, and the
longest pause of pushes that the coordinator has seen, for each gigabyte of values that had to move.
"""

from __future__ import annotations

import argparse
import re
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import zmqps


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256, help="of values")
    parser.add_argument("--servers", type=int, nargs="+", default=[2, 4, 2])
    parser.add_argument("--optimizer", choices=("sgd", "adam"), default="adam")
    parser.add_argument("--synchronous", action="store_true")
    parser.add_argument("--directory", help="for the logs of the nodes")
    options = parser.parse_args()
    values = {"w": np.zeros((options.megabytes * 256, 1024), np.float32)}
    optimizer = getattr(zmqps.optim, options.optimizer)(learning_rate=0.01)
    over, times = threading.Event(), list[list[tuple[float, float]]]()

    def train(address: str) -> None:
        mine: list[tuple[float, float]] = []
        times.append(mine)
        with zmqps.connect(address, timeout=120) as worker:
            worker.init(values, optimizer=optimizer, staleness=0 if options.synchronous else None, workers=2)
            while not over.is_set():
                begun = time.monotonic()
                worker.push_pull(values)
                mine.append((begun, time.monotonic() - begun))

    with (
        zmqps.LocalCluster(servers=options.servers[0], directory=options.directory) as cluster,
        ThreadPoolExecutor(2) as pool,
    ):
        training = [pool.submit(train, cluster.address) for _ in range(2)]
        while len(times) < 2 or min(map(len, times)) < 5:
            time.sleep(0.1)
        before = options.servers[0]
        for number in options.servers[1:]:
            begun = time.monotonic()
            steady = statistics.median(s for mine in times for _, s in mine[-5:])
            text = cluster.scale(number, timeout=600)
            found = [s for mine in times for at, s in mine if at + s >= begun]
            moved = options.megabytes / 1024 * abs(number - before) / max(number, before)
            pause = float((re.search(r"pushes ([\d.]+) s", text) or [0, "nan"])[1])
            took = time.monotonic() - begun
            print(
                f"{before} -> {number} servers, {options.megabytes} MB {options.optimizer}: {took:.1f} s; "
                f"push_pull {steady:.3f} s before, {max(found):.3f} s at most; pause of pushes {pause:.3f} s, "
                f"{pause / moved:.2f} s for each GB moved"
            )
            before = number
        over.set()
        for worker in training:
            worker.result(60)


if __name__ == "__main__":
    main()
