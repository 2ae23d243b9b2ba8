"""``python -m tests.freezes.worker``: a worker that may be stopped for any time; it says what it has done, a line each.

A line is a JSON map. Everything it reads is checked against what was acknowledged:

- asynchronous: its own parameter is minus what it has pushed, element by element. A push that failed because the others
  went on without this worker may count or not in each slice, once.
- synchronous: each worker's own parameter grows by `STEP` over the number of those whose gradients are in the step, so
  the values of two versions that follow each other say whose are in.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

import zmqps
from zmqps.errors import EvictedError, PeerLostError

#: Elements of each parameter, and bytes of a slice: some slices for each server.
SIZE, SLICE_NBYTES = 6_000, 4 << 10
#: What a worker pushes to its own parameter; its mean over one to four is a whole number.
STEP = 12
#: What everybody pushes to the shared one.
SHARED = 3


def say(facts: Mapping[str, Any]) -> None:
    """Write a line."""
    print(json.dumps(facts), flush=True)


class Loop:
    """Pushes and pulls until it is told to stop."""

    def __init__(self, worker: zmqps.Worker, index: int, workers: int, patience: float, *, is_sync: bool) -> None:
        self.worker, self.index, self.patience, self.is_sync = worker, index, patience, is_sync
        self.own = f"own{index}"
        self.names = ["shared", *(f"own{number}" for number in range(workers))]
        self.amounts = {"shared": SHARED, self.own: STEP}
        self.acknowledged = 0
        self.counted = np.zeros(SIZE, np.int64)  # how often a push is in each element of its own parameter
        self.in_doubt = False  # a push has failed, and may be in some slices

    def step(self) -> None:
        """Push, pull, check and say so."""
        pushed = self.names if self.is_sync else list(self.amounts)
        self.worker.push(
            {name: np.full(SIZE, self.amounts.get(name, 0), np.float32) for name in pushed},
            step=True, timeout=self.patience,
        )  # fmt: skip
        self.acknowledged += 1
        self.counted += 1
        say({"acknowledged": self.acknowledged})
        pulled = self.worker.pull(timeout=self.patience)
        if self.is_sync:
            self._tell_step(pulled)
        else:
            self._check_own(pulled)

    def _tell_step(self, pulled: Any) -> None:
        values = {name: np.unique(pulled[name]).tolist() for name in self.names}
        torn = {name: found[:4] for name, found in values.items() if len(found) > 1}
        if torn:
            say({"wrong": f"version {pulled.version} is torn: {torn}"})
        say({"version": pulled.version, "values": {name: found[0] for name, found in values.items()}})

    def _check_own(self, pulled: Any) -> None:
        more = (-pulled[self.own] / STEP).astype(np.int64) - self.counted
        if (pulled[self.own] != -STEP * (self.counted + more)).any() or more.min() < 0 or more.max() > self.in_doubt:
            found = {int(amount): int((more == amount).sum()) for amount in np.unique(more)}
            text = f"in {self.own!r} pushes beyond {self.acknowledged} acknowledged (elements by how many): {found}"
            say({"wrong": text + (", and one is in doubt" if self.in_doubt else "")})
        self.counted += more
        self.in_doubt = False

    def come_back(self, error: BaseException) -> None:
        """Join again after the others went on without this worker."""
        self.in_doubt = True
        say({"evicted": str(error)})
        while True:
            try:
                self.worker.rejoin(timeout=self.patience)
                break
            except (EvictedError, PeerLostError) as again:
                say({"evicted": str(again)})

    def run(self, stop: threading.Event, pause: float) -> None:
        """Step until told to stop."""
        while not stop.is_set():
            try:
                self.step()
            except (EvictedError, PeerLostError) as error:
                self.come_back(error)
            stop.wait(pause)

    def end(self) -> None:
        """Wait for the others; the first then tells the final values."""
        say({"stopped": self.acknowledged})
        self.worker.barrier("all have pushed", timeout=self.patience)
        pulled = self.worker.pull(timeout=self.patience)
        if not self.is_sync:
            self._check_own(pulled)
        if self.index == 0:
            final = {name: np.unique(pulled[name]).tolist() for name in self.names}
            say({"final": final, "version": pulled.version})
        self.worker.barrier("all is read", timeout=self.patience)
        self.worker.finish(timeout=self.patience)
        say({"ended": True})


def main() -> None:
    """Train as the command line says, until a line comes in."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("--mode", choices=("async", "sync"))
    parser.add_argument("--index", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--patience", type=float)
    parser.add_argument("--pause", type=float, default=0.02)
    a = parser.parse_args()
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    with zmqps.connect(a.address, name=f"worker-{a.index}", timeout=a.patience) as worker:
        loop = Loop(worker, a.index, a.workers, a.patience, is_sync=a.mode == "sync")
        worker.init(
            {name: np.zeros(SIZE, np.float32) for name in loop.names}, optimizer=zmqps.optim.sgd(1.0),
            mode="sync" if loop.is_sync else "async", workers=a.workers, timeout=a.patience,
        )  # fmt: skip
        loop.run(stop, a.pause)
        loop.end()


if __name__ == "__main__":
    main()
