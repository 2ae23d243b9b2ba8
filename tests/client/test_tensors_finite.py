"""The look at a whole push, by one thread or two."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.pace import allow
from tests.tables import for_each
from zmqps.client import tensors
from zmqps.client.tensors import are_finite


@for_each("threads", [1, 2])
@for_each("bad", [np.nan, np.inf, -np.inf])
@for_each("dtype", [np.float32, np.float64])
def test_one_bad_element_is_found_wherever_it_is(
    threads: int, bad: float, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "NUM_THREADS", threads)
    monkeypatch.setattr(tensors, "SMALL_NBYTES", 64)
    monkeypatch.setattr(tensors, "BLOCK_NBYTES", 32)
    arrays = [np.ones(size, dtype) for size in (0, 1, 7, 8, 9, 40)]
    assert are_finite(arrays)
    for array in arrays:
        for i in range(array.size):
            array[i] = bad
            assert not are_finite(arrays)
            array[i] = 1


def test_nothing_is_finite() -> None:
    assert are_finite([])


#: Looks with two threads, then again in a forked child, which ends by itself if it waits for a thread that it has not.
FORK = """
import faulthandler, os, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12 on
import numpy as np
from zmqps.client import tensors
tensors.NUM_THREADS, tensors.SMALL_NBYTES = 2, 64
arrays = [np.ones(1 << 20, np.float32)]
assert tensors.are_finite(arrays)
if (child := os.fork()) == 0:
    faulthandler.dump_traceback_later(20, exit=True)
    os._exit(0 if tensors.are_finite(arrays) else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_looks_with_a_thread_of_its_own() -> None:
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=allow(60))
