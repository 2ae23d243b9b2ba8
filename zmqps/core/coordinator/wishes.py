"""Checkpoints that wait for their turn, and how often the workers of a job may ask for one."""

from __future__ import annotations

from collections import deque

from zmqps.core.coordinator.making import Wish
from zmqps.core.protocol.roles import OPERATOR
from zmqps.errors import CheckpointTooSoonError, LimitError

#: Checkpoints that operators have asked for and that wait; as many wait that workers have asked for.
MAX_WAITING = 64
#: In the long run workers of a job get a checkpoint every so many seconds: more often than that a script does nothing
#: but save,
EVERY_S = 2.0
#: … and so many at once, as a script has that saves before and after an evaluation. Of a job no more wait.
BURST = 8


class Wishes(deque[Wish]):
    """Those that wait, the next one first; the workers of a job count together, for a key may join many workers."""

    def __init__(self) -> None:
        super().__init__()
        self._paid_at: dict[str, float] = {}  # by job: when all that its workers have asked for has had its time

    def ask(self, wish: Wish, now: float) -> None:
        """Let one wait: an operator's before those of workers, and whatever these have asked for.

        Raises
        ------
        CheckpointTooSoonError
            The workers of the job have asked for too many; says when they may ask for the next one.
        LimitError
            Too many wait.
        """
        alike = [other for other in self if other.by == wish.by]
        self._check(len(alike), MAX_WAITING)
        if wish.by == OPERATOR:
            last = max((i for i, other in enumerate(self) if other.by == OPERATOR), default=-1)
            return self.insert(last + 1, wish)
        self._check(sum(other.job == wish.job for other in alike), BURST)
        paid_at = max(self._paid_at.get(wish.job, now), now)
        if (wait := paid_at - now - (BURST - 1) * EVERY_S) > 0:
            raise CheckpointTooSoonError(job=wish.job, seconds=round(wait, 3), every=EVERY_S)
        self._paid_at[wish.job] = paid_at + EVERY_S
        return self.append(wish)

    def _check(self, waiting: int, limit: int) -> None:
        if waiting >= limit:
            raise LimitError(what="number of checkpoints that wait", got=waiting + 1, limit=limit)

    def forget(self, job: str) -> None:
        """A job has ended: one that has its name later has asked for nothing."""
        self._paid_at.pop(job, None)
