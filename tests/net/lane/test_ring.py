"""The ring of a lane: what goes in comes out, in place, and nothing is overwritten while it is in use."""

from __future__ import annotations

import gc
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps.net.lane.ring import ALIGNMENT, RingError, RingReader, RingWriter, align

SIZE = 16 * ALIGNMENT


class Ring:
    """Both sides over the same memory."""

    def __init__(self, size: int = SIZE) -> None:
        self.data = np.zeros(size, np.uint8)
        self.tail = np.zeros(1, np.uint64)
        self.writer = RingWriter(self.data, self.tail)
        self.reader = RingReader(self.data, self.tail)

    def send(self, *contents: bytes) -> tuple[int, list[tuple[int, int]]] | None:
        """Put a message's frames in; None if one of them found no room."""
        base, frames = self.writer.head, []
        for content in contents:
            position = self.writer.put(content)
            if position is None:
                self.writer.head = base
                return None
            frames.append((position, len(content)))
        return base, frames


def test_a_frame_comes_out_as_it_went_in_read_only_and_without_a_copy() -> None:
    ring = Ring()
    message = ring.send(b"abc")
    assert message is not None
    (view,) = ring.reader.take(*message)
    assert bytes(view) == b"abc"
    assert view.readonly
    assert np.shares_memory(np.frombuffer(view, np.uint8), ring.data)


def test_what_is_made_of_a_view_keeps_its_frame_from_being_overwritten() -> None:
    ring = Ring()
    message = ring.send(bytes(range(32)))
    assert message is not None
    array = np.frombuffer(ring.reader.take(*message)[0].cast("B")[8:], np.float32)[1:]
    ring.reader.free()
    assert ring.tail[0] == 0
    assert ring.send(bytes(SIZE)) is None
    assert array.tobytes() == bytes(range(12, 32))
    del array
    ring.reader.free()
    assert ring.tail[0] == ALIGNMENT
    assert ring.send(bytes(SIZE)) is not None


def test_an_empty_ring_begins_again_at_its_start() -> None:
    ring = Ring()
    offsets = set()
    for _ in range(40):
        message = ring.send(b"x" * 100)
        assert message is not None
        offsets.add(message[1][0][0] % SIZE)
        ring.reader.take(*message)
        ring.reader.free()
    assert offsets == {0}


def test_after_a_restart_the_whole_ring_can_be_used_before_the_reader_has_heard_of_it() -> None:
    ring = Ring()
    first = ring.send(b"x")
    assert first is not None
    ring.reader.take(*first)
    ring.reader.free()
    messages = [ring.send(b"x" * ALIGNMENT) for _ in range(SIZE // ALIGNMENT)]
    assert None not in messages
    assert ring.send(b"x") is None
    for message in messages:
        assert message is not None
        ring.reader.take(*message)
    ring.reader.free()
    assert ring.tail[0] == ring.writer.head


def test_lost_messages_leak_nothing() -> None:
    ring = Ring()
    while ring.send(b"x" * ALIGNMENT) is not None:
        pass  # all of it lost on the way
    ring.reader.take(ring.writer.head, [])  # of a message that found no room
    ring.reader.free()
    assert ring.send(bytes(SIZE)) is not None


def test_a_frame_larger_than_the_ring_finds_no_room() -> None:
    ring = Ring()
    assert ring.send(bytes(SIZE + 1)) is None
    assert ring.send(bytes(SIZE)) is not None


@given(st.data())
def test_any_traffic_arrives_whole(data: st.DataObject) -> None:
    ring = Ring()
    under_way: deque[tuple[tuple[int, list[tuple[int, int]]], list[bytes]]] = deque()
    in_use: list[tuple[memoryview, bytes]] = []
    for number in range(data.draw(st.integers(1, 60))):
        match data.draw(st.sampled_from(("send", "send", "receive", "lose", "let go", "take back"))):
            case "send" | "take back" as how:
                sizes = data.draw(st.lists(st.integers(1, SIZE // 2), min_size=1, max_size=3))
                contents = [bytes([number % 251 + i]) * size for i, size in enumerate(sizes)]
                before = ring.writer.head
                message = ring.send(*contents)
                if how == "take back":
                    ring.writer.head = before
                elif message is not None:
                    under_way.append((message, contents))
            case "receive" if under_way:
                message, contents = under_way.popleft()
                in_use += zip(ring.reader.take(*message), contents, strict=True)
                ring.reader.free()
            case "lose" if under_way:
                under_way.popleft()
            case "let go" if in_use:
                del in_use[data.draw(st.integers(0, len(in_use) - 1))]
                ring.reader.free()
        assert all(bytes(view) == content for view, content in in_use)
    while under_way:
        message, contents = under_way.popleft()
        assert [bytes(view) for view in ring.reader.take(*message)] == contents
    in_use.clear()
    ring.reader.take(ring.writer.head, [])
    ring.reader.free()
    assert ring.send(bytes(SIZE)) is not None, "all room is free again"


@given(
    st.integers(0, 1 << 65), st.lists(st.tuples(st.integers(0, 1 << 65), st.integers(0, 1 << 65)), max_size=4)
)  # fmt: skip
def test_no_description_leads_outside_the_ring(base: int, frames: list[tuple[int, int]]) -> None:
    ring = Ring()
    try:
        views = ring.reader.take(base, frames)
    except RingError:
        assert ring.tail[0] == 0
        return
    assert [view.nbytes for view in views] == [nbytes for _, nbytes in frames]
    assert sum(align(view.nbytes) for view in views) <= SIZE


@for_each(
    "base, frames",
    [
        (0, [(0, SIZE + 1)]),
        (0, [(ALIGNMENT, SIZE)]),
        (0, [(1, 10)]),
        (0, [(0, 0)]),
        (0, [(ALIGNMENT, 1), (0, 1)]),
        (0, [(0, 2 * ALIGNMENT), (ALIGNMENT, 1)]),
        (ALIGNMENT, [(0, 1)]),
        (0, [(0, ALIGNMENT), (SIZE, 2 * ALIGNMENT)]),
    ],
)
def test_descriptions_that_no_writer_makes_are_refused(base: int, frames: list[tuple[int, int]]) -> None:
    with pytest.raises(RingError):
        Ring().reader.take(base, frames)


def test_a_message_that_came_before_is_refused() -> None:
    ring = Ring()
    message = ring.send(b"abc")
    assert message is not None
    ring.reader.take(*message)
    with pytest.raises(RingError):
        ring.reader.take(*message)


@for_each("tail", [ALIGNMENT * 2, 1 << 63])
def test_a_tail_before_which_nothing_was_written_is_noticed(tail: int) -> None:
    ring = Ring()
    ring.send(b"abc")
    ring.tail[0] = tail
    with pytest.raises(RingError):
        ring.writer.put(b"abc")


def test_frames_need_no_collector_to_be_freed() -> None:
    gc.disable()
    try:
        ring = Ring()
        for _ in range(100):
            message = ring.send(bytes(SIZE // 2))
            assert message is not None
            ring.reader.take(*message)
            ring.reader.free()
    finally:
        gc.enable()
