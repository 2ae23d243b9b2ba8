"""The look at a whole push, by one thread or two."""

import numpy as np
import pytest

from zmqps import finite
from zmqps.finite import are_finite


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_bad_element_is_found_wherever_it_is(
    threads: int, bad: float, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finite, "NUM_THREADS", threads)
    monkeypatch.setattr(finite, "SMALL_NBYTES", 64)
    monkeypatch.setattr(finite, "BLOCK_NBYTES", 32)
    arrays = [np.ones(size, dtype) for size in (0, 1, 7, 8, 9, 40)]
    assert are_finite(arrays)
    for array in arrays:
        for i in range(array.size):
            array[i] = bad
            assert not are_finite(arrays)
            array[i] = 1


def test_nothing_is_finite() -> None:
    assert are_finite([])
