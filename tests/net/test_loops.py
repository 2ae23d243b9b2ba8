"""Loops whose time stands still with the process; questions to a loop from another thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tests.net.clock import Time
from tests.pace import allow
from zmqps.core.node.awake import LOOK_S, SLACK_S
from zmqps.net import loops
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


def test_what_a_loop_waits_for_is_not_due_earlier_because_the_process_stood_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Time()
    monkeypatch.setattr(loops, "time", clock)
    rung: list[float] = []

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        loop.call_later(10.0, lambda: rung.append(loop.time() - began))
        clock.now += 13.0  # stopped, in the middle of a callback
        for _ in range(50):
            await asyncio.sleep(0)
            assert not rung
        while not rung:
            clock.now += LOOK_S  # each wait takes as long as it may
            await asyncio.sleep(0)
        assert rung == [pytest.approx(10.0, abs=LOOK_S + SLACK_S)]
        assert loops.stood_still_s(loop) == pytest.approx(13.0, abs=LOOK_S + SLACK_S)

    loops.run(wait())


def test_a_loop_wakes_to_look_at_the_clock_also_where_nothing_happens() -> None:
    loop = loops.AwakeLoop()
    assert loop._selector.select(None) == []  # type: ignore[attr-defined]  # else it never returned
    loop.close()
