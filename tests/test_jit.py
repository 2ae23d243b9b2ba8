"""What loops may ask for beyond Python."""

import subprocess
import sys

import numpy as np
import pytest

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


#: Compiles a loop that calls a function of a module, which is named.
PROGRAM = """
import sys
from importlib import import_module
import numba, numpy as np
from loops import loop
from zmqps.jit import compiled, inner
from zmqps.optim.kernels import renamed

array = np.ones(3)
update = inner(import_module(sys.argv[1]).update)
made = compiled(renamed(loop, "loop_of_update", update=update), numba.void(numba.float64[::1]))
made(array)
print(array.sum(), sum(made.stats.cache_hits.values()))
"""


@pytest.mark.repeats
def test_what_was_compiled_for_a_module_that_has_another_name_now_is_compiled_anew_and_kept(tmp_path):
    (tmp_path / "loops.py").write_text(
        "def loop(array):\n    for i in range(3):\n        array[i] = update(array[i])\n"
    )
    (tmp_path / "before.py").write_text("def update(x):\n    return 2.0 * x\n")

    def run(module):
        command = [sys.executable, "-c", PROGRAM, module]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()

    assert [run("before"), run("before")] == [["6.0", "0"], ["6.0", "1"]]
    (tmp_path / "before.py").rename(tmp_path / "after.py")
    assert [run("after"), run("after")] == [["6.0", "0"], ["6.0", "1"]]
