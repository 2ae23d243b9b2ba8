"""Two workers that train until what a test does to their cluster is done, and that every gradient has counted once."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

import zmqps
from tests.modes import MODES
from tests.pace import allow

PATIENCE = allow(60.0)


@contextmanager
def while_trained(address: str, gradients: Mapping[str, np.ndarray], mode: str) -> Iterator[None]:
    """Enter the body when both have pushed five times, and let them go on to its end.

    Parameters
    ----------
    gradients
        Of which each element is -1, for parameters that begin with zeros.
    """
    over, counts, some = threading.Event(), list[int](), threading.Semaphore(0)

    def train() -> tuple[int, dict[str, np.ndarray]]:
        with zmqps.connect(address, timeout=PATIENCE) as worker:
            zeros = {name: np.zeros_like(g) for name, g in gradients.items()}
            worker.init(zeros, optimizer=zmqps.optim.sgd(learning_rate=1.0), **MODES[mode], workers=2)
            pushes = 0
            while True:
                worker.push_pull(gradients)
                pushes += 1
                if pushes == 5:
                    some.release()
                worker.barrier(f"after {pushes}", timeout=PATIENCE)
                if over.is_set() and pushes >= counts[0] if counts else False:
                    break
                if over.is_set() and not counts:
                    counts.append(pushes + 2)
            values = {name: np.array(value) for name, value in worker.pull().items()}
            worker.barrier("all have read", timeout=PATIENCE)
            return pushes, values

    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(train) for _ in range(2)]
        try:
            for _ in results:
                assert some.acquire(timeout=PATIENCE)
            yield
        finally:
            over.set()
        for pushes, values in (result.result(PATIENCE) for result in results):
            updates = pushes * (2 if mode != "sync" else 1)
            for name, value in values.items():
                assert (value == updates).all(), f"{name}: {np.unique(value)} instead of {updates}"
