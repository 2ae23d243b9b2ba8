"""What takes the values that scripts log: a class of three methods, easy to write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


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
