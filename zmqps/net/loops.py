"""Questions to what a loop of another thread runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def ask_loop(loop: asyncio.AbstractEventLoop, question: Callable[[], T]) -> Future[T]:
    """Let a loop answer a question when it has time; whoever does not wait any more cancels the future.

    Raises
    ------
    RuntimeError
        The loop is closed.
    """
    answer: Future[T] = Future()

    def run() -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(question())
        except Exception as error:  # whoever waits is told; the loop goes on
            answer.set_exception(error)

    loop.call_soon_threadsafe(run)
    return answer
