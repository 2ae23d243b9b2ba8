"""Members that are killed: connects to a cluster several times, trains, and ends with SIGKILL in the midst of it."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

import zmqps


def main(address: str, keys: str, number: str) -> None:
    """Be half of them observers and half workers, of a job of their own; then be gone."""
    there = [
        zmqps.connect(
            address,
            security=zmqps.Security(keys=keys or None),
            job=f"killed-{int(number) % 2}",
            observer=bool(index % 2),
        )
        for index in range(int(number))
    ]
    workers = there[::2]
    for worker in workers:
        worker.init({"w": np.zeros(4096, np.float32)}, optimizer=zmqps.optim.adam(0.1), mode="async")
    for worker in workers:
        worker.push_async({"w": np.ones(4096, np.float32)})
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
