"""What a process says of its threads: their names, files and lines, never more than fits, and no values."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.pace import allow
from zmqps.core.protocol.messages import Probed
from zmqps.core.protocol.messages.watching import MAX_STACKS_NBYTES
from zmqps.core.protocol.wire import MAX_SHORT_HEADER_NBYTES, decode, encode
from zmqps.net.system import stacks


@contextmanager
def waiting(names: list[str], depth: int = 1) -> Iterator[None]:
    """Have threads of these names that wait some calls deep."""
    release = threading.Event()
    there = threading.Barrier(len(names) + 1)

    def work(left: int, secret: str = "a value that is nobody's business") -> None:
        if left > 1:
            work(left - 1)
            return
        there.wait(20)
        release.wait(20)

    threads = [threading.Thread(target=work, args=(depth,), name=name) for name in names]
    for thread in threads:
        thread.start()
    there.wait(20)
    try:
        yield
    finally:
        release.set()
        for thread in threads:
            thread.join()


def test_each_thread_has_its_name_its_frames_and_their_code() -> None:
    with waiting(["reader"]):
        text = "\n".join(stacks.threads())
    assert "thread reader\n" in text
    assert "test_stacks.py:" in text
    reader = text.partition("thread reader\n")[2]
    assert reader.index("Event.wait" if "Event.wait" in reader else "Barrier.wait") < reader.index("Thread.run")
    assert "waiting.<locals>.work" in text
    assert "there.wait(20)" in text or "release.wait(20)" in text
    assert "thread MainThread, which answers this" in text
    assert "nobody's business" not in text


def test_however_much_there_is_it_fits_into_a_message() -> None:
    with waiting([f"a thread with a long name, number {n} ".ljust(200, "x") for n in range(80)], depth=80):
        lines = stacks.threads()
    assert sum(len(line.encode()) + 1 for line in lines) <= MAX_STACKS_NBYTES
    frames = encode(Probed(1, 1, 0.0, tuple(lines)))
    assert len(bytes(frames[0])) <= MAX_SHORT_HEADER_NBYTES
    assert decode(frames) == Probed(1, 1, 0.0, tuple(lines))
    assert lines[-1] == "…"
    assert any("frames further out" in line for line in lines)


@pytest.mark.skipif(not hasattr(signal, stacks.SIGNAL), reason="no such signal here")
def test_a_process_whose_threads_are_stuck_writes_its_stacks_at_the_signal() -> None:
    script = """
import os, signal, sys
from zmqps.net.system import stacks
assert stacks.facts() == {}
assert stacks.answer_signal("worker-3")
assert stacks.facts() == {"stacks_signal": int(signal.SIGUSR2), "log": "worker-3"}
os.kill(os.getpid(), signal.SIGUSR2)
signal.signal(signal.SIGUSR2, lambda *_: None)  # from now on it is the user's
assert stacks.facts() == {"log": "worker-3"}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=allow(60), check=True)
    assert "Current thread" in done.stderr
    assert 'File "<string>", line 7 in <module>' in done.stderr


@pytest.mark.skipif(not hasattr(signal, stacks.SIGNAL), reason="no such signal here")
def test_a_signal_that_the_user_has_a_use_for_is_left_alone() -> None:
    script = """
import signal
from zmqps.net.system import stacks
signal.signal(signal.SIGUSR2, lambda *_: print("mine"))
assert not stacks.answer_signal()
signal.raise_signal(signal.SIGUSR2)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=allow(60), check=True)
    assert done.stdout == "mine\n"
