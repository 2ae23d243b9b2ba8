"""What loops may ask for beyond Python."""

import numpy as np

from zmqps.jit import AHEAD, MOST_ELEMENTS, compiled, prefetch


def total(array, rows):
    found = 0.0
    for i in range(rows.size):
        prefetch(array, rows[min(i + AHEAD, rows.size - 1)])
        found += array[rows[i], 0]
    return found


def test_asking_for_rows_early_changes_nothing():
    import numba

    loop = compiled(total, numba.float64(numba.float32[:, ::1], numba.int64[::1]))
    for dim in (1, 16, MOST_ELEMENTS + 1):
        array = np.arange(40 * dim, dtype=np.float32).reshape(40, dim)
        rows = np.random.default_rng(0).permutation(40)
        kept = array.copy()
        assert loop(array, rows) == total(array, rows) == array[:, 0].sum()
        assert np.array_equal(array, kept)


def test_elements_of_one_dimension_may_be_asked_for():
    import numba

    def first(array):
        prefetch(array, array.size - 1)
        return array[0]

    compiled(total, numba.float64(numba.float32[:, ::1], numba.int64[::1]))  # numba knows of it from here on
    assert numba.njit(first)(np.array([3.0, 4.0])) == 3.0
    assert first(np.array([3.0, 4.0])) == 3.0
