"""What holds for every codec: sizes, dtypes, lengths, views, and that both backends write the same blob."""

from __future__ import annotations

import gc
import subprocess
import sys

import numpy as np
import pytest

from tests.codecs.cases import BACKENDS, CASES, DTYPES, EDGES, FEEDBACK, SIZES, SPECS, Case, gradient, nothing
from tests.tables import for_each
from zmqps import codecs
from zmqps.codecs import kernels
from zmqps.errors import ConfigurationError, ProtocolError


def bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.itemsize}")


def test_every_codec_has_a_case_and_is_exported() -> None:
    assert {case.codec.name for case in CASES} == set(codecs.CODECS)
    assert set(codecs.CODECS) <= set(codecs.__all__)


@for_each("dtype", DTYPES)
@pytest.mark.parametrize("spec", SPECS)
def test_backends_agree_bit_for_bit(spec: str, dtype: str) -> None:
    codec = codecs.parse(spec)
    for size in SIZES:
        residuals = [gradient(size, dtype, 9).copy() if codec.error_feedback else None for _ in BACKENDS]
        blobs = [
            codec.encode(gradient(size, dtype), residual, seed=3, backend=backend)
            for residual, backend in zip(residuals, BACKENDS, strict=True)
        ]
        assert blobs[0].tobytes() == blobs[1].tobytes(), f"{size} values"
        if codec.error_feedback:
            assert np.array_equal(bits(residuals[0]), bits(residuals[1])), f"{size} values"
        arrays = [codec.decode(blobs[0], size, dtype, backend=backend)[0] for backend in BACKENDS]
        assert np.array_equal(bits(arrays[0]), bits(arrays[1])), f"{size} values"


@for_each("dtype", DTYPES)
@for_each("spec", SPECS)
def test_backends_agree_on_the_edges_of_the_number_line(spec: str, dtype: str) -> None:
    codec = codecs.parse(spec)
    rng = np.random.default_rng(5)
    patterns = rng.integers(0, 1 << 32, 5000, np.uint32).view(np.float32)  # all exponents, NaN and infinity among them
    for values in (EDGES, patterns):
        with np.errstate(invalid="ignore"):  # NaNs that signal
            values = values.astype(dtype)
        residuals = [np.zeros_like(values) if codec.error_feedback else None for _ in BACKENDS]
        blobs = [codec.encode(values, r, backend=b) for r, b in zip(residuals, BACKENDS, strict=True)]
        arrays = [codec.decode(blobs[0], values.size, dtype, backend=backend)[0] for backend in BACKENDS]
        np.testing.assert_array_equal(*arrays)
        arrays = [codec.decode(blob, values.size, dtype)[0] for blob in blobs]
        np.testing.assert_array_equal(*arrays)  # a NaN's sign and payload are nobody's
        if codec.error_feedback:
            np.testing.assert_array_equal(*residuals)


@for_each("dtype", DTYPES)
@for_each("spec", SPECS)
def test_a_blob_delimits_itself_and_keeps_to_its_announced_length(spec: str, dtype: str) -> None:
    codec = codecs.parse(spec)
    for size in SIZES:
        blob = codec.encode(gradient(size, dtype))
        assert blob.dtype == np.uint8
        assert blob.ndim == 1
        assert blob.nbytes <= codec.encoded_nbytes(size, dtype)
        # something else stands behind it, and before it, so that it is not aligned
        view = memoryview(b"\xff" + blob.tobytes() + b"\xff" * 9)[1:]
        array, consumed = codec.decode(view, size, dtype)
        assert consumed == blob.nbytes
        assert array.shape == (size,)
        assert array.dtype == np.dtype(dtype)
        assert array.flags.aligned
        assert np.array_equal(array, codec.decode(blob, size, dtype)[0])


@for_each("spec", SPECS)
def test_an_array_may_have_gaps_and_is_not_written_to(spec: str) -> None:
    codec = codecs.parse(spec)
    every_other = gradient(200)[::2]
    before = every_other.copy()
    assert codec.encode(every_other).tobytes() == codec.encode(before).tobytes()
    assert np.array_equal(every_other, before)


