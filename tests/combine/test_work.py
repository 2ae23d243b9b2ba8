"""Work in the background: in order, and never the reason why a program does not end."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from tests.pace import allow
from zmqps.combine.work import Work
from zmqps.errors import ClosedError

PATIENCE = allow(20.0)


def test_work_is_done_in_order_and_errors_are_the_futures() -> None:
    work, done = Work("test"), []
    futures = [work.submit(lambda n=n: done.append(n)) for n in range(5)]  # type: ignore[misc]
    failed = work.submit(lambda: 1 // 0)
    for future in futures:
        future.result(PATIENCE)
    assert done == [0, 1, 2, 3, 4]
    with pytest.raises(ZeroDivisionError):
        failed.result(PATIENCE)
    work.end()


def test_what_has_not_begun_at_the_end_fails() -> None:
    work, go, begun = Work("test"), threading.Event(), threading.Event()
    first = work.submit(lambda: (begun.set(), go.wait(PATIENCE))[1])
    second = work.submit(lambda: None)
    begun.wait(PATIENCE)
    work.end()
    go.set()
    assert first.result(PATIENCE)
    for late in (second, work.submit(lambda: None)):
        with pytest.raises(ClosedError):
            late.result(PATIENCE)


def test_a_program_ends_while_something_is_being_done() -> None:
    program = "import threading; from zmqps.combine.work import Work; Work('w').submit(threading.Event().wait)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)
