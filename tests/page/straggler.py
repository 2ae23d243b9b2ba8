"""Trains on handwritten digits step by step, all workers together, and from some step on one of them is slow.

``python -m tests.page.straggler`` in a cluster of four workers: what `screenshots.py` takes pictures of.
"""

from __future__ import annotations

import time

import numpy as np

import zmqps
from examples import digits

#: Which worker becomes slow, from which step on, and what every worker's computation takes before and after it.
SLOW, FROM = 2, 150
STEP_S, SLOW_S = 0.1, 1.5
STEPS = 10_000


def main() -> None:
    """Be a worker."""
    x_train, _, y_train, _ = digits.load_data()
    with zmqps.connect() as worker:
        worker.init(digits.initial_params(), optimizer=zmqps.optim.adam(1e-3), mode="sync")
        random = np.random.default_rng(worker.rank)
        for step in range(STEPS):
            batch = random.choice(len(y_train), 32)
            params = worker.pull()
            loss, gradients = digits.loss_and_gradients(params, x_train[batch], y_train[batch])
            time.sleep(SLOW_S if worker.rank == SLOW and step >= FROM else STEP_S)  # a larger network takes so long
            worker.push(gradients)
            worker.log({"loss": loss, "accuracy": digits.accuracy(params, x_train[batch], y_train[batch])}, step=step)


if __name__ == "__main__":
    main()
