"""Payloads of ids and rows are cut wherever frames end, and never read beyond."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqps.core.server.tables.arrays import ID_DTYPE, cut, joined, read_arrays
from zmqps.errors import ProtocolError

ROW = np.dtype("<f4")


@given(st.integers(0, 5), st.integers(0, 5), st.lists(st.integers(0, 80), max_size=6))
def test_arrays_are_read_from_frames_that_end_anywhere(num_ids: int, num_rows: int, ends: list[int]) -> None:
    ids, rows = np.arange(num_ids) - (1 << 60), np.arange(num_rows, dtype=np.float32)
    whole = ids.tobytes() + rows.tobytes()
    places = [0, *sorted(min(end, len(whole)) for end in ends), len(whole)]
    frames = [whole[start:stop] for start, stop in pairwise(places)]
    found = read_arrays(frames, [(num_ids, ID_DTYPE), (num_rows, ROW)])
    assert [array.tolist() for array in found] == [ids.tolist(), rows.tolist()]
    assert found[0].flags.carray, "as compiled code requires"
    assert b"".join(piece for part in cut(frames, 3 * (len(whole) > 3)) for piece in part) == whole
    for wrong in (-1, 1):
        if num_rows + wrong >= 0:
            with pytest.raises(ProtocolError):
                read_arrays(frames, [(num_ids, ID_DTYPE), (num_rows + wrong, ROW)])


def test_a_payload_is_not_as_long_as_it_says() -> None:
    with pytest.raises(ProtocolError, match="other bytes"):
        cut([b"12345678"], 1 << 60)
    assert cut([b"12", np.empty(0, ROW), b"345"], 1, 3) == [[b"1"], [b"2", b"34"], [b"5"]]


def test_rows_in_one_frame_are_not_copied_and_ids_are() -> None:
    frame = np.arange(4, dtype=np.float32)
    assert np.shares_memory(joined([memoryview(frame)], ROW), frame)
    assert not np.shares_memory(joined([memoryview(frame)], ID_DTYPE), frame)
