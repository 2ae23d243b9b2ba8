"""The network that is cut in two trains as the whole one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
from examples import digits, model_parallel
from tests.pace import allow
from zmqps import pipeline

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]
STEPS = 25


@pytest.mark.timeout(150)  # eight processes, on a machine that may be busy
def test_the_script_gives_the_parameters_of_the_uncut_network() -> None:
    command = [sys.executable, "examples/model_parallel.py", "--replicas=2", "--passes=1", "--batch=24"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=allow(140))
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["steps"] == 1437 // 48
    assert report["largest_difference"] < 1e-5


def train(
    num_workers: int, slice_nbytes: int, work: Callable[[zmqps.Worker, int], Any]
) -> dict[str, np.ndarray[Any, Any]]:
    """Run so many workers in threads; return what they have trained."""

    def run(number: int) -> None:
        with zmqps.connect(cluster.address) as worker:
            optimizer = zmqps.optim.sgd(0.05, momentum=0.9)
            worker.init(digits.initial_params(), optimizer=optimizer, mode="sync")
            work(worker, number)

    with (
        zmqps.LocalCluster(
            zmqps.Servers(2, kernels="numpy"), workers=num_workers, limits=zmqps.Limits(slice_size=slice_nbytes)
        ) as cluster,
        zmqps.connect(cluster.address, observer=True) as observer,
        ThreadPoolExecutor(num_workers) as pool,
    ):
        list(pool.map(run, range(num_workers)))
        return dict(observer.pull(at_least=STEPS))


@pytest.mark.parametrize("slice_nbytes", [1 << 20, 1 << 13])
def test_stages_share_slices_and_momentum_as_if_there_were_one_worker(slice_nbytes: int, tmp_path: Path) -> None:
    x, _, y, _ = digits.load_data()
    batches = list(model_parallel.batches(len(y), Namespace(batch=20, replicas=2, passes=1)))[:STEPS]

    def stage(worker: zmqps.Worker, number: int) -> None:
        replica, which = divmod(number, 2)
        mine = [batch[20 * replica : 20 * replica + 20] for batch in batches]
        run, end = [(model_parallel.first_stage, pipeline.bind), (model_parallel.second_stage, pipeline.connect)][which]
        with end(f"ipc://{tmp_path}/{replica}", secret="what all stages know", timeout=allow(30)) as channel:
            run(worker, channel, x, y, mine)

    def whole(worker: zmqps.Worker, number: int) -> None:
        for batch in batches:
            worker.push(digits.loss_and_gradients(worker.pull(), x[batch], y[batch])[1])

    cut, uncut = train(4, slice_nbytes, stage), train(1, slice_nbytes, whole)
    for name, value in uncut.items():
        assert np.abs(value - digits.initial_params()[name]).max() > 0.01, "it was trained"
        np.testing.assert_allclose(cut[name], value, rtol=1e-5, atol=1e-6)
