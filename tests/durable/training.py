"""Training whose values are known exactly, on threads, while nodes are killed.

Worker ``i`` pushes whole numbers to a parameter of its own and to a shared one, with plain descent and a rate of 1. In
asynchronous mode its own parameter is minus what was acknowledged of its pushes, after each of them. In synchronous
mode the shared parameter is minus three times the version: all take part, and the mean of what they push is 3. The same
numbers go to rows of a sparse table: some that are its own, and some that all share.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, Self

import numpy as np

import zmqps
from tests.modes import MODES
from tests.pace import allow

#: Elements of each parameter: together some slices for each server.
SIZE = 20_000
SLICE_NBYTES = 16 << 10
#: Rows of each worker in the sparse table, and shared ones, by worker; their ids are all over the buckets.
ROWS, DIM = 500, 4
SPREAD = 1_000_000_007
#: What workers push to the shared parameter, and to their own; the mean is 3 for four and for two of them.
SHARED, OWN = (2, 4, 3, 3), 6
MEAN = 3
#: Seconds that any step may take before the training counts as broken.
PATIENCE = allow(60.0)


def row_ids(number: int) -> np.ndarray:
    """Return the ids of a worker's rows, or of the shared ones behind those of all workers."""
    return np.arange(number * ROWS, (number + 1) * ROWS) * SPREAD


class Training:
    """Workers that push until they are told to stop; ends with the context.

    Attributes
    ----------
    acknowledged
        Pushes that each worker has had acknowledged.
    wrong
        What was not as it should be.
    failed
        The error that ended a worker, by its number.
    """

    def __init__(self, address: str, mode: str, workers: int = 4, *, pause: float = 0.005, **options: Any) -> None:
        self.acknowledged = [0] * workers
        self.wrong: list[str] = []
        self.failed: dict[int, BaseException] = {}
        self._longest_s = 0.0
        self.final: dict[str, np.ndarray] | None = None
        self._address, self._mode, self._pause, self._options = address, mode, pause, options
        self._stop = threading.Event()
        self._stop_at = 0  # in synchronous mode all make as many steps
        self._news = threading.Condition()
        self._threads = [threading.Thread(target=self._main, args=(index,)) for index in range(workers)]
        for thread in self._threads:
            thread.start()

    # --- the workers ---------------------------------------------------------------------------

    def _main(self, index: int) -> None:
        try:
            with zmqps.connect(self._address, name=f"worker-{index}", timeout=PATIENCE) as worker:
                self._train(worker, index)
        except BaseException as error:  # whatever it is: the test says it
            with self._news:
                self.failed[index] = error
                self._news.notify_all()

    def _train(self, worker: zmqps.Worker, index: int) -> None:
        workers = len(self._threads)
        names = ["shared", *(f"own{i}" for i in range(workers))]
        worker.init(
            {name: np.zeros(SIZE, np.float32) for name in names}, optimizer=zmqps.optim.sgd(1.0),
            tables={"rows": zmqps.table(DIM, optimizer=zmqps.optim.sgd(1.0))},
            **MODES[self._mode], workers=workers, timeout=PATIENCE, **self._options,
        )  # fmt: skip
        table, own, shared = worker.table("rows"), row_ids(index), row_ids(workers)
        ids = np.concatenate([own, shared])
        rows = np.repeat([[OWN], [SHARED[index]]], ROWS, axis=0).repeat(DIM, axis=1).astype(np.float32)
        amounts = {"shared": SHARED[index], f"own{index}": OWN}
        pushed = names if self._mode == "sync" else list(amounts)
        gradient = {name: np.full(SIZE, amounts.get(name, 0), np.float32) for name in pushed}
        done = 0
        while not (self._stop.is_set() and (self._mode != "sync" or done >= self._stop_at)):
            began = time.monotonic()
            table.push(ids, rows, step=False, timeout=PATIENCE)  # the next one ends the step
            worker.push(gradient, timeout=PATIENCE)
            done += 1
            pulled = worker.pull(["shared", f"own{index}"], timeout=PATIENCE)
            self._check(index, done, pulled)
            if self._mode != "sync" and not (table.pull(own, timeout=PATIENCE) == -OWN * done).all():
                self.wrong.append(f"rows of worker {index} are not {-OWN * done} after push {done}")
            with self._news:
                self._longest_s = max(self._longest_s, time.monotonic() - began)
                self.acknowledged[index] = done
                self._news.notify_all()
            self._stop.wait(self._pause)
        worker.barrier("all have pushed", timeout=PATIENCE)
        if index == 0:
            self.final = {name: np.array(value) for name, value in worker.pull(timeout=PATIENCE).items()}
            for number in range(workers + 1):
                name = f"rows of own{number}" if number < workers else "rows of shared"
                self.final[name] = table.rows(row_ids(number), timeout=PATIENCE)
        worker.barrier("all is read", timeout=PATIENCE)
        worker.finish(timeout=PATIENCE)

    def _check(self, index: int, done: int, pulled: Any) -> None:
        name, value = (f"own{index}", -OWN * done) if self._mode != "sync" else ("shared", -MEAN * pulled.version)
        if not (pulled[name] == value).all():
            self.wrong.append(
                f"worker {index} reads {np.unique(pulled[name])[:5]} in {name!r} after push {done}: not {value}"
            )

    # --- the test's side -----------------------------------------------------------------------

    def wait_for(self, pushes: int, timeout: float = PATIENCE) -> None:
        """Wait until each worker has had so many more pushes acknowledged, or one has failed."""
        goals = [done + pushes for done in self.acknowledged]
        with self._news:
            fine = self._news.wait_for(
                lambda: self.failed or all(d >= g for d, g in zip(self.acknowledged, goals, strict=True)), timeout
            )
        if self.failed:
            raise next(iter(self.failed.values()))
        assert fine, f"pushes stand still at {self.acknowledged}"

    def take_longest(self) -> float:
        """Return the seconds of the longest step since this was asked before."""
        with self._news:
            longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s

    def stop(self) -> None:
        """Let the workers come to an end; said again it changes nothing."""
        self._stop_at = self._stop_at or max(self.acknowledged) + 2
        self._stop.set()

    def finish(self) -> list[str]:
        """Let the workers stop; return what is not as it should be."""
        self.stop()
        for thread in self._threads:
            thread.join(3 * PATIENCE)
        wrong = list(self.wrong[:5])
        wrong += [f"worker {index} failed: {error!r}" for index, error in self.failed.items()]
        if self.final is None:
            return [*wrong, "nobody has read the final values"]
        workers = len(self._threads)
        if self._mode == "sync":
            expected = {
                "shared": -MEAN * self._stop_at,
                **{f"own{i}": -OWN / workers * self._stop_at for i in range(workers)},
            }
        else:
            shared = -sum(n * SHARED[i] for i, n in enumerate(self.acknowledged))
            expected = {"shared": shared, **{f"own{i}": -OWN * n for i, n in enumerate(self.acknowledged)}}
        expected |= {f"rows of {name}": value for name, value in expected.items()}
        for name, value in expected.items():
            if not (self.final[name] == value).all():
                wrong.append(f"{name} is {np.unique(self.final[name])[:5]} in the end, not {value}")
        return wrong

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._stop_at = 0
        self._stop.set()
        if error is None:
            for thread in self._threads:
                thread.join(3 * PATIENCE)
