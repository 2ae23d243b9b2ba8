"""Work on threads that hold up no program's end, which those of `concurrent.futures` do."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from zmqps.errors import ClosedError

T = TypeVar("T")

Item = tuple["Future[Any]", Callable[[], Any]]


class Work:
    """Does what it is given in the order in which that comes, on threads that begin with the first.

    Parameters
    ----------
    name
        Of the threads.
    num_threads
        How many; with one, nothing begins before what came earlier has ended.
    """

    def __init__(self, name: str, num_threads: int = 1) -> None:
        self._name, self._num_threads = name, num_threads
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._begun = self._ended = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Let something be done; return the future of what it returns. After the end that fails with `ClosedError`."""
        future: Future[T] = Future()
        if self._ended:
            future.set_exception(ClosedError("the worker was closed"))
            return future
        self._items.put((future, work))
        if not self._begun:
            self._begun = True
            for _ in range(self._num_threads):
                threading.Thread(target=_work, args=(self._items,), name=self._name, daemon=True).start()
        return future

    def end(self) -> None:
        """Begin nothing more; what has not begun fails with `ClosedError`. Does not wait."""
        self._ended = True
        while True:
            try:
                item = self._items.get_nowait()
            except queue.Empty:
                break
            if item is not None and item[0].set_running_or_notify_cancel():
                item[0].set_exception(ClosedError("the worker was closed"))
        for _ in range(self._num_threads):
            self._items.put(None)


def _work(items: queue.SimpleQueue[Item | None]) -> None:
    while (item := items.get()) is not None:
        future, work = item
        if future.set_running_or_notify_cancel():
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        del item, future, work  # which may keep alive a worker without other references
