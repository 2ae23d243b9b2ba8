"""The experiment with caches of rows: its ids follow the law, and its figures are those of the tables."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import row_cache
from tests.tables import for_each


@for_each("exponent", [0.8, 1.3])
def test_ids_follow_zipfs_law(exponent: float) -> None:
    size = 200_000
    _, counts = np.unique(row_cache.zipf(exponent, size, np.random.default_rng(0)), return_counts=True)
    mass = np.arange(1, row_cache.NUM_IDS + 1) ** -exponent
    expected = size * mass[:10] / mass.sum()
    np.testing.assert_allclose(np.sort(counts)[::-1][:10], expected, rtol=0.25)


@pytest.mark.processes
def test_each_way_moves_the_bytes_that_its_cache_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "BATCH", 512)
    found = {name: nbytes for name, (nbytes, _) in row_cache.travel(1.3, steps=12, warm_up=4).items()}
    assert found["Adagrad, pushed rows asked for"] == pytest.approx(found["no cache"], rel=0.02)
    assert found["deferred, 100,000 rows, 8 clocks"] < found["reads, 100,000 rows, 8 clocks"] < found["no cache"]
    assert found["deferred, 100,000 rows, 8 clocks"] < found["deferred, 100,000 rows, 2 clocks"]
