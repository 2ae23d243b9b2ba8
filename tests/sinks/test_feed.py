"""A sink's own thread: whatever the sink does, nobody waits for it, and all that is lost is counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.pace import allow
from zmqps.sinks.feed import ENTRY_NBYTES, FLUSH_S, SAY_S, VALUE_NBYTES, Call, Feed, Feeds

NBYTES = ENTRY_NBYTES + VALUE_NBYTES
WAIT_S = allow(20.0)


class Noted:
    """A sink that remembers, and may be held up or broken."""

    def __init__(self, fails: Callable[[str], bool] = lambda what: False) -> None:
        self.calls: list[Any] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.flushed = threading.Event()
        self.closed = threading.Event()
        self._fails = fails

    def values(self, job: str, node: str, step: int | None, at: float, values: Any) -> None:
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        if self._fails("values"):
            raise OSError("no room on the disk")
        self.calls.append((job, node, step, at, values))

    def flush(self) -> None:
        self.flushed.set()
        if self._fails("flush"):
            raise OSError("no room on the disk")

    def close(self) -> None:
        self.closed.set()
        if self._fails("close"):
            raise OSError("no room on the disk")


def call(step: int) -> Call:
    return step, float(step), {"x": float(step)}


def steps(sink: Noted) -> list[int]:
    return [step for _, _, step, _, _ in sink.calls]


def test_all_is_written_in_order_by_one_thread_that_is_not_ours() -> None:
    sink = Noted()
    feed = Feed("a", sink)
    feed.put("default", "worker 2", [call(0), call(1)])
    feed.put("default", "worker 1", [call(2)])
    feed.end()
    assert feed.join(WAIT_S)
    assert sink.calls[:2] == [
        ("default", "worker 2", 0, 0.0, {"x": 0.0}),
        ("default", "worker 2", 1, 1.0, {"x": 1.0}),
    ]
    assert steps(sink) == [0, 1, 2]
    assert sink.flushed.is_set()
    assert sink.closed.is_set()


def test_nobody_waits_for_a_sink_that_is_held_up_and_what_is_dropped_is_counted_and_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = Noted()
    sink.gate.clear()
    feed = Feed("slow", sink, most_nbytes=10 * NBYTES)
    feed.put("j", "w", [call(0)])
    assert sink.entered.wait(WAIT_S)
    for step in range(1, 101):
        feed.put("j", "w", [call(step)])
    assert feed.num_dropped == 90
    sink.gate.set()
    feed.end()
    assert feed.join(WAIT_S)
    assert steps(sink) == [0, *range(91, 101)], "the newest are there"
    assert "--values slow is too slow: 90 calls of log dropped; training continues" in caplog.text


def test_a_batch_that_is_larger_than_the_queue_is_dropped() -> None:
    sink = Noted()
    feed = Feed("a", sink, most_nbytes=NBYTES)
    feed.put("j", "w", [call(0), call(1)])
    feed.put("j", "w", [call(2)])
    feed.end()
    assert feed.join(WAIT_S)
    assert steps(sink) == [2]
    assert feed.num_dropped == 2


def test_a_sink_that_fails_is_named_once_and_goes_on_to_be_asked(caplog: pytest.LogCaptureFixture) -> None:
    failures = iter([True] * 3 + [False] * 100)
    sink, now = Noted(lambda what: what == "values" and next(failures)), [0.0]
    feed = Feed("broken", sink, clock=lambda: now[0])
    feed.put("j", "w", [call(step) for step in range(5)])
    feed.end()
    assert feed.join(WAIT_S)
    assert steps(sink) == [3, 4]
    assert feed.num_failed == 3
    lines = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.getMessage() for line in lines] == [
        "--values broken cannot be written to: OSError: no room on the disk; training continues"
    ]


def test_after_a_while_it_is_said_how_often_it_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0.0] * 8 + [SAY_S + 1.0] * 50)
    sink = Noted(lambda what: what == "values")
    feed = Feed("broken", sink, clock=lambda: next(times))
    feed.put("j", "w", [call(step) for step in range(20)])
    feed.end()
    assert feed.join(WAIT_S)
    assert len(caplog.records) == 2
    assert "more since the last line" in caplog.records[1].getMessage()


def test_a_sink_that_cannot_even_be_closed_ends_its_thread() -> None:
    sink = Noted(lambda what: True)
    feed = Feed("broken", sink)
    feed.put("j", "w", [call(0)])
    feed.end()
    assert feed.join(WAIT_S)
    assert sink.closed.is_set()


def test_what_comes_is_flushed_while_more_comes() -> None:
    now = [0.0]
    sink = Noted()
    feed = Feed("a", sink, clock=lambda: now[0])
    feed.put("j", "w", [call(0)])
    assert sink.entered.wait(WAIT_S)
    now[0] = FLUSH_S + 1.0
    feed.put("j", "w", [call(1)])
    assert sink.flushed.wait(WAIT_S)
    assert not sink.closed.is_set()
    feed.end()
    assert feed.join(WAIT_S)


def test_one_sink_does_not_keep_the_others_back(caplog: pytest.LogCaptureFixture) -> None:
    good, stuck = Noted(), Noted()
    stuck.gate.clear()
    feeds = Feeds({"stuck": stuck, "good": good})
    feeds.put("j", "w", [call(0)])
    assert stuck.entered.wait(WAIT_S)
    feeds.close(timeout=0.2)
    assert good.closed.wait(WAIT_S)
    assert steps(good) == [0]
    assert "--values stuck has not written all within 0.2 s" in caplog.text
    stuck.gate.set()
    assert feeds.feeds[0].join(WAIT_S)
