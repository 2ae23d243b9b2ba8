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
        self._behind = 0  # the first message that leaves for the server that there is now
        self._unanswered: set[int] = set()  # of those before it

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

    def mark(self, behind: int, unanswered: Iterable[int]) -> None:
        """Another server is to know all before the message ``behind`` but for what is not answered and sent again."""
        self._behind, self._unanswered = behind, set(unanswered)

    def lose(self, floor: int, applied: Collection[int]) -> int:
        """Return how many pushes were acknowledged that the new server does not know, in all or in part.

        These are forgotten: if a shard is lost once more, they are lost already.

        Parameters
        ----------
        floor, applied
            What it knows: all messages up to a number, and others.
        """
        self._close()
        known = {*applied, *self._unanswered, *self._void}
        highest = max([floor, *known])
        kept, lost = deque[_Run](), 0
        for run in self._runs:
            if run.stop - 1 <= floor or run.first >= self._behind:
                _append(kept, run)
                continue
            for number in range(run.count):
                first = run.first + number * run.size
                if highest < first and run.stop <= self._behind:
                    lost += run.count - number
                    break
                messages = range(first, min(first + run.size, self._behind))
                if any(message > floor and message not in known for message in messages):
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
