"""Arrays between stages: they come as they went, and what does not fit is refused before it is allocated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.core.strategies import PLAIN
from tests.tables import for_each
from zmqps import codecs
from zmqps.core.protocol.messages import Tensors
from zmqps.core.protocol.parcel import DTYPES, FRAME_NBYTES, MAX_ARRAYS, pack, unpack
from zmqps.core.protocol.wire import decode, encode
from zmqps.errors import ConfigurationError, LimitError, ProtocolError

ARRAYS = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0))
)


def travel(message: Tensors) -> dict[str, Any]:
    received = decode([bytes(frame) for frame in encode(message)])
    assert isinstance(received, Tensors)
    return unpack(received)


@given(arrays=st.dictionaries(st.text(max_size=8), ARRAYS, max_size=4))
def test_arrays_come_as_they_went(arrays: dict[str, np.ndarray[Any, Any]]) -> None:
    found = travel(pack(1, arrays))
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)
        assert found[name].flags.writeable


@for_each("view", [lambda a: a.T, lambda a: a[::2, ::-1], lambda a: a.astype(">f4")])
def test_memory_that_is_not_in_order_is_put_in_order(view: Any) -> None:
    array = np.arange(60, dtype=np.float32).reshape(6, 10)
    np.testing.assert_array_equal(travel(pack(1, {"x": view(array)}))["x"], view(array))


@for_each("codec", [codecs.bf16(), codecs.fp16(), codecs.int8()])
@for_each("dtype", ["float32", "float64"])
def test_floats_travel_in_a_codec_and_the_rest_as_it_is(codec: codecs.Codec, dtype: str) -> None:
    x = np.random.default_rng(0).standard_normal((70, 90)).astype(dtype)
    message = pack(1, {"x": x, "labels": np.arange(5000), "small": np.ones(3, dtype)}, codec.spec)
    assert [entry[2] for entry in message.arrays.values()] == [codec.spec, "raw", "raw"]
    assert message.payload[0].nbytes < x.nbytes
    found = travel(message)
    np.testing.assert_allclose(found["x"], x, rtol=0.01, atol=0.05)
    assert (found["x"].dtype, found["x"].shape) == (x.dtype, x.shape)
    np.testing.assert_array_equal(found["labels"], np.arange(5000))
    np.testing.assert_array_equal(found["small"], np.ones(3))


@for_each("codec", ["raw", "bf16", "fp16", "int8"])
def test_an_array_without_elements_travels_in_every_codec(codec: str) -> None:
    found = unpack(Tensors(1, {"x": ["float32", [0, 3], codec, 0]}, ()))
    assert (found["x"].shape, found["x"].dtype) == ((0, 3), np.float32)


def test_a_large_array_is_sent_in_frames() -> None:
    large = np.arange(FRAME_NBYTES // 4 + 3, dtype=np.float32)
    message = pack(1, {"large": large, "more": np.arange(4)})
    assert [buffer.nbytes for buffer in message.payload] == [FRAME_NBYTES, 12, 32]
    np.testing.assert_array_equal(travel(message)["large"], large)


@for_each("value", ["text", None, 1j, np.array([{}]), np.zeros(2, "datetime64[s]")])
def test_what_is_no_array_of_numbers_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="'x' is"):
        pack(1, {"x": value})


def test_an_array_whose_name_is_no_text_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="send named arrays"):
        pack(1, {7: np.zeros(2)})  # type: ignore[dict-item]


def test_too_many_arrays_are_refused_at_both_ends() -> None:
    arrays = {str(i): np.zeros(0) for i in range(MAX_ARRAYS + 1)}
    with pytest.raises(LimitError):
        pack(1, arrays)
    with pytest.raises(LimitError):
        unpack(Tensors(1, {name: ["bool", [0], "raw", 0] for name in arrays}, ()))


BAD = {
    "no entry": "x",
    "a field too few": ["float32", [2], "raw"],
    "a length that is true": ["bool", [1], "raw", True],
    "an object": ["object", [1], "raw", 8],
    "a shape that is no list": ["float32", 2, "raw", 8],
    "a negative shape": ["float32", [-2], "raw", 8],
    "two negative ones": ["float32", [-2, -1], "raw", 8],
    "a shape of floats": ["float32", [2.0], "raw", 8],
    "too many dimensions": ["float32", [1] * 33, "raw", 8],
    "fewer bytes than elements": ["float32", [3], "raw", 8],
    "more bytes than elements": ["float32", [1], "raw", 8],
    "elements beyond memory": ["int8", [1 << 40, 1 << 40], "raw", 8],
    "elements beyond memory in a codec": ["float32", [1 << 40], "bf16", 8],
    "nothing of beyond memory": ["float32", [0, 1 << 63], "raw", 0],
    "an unknown codec": ["float32", [2], "zip", 8],
    "a codec that keeps a residual": ["float32", [2], "topk:fraction=0.5", 8],
    "integers in a codec": ["int32", [4], "bf16", 8],
    "a codec with another length": ["float32", [3], "bf16", 8],
    "more than came": ["float32", [4], "raw", 16],
    "less than came": ["float32", [1], "raw", 4],
}


@for_each("entry", BAD.values(), ids=BAD)
def test_what_does_not_fit_is_refused(entry: Any) -> None:
    with pytest.raises(ProtocolError):
        unpack(Tensors(1, {"x": entry}, (bytes(8),)))


@for_each("shape", [[0, 1 << 63], [1 << 56, 0]])
def test_nothing_in_a_shape_beyond_memory_is_refused(shape: list[int]) -> None:
    with pytest.raises(ProtocolError, match="no usable shape"):
        unpack(Tensors(1, {"x": ["float32", shape, "raw", 0]}, ()))


@given(
    arrays=st.dictionaries(st.text(max_size=8), PLAIN, max_size=3), payload=st.lists(st.binary(max_size=20), max_size=2)
)
def test_anything_is_arrays_or_a_documented_error(arrays: dict[str, Any], payload: list[bytes]) -> None:
    try:
        unpack(Tensors(1, arrays, payload))
    except ProtocolError:
        pass
