"""The digits example in Lightning: alone and with others it learns the digits."""

from __future__ import annotations

import warnings
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor

import pytest

import zmqps
from tests.inprocess import PATIENCE, InProcessCluster

pytest.importorskip("torch")
pytest.importorskip("lightning")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from examples import lightning_digits


@pytest.mark.parametrize(("mode", "workers", "passes"), [("async", 1, 4), ("sync", 2, 8)])
def test_it_learns_the_digits(mode: str, workers: int, passes: int) -> None:
    def run(address: str) -> float:
        with zmqps.connect(address, timeout=PATIENCE) as worker:
            accuracy: float = lightning_digits.train(worker, Namespace(mode=mode, passes=passes, batch=16))
            return accuracy

    with (
        warnings.catch_warnings(action="ignore"),
        InProcessCluster(servers=2, workers=workers) as cluster,
        ThreadPoolExecutor(workers) as threads,
    ):
        assert min(threads.map(run, [cluster.address] * workers)) > 0.9
