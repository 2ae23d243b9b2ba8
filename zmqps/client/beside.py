"""A second thread, for work that can be split in two while a user waits for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache, partial
from typing import Any

from zmqps.codecs import ALONE
from zmqps.core.protocol.encoding import CODING, Coding

#: More threads neither read memory faster nor leave a core to the program.
NUM_THREADS = min(2, os.cpu_count() or 1)


@cache
def helper() -> ThreadPoolExecutor:
    """Return this process's second thread; its functions must release the interpreter lock."""
    return ThreadPoolExecutor(1, "zmqps-helper")


if hasattr(os, "register_at_fork"):  # a forked child has the executor, but not its thread, and would wait forever
    os.register_at_fork(after_in_child=helper.cache_clear)


class TwoThreads:
    """The calling thread and the second one; a `zmqps.codecs.Spread`."""

    width = NUM_THREADS

    def __call__(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Run the first here and the others there; return all results."""
        try:
            others = [helper().submit(task) for task in tasks[1:]]
        except RuntimeError:  # the interpreter is about to end, and starts no more threads
            return ALONE(tasks)
        try:
            first = [task() for task in tasks[:1]]
        finally:
            wait(others)  # after an error, too, no thread may write to the caller's arrays any more
        return first + [other.result() for other in others]


def in_two_threads() -> Coding:
    """Return the codecs' door for a background thread: the second thread encodes half of what a push waits for."""
    return CODING._replace(compress=partial(CODING.compress, spread=TwoThreads()))
