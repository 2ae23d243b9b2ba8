"""A second thread, for what can be done in two parts while a user waits for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache, partial
from typing import Any

from zmqps.codecs import ALONE
from zmqps.core.protocol.encoding import CODING, Coding

#: More threads neither read memory faster nor leave the program a core.
NUM_THREADS = min(2, os.cpu_count() or 1)


@cache
def helper() -> ThreadPoolExecutor:
    """Return this process's second thread; what it is given has to let go of the interpreter lock."""
    return ThreadPoolExecutor(1, "zmqps-helper")


if hasattr(os, "register_at_fork"):  # a forked child has the executor, but not its thread, and would wait for ever
    os.register_at_fork(after_in_child=helper.cache_clear)


class TwoThreads:
    """The thread that asks and the one beside it; a `zmqps.codecs.Spread`."""

    width = NUM_THREADS

    def __call__(self, tasks: Sequence[Callable[[], Any]]) -> list[Any]:
        """Do the first here and the others there; return what each has returned."""
        try:
            others = [helper().submit(task) for task in tasks[1:]]
        except RuntimeError:  # the interpreter is about to end, and begins no thread any more
            return ALONE(tasks)
        try:
            first = [task() for task in tasks[:1]]
        finally:
            wait(others)  # also after an error nobody may go on to write behind the caller's back
        return first + [other.result() for other in others]


def in_two_threads() -> Coding:
    """Return the door to the codecs for a background thread: another one encodes half of what a push waits for."""
    return CODING._replace(compress=partial(CODING.compress, spread=TwoThreads()))
