"""Which rows batches name."""

import numpy as np
import pytest

from bench.ids import KINDS, NUM_BATCHES, RowWork, shortened
from tests.tables import for_each


@for_each("kind", KINDS)
def test_batches_name_rows_that_there_are_and_are_the_same_for_all_systems(kind: str) -> None:
    work = RowWork(rows=5000, batch=2000, ids=kind)
    first, again, other = work.batches(0), work.batches(0), work.batches(1)
    assert len(first) == NUM_BATCHES
    for mine, same, theirs in zip(first, again, other, strict=True):
        assert mine.dtype == np.int64
        assert mine.size == work.batch
        assert 0 <= mine.min() <= mine.max() < work.rows
        assert np.array_equal(mine, same)
        assert not np.array_equal(mine, theirs)


def test_zipfs_law_holds_and_frequent_rows_do_not_lie_together() -> None:
    work = RowWork(rows=100_000, batch=200_000)
    rows, counts = np.unique(work.batches()[0], return_counts=True)
    order = np.argsort(-counts)
    often = counts[order]
    assert often[0] / often[9] == pytest.approx(10**1.05, rel=0.35)  # ranks are rounded down
    assert often[9] / often[99] == pytest.approx(10**1.05, rel=0.35)
    assert np.abs(np.diff(rows[order[:20]])).min() > 100


def test_numbers_are_shown_in_short() -> None:
    assert [shortened(number) for number in (999, 1000, 65_536, 100_000, 10_000_000)] == [
        *("999", "1k", "65536", "100k", "10M")
    ]
    assert RowWork(rows=2_000_000, dim=8, batch=4096, ids="uniform").title == "2M×8 uniform 4096"
