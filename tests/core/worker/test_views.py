"""Values left where they arrived: which arrays are views, which are copies, and what keeps the memory as it is."""

from __future__ import annotations

import gc
import weakref
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps.core.protocol.arrays import OwnMemory, borrow, lender_of, received, scatter
from zmqps.core.worker.views import MOST_KEPT, MOST_KEPT_OWN, Views


class Hold:
    """Stands for a loan."""


def memory_of(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    memory = values.view(np.uint8)
    memory.flags.writeable = False
    return memory


def landed(views: Views, buffer: np.ndarray[Any, Any], frames: list[Any], dtype: str = "float32") -> None:
    for _, offset, array in scatter(frames, [(buffer.size, np.dtype(dtype))]):
        views.land(buffer[offset : offset + array.size], array)


def seen(buffer: np.ndarray[Any, Any], *frames: Any) -> np.ndarray[Any, Any]:
    """Return the one array over a buffer in which frames have landed."""
    views = Views([buffer])
    landed(views, buffer, list(frames))
    (array,) = views.arrays()
    return array


def test_whatever_is_made_of_a_borrowed_frame_keeps_its_hold() -> None:
    values, hold = np.arange(8, dtype=np.float32), Hold()
    gone = weakref.ref(hold)
    frame = borrow(memory_of(values), 4, 20, hold)
    del hold
    array: Any = np.frombuffer(frame, np.float32)
    assert array.tolist() == [1, 2, 3, 4]
    assert lender_of(array) is not None
    array = np.asarray(array)[1:].reshape(3, 1)[1:]
    del frame
    assert gone() is not None
    assert array.tolist() == [[3], [4]]
    assert not array.flags.writeable
    del array
    assert gone() is None


def test_an_array_over_frames_of_one_memory_is_a_view_that_keeps_all_their_holds() -> None:
    values, holds = np.arange(8, dtype=np.float32), [Hold(), Hold()]
    gone = [weakref.ref(hold) for hold in holds]
    memory, buffer = memory_of(values), np.zeros(8, np.float32)
    views = Views([buffer[:3], buffer[3:6], buffer[6:]])
    landed(views, buffer, [borrow(memory, 0, 16, holds[0]), borrow(memory, 16, 32, holds[1])])
    first, both, last = views.arrays()
    assert [a.tolist() for a in (first, both, last)] == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert all(np.shares_memory(a, values) and not a.flags.writeable for a in (first, both, last))
    assert not buffer.any()
    del views, holds, first
    assert all(ref() is not None for ref in gone)
    del both
    assert [ref() is not None for ref in gone] == [False, True]  # what is looked at, and no more
    del last
    gc.collect()
    assert all(ref() is None for ref in gone)


def test_an_array_that_ends_where_its_last_frame_does_is_a_view_too() -> None:
    values = np.arange(8, dtype=np.float32)
    memory = memory_of(values)
    array = seen(np.zeros(8, np.float32), borrow(memory, 0, 16, Hold()), borrow(memory, 16, 32, Hold()))
    assert array.tolist() == values.tolist()
    assert np.shares_memory(array, values)


def test_what_was_copied_or_lies_elsewhere_is_put_together_read_only() -> None:
    one, two = np.arange(4, dtype=np.float32), np.arange(4, 8, dtype=np.float32)
    for frames in (
        [borrow(memory_of(one), 0, 16, Hold()), two.tobytes()],
        [one.tobytes(), borrow(memory_of(two), 0, 16, Hold())],
        [borrow(memory_of(one), 0, 16, Hold()), borrow(memory_of(two), 0, 16, Hold())],
    ):
        buffer = np.zeros(8, np.float32)
        array = seen(buffer, *frames)
        assert array.tolist() == list(range(8))
        assert np.shares_memory(array, buffer)
        assert not array.flags.writeable


def test_frames_of_one_memory_in_another_order_are_no_view() -> None:
    memory = memory_of(np.arange(8, dtype=np.float32))
    array = seen(np.zeros(8, np.float32), borrow(memory, 16, 32, Hold()), borrow(memory, 0, 16, Hold()))
    assert array.tolist() == [4, 5, 6, 7, 0, 1, 2, 3]


@for_each("lent", [True, False])
def test_what_is_read_again_takes_the_place_of_what_was_read_before(lent: bool) -> None:
    old, buffer = np.zeros(8, np.float32), np.full(8, 9, np.float32)
    views = Views([buffer[:4], buffer[4:]])
    landed(views, buffer, [borrow(memory_of(old), 0, 32, Hold()) if lent else old.tobytes()])
    views.forget(buffer)
    landed(views, buffer, [np.ones(3, np.float32).tobytes(), np.ones(5, np.float32).tobytes()])
    assert np.concatenate(views.arrays()).tolist() == [1.0] * 8


def test_what_lies_in_one_received_frame_is_a_view_of_it_and_what_is_over_two_is_copied() -> None:
    values = np.arange(12, dtype=np.float32)
    frames = [values[:5].tobytes(), values[5:].tobytes()]
    buffer = np.zeros(12, np.float32)
    bounds = [(0, 4), (4, 7), (7, 7), (7, 12)]
    views = Views([buffer[lo:hi] for lo, hi in bounds])
    landed(views, buffer, frames)
    arrays = views.arrays()
    assert [array.tolist() for array in arrays] == [values[lo:hi].tolist() for lo, hi in bounds]
    assert [np.shares_memory(array, buffer) for array in arrays] == [False, True, False, False]
    assert not any(array.flags.writeable for array in arrays)
    for number, frame in ((0, frames[0]), (3, frames[1])):
        assert np.shares_memory(arrays[number], np.frombuffer(frame, np.uint8))


def test_a_small_part_of_a_received_frame_is_copied_and_keeps_none_of_it() -> None:
    values = np.arange(8 * MOST_KEPT, dtype=np.float32)
    buffer = np.zeros(values.size, np.float32)
    views = Views([buffer[:7], buffer[7:16], buffer[16:23], buffer[23:]])
    landed(views, buffer, [values.tobytes()])
    arrays = views.arrays()
    assert [np.shares_memory(array, buffer) for array in arrays] == [True, False, True, False]
    np.testing.assert_array_equal(np.concatenate(arrays), values)


def test_frames_in_memory_that_is_needed_again_are_copied() -> None:
    values = np.arange(8, dtype=np.float32)
    array = seen(np.zeros(8, np.float32), memoryview(values))
    values[:] = -1
    assert array.tolist() == list(range(8))


class Copies:
    """Copies on write that are made at once: of each memory one."""

    def __init__(self) -> None:
        self.holds: list[Any] = []

    def __call__(self, memory: Any, hold: Any) -> Any:
        self.holds.append(hold)
        return OwnMemory(memory.copy())


def test_arrays_of_the_caller_lie_in_one_copy_on_write_of_each_memory() -> None:
    memory, copies = memory_of(np.arange(8, dtype=np.float32)), Copies()
    buffer = np.zeros(8, np.float32)
    views = Views([buffer[:3], buffer[3:]], copies)
    landed(views, buffer, [borrow(memory, 0, 20, Hold()), borrow(memory, 20, 32, Hold())])
    first, second = views.arrays()
    second[0] = 9.0
    assert memory.view(np.float32).tolist() == list(range(8))
    assert (first.tolist(), second.tolist()) == ([0, 1, 2], [9, 4, 5, 6, 7])
    assert not buffer.any()
    assert [len(holds) for holds in copies.holds] == [2]


def test_without_a_copy_on_write_arrays_of_the_caller_are_copied() -> None:
    values, buffer = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    views = Views([buffer], lambda memory, hold: None)
    landed(views, buffer, [borrow(memory_of(values), 0, 32, Hold())])
    (array,) = views.arrays()
    array += 1
    assert buffer.tolist() == list(range(1, 9))
    assert values.tolist() == list(range(8))


@for_each("frame", [bytes, bytearray])
@for_each("kept", [MOST_KEPT_OWN, MOST_KEPT_OWN + 1])
def test_an_array_of_the_caller_stays_in_a_message_of_which_it_is_half(frame: Any, kept: int) -> None:
    values = np.arange(4 * kept, dtype=np.float32)
    buffer = np.zeros_like(values)
    views = Views([buffer[:4], buffer[4:]], Copies())
    data = frame(values.tobytes())
    landed(views, buffer, [data])
    small, rest = views.arrays()
    assert received(small) is None or kept == MOST_KEPT_OWN
    assert (received(rest) is not None) == (frame is bytearray)  # else nobody may write to it
    for array in (small, rest):
        array += 1
    assert np.concatenate([small, rest]).tolist() == (values + 1).tolist()
    assert received(small) is not None or np.shares_memory(small, buffer)


@given(
    sizes=st.lists(st.integers(0, 9), max_size=12),
    cuts=st.lists(st.integers(0, 60), max_size=8),
    lent=st.integers(0, 255),
    twice=st.integers(0, 255),
    own=st.booleans(),
)
def test_views_and_copies_hold_what_a_copy_of_everything_holds(
    sizes: list[int], cuts: list[int], lent: int, twice: int, own: bool
) -> None:
    total = sum(sizes)
    values = np.arange(total, dtype=np.float64)
    memories = [memory_of(values), memory_of(values.copy())]
    bounds = sorted({0, total, *(cut for cut in cuts if cut < total)})
    ends = np.cumsum([0, *sizes]).tolist()
    buffer = np.full(total, -1.0)
    views = Views([buffer[lo:hi] for lo, hi in pairwise(ends)], Copies() if own else None)
    for i, (start, stop) in enumerate(pairwise(bounds)):
        memory = memories[twice >> i & 1]
        frame: Any = borrow(memory, 8 * start, 8 * stop, Hold())
        landed(views, buffer[start:stop], [frame if lent >> i & 1 else bytes(frame)], "float64")
    arrays = views.arrays()
    assert [array.tolist() for array in arrays] == [values[lo:hi].tolist() for lo, hi in pairwise(ends)]
    assert all(array.flags.writeable == own for array in arrays)
