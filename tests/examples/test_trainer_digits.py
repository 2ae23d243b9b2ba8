"""The digits example in Hugging Face's Trainer: alone and with others it learns the digits."""

from __future__ import annotations

import warnings
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import zmqps
from tests.inprocess import PATIENCE, InProcessCluster

pytest.importorskip("torch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("transformers")
    from examples import trainer_digits


@pytest.mark.parametrize(("mode", "workers", "passes"), [("async", 1, 4), ("sync", 2, 6)])
def test_it_learns_the_digits(mode: str, workers: int, passes: int) -> None:
    options = Namespace(mode=mode, passes=passes, batch=16)
    with (
        warnings.catch_warnings(action="ignore"),
        InProcessCluster(servers=2, workers=workers) as cluster,
        ExitStack() as stack,
        ThreadPoolExecutor(workers) as threads,
    ):
        joined = [stack.enter_context(zmqps.connect(cluster.address, timeout=PATIENCE)) for _ in range(workers)]
        trainers = [trainer_digits.make_trainer(worker, options) for worker in joined]  # one after the other: Trainers
        assert min(threads.map(trainer_digits.train, trainers)) > 0.8  # of one process share some state
