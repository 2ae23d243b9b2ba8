"""Spans in a ring: the newest stay, they are read back as they were, and any bytes are spans or refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqps.errors import ProtocolError
from zmqps.trace.ring import MAX_NAMES, OTHER, RECORD, Ring, unpack


def read(ring: Ring, piece: int = 100) -> bytes:
    ring.close()
    data = b""
    while len(data) < ring.nbytes:
        data += ring.read(len(data), piece)
    assert ring.read(len(data), piece) == b""
    return data


FACTS: dict[str, Any] = {
    "message": "Push", "request": "0a1b2c3d-17", "slice": 3, "version": 9, "step": 4, "nbytes": 1 << 33
}  # fmt: skip


def test_what_was_noted_is_read_back() -> None:
    ring = Ring(1 << 12, {"title": "server s", "boot": "here", "epoch_ns": 5})
    ring.span("serve", "server", 1_000, 3_500, **FACTS)
    ring.span("queue", "worker", 4_000, 5_000, "b", operation="push")
    process, head = unpack(read(ring))
    assert (process.name, process.boot, head["epoch_ns"], head["lost"]) == ("server s", "here", 5, 0)
    serve, queue = process.spans
    assert (serve.name, serve.role, serve.begin_us, serve.end_us, serve.facts) == ("serve", "server", 1.0, 3.5, FACTS)
    assert serve.thread is not None
    assert (queue.thread, queue.facts) == (None, {"operation": "push"})


def test_when_it_is_full_the_oldest_make_room_and_are_counted() -> None:
    ring = Ring(10 * RECORD.size)
    for number in range(37):
        ring.span("work", "worker", number * 1000, number * 1000 + 1)
    process, head = unpack(read(ring))
    assert [span.begin_us for span in process.spans] == list(range(27, 37))
    assert head["lost"] == 27
    assert ring.lost == 27 * RECORD.size


def test_it_takes_no_more_memory_than_it_was_given() -> None:
    ring = Ring(1 << 12)
    for number in range(10_000):
        ring.span("work", "worker", number, number + 1)
    ring.close()
    assert ring.nbytes <= (1 << 12) + 200


def test_names_have_a_bound() -> None:
    ring = Ring(1 << 18)
    for number in range(2 * MAX_NAMES):
        ring.span(f"name {number}", "worker", 0, 1)
    process, head = unpack(read(ring))
    assert len(head["names"]) <= MAX_NAMES
    assert process.spans[-1].name == OTHER


def test_an_empty_ring_is_read_too() -> None:
    process, _ = unpack(read(Ring(100)))
    assert process.spans == []


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_with_a_documented_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack(data)


@given(st.integers(0, 1 << 30), st.integers(0, 255))
def test_damaged_spans_are_spans_or_refused(place: int, value: int) -> None:
    ring = Ring(1 << 12, {"title": "server s"})
    for number in range(5):
        ring.span("serve", "server", number, number + 1, **FACTS)
    data = bytearray(read(ring))
    data[place % len(data)] = value
    try:
        process, _ = unpack(bytes(data))
    except ProtocolError:
        return
    assert len(process.spans) == 5


def test_what_was_cut_off_inside_the_head_or_a_record_is_refused() -> None:
    ring = Ring(1 << 12)
    for number in range(5):
        ring.span("serve", "server", number, number + 1)
    data = read(ring)
    head_nbytes = len(data) - 5 * RECORD.size
    for length in range(len(data)):
        whole, rest = divmod(length - head_nbytes, RECORD.size)
        if whole >= 0 and rest == 0:
            assert len(unpack(data[:length])[0].spans) == whole
        else:
            with pytest.raises(ProtocolError):
                unpack(data[:length])
