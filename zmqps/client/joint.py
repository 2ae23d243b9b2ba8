"""Futures that combine several operations, or none."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any


class Joint(Future[Any]):
    """The joint future of several operations, with the result of the first; it cannot be withdrawn.

    Parameters
    ----------
    parts
        Their futures, not shared with other code; at least one.
    """

    def __init__(self, parts: Sequence[Future[Any]]) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        self._parts, self._left, self._counting = tuple(parts), len(parts), threading.Lock()
        for part in self._parts:
            part.add_done_callback(self._ended)

    def result(self, timeout: float | None = None) -> Any:
        """Return the result once it is there; see `concurrent.futures.Future.result`."""
        self._wait(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception once it is there; see `concurrent.futures.Future.exception`."""
        self._wait(timeout)
        return super().exception(timeout)

    def _wait(self, timeout: float | None) -> None:
        for part in self._parts:
            part.exception(timeout)  # it raises where waiting is not allowed

    def _ended(self, part: Future[Any]) -> None:
        with self._counting:
            self._left -= 1
            if self._left:
                return
        error = next((found for part in self._parts if (found := part.exception()) is not None), None)
        if error is None:
            self.set_result(self._parts[0].result())
        else:
            self.set_exception(error)


def done(value: Any = None) -> Future[Any]:
    """Return a future with a result that is already there."""
    future = Future[Any]()
    future.set_result(value)
    return future
