"""Gradient descent on least squares comes as far with each codec as without."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codecs.cases import LOSSY
from zmqps import codecs

WORKERS = 2
STEPS = 400


def loss_after_training(spec: str) -> float:
    """Return the loss, relative to the loss before, of `WORKERS` workers whose gradients are averaged."""
    codec = codecs.parse(spec)
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((WORKERS, 200, 50)).astype(np.float32)
    targets = inputs @ rng.standard_normal(50).astype(np.float32)
    targets += 0.1 * rng.standard_normal(targets.shape).astype(np.float32)
    residuals = [np.zeros(50, np.float32) if codec.error_feedback else None for _ in range(WORKERS)]
    w = np.zeros(50, np.float32)

    def loss() -> float:
        return float(np.mean((inputs @ w - targets) ** 2))

    before = loss()
    for step in range(STEPS):
        rows = rng.integers(0, 200, 32)
        total = np.zeros_like(w)
        for k in range(WORKERS):
            x, y = inputs[k, rows], targets[k, rows]
            blob = codec.encode(x.T @ (x @ w - y) / len(rows), residuals[k], seed=step * WORKERS + k)
            total += codec.decode(blob, w.size, w.dtype)[0]
        w -= np.float32(0.05 / (1 + step / 100)) * total / WORKERS
    return loss() / before


@pytest.mark.parametrize("spec", LOSSY)
def test_training_converges_as_with_raw_gradients(spec: str) -> None:
    raw = loss_after_training("raw")
    assert raw < 1e-3
    assert loss_after_training(spec) < 1.25 * raw
