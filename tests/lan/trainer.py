"""A worker that pushes and pulls one vector, says what each step took, and ends with figures or the error it got."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time

import numpy as np

import zmqps


def train(worker: zmqps.Worker, options: argparse.Namespace) -> None:
    size = int(options.mb * 1e6) // 4
    worker.init(
        {options.parameter: np.zeros(size, np.float32)},
        optimizer=zmqps.optim.sgd(learning_rate=1.0),
        mode=options.mode,
        **options.patience,
    )
    gradients = {options.parameter: np.full(size, -1.0, np.float32)}
    print(f"worker {worker.rank} begins", flush=True)
    took, values = [], None
    ends_at = time.monotonic() + options.seconds if options.seconds else None
    number = 0
    while number < options.steps if ends_at is None else time.monotonic() < ends_at:
        began = time.monotonic()
        worker.push(gradients, **options.patience)
        pushed = time.monotonic()
        if options.pull:
            values = worker.pull(**options.patience)[options.parameter]
        took.append(pushed - began)
        print(f"step {number}: push took {pushed - began:.3f} s, pull {time.monotonic() - pushed:.3f} s", flush=True)
        number += 1
        if options.pause:
            time.sleep(options.pause)
    figures = {"steps": number, "push": took, **dataclasses.asdict(worker.statistics())}
    if values is not None:
        figures |= {"min": float(values.min()), "max": float(values.max())}
    print(f"figures {json.dumps(figures, default=str)}", flush=True)
    worker.finish(**options.patience)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--coordinator", default=os.environ.get("ZMQPS_COORDINATOR"))
    parser.add_argument("--mb", type=float, default=0.1, help="size of the model")
    parser.add_argument("--parameter", default="w", help="its name")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.0, help="train for so long, in place of --steps")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between steps")
    parser.add_argument("--mode", default="async")
    parser.add_argument("--timeout", type=float, default=None)
    parser.add_argument("--pull", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    # Where nothing is said, zmqps's own defaults are tried.
    options.patience = {} if options.timeout is None else {"timeout": options.timeout}
    try:
        with zmqps.connect(options.coordinator, **options.patience) as worker:
            train(worker, options)
    except zmqps.errors.PSError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
