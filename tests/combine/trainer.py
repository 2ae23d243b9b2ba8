"""A worker of a host group as a process: ``trainer.py ADDRESS NAME COMBINE MODE STEPS PAUSE``.

It says ``joined RANK`` when it has read its first values, and waits for a line; then ``step N VERSION`` after each
step, and ``error CLASS TEXT`` where one fails, after which it goes on. After the step PAUSE it waits for another line.
``done VALUES`` ends it.
"""

from __future__ import annotations

import json
import sys

import numpy as np

import zmqps

SIZE = 3000
#: Of the whole numbers that gradients are, so that every order of adding gives the same.
MOST = 64


def gradient(rank: int, step: int) -> np.ndarray:
    return np.random.default_rng([rank, step]).integers(-MOST, MOST, SIZE).astype(np.float32)


def main(address: str, name: str, combine: str, mode: str, steps: str, pause: str) -> None:
    worker = zmqps.connect(address, name=name, combine=combine, timeout=30)
    start = {"w": np.zeros(SIZE, np.float32), "b": np.zeros(3, np.float32)}
    worker.init(start, optimizer=zmqps.optim.sgd(0.5), mode=mode, staleness=1 if mode == "bounded" else None)
    params = worker.pull()
    print("joined", worker.rank, flush=True)
    sys.stdin.readline()
    for step in range(int(steps)):
        grads = {"w": gradient(worker.rank, step), "b": np.full(3, worker.rank + 1, np.float32)}
        try:
            params = worker.push_pull(grads, timeout=60)
        except zmqps.PSError as error:
            print("error", type(error).__name__, error, flush=True)
            continue
        print("step", step, params.version, flush=True)
        if step == int(pause):
            sys.stdin.readline()
    pushes = worker.statistics().pushes
    worker.finish()
    print("done", json.dumps({"w": params["w"].tolist(), "version": params.version, "pushes": pushes}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
