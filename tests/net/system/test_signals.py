"""Handlers of ours beside those of a script, and signals that are ignored."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tables import for_each
from zmqps.net.system.signals import answered, heed_children

NUMBER = signal.SIGUSR1
STATUS = Path("/proc/self/status")


@pytest.fixture
def set_handler() -> Iterator[Callable[[object], None]]:
    before = signal.getsignal(NUMBER)
    yield lambda handler: signal.signal(NUMBER, handler) and None
    signal.signal(NUMBER, before)


def heard(*, from_parent: bool = False) -> list[str]:
    """Return what is heard of a signal while it is answered."""
    said: list[str] = []

    async def main() -> None:
        with answered([NUMBER], lambda number: said.append(number.name), from_parent=from_parent):
            signal.raise_signal(NUMBER)
            turn = asyncio.Event()
            asyncio.get_running_loop().call_soon(turn.set)
            await turn.wait()
            await asyncio.sleep(0)

    asyncio.run(main())
    return said


def test_a_signal_is_answered_and_then_does_what_it_did(set_handler: Callable[[object], None]) -> None:
    set_handler(signal.SIG_DFL)
    assert heard() == ["SIGUSR1"]
    assert signal.getsignal(NUMBER) is signal.SIG_DFL


def test_what_is_ignored_stays_ignored(set_handler: Callable[[object], None]) -> None:
    set_handler(signal.SIG_IGN)
    assert heard() == []
    assert signal.getsignal(NUMBER) is signal.SIG_IGN


def test_what_a_parent_of_ours_says_is_heard_although_it_is_ignored(set_handler: Callable[[object], None]) -> None:
    set_handler(signal.SIG_IGN)
    assert heard(from_parent=True) == ["SIGUSR1"]
    assert signal.getsignal(NUMBER) is signal.SIG_IGN


def test_what_a_script_has_set_is_called_too_and_stays(set_handler: Callable[[object], None]) -> None:
    called: list[int] = []

    def handler(number: int, frame: object) -> None:
        called.append(number)

    set_handler(handler)
    assert heard() == ["SIGUSR1"]
    assert called == [NUMBER]
    assert signal.getsignal(NUMBER) is handler


def test_ctrl_c_is_ours_alone_under_asyncio_which_has_set_a_handler_of_its_own() -> None:
    said: list[str] = []

    async def main() -> None:
        with answered([signal.SIGINT], lambda number: said.append(number.name)):
            signal.raise_signal(signal.SIGINT)
            for _ in range(3):
                await asyncio.sleep(0)

    asyncio.run(main())  # asyncio's own handler would have cancelled it
    assert said == ["SIGINT"]


@for_each("in_thread", [False, True])
def test_how_children_end_is_known_again(in_thread: bool) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        if in_thread:
            thread = threading.Thread(target=heed_children)
            thread.start()
            thread.join()
        else:
            heed_children()
        ignored = next(line for line in STATUS.read_text().splitlines() if line.startswith("SigIgn"))
        assert not int(ignored.split()[1], 16) >> (signal.SIGCHLD - 1) & 1
    finally:
        signal.signal(signal.SIGCHLD, before)
