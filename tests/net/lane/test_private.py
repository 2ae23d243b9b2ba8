"""Private mappings: what is written stays here, what is read costs nothing, and nothing is left of it."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest

from zmqps.core.protocol.arrays import Bytes, borrow
from zmqps.net.lane import private
from zmqps.net.lane.private import MOST_KEPT, Private, PrivateMappings, can_detach

PAGE, NUM_PAGES = private.mmap.PAGESIZE, 8

pytestmark = pytest.mark.skipif(not can_detach(), reason="this kernel copies no private pages when asked to")


class Lender:
    """A file and what it holds."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("zmqps-test")
        os.ftruncate(self.fd, NUM_PAGES * PAGE)
        self.data: Bytes = np.frombuffer(private.mmap.mmap(self.fd, NUM_PAGES * PAGE), np.uint8)
        self.mappings = PrivateMappings(self.fd, NUM_PAGES * PAGE)
        self.data[:] = 1

    def take(self) -> Private:
        taken = self.mappings.take(object())
        assert taken is not None
        return taken


@pytest.fixture
def lender() -> Iterator[Lender]:
    made = Lender()
    yield made
    os.close(made.fd)


def test_what_is_written_stays_here_and_is_gone_with_it(lender: Lender) -> None:
    reports: list[tuple[int, int]] = []
    for turn in range(3):
        taken = lender.take()
        taken.report, taken.used = lambda *of: reports.append(of), [(0, turn)]
        assert (taken.data == 1).all()
        taken.data[turn * PAGE + 7] = 2
        taken.data[-1] = 3
        assert (lender.data == 1).all()
        assert taken.written_nbytes == 2 * PAGE
        del taken
    assert reports == [(2 * PAGE, turn) for turn in range(3)]


def test_what_is_only_read_is_the_lender_s(lender: Lender) -> None:
    for value in (4, 5):
        taken = lender.take()
        lender.data[:] = value  # once it has its loan back, such as before the next values
        assert (taken.data == value).all()
        assert taken.written_nbytes == 0
        del taken


def test_two_takers_do_not_see_each_other(lender: Lender) -> None:
    first, second = lender.take(), lender.take()
    first.data[0], second.data[0] = 8, 9
    assert (first.data[0], second.data[0], lender.data[0]) == (8, 9, 1)


def test_what_is_detached_stays_whatever_the_lender_writes(lender: Lender) -> None:
    hold: Any = type("Hold", (), {})()
    gone = private.weakref.ref(hold)
    taken = lender.mappings.take(hold)
    assert taken is not None
    del hold
    taken.data[5] = 6
    taken.used += [(0, 100), (3 * PAGE + 5, NUM_PAGES * PAGE)]
    assert gone() is not None
    taken.detach()
    assert gone() is None
    lender.data[:] = 7
    assert (taken.data[5], taken.data[0], taken.data[-1]) == (6, 1, 1)
    assert taken.written_nbytes == 6 * PAGE, "what no array lies in is not copied"
    taken.detach()  # nothing is left to do
    del taken
    assert (lender.take().data == 7).all()


def test_a_child_process_keeps_what_it_had(lender: Lender) -> None:
    taken = lender.take()
    taken.used.append((0, taken.data.size))
    child = os.fork()
    if not child:
        os._exit(0 if private._in_use and (taken.data == 1).all() and taken.written_nbytes == taken.data.size else 1)
    lender.data[:] = 7
    assert (taken.data == 1).all()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_mapping_that_is_found_while_it_ends_is_not_detached(lender: Lender, monkeypatch: pytest.MonkeyPatch) -> None:
    original: Any = Private.written_nbytes

    def found(self: Private) -> int | None:
        written: int | None = original.fget(self)
        self.detach()  # as another thread does that has found it by a weak reference
        return written

    monkeypatch.setattr(Private, "written_nbytes", property(found))
    taken = lender.take()
    taken.used.append((0, taken.data.size))
    assert (taken.data == 1).all()
    del taken
    lender.data[:] = 7
    assert (lender.take().data == 7).all()


def test_nothing_is_taken_between_a_fork_s_beginning_and_its_end(lender: Lender) -> None:
    private._before_fork()
    try:
        with ThreadPoolExecutor(1) as pool:
            taking = pool.submit(lender.take)
            with pytest.raises(TimeoutError):
                taking.result(0.05)
            private._lock.release()
            assert taking.result(30.0).written_nbytes == 0
    finally:
        private._lock.acquire()
        private._lock.release()


def test_what_ends_during_a_fork_waits_for_nothing_and_is_let_go(lender: Lender) -> None:
    lender.take()
    before = psutil.Process().num_fds()
    taken = [lender.take()]
    taken[0].data[0] = 5
    private._before_fork()
    try:
        thread = threading.Thread(target=taken.clear)
        thread.start()
        thread.join(30.0)
        assert not thread.is_alive()
    finally:
        private._lock.release()
    assert psutil.Process().num_fds() == before - 1
    assert (lender.take().data == 1).all()


def test_no_more_mappings_stay_than_are_used_again(lender: Lender) -> None:
    gc.collect()
    before = psutil.Process().num_fds()
    taken = [lender.take() for _ in range(MOST_KEPT + 3)]
    arrays = [np.frombuffer(borrow(each.data, 0, PAGE, each)) for each in taken]
    del taken
    assert psutil.Process().num_fds() > before + MOST_KEPT
    del arrays
    assert psutil.Process().num_fds() == before + MOST_KEPT
    del lender.mappings
    assert psutil.Process().num_fds() < before


def test_where_the_system_does_not_say_what_was_written_mappings_are_not_used_again(
    lender: Lender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Private, "written_nbytes", None)
    before = psutil.Process().num_fds()
    taken = lender.take()
    taken.data[0] = 5
    del taken
    assert lender.take().data[0] == 1
    assert psutil.Process().num_fds() == before


def test_where_pages_cannot_be_copied_when_asked_to_nothing_is_taken(
    lender: Lender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(private, "can_detach", lambda: False)
    assert lender.mappings.take(object()) is None
