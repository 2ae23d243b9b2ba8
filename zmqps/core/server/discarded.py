"""Freed copies of shards: late messages about them are answered with the reason."""

from __future__ import annotations

from collections import OrderedDict

from zmqps.errors import DeposedError, JobEndedError, PSError

#: Epochs whose shards were freed: a late message about one is answered with the reason.
MAX_DISCARDED = 4096


class DiscardedJobs:
    """The epochs of freed copies, and the names of their jobs; the oldest are forgotten."""

    def __init__(self) -> None:
        self._names: OrderedDict[int, str] = OrderedDict()
        self._moved: set[int] = set()  # those of them that other copies have replaced

    def __contains__(self, epoch: int) -> bool:
        return epoch in self._names

    def add(self, epoch: int, name: str = "", *, moved: bool = False) -> None:
        """A copy was freed, perhaps one that was never assigned here: its `Assign` may still come.

        ``moved``: its job continues, and another copy answers for the shard.
        """
        if name:
            self._names[epoch] = name
        if moved:
            self._moved.add(epoch)
        self._names.setdefault(epoch, "")
        while len(self._names) > MAX_DISCARDED:
            oldest, _ = self._names.popitem(last=False)
            self._moved.discard(oldest)

    def error(self, epoch: int) -> PSError:
        """Return the error for requests about one of them."""
        if epoch in self._moved:
            return DeposedError(job=self._names[epoch], generation=0)
        return JobEndedError(job=self._names[epoch], reason="its shards were freed")
