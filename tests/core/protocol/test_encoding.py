"""Payloads in a codec: a blob a part, residuals that remember, and nothing that junk can do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codecs.cases import CASES, FEEDBACK, FOR_VALUES, LOSSY
from tests.tables import for_each
from zmqps.codecs import MIN_NBYTES, for_values, parse, topk
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import RAW, check_codec, check_for_values, choose, compress, decompress, named
from zmqps.errors import ConfigurationError, ProtocolError

F4, F8 = np.dtype("<f4"), np.dtype("<f8")


def parts_of(sizes: list[list[int]], dtypes: list[Any], seed: int = 0) -> list[list[Array]]:
    """Return for each part its pieces: random values, read-only as the caller's are."""
    rng = np.random.default_rng(seed)
    parts = []
    for pieces, dtype in zip(sizes, dtypes, strict=True):
        parts.append([rng.standard_normal(size).astype(dtype) for size in pieces])
        for piece in parts[-1]:
            piece.flags.writeable = False
    return parts


def sizes_of(parts: list[list[Array]]) -> list[tuple[int, np.dtype[Any]]]:
    return [(sum(piece.size for piece in pieces), pieces[0].dtype) for pieces in parts]


# --- which codec --------------------------------------------------------------------------------


def test_what_is_small_goes_as_it_is() -> None:
    assert choose("int8", MIN_NBYTES - 1) is None
    assert choose("int8", MIN_NBYTES) == parse("int8")
    assert choose(RAW, 1 << 30) is None
    assert named(RAW) is None


def test_a_codec_that_a_user_names_is_checked() -> None:
    assert check_codec(topk(0.25), pulls=False) == "topk:fraction=0.25"
    assert check_codec("int8", pulls=True) == "int8"
    with pytest.raises(ConfigurationError, match="no codec 'zip' here; known are raw, bf16"):
        check_codec("zip", pulls=False)
    with pytest.raises(ConfigurationError, match=f"use {for_values()}"):
        check_codec("onebit", pulls=True)


@for_each("spec", FEEDBACK)
def test_values_do_not_travel_in_what_leaves_something_out(spec: str) -> None:
    with pytest.raises(ProtocolError, match="leaves values out"):
        check_for_values(spec)


def test_values_may_travel_in_the_others() -> None:
    for spec in FOR_VALUES:
        check_for_values(spec)
    with pytest.raises(ProtocolError, match="no codec"):
        check_for_values("zip")


# --- there and back -----------------------------------------------------------------------------


@pytest.mark.hypothesis
@for_each("spec", LOSSY)
def test_a_part_is_one_blob_of_all_its_pieces(spec: str) -> None:
    codec = parse(spec)

    @given(
        st.lists(st.lists(st.integers(1, 70), min_size=1, max_size=4), min_size=1, max_size=4),
        st.booleans(),
        st.integers(0, 9),
    )
    @settings(max_examples=15)
    def is_one_blob(sizes: list[list[int]], inline: bool, seed: int) -> None:
        parts = parts_of(sizes, [(F4, F8)[i % 2] for i in range(len(sizes))], seed)
        blobs = compress(codec, parts)
        assert len(blobs) == len(parts)
        payload = [b"".join(blob.tobytes() for blob in blobs)] if inline else [memoryview(blob) for blob in blobs]
        arrays = decompress(codec, payload, sizes_of(parts))
        for array, pieces in zip(arrays, parts, strict=True):
            whole = np.concatenate(pieces)
            alone, _ = codec.decode(codec.encode(whole), whole.size, whole.dtype)
            assert array.dtype == whole.dtype
            np.testing.assert_array_equal(array, alone)

    is_one_blob()


def test_blobs_may_be_read_by_something_else_than_their_codec() -> None:
    codec, parts = parse("bf16"), parts_of([[3, 4], [5]], [F4, F4])

    def count(view: Any, size: int, dtype: Any) -> tuple[Any, int]:
        return (size, dtype), codec.decode(view, size, dtype)[1]

    assert decompress(codec, compress(codec, parts), sizes_of(parts), count) == [(7, F4), (5, F4)]


