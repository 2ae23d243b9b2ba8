"""Two threads give the bytes that one gives, and nothing runs on behind an error."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.codecs.cases import DTYPES, EDGES, SPECS, gradient
from tests.pace import allow
from tests.tables import for_each
from zmqps import codecs
from zmqps.client import beside
from zmqps.client.beside import TwoThreads
from zmqps.codecs import kernels


@pytest.fixture(autouse=True)
def _two_threads_for_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TwoThreads, "width", 2)
    monkeypatch.setattr(kernels, "MIN_SPAN", 64)


@for_each("dtype", DTYPES)
@for_each("spec", SPECS)
def test_two_threads_write_the_blob_of_one(spec: str, dtype: str) -> None:
    codec = codecs.parse(spec)
    sizes = (1, 127, 128, 1024, 2047, 2048, 2049, 6151, 20_011)
    for values in (EDGES.astype(dtype), *(gradient(size, dtype) for size in sizes)):
        rests = [np.zeros_like(values) if codec.error_feedback else None for _ in range(2)]
        for step in range(3):
            shifted = np.roll(values, 7 * step)
            alone = codec.encode(shifted, rests[0], seed=step)
            together = codec.encode(shifted, rests[1], seed=step, spread=TwoThreads())
            assert alone.tobytes() == together.tobytes(), f"{values.size} values in step {step}"
            if codec.error_feedback:
                np.testing.assert_array_equal(*rests)


@for_each("few", [0, 1, 40, 700])
def test_two_threads_send_the_first_of_equal_values(few: int) -> None:
    values = np.full(4096, 2.0, np.float32)
    values[3000 : 3000 + few] = 3.0
    codec = codecs.topk(fraction=0.3)
    rests = [np.zeros_like(values) for _ in range(2)]
    alone = codec.encode(values, rests[0], backend="numpy")
    assert alone.tobytes() == codec.encode(values, rests[1], spread=TwoThreads()).tobytes()
    np.testing.assert_array_equal(*rests)


def test_what_is_done_beside_is_done_by_another_thread_and_in_order() -> None:
    met = threading.Barrier(2)

    def number() -> int:
        met.wait(allow(10.0))  # whoever is alone waits for nobody
        return threading.get_ident()

    first, second = TwoThreads()([number, number])
    assert first == threading.get_ident() != second
    assert TwoThreads()([]) == []


def test_an_error_waits_for_the_other_half() -> None:
    done = threading.Event()
    entered = threading.Event()

    def fails() -> None:
        entered.wait(allow(10.0))
        raise ValueError("here")

    def beside_it() -> None:
        entered.set()
        done.set()

    with pytest.raises(ValueError, match="here"):
        TwoThreads()([fails, beside_it])
    assert done.is_set()
    with pytest.raises(ZeroDivisionError):
        TwoThreads()([lambda: 1, lambda: 1 // 0])


def test_where_no_thread_can_begin_one_does_both(monkeypatch: pytest.MonkeyPatch) -> None:
    class Over:
        def submit(self, task: object) -> None:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(beside, "helper", Over)
    assert TwoThreads()([lambda: 1, lambda: 2]) == [1, 2]
