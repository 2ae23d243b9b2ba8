"""Ranges of data sets, which the coordinator hands out."""

from __future__ import annotations

from dataclasses import dataclass

from zmqps.core.job.data import DataSpec
from zmqps.core.protocol.messages import Message
from zmqps.core.worker.operations import Question


@dataclass(slots=True, eq=False, kw_only=True)
class TakeRange(Question):
    """Take a range of a data set, and report the used one. Resolves to a `zmqps.core.protocol.messages.Range`."""

    data: DataSpec
    used: tuple[int, int] | None = None

    title = "ranges"

    def message(self, step: int) -> Message:
        """Return the request."""
        return self.data.take(self.request, self.used)
