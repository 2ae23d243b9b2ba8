"""Codecs in the namespace of a device: the same bytes, the same residuals, the same values."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codecs.cases import CHECKABLE, DTYPES, EDGES, PORTABLE, SIZES, gradient
from tests.devices import NewDevice, on_device, on_every_device, on_host
from tests.tables import for_each
from zmqps import codecs
from zmqps.errors import ProtocolError


@on_every_device
@for_each("dtype", DTYPES)
@for_each("spec", PORTABLE)
def test_a_device_writes_the_bytes_of_the_processor_and_reads_them(
    spec: str, dtype: str, new_device: NewDevice
) -> None:
    device, codec = new_device(), codecs.parse(spec)
    device.use()
    edges = EDGES.astype(dtype)
    if device.compiles:  # CuPy has float32 that are this small count as zero
        edges[np.abs(edges) < np.finfo(np.float32).tiny] = 0
    for number, values in enumerate([edges, *(gradient(size, dtype) for size in SIZES)]):
        ours = np.zeros(values.size, dtype) if codec.error_feedback else None
        theirs = None if ours is None else on_device(device, ours)
        for step in range(3 if ours is not None else 1):
            blob = codec.encode(values, ours, seed=number)
            found = codec.encode_in(device.xp, on_device(device, values), theirs, seed=number)
            if not device.compiles or np.isfinite(values).all():  # a NaN's sign and payload are nobody's
                assert np.array_equal(on_host(device, found), blob), f"{spec} of {values.size} in step {step}"
            if ours is not None:
                np.testing.assert_array_equal(on_host(device, theirs), ours)
            array = codec.decode_in(device.xp, found, values.size, dtype)
            np.testing.assert_array_equal(on_host(device, array), codec.decode(blob, values.size, dtype)[0])


def test_a_codec_says_for_itself_whether_its_bits_are_the_same_everywhere() -> None:
    assert {name for name, cls in codecs.CODECS.items() if "portable" not in vars(cls)} == set()
    assert not codecs.onebit().portable, "it sums floats"
    with pytest.raises(TypeError, match=r"Mine lacks `portable`: True, if it gives the same bits on every device"):
        type("Mine", (type(codecs.bf16()),), {"name": "mine"})


@for_each("dtype", DTYPES)
@for_each("spec", CHECKABLE)
def test_a_check_accepts_what_decoding_accepts(spec: str, dtype: str) -> None:
    codec = codecs.parse(spec)
    for size in SIZES:
        blob = codec.encode(gradient(size, dtype))
        assert np.array_equal(codec.check_blob(blob.tobytes() + b"more", size, dtype), blob)
        if size:
            with pytest.raises(ProtocolError, match="only"):
                codec.check_blob(blob[:-1], size, dtype)
    if spec.startswith("int8"):
        blob = codec.encode(np.ones(10, dtype))
        blob[-1] = 0x80
        with pytest.raises(ProtocolError, match="-128"):
            codec.check_blob(blob, 10, dtype)
    if spec == "topk:fraction=1.0":
        for indices in ([3, 3], [4, 1], [1, 10]):
            blob = codec.encode(np.ones(10, dtype))
            blob[4:12].view(np.uint32)[:] = indices
            with pytest.raises(ProtocolError, match="do not ascend, or one is beyond 10"):
                codec.check_blob(blob, 10, dtype)
