"""The digits example in JAX: alone and with others it learns the digits."""

from __future__ import annotations

from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor

import pytest

import zmqps
from tests.inprocess import PATIENCE, InProcessCluster

pytest.importorskip("jax")
pytest.importorskip("optax")
from examples import jax_digits


@pytest.mark.parametrize(("mode", "workers", "passes"), [("async", 1, 8), ("sync", 2, 16)])
def test_it_learns_the_digits(mode: str, workers: int, passes: int) -> None:
    def run(address: str) -> float:
        with zmqps.connect(address, timeout=PATIENCE) as worker:
            accuracy: float = jax_digits.train(worker, Namespace(mode=mode, passes=passes, batch=16))
            return accuracy

    with InProcessCluster(servers=2, workers=workers) as cluster, ThreadPoolExecutor(workers) as threads:
        assert min(threads.map(run, [cluster.address] * workers)) > 0.93
