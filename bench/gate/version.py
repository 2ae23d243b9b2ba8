"""One version of zmqps at work, asked for steps as a peer is (`bench.peers.serve`).

It measures the ``zmqps`` of the directory that it is started in. All else is of the checkout that is judged, so it uses
nothing of zmqps but what programs use, and later versions therefore have, too.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from inspect import signature
from pathlib import Path
from typing import Any

import zmqps
from bench import models
from bench.gate.cases import CASES, Case
from bench.peers.serve import GRADIENT_SCALE, LEARNING_RATE, answer

TIMEOUT = 120.0


class Version:
    """A cluster and its workers, which are threads of this process.

    Parameters
    ----------
    case
        What they do.
    """

    def __init__(self, case: Case) -> None:
        self._case = case
        self._stack = ExitStack()
        cluster = self._stack.enter_context(zmqps.LocalCluster(servers=case.servers))
        shapes = models.find(case.model)
        start, self._gradients = models.arrays(shapes, 1.0), models.arrays(shapes, GRADIENT_SCALE, seed=1)
        self._threads = self._stack.enter_context(ThreadPoolExecutor(case.workers))
        optimizer = getattr(zmqps.optim, case.optimizer)(LEARNING_RATE)
        self._workers: list[tuple[zmqps.Worker, dict[str, Any]]] = []
        for index in range(case.workers):
            worker = zmqps.connect(cluster.address, name=f"gate-{index}", transport=case.transport, timeout=TIMEOUT)
            self._workers.append((self._stack.enter_context(worker), models.arrays(shapes, 0.0)))

        mode: dict[str, Any] = {"mode": case.mode}
        if (
            "mode" not in signature(zmqps.Worker.init).parameters
        ):  # an earlier version, where the staleness was the mode
            mode = {"staleness": {"sync": 0, "async": None}[case.mode]}

        def init(worker: zmqps.Worker) -> None:
            worker.init(start, optimizer=optimizer, **mode, workers=case.workers, timeout=TIMEOUT)

        list(self._threads.map(init, [worker for worker, _ in self._workers]))

    def steps(self, count: int) -> list[float]:
        """Let every worker do so many turns; return the seconds of a step, on the average of each turn."""
        return [self._turn() for _ in range(count)]

    def _turn(self) -> float:
        started = time.perf_counter()
        list(self._threads.map(self._work, *zip(*self._workers, strict=True)))
        return (time.perf_counter() - started) / self._case.batch

    def _work(self, worker: zmqps.Worker, out: dict[str, Any]) -> None:
        case = self._case
        if case.window == 1:
            for _ in range(case.batch):
                worker.push_pull(self._gradients, out=out, timeout=TIMEOUT)
            return
        for _ in range(0, case.batch, case.window):
            for future in [worker.push_pull_async(self._gradients, out=out) for _ in range(case.window)]:
                future.result(TIMEOUT)

    def close(self) -> None:
        """End it."""
        self._stack.close()


def main() -> None:
    """Serve a case; refuse to measure another zmqps than what was meant."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=CASES, required=True)
    case = CASES[parser.parse_args().case]
    found = Path(zmqps.__file__).resolve()
    if not found.is_relative_to(Path.cwd()):
        raise SystemExit(f"this would measure {found} instead of what is in {Path.cwd()}")
    answer(lambda: Version(case))


if __name__ == "__main__":
    main()