def test_the_seed_decides_how_values_are_rounded() -> None:
    codec, parts = parse("int8:stochastic"), parts_of([[500, 500]], [F4])
    one, again, other = (compress(codec, parts, seed=seed)[0].tobytes() for seed in (1, 1, 2))
    assert one == again
    assert one != other


@for_each("spec", [case.spec for case in CASES if case.error is None])
def test_what_a_blob_leaves_out_is_written_back_to_every_piece(spec: str) -> None:
    codec, parts = parse(spec), parts_of([[40, 7, 60], [33]], [F4, F8])
    table = np.zeros(200, F4)  # pieces of one residual, with a gap between them
    residuals = [[table[0:40], table[50:57], table[60:120]], [np.zeros(33, F8)]]
    sent = decompress(codec, compress(codec, parts, residuals), sizes_of(parts))
    for array, pieces, kept in zip(sent, parts, residuals, strict=True):
        np.testing.assert_allclose(array + np.concatenate(kept), np.concatenate(pieces), rtol=1e-5, atol=1e-6)
        assert any(piece.any() for piece in kept)
    assert not table[40:50].any()
    assert not table[120:].any()


@for_each("spec", FEEDBACK)
def test_in_the_end_everything_has_been_sent(spec: str) -> None:
    codec, residuals = parse(spec), [[np.zeros(30, F4), np.zeros(34, F4)]]
    total, sent = np.zeros(64), np.zeros(64)
    for step in range(60):
        parts = parts_of([[30, 34]], [F4], seed=step)
        total += np.concatenate(parts[0])
        sent += decompress(codec, compress(codec, parts, residuals), sizes_of(parts))[0]
    np.testing.assert_allclose(sent + np.concatenate(residuals[0]), total, atol=1e-3)
    assert np.abs(np.concatenate(residuals[0])).max() < 10 * np.abs(total).max()


# --- junk ---------------------------------------------------------------------------------------


@for_each("spec", LOSSY)
@for_each("inline", [True, False])
def test_a_payload_too_short_or_too_long_is_refused(spec: str, inline: bool) -> None:
    codec, parts = parse(spec), parts_of([[40], [17, 20]], [F4, F4])
    blobs = [blob.tobytes() for blob in compress(codec, parts)]
    payload = [b"".join(blobs)] if inline else blobs
    decompress(codec, payload, sizes_of(parts))
    for bad in ([], payload[:-1], [*payload[:-1], payload[-1][:-1]], [*payload[:-1], payload[-1] + b"\0"]):
        with pytest.raises(ProtocolError):
            decompress(codec, bad, sizes_of(parts))
    with pytest.raises(ProtocolError, match="longer than the parts"):
        decompress(codec, [*payload, b"x"], sizes_of(parts))
    with pytest.raises(ProtocolError, match="longer than the parts"):
        decompress(codec, payload, [])


@pytest.mark.hypothesis
@for_each("spec", LOSSY)
def test_junk_is_arrays_of_the_right_size_or_a_protocol_error(spec: str) -> None:
    @given(st.lists(st.binary(max_size=300), max_size=3), st.lists(st.integers(1, 90), max_size=3))
    @settings(max_examples=25)
    def is_right_or_refused(payload: list[bytes], sizes: list[int]) -> None:
        try:
            arrays = decompress(parse(spec), payload, [(size, F4) for size in sizes])
        except ProtocolError:
            return
        assert [array.size for array in arrays] == sizes

    is_right_or_refused()


@for_each("codec", [RAW, "bf16"])
def test_what_is_pulled_may_travel_as_it_is_or_in_a_codec_that_leaves_nothing_out(codec: str) -> None:
    assert check_codec(codec, pulls=True) == codec
