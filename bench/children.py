"""Objects that live in processes of their own, called over a pipe.

A child ends when its parent closes the pipe or dies, and every wait for it has a timeout, so
nothing is left behind.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

#: Loading numba's kernels, or a model of 1 GB, may take this long on a busy machine.
TIMEOUT = 300.0
ENDING = 10.0

_spawn = multiprocessing.get_context("spawn")


class ChildError(RuntimeError):
    """Something went wrong in a child; holds its traceback."""


def _serve(pipe: Connection, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        thing = make(*arguments)
        pipe.send((True, None))
        while True:
            method, given = pipe.recv()
            pipe.send((True, getattr(thing, method)(*given)))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return  # the parent is done, or Ctrl-C reached us as it did the parent
    except BaseException:
        pipe.send((False, traceback.format_exc()))


class Child:
    """A process that holds ``make(*arguments)`` and calls its methods.

    Parameters
    ----------
    make
        A class or function that the child imports by its name.
    arguments
        Its arguments.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        self._title = make.__name__
        self._pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """The process's number."""
        assert self._process.pid is not None
        return self._process.pid

    def begin(self, method: str, *arguments: Any) -> None:
        """Let it call a method; `result` waits for what that returns."""
        self._pipe.send((method, arguments))

    def result(self, timeout: float = TIMEOUT) -> Any:
        """Return what the method (at first: the start) returned.

        Raises
        ------
        ChildError
            It raised, the process died, or nothing came in time.
        """
        if not self._pipe.poll(timeout):
            raise ChildError(f"{self._title} did not answer within {timeout:.0f} s")
        try:
            good, value = self._pipe.recv()
        except EOFError:
            raise ChildError(f"{self._title} died") from None
        if not good:
            raise ChildError(f"{self._title} failed:\n{value}")
        return value

    def call(self, method: str, *arguments: Any, timeout: float = TIMEOUT) -> Any:
        """`begin`, then `result`."""
        self.begin(method, *arguments)
        return self.result(timeout)

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(ENDING)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def call_all(children: list[Child], method: str, *arguments: Any) -> list[Any]:
    """Let all of them call a method at the same time; return what each returned."""
    for child in children:
        child.begin(method, *arguments)
    return [child.result() for child in children]
