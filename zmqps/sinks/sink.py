"""What takes the values that scripts log, a class of three methods; and runs: one for each node of each job."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar


class Sink(Protocol):
    """Takes values; all methods are called by one thread of its own.

    What a method raises is logged, now and then, and what it was given is lost for this sink; others and the cluster go
    on. A method that takes long keeps only this sink behind, up to `zmqps.sinks.feed.MOST_NBYTES`.
    """

    def values(self, job: str, node: str, step: int | None, at: float, values: Mapping[str, float]) -> None:
        """Take what one call of `zmqps.Worker.log` has said.

        Parameters
        ----------
        job, node
            The job and the node, such as ``default`` and ``worker 2``.
        step
            As the script has given it; None: it has not.
        at
            When, in seconds since 1970.
        values
            Floats by name, NaN and infinities among them.
        """

    def flush(self) -> None:
        """Let others see what came so far; called every few seconds while values come."""

    def close(self) -> None:
        """Nothing more comes: the cluster has ended."""


R = TypeVar("R")

#: Runs that are open at a time: a sink does not learn which nodes have left, and each run may be an open file.
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
