"""Questions to a loop from another thread: answered, failed, given up, and where the loop is closed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.pace import allow
from zmqps.net.loops import ask_loop

PATIENCE = allow(20.0)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join(PATIENCE)
    made.close()


def test_the_loop_answers_on_its_own_thread(loop: asyncio.AbstractEventLoop) -> None:
    assert ask_loop(loop, threading.get_ident).result(PATIENCE) != threading.get_ident()


def test_what_fails_is_raised_where_it_was_asked_and_the_loop_goes_on(loop: asyncio.AbstractEventLoop) -> None:
    with pytest.raises(ZeroDivisionError):
        ask_loop(loop, lambda: 1 / 0).result(PATIENCE)
    assert ask_loop(loop, lambda: 7).result(PATIENCE) == 7


def test_who_has_given_up_is_not_worked_for(loop: asyncio.AbstractEventLoop) -> None:
    busy, asked = threading.Event(), []
    loop.call_soon_threadsafe(busy.wait, PATIENCE)
    answer = ask_loop(loop, lambda: asked.append(1))
    assert answer.cancel()
    busy.set()
    ask_loop(loop, lambda: None).result(PATIENCE)
    assert asked == []


def test_a_loop_that_is_closed_says_so() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(RuntimeError):
        ask_loop(loop, lambda: None)
