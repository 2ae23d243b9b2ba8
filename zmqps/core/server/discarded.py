"""Jobs whose shards a server has freed: late messages about them are answered with how that came."""

from __future__ import annotations

from collections import OrderedDict

from zmqps.errors import DeposedError, JobEndedError

#: Epochs whose shards were freed: a late message about one is answered with `JobEndedError`.
MAX_DISCARDED = 4096


class DiscardedJobs:
    """The epochs of jobs that have ended, and their names; the oldest are forgotten."""

    def __init__(self) -> None:
        self._names: OrderedDict[int, str] = OrderedDict()
        self._moved: dict[int, int] = {}  # of those that are on another server: its generation

    @property
    def epochs(self) -> list[int]:
        """Those that are remembered, the oldest first."""
        return list(self._names)

    def __contains__(self, epoch: int) -> bool:
        return epoch in self._names

    def add(self, epoch: int, name: str = "", moved: int | None = None) -> None:
        """A job has ended, perhaps one that was never assigned here: its `Assign` may come yet.

        ``moved``: it has not, and another server has the shard, since this generation.
        """
        if name:
            self._names[epoch] = name
        if moved is not None:
            self._moved[epoch] = moved
        self._names.setdefault(epoch, "")
        while len(self._names) > MAX_DISCARDED:
            forgotten, _ = self._names.popitem(last=False)
            self._moved.pop(forgotten, None)

    def error(self, epoch: int) -> JobEndedError | DeposedError:
        """Return the error of those who ask for one of them."""
        if epoch in self._moved:
            return DeposedError(job=self._names[epoch], generation=self._moved[epoch])
        return JobEndedError(job=self._names[epoch], reason="its shards were freed")
