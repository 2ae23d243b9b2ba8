"""The digits example in Keras: alone and with others it learns the digits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.imports import ROOT
from tests.inprocess import InProcessCluster
from tests.pace import allow

pytest.importorskip("sklearn")
BACKENDS = [name for name in ("torch", "jax", "tensorflow") if find_spec(name)]


@pytest.mark.timeout(240)
@pytest.mark.skipif(not find_spec("keras"), reason="Keras is not installed")
@pytest.mark.parametrize(
    ("backend", "mode", "workers", "passes"),
    [(name, *(("sync", 2, 16) if name == "jax" else ("async", 1, 8))) for name in BACKENDS],  # torch imports for 8 s
)
def test_it_learns_the_digits(backend: str, mode: str, workers: int, passes: int) -> None:
    with InProcessCluster(servers=2, workers=workers) as cluster:
        command = [sys.executable, ROOT / "examples/keras_digits.py", "--coordinator", cluster.address]
        runs = [
            subprocess.Popen(
                [*command, "--mode", mode, "--passes", str(passes)],
                env={**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(workers)
        ]
        try:
            said = [run.communicate(timeout=allow(150))[0] for run in runs]
        finally:
            for run in runs:
                run.kill()
    found = [float(accuracy) for text in said for accuracy in re.findall(r"test accuracy ([\d.]+)", text)]
    assert len(found) == workers
    assert min(found) > 0.93
