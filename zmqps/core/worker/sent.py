"""What one worker has pushed to one shard: how many of its pushes a checkpoint lacks, without keeping each of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

#: Pushes of as many messages each, one after the other, take one entry. Of more entries the oldest become one.
MAX_RUNS = 1024
#: Messages that were refused, or given up, and so were never acknowledged.
MAX_VOID = 4096


@dataclass(slots=True)
class _Run:
    """Pushes one after the other, of ``size`` messages each, from the message ``first`` on."""

    first: int
    size: int
    count: int

    @property
    def stop(self) -> int:
        """The number behind its last message."""
        return self.first + self.size * self.count


class Sent:
    """The pushes that left for one shard, by the numbers of their messages.

    The messages of a push leave one behind the other. A training loop pushes the same again and again, so there are few
    runs, however long it trains.
    """

    def __init__(self) -> None:
        self._runs: deque[_Run] = deque()
        self._first = 0  # of the push whose messages leave
        self._size = 0
        self._void: dict[int, None] = {}

    def add(self, seq: int, *, head: bool) -> None:
        """A message leaves for the first time; ``head``: the first one of its push."""
        if not head and self._size:
            self._size += 1
            return
        self._close()
        self._first, self._size = seq, 1

    def _close(self) -> None:
        if self._size:
            _append(self._runs, _Run(self._first, self._size, 1))
            self._size = 0
            if len(self._runs) > MAX_RUNS:
                self._merge()

    def _merge(self) -> None:
        """Keep the oldest two runs as one, whose pushes have no sizes of their own any more."""
        one, two = self._runs.popleft(), self._runs.popleft()
        count = one.count + two.count
        size = -(-(two.stop - one.first) // count)  # the last of them seems to end later: nothing is between
        self._runs.appendleft(_Run(one.first, size, count))

    def void(self, seq: int) -> None:
        """A message was refused, or given up: nobody was told that it was applied."""
        self._void[seq] = None
        if len(self._void) > MAX_VOID:
            del self._void[next(iter(self._void))]

    def lose(self, floor: int, applied: Collection[int], unanswered: Iterable[int]) -> int:
        """Return how many pushes were acknowledged that a shard does not know, of all or a part; and forget these.

        Parameters
        ----------
        floor, applied
            What it knows: all messages up to a number, and others.
        unanswered
            Messages that are sent again.
        """
        self._close()
        applied = applied if isinstance(applied, set) else set(applied)
        open_ones = {*unanswered, *self._void}
        kept, lost = deque[_Run](), 0
        highest = max([floor, *applied, *open_ones])
        for run in self._runs:
            if run.stop - 1 <= floor:
                _append(kept, run)
                continue
            if run.first > highest:
                lost += run.count
                continue
            for first in range(run.first, run.stop, run.size):
                numbers = range(first, first + run.size)
                if first > highest:
                    lost += run.count - (first - run.first) // run.size
                    break
                if any(number > floor and number not in applied and number not in open_ones for number in numbers):
                    lost += 1
                else:
                    _append(kept, _Run(first, run.size, 1))
        self._runs = kept
        while len(self._runs) > MAX_RUNS:
            self._merge()
        self._void = {seq: None for seq in self._void if seq > floor}
        return lost


def _append(runs: deque[_Run], run: _Run) -> None:
    last = runs[-1] if runs else None
    if last is not None and last.size == run.size and last.stop == run.first:
        last.count += run.count
    else:
        runs.append(run)