@for_each("backend", BACKENDS)
@for_each("bad", [np.nan, np.inf, -np.inf])
@for_each("spec", SPECS)
def test_no_codec_hides_a_nan_or_an_infinity(spec: str, bad: float, backend) -> None:
    codec = codecs.parse(spec)
    values = gradient(300).copy()
    values[123] = bad
    array, _ = codec.decode(codec.encode(values, backend=backend), values.size, values.dtype)
    assert not np.isfinite(array).all()
    if "block" in spec:
        block = codec.block
        first = 123 // block * block
        assert not np.isfinite(array[first : first + block]).any()
        assert np.isfinite(array[:first]).all()
        assert np.isfinite(array[first + block :]).all()


@for_each("spec", SPECS)
def test_finite_values_stay_finite(spec: str) -> None:
    codec = codecs.parse(spec)
    largest = np.finfo(np.float32).max
    for values in (np.full(300, largest), np.linspace(-1, 1, 300, dtype=np.float32) * largest):
        array, _ = codec.decode(codec.encode(values), values.size, values.dtype)
        assert np.isfinite(array).all()


@for_each("spec", [case.spec for case in CASES if case.settled])
def test_encoding_again_changes_nothing(spec: str) -> None:
    codec = codecs.parse(spec)
    for values in (gradient(997), np.arange(65536, dtype=np.uint32).astype(np.uint16).view(np.float16)):
        values = values.astype(np.float32)
        once, _ = codec.decode(codec.encode(values), values.size, "float32")
        twice, _ = codec.decode(codec.encode(once), values.size, "float32")
        np.testing.assert_array_equal(once, twice)


@for_each("case", [case for case in CASES if case.error is nothing])
def test_codecs_that_lose_nothing(case: Case) -> None:
    for dtype in DTYPES:
        array, _ = case.codec.decode(case.codec.encode(gradient(997, dtype)), 997, dtype)
        assert np.array_equal(array, gradient(997, dtype))


def test_raw_copies_nothing() -> None:
    values = gradient(100)
    blob = codecs.raw().encode(values)
    array, _ = codecs.raw().decode(blob, 100, "float32")
    assert np.shares_memory(blob, values)
    assert np.shares_memory(array, values)


@for_each(
    "array",
    [np.zeros((2, 2), np.float32), np.zeros(3, np.int32), np.zeros(3, np.float16), np.zeros(3, ">f4")],
    ids=["matrix", "integers", "halves", "big-endian"],
)
def test_arrays_of_another_kind_are_refused(array: np.ndarray) -> None:
    with pytest.raises(ConfigurationError, match="float32 or float64 values in one dimension"):
        codecs.bf16().encode(array)


@for_each(
    "residual",
    [np.zeros(9, np.float32), np.zeros(10), np.zeros(20, np.float32)[::2], np.frombuffer(bytes(40), np.float32)],
    ids=["size", "dtype", "gaps", "read-only"],
)
def test_residuals_of_another_kind_are_refused(residual: np.ndarray) -> None:
    for spec in FEEDBACK:
        with pytest.raises(ConfigurationError, match="a residual is"):
            codecs.parse(spec).encode(gradient(10), residual)


def test_a_codec_without_error_feedback_takes_no_residual() -> None:
    with pytest.raises(ConfigurationError, match="keeps no residual"):
        codecs.bf16().encode(gradient(10), np.zeros(10, np.float32))


def test_an_unknown_backend_or_dtype_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="choose numba or numpy"):
        codecs.bf16().encode(gradient(1), backend="cupy")
    with pytest.raises(ConfigurationError, match="no codec makes 3 values of int32"):
        codecs.bf16().decode(bytes(100), 3, "int32")


def test_importing_the_codecs_does_not_import_numba() -> None:
    program = "import sys; from zmqps import codecs; codecs.bf16(); assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("spec", SPECS)
def test_warming_up_leaves_nothing_to_compile(spec: str, monkeypatch) -> None:
    # Other tests have run the same loops: forget what those have compiled. It is on disk, so this costs little.
    for kernel in [thing for thing in gc.get_objects() if type(thing) is kernels.CodecKernel]:
        monkeypatch.setattr(kernel, "_compiled", {})
    codec = codecs.parse(spec)
    for dtype in DTYPES:
        codec.warm_up(dtype)
    monkeypatch.delattr(kernels, "compiled")
    for dtype in DTYPES:
        codec.decode(codec.encode(gradient(100, dtype)), 100, dtype)


def test_a_view_that_is_too_short_says_what_is_missing() -> None:
    with pytest.raises(ProtocolError, match="'bf16' takes 20 bytes, only 19 came"):
        codecs.bf16().decode(bytes(19), 10, "float32")
