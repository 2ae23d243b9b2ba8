"""What systems that show curves call a run: here each node of each job has one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

R = TypeVar("R")

#: Runs that are open at a time: nodes that have gone are not told of, and each may be an open file.
MOST_RUNS = 128


class Runs(Generic[R]):
    """Open runs by job and node; the one that was used least recently is closed where there are too many.

    Parameters
    ----------
    begin
        Opens the run of a job's node.
    end
        Closes one.
    """

    def __init__(self, begin: Callable[[str, str], R], end: Callable[[R], object], most: int = MOST_RUNS) -> None:
        self._begin = begin
        self._end = end
        self._most = most
        self._open: OrderedDict[tuple[str, str], R] = OrderedDict()

    def of(self, job: str, node: str) -> R:
        """Return the run of a node."""
        run = self._open.get((job, node))
        if run is None:
            while len(self._open) >= self._most:
                self._end(self._open.popitem(last=False)[1])
            run = self._open[job, node] = self._begin(job, node)
        self._open.move_to_end((job, node))
        return run

    def each(self) -> list[R]:
        """Return those that are open."""
        return list(self._open.values())

    def close(self) -> None:
        """Close all, whatever becomes of one."""
        error: Exception | None = None
        while self._open:
            try:
                self._end(self._open.popitem(last=False)[1])
            except Exception as raised:
                error = error or raised
        if error is not None:
            raise error
