"""What one worker has pushed to one shard: how many of its pushes a checkpoint lacks, without keeping each of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise

#: Pushes of as many messages each, one after the other, take one entry. Of more entries the oldest become one.
MAX_RUNS = 1024
#: Pushes that are kept one by one.
MAX_HEADS = 1024
#: Messages that were refused, or given up, and so were never acknowledged.
MAX_VOID = 4096


@dataclass(slots=True)
class _Run:
    """Pushes one after the other, of as many messages each; or nearly, where runs had to become one."""

    first: int
    stop: int  # behind the last message
    count: int

    def start(self, number: int) -> int:
        """Return the first message of a push, or of what follows the last one."""
        return self.first + (self.stop - self.first) * number // self.count


class Sent:
    """The pushes that left for one shard, by the numbers of their messages.

    The messages of a push leave one behind the other. A training loop pushes the same again and again, so there are few
    runs, however long it trains.
    """

    def __init__(self) -> None:
        self.next_seq = 1  # the number of the next message
        #: The first messages of the last pushes, as they leave; whoever adds one calls `fold` at `MAX_HEADS`.
        self.heads: list[int] = []
        self._runs: deque[_Run] = deque()
        self._void: dict[int, None] = {}
        self._behind = 0  # the first message that leaves for the server that there is now
        self._unanswered: set[int] = set()  # of those before it

    def fold(self, *, whole: bool = False) -> None:
        """Keep pushes as runs; ``whole``: the last one, too, for all of its messages have left."""
        heads = [*self.heads, self.next_seq] if whole else self.heads
        for first, following in pairwise(heads):
            _append(self._runs, _Run(first, following, 1))
        self.heads[: None if whole else -1] = []
        while len(self._runs) > MAX_RUNS:
            self._merge()

    def _merge(self) -> None:
        """Keep the oldest two runs as one, whose pushes have no sizes of their own any more."""
        one, two = self._runs.popleft(), self._runs.popleft()
        self._runs.appendleft(_Run(one.first, two.stop, one.count + two.count))

    def void(self, seq: int) -> None:
        """A message was refused, or given up: nobody was told that it was applied."""
        self._void[seq] = None
        if len(self._void) > MAX_VOID:
            del self._void[next(iter(self._void))]

    def mark(self, unanswered: Iterable[int]) -> None:
        """Another server is to know all that has left but for what is not answered and sent again."""
        self._behind, self._unanswered = self.next_seq, set(unanswered)

    def lose(self, floor: int, applied: Collection[int]) -> int:
        """Return how many pushes were acknowledged that the new server does not know, in all or in part.

        It knows all messages up to ``floor``, and those ``applied``. Pushes that are lost are forgotten: if the shard
        is lost once more, they are lost already.
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
