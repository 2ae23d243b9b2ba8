"""Blobs from anybody: an array of the right size or a ProtocolError, and little memory either way."""

from __future__ import annotations

import tracemalloc

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.codecs.cases import BACKENDS, DTYPES, SPECS, gradient
from tests.tables import for_each
from zmqps import codecs
from zmqps.errors import CodecError, ProtocolError

SIZES = [0, 1, 24, 101, 250]


def check(codec: codecs.Codec, blob: bytes, size: int, dtype: str, backend: codecs.Backend) -> None:
    """Decode, and hold the decoder to its promise."""
    tracemalloc.start()
    try:
        array, consumed = codec.decode(blob, size, dtype, backend=backend)
    except CodecError:  # what any other exception of a codec becomes
        raise
    except ProtocolError:
        return
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 200_000, f"{peak} bytes for {size} values"
    assert array.shape == (size,)
    assert array.dtype == np.dtype(dtype)
    assert 0 <= consumed <= len(blob)


cases = hypothesis.given(
    spec=st.sampled_from(SPECS),
    size=st.sampled_from(SIZES),
    dtype=st.sampled_from(DTYPES),
    backend=st.sampled_from(BACKENDS),
    data=st.data(),
)


@pytest.fixture(scope="module", autouse=True)
def everything_is_compiled() -> None:
    for spec in SPECS:
        for dtype in DTYPES:
            codecs.parse(spec).warm_up(dtype)


@cases
def test_random_bytes(spec: str, size: int, dtype: str, backend, data: st.DataObject) -> None:
    check(codecs.parse(spec), data.draw(st.binary(max_size=600)), size, dtype, backend)


@cases
def test_a_blob_cut_short_is_refused(spec: str, size: int, dtype: str, backend, data: st.DataObject) -> None:
    codec = codecs.parse(spec)
    blob = codec.encode(gradient(size, dtype)).tobytes()
    kept = data.draw(st.integers(0, max(len(blob) - 1, 0)))
    check(codec, blob[:kept], size, dtype, backend)
    if kept < len(blob):
        with pytest.raises(ProtocolError):
            codec.decode(blob[:kept], size, dtype, backend=backend)


@cases
def test_a_blob_with_some_bytes_changed(spec: str, size: int, dtype: str, backend, data: st.DataObject) -> None:
    codec = codecs.parse(spec)
    blob = bytearray(codec.encode(gradient(size, dtype)).tobytes())
    for _ in range(data.draw(st.integers(1, 4)) if blob else 0):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    check(codec, bytes(blob), size, dtype, backend)


@cases
def test_a_blob_of_another_size_or_dtype(spec: str, size: int, dtype: str, backend, data: st.DataObject) -> None:
    codec = codecs.parse(spec)
    blob = codec.encode(gradient(size, dtype)).tobytes()
    check(codec, blob, data.draw(st.sampled_from(SIZES)), data.draw(st.sampled_from(DTYPES)), backend)


def sparse(indices: list[int], count: int | None = None) -> bytes:
    values = np.ones(len(indices), np.float32)
    count = len(indices) if count is None else count
    return np.uint32(count).tobytes() + np.array(indices, np.uint32).tobytes() + values.tobytes()


@for_each("backend", BACKENDS)
@for_each(
    "blob, reason",
    [
        (sparse([3, 3]), "do not ascend"),
        (sparse([4, 3]), "do not ascend"),
        (sparse([0, 1000]), "beyond 1000"),
        (sparse([0, 2**32 - 1]), "beyond 1000"),
        (sparse([2**31, 2**31 + 1]), "beyond 1000"),
        (sparse(list(range(11))), "at most 10 of 1000"),
        (sparse([1], count=2**32 - 1), "at most 10 of 1000"),
        (sparse([1], count=2), "takes 20 bytes, only 12 came"),
        (b"\x01\x00\x00", "takes 4 bytes, only 3 came"),
    ],
)
def test_topk_refuses_indices_that_cannot_be(blob: bytes, reason: str, backend) -> None:
    with pytest.raises(ProtocolError, match=reason):
        codecs.topk(fraction=0.01).decode(blob, 1000, "float32", backend=backend)


@for_each("spec", ["onebit", "twobit"])
def test_bits_behind_the_last_value_are_refused(spec: str) -> None:
    codec = codecs.parse(spec)
    blob = codec.encode(np.ones(5, np.float32))
    blob[8] |= 1 << 5
    with pytest.raises(ProtocolError, match="more of them set"):
        codec.decode(blob, 5, "float32")


@for_each("backend", BACKENDS)
def test_int8_refuses_the_code_that_no_encoder_writes(backend) -> None:
    blob = codecs.int8().encode(np.ones(5, np.float32))
    blob[-1] = 0x80
    with pytest.raises(ProtocolError, match="-128"):
        codecs.int8().decode(blob, 5, "float32", backend=backend)
