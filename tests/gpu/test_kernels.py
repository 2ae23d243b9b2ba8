"""Kernels over elements: what is compiled for a call, how it is launched, and what is refused before that."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.devices import on_device, on_host
from tests.tables import for_each
from zmqps.gpu import kernels
from zmqps.gpu.device import CudaDevice, Device, open_device


def text(inputs: str, outputs: str, are_arrays: list[bool], body: str) -> str:
    return kernels.source("f", kernels.parse(inputs, outputs), are_arrays, body, "// called")


def test_a_kernel_takes_elements_numbers_and_whole_arrays() -> None:
    found = text(
        "float32 w, float64 rate, raw int64 rows",
        "float32 out, raw uint64 chunks",
        [True, False] + [True] * 3,
        "a;\nb;",
    )
    assert (
        found
        == """// called
extern "C" __global__ void f(const float *all_w, const double rate, const long long *rows, float *all_out, \
unsigned long long *chunks, const ptrdiff_t num_elements) {
  const ptrdiff_t i = (ptrdiff_t)blockIdx.x * 256 + threadIdx.x;
  if (i < num_elements) {
    const float w = all_w[i];
    float &out = all_out[i];
    a;
    b;
  }
}
"""
    )


class Recording:
    """CuPy, as far as kernels need it: says what is compiled and launched."""

    ndarray = np.ndarray

    def __init__(self) -> None:
        self.compiled: list[tuple[str, tuple[str, ...], str]] = []
        self.launched: list[tuple[tuple[int, ...], tuple[int, ...], tuple[Any, ...]]] = []
        error = type("CUDAError", (RuntimeError,), {})
        runtime = SimpleNamespace(
            CUDARuntimeError=error, getDeviceCount=lambda: 1, getDeviceProperties=lambda index: {"name": b"H100"}
        )
        self.cuda = SimpleNamespace(
            runtime=runtime, driver=SimpleNamespace(CUDADriverError=error), Device=lambda index: None,
            memory=SimpleNamespace(OutOfMemoryError=error), Module=self.module,
            compiler=SimpleNamespace(compile_using_nvrtc=self.compile),
        )  # fmt: skip

    def compile(self, source: str, options: tuple[str, ...], *, filename: str) -> tuple[bytes, None]:
        self.compiled.append((source, options, filename))
        return b"binary", None

    def module(self) -> Any:
        def load(binary: bytes) -> None:
            assert binary == b"binary"

        return SimpleNamespace(load=load, get_function=lambda name: lambda *call: self.launched.append(call))


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Recording:
    found = Recording()
    monkeypatch.setitem(sys.modules, "cupy", found)
    return found


def gpu() -> Device:
    device = open_device("cuda:0")
    assert device is not None
    return device


def test_a_kernel_is_compiled_once_and_told_how_many_elements_there_are(cupy: Recording) -> None:
    run = gpu().elementwise("f", "float32 w, float32 rate", "float32 out", "out = w * rate;", "")
    w, out = np.ones(1000, np.float32), np.ones(1000, np.float32)
    for rate in (0.5, 2):
        run(w, rate, out)
    assert [(options, name) for _, options, name in cupy.compiled] == [(("--fmad=false",), "f.cu")]
    (grid, block, (first, rate, _, size)), _ = cupy.launched
    assert (grid, block, size) == ((4, 1, 1), (256, 1, 1), 1000)
    assert first is w
    assert (rate, rate.dtype, size.dtype) == (0.5, np.float32, np.int64)


def test_a_kernel_is_compiled_again_where_a_number_is_an_array(cupy: Recording) -> None:
    run = gpu().elementwise("f", "float32 x", "float32 out", "out = x;", "")
    out = np.ones(3, np.float32)
    for x in (1.0, out, 2.0, out):
        run(x, out)
    assert len(cupy.compiled) == 2
    assert len(cupy.launched) == 4


def test_of_whole_arrays_the_size_is_said_and_none_is_nothing_to_do(cupy: Recording) -> None:
    run = gpu().elementwise("f", "float32 x, raw int64 rows", "raw uint64 chunks", "store(chunks[rows[i]], i, x);", "")
    rows, chunks = np.zeros(600, np.int64), np.zeros(2, np.uint64)
    with pytest.raises(TypeError, match="f needs the number of elements"):
        run(1.0, rows, chunks)
    run(1.0, rows, chunks, size=0)
    assert not cupy.launched
    run(1.0, rows, chunks, size=1200)
    [(grid, _, (*_, size))] = cupy.launched
    assert (grid, size) == ((5, 1, 1), 1200)


@for_each(
    "array, said",
    [
        (np.ones(8, np.float64), "x is not an array of float32 without gaps"),
        (np.ones(16, np.float32)[::2], "x is not an array of float32 without gaps"),
        (np.ones(9, np.float32), "out has 8 elements, and not 9"),
    ],
    ids=["of another dtype", "with gaps", "of another size"],
)
def test_an_array_that_would_be_read_wrongly_is_refused(array: np.ndarray, said: str, cupy: Recording) -> None:
    run = gpu().elementwise("f", "float32 x", "float32 out", "out = x;", "")
    with pytest.raises(TypeError, match=said):
        run(array, np.ones(8, np.float32))
    assert not cupy.launched


@pytest.mark.gpu
@for_each("size", [1, 255, 256, 257, 100_000])
def test_every_element_is_computed_and_none_beside_them(size: int) -> None:
    device = CudaDevice(0)
    device.use()
    x = np.random.default_rng(2).standard_normal(size).astype(np.float32)
    x[:1] = 1e-45  # no number is so small that it counts as zero
    there, out = on_device(device, x), on_device(device, np.full(size + 300, 7, np.float32))
    device.elementwise("halved_twice", "float32 x, float32 half", "float32 out", "out = x + x * half;", "")(
        there, np.float32(0.5), out[:size]
    )
    np.testing.assert_array_equal(on_host(device, out), [*(x + x * np.float32(0.5)), *[7] * 300])
