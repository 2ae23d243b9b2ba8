"""Pieces into payloads and back, wherever a sender chose to end its frames."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqps.core.protocol.arrays import GATHER_NBYTES, gather, scatter
from zmqps.errors import ProtocolError

DTYPES = [np.dtype("<f4"), np.dtype("<f8")]
LARGE = GATHER_NBYTES // 4


@st.composite
def pieces(draw: st.DrawFn) -> list[np.ndarray]:
    sizes = st.sampled_from([0, 1, 2, 5, LARGE - 1, LARGE, LARGE + 3])
    chosen = draw(st.lists(st.tuples(sizes, st.sampled_from(DTYPES)), max_size=8))
    return [np.arange(size, dtype=dtype) + 10 * i for i, (size, dtype) in enumerate(chosen)]


def put_together(payload: list, runs: list[tuple[int, np.dtype]]) -> list[np.ndarray]:
    landed = [np.full(size, np.nan, dtype) for size, dtype in runs]
    for run, offset, array in scatter(payload, runs):
        assert array.flags.aligned
        assert np.isnan(landed[run][offset : offset + array.size]).all(), "each element comes once"
        landed[run][offset : offset + array.size] = array
    return landed


def split(data: bytes, ends: list[int]) -> list[memoryview]:
    bounds = [0, *sorted(ends), len(data)]
    return [memoryview(data)[start:stop] for start, stop in pairwise(bounds)]


@given(pieces())
def test_what_is_gathered_can_be_scattered(pieces) -> None:  # type: ignore[no-untyped-def]
    landed = put_together(gather(pieces), [(p.size, p.dtype) for p in pieces])
    assert all(np.array_equal(a, b) for a, b in zip(pieces, landed, strict=True))


@given(pieces())
def test_large_pieces_are_aliased_and_small_neighbours_share_a_buffer(pieces) -> None:  # type: ignore[no-untyped-def]
    buffers = gather(pieces)
    large = [piece for piece in pieces if piece.nbytes >= GATHER_NBYTES]
    aliased = [buffer for buffer in buffers if buffer.nbytes >= GATHER_NBYTES and any(buffer is p for p in large)]
    assert len(aliased) == len(large)
    assert all(buffer.nbytes for buffer in buffers)
    assert sum(buffer.nbytes for buffer in buffers) == sum(piece.nbytes for piece in pieces)
    assert len(buffers) <= 2 * len(large) + 1


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(DTYPES)), max_size=6), st.data())
def test_frames_may_end_between_any_two_elements(runs, data) -> None:  # type: ignore[no-untyped-def]
    arrays = [np.arange(size, dtype=dtype) + 10 * i for i, (size, dtype) in enumerate(runs)]
    payload = b"".join(array.tobytes() for array in arrays)
    ends = np.cumsum([0, *(dtype.itemsize for size, dtype in runs for _ in range(size))]).tolist()
    landed = put_together(split(payload, data.draw(st.lists(st.sampled_from(ends), max_size=6))), runs)
    assert all(np.array_equal(a, b) for a, b in zip(arrays, landed, strict=True))


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(DTYPES)), max_size=6), st.data())
def test_frames_that_end_anywhere_are_scattered_right_or_refused(runs, data) -> None:  # type: ignore[no-untyped-def]
    arrays = [np.arange(size, dtype=dtype) for size, dtype in runs]
    payload = b"".join(array.tobytes() for array in arrays)
    ends = data.draw(st.lists(st.integers(0, len(payload)), max_size=4))
    whole = set(np.cumsum([0, *(dtype.itemsize for size, dtype in runs for _ in range(size))]).tolist())
    if set(ends) <= whole:
        landed = put_together(split(payload, ends), runs)
        assert all(np.array_equal(a, b) for a, b in zip(arrays, landed, strict=True))
    else:
        with pytest.raises(ProtocolError, match="ends inside an element"):
            put_together(split(payload, ends), runs)


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(DTYPES)), max_size=6), st.integers(-60, 60))
def test_a_payload_of_another_length_is_refused(runs, difference) -> None:  # type: ignore[no-untyped-def]
    length = sum(size * dtype.itemsize for size, dtype in runs)
    wrong = max(0, length + difference)
    if wrong == length:
        put_together([bytes(length)], runs)
        return
    with pytest.raises(ProtocolError):
        list(scatter([bytes(wrong)], runs))


def test_an_array_at_an_odd_address_is_copied_into_place() -> None:
    data = b"\0" + np.arange(3, dtype="<f8").tobytes()
    [(run, offset, array)] = scatter([memoryview(data)[1:]], [(3, DTYPES[1])])
    assert (run, offset, array.tolist()) == (0, 0, [0.0, 1.0, 2.0])


def test_received_arrays_alias_the_frames() -> None:
    frame = np.arange(8, dtype="<f4")
    assert all(np.shares_memory(array, frame) for _, _, array in scatter([frame], [(3, DTYPES[0]), (5, DTYPES[0])]))
