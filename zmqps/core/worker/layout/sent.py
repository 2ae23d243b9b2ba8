"""One worker's pushes to one shard: how many of them a checkpoint lacks, without storing each one."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise

#: Consecutive pushes of equally many messages take one entry. Beyond this many entries the oldest are merged.
MAX_RUNS = 1024
#: Pushes stored one by one.
MAX_HEADS = 1024
#: Messages that were refused, or given up, and so were never acknowledged.
MAX_VOID = 4096


@dataclass(slots=True)
class _Run:
    """Consecutive pushes of equally many messages each; or nearly, if runs were merged."""

    first: int
    stop: int  # after the last message
    count: int

    def start(self, number: int) -> int:
        """Return the first message of a push, or the one after the last push."""
        return self.first + (self.stop - self.first) * number // self.count


class Sent:
    """The pushes sent to one shard, by the numbers of their messages.

    The messages of a push are consecutive. A training loop repeats the same push, so there are few runs, however long
    it trains.
    """

    def __init__(self) -> None:
        self.next_seq = 1  # the number of the next message
        #: The first messages of the last pushes, as sent; code that adds one calls `fold` at `MAX_HEADS`.
        self.heads: list[int] = []
        self._runs: deque[_Run] = deque()
        self._void: dict[int, None] = {}
        self._behind = 0  # the first message to the present server
        self._unanswered: set[int] = set()  # of those before it

    def fold(self, *, whole: bool = False) -> None:
        """Store pushes as runs; ``whole``: the last one, too, because all of its messages were sent."""
        heads = [*self.heads, self.next_seq] if whole else self.heads
        for first, following in pairwise(heads):
            _append(self._runs, _Run(first, following, 1))
        self.heads[: None if whole else -1] = []
        while len(self._runs) > MAX_RUNS:
            self._merge()

    def _merge(self) -> None:
        """Merge the oldest two runs, whose pushes then have no separate sizes."""
        one, two = self._runs.popleft(), self._runs.popleft()
        self._runs.appendleft(_Run(one.first, two.stop, one.count + two.count))

    def void(self, seq: int) -> None:
        """A message was refused, or given up: it was not acknowledged."""
        self._void[seq] = None
        if len(self._void) > MAX_VOID:
            del self._void[next(iter(self._void))]

    def mark(self, unanswered: Iterable[int]) -> None:
        """Another server must know all sent messages except those that are unanswered and resent."""
        self._behind, self._unanswered = self.next_seq, set(unanswered)

    def lose(self, floor: int, applied: Collection[int]) -> int:
        """Return how many acknowledged pushes the new server does not know, completely or in part.

        It knows all messages up to ``floor``, and those ``applied``. Lost pushes are forgotten: they are counted only
        once, even if the shard is lost again.
        """
        self.fold(whole=True)
        known = {*applied, *self._unanswered, *self._void}
        highest = max([floor, *known])
        kept, lost = deque[_Run](), 0
        for run in self._runs:
            if run.stop - 1 <= floor or run.first >= self._behind:
                _append(kept, run)
                continue
            for number in range(run.count):
                first, end = run.start(number), run.start(number + 1)
                if highest < first and run.stop <= self._behind:
                    lost += run.count - number
                    break
                messages = range(first, min(end, self._behind))
                if any(message > floor and message not in known for message in messages):
                    lost += 1
                else:
                    _append(kept, _Run(first, end, 1))
        self._runs = kept
        while len(self._runs) > MAX_RUNS:
            self._merge()
        self._void = {seq: None for seq in self._void if seq > floor}
        return lost


def _append(runs: deque[_Run], run: _Run) -> None:
    last = runs[-1] if runs else None
    if last is None or last.stop != run.first:
        runs.append(run)
    elif (last.stop - last.first) * run.count != (run.stop - run.first) * last.count:
        runs.append(run)
    else:
        last.stop, last.count = run.stop, last.count + run.count
