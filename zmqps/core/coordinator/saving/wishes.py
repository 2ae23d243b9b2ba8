"""Checkpoints that wait for their turn, how often the workers of a job may ask for one, and until when."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping

from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.run import JobRun
from zmqps.core.coordinator.saving.making import Making, Wish
from zmqps.core.protocol.events import Action, Log, Peer, Send
from zmqps.core.protocol.messages import Message
from zmqps.core.protocol.security.roles import OPERATOR
from zmqps.errors import CheckpointTooSoonError, JobError, LimitError, PSError

#: Checkpoints that operators have asked for and that wait; as many wait that workers have asked for.
MAX_WAITING = 64
#: In the long run workers of a job get one checkpoint in this many seconds: more often than that a script does nothing
#: but save,
EVERY_S = 2.0
#: … and this many at once, for a script that saves before and after an evaluation. No more wait for one job.
BURST = 8
#: Why nothing is begun any more.
LAST = "the job is ending, and its last one has begun"
CLOSED = "the cluster is ending"
#: How often it is tried: a server may have died meanwhile, or a worker did not pause.
TRIES = 3
#: How long it waits for its turn, as while the shards are recut.
WAITS_S = 600.0
TORN = "not all of its values are there any more"


class Wishes(deque[Wish]):
    """Those that wait, the next one first; the workers of a job count together, for a key may join many workers."""

    def __init__(self, members: Mapping[bytes, MemberInfo]) -> None:
        super().__init__()
        self.members = members
        self.over: set[str] = set()  # jobs whose last one has begun: nothing else is begun of them
        self.closed = False  # the cluster is ending: nothing is begun of any job
        self._paid_at: dict[str, float] = {}  # by job: when all that its workers have asked for has had its time
        self._answers: OrderedDict[tuple[bytes, int], Message] = OrderedDict()  # to peers that have not joined

    def ask(self, wish: Wish, now: float) -> None:
        """Let one wait: an operator's before those of workers, and whatever these have asked for.

        Raises `CheckpointTooSoonError`: the workers of the job have asked for too many; says when they may ask for the
        next one; `LimitError`: too many wait; `JobError`: the job ends, and nothing but its last one is made any more.
        """
        if why := self.why_not(wish):
            raise unbegun(wish.job, why)
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

    def answer(self, who: bytes, peer: Peer, request: int, message: Message) -> Action:
        """Answer a requester."""
        if (member := self.members.get(who)) is not None:
            return member.answer(request, message)
        self._answers[who, request] = message
        while len(self._answers) > MAX_WAITING:
            self._answers.popitem(last=False)
        return Send(peer, message)

    def answered(self, wish: Wish) -> list[Action]:
        """Return the answer to a request that a peer which has not joined repeats; empty: there is none yet."""
        known = [(peer, self._answers[key]) for key, peer in wish.askers.items() if key in self._answers]
        return [Send(peer, message) for peer, message in known[:1]]

    def why_not(self, wish: Wish) -> str:
        """Return why one is not begun any more; empty: it may be."""
        if self.closed:
            return CLOSED
        return LAST if wish.job in self.over and not wish.is_last else ""

    def take(self, wish: Wish) -> None:
        """It is its turn: after the last one of a job there is no other."""
        self.remove(wish)
        if wish.is_last:
            self.over.add(wish.job)

    def _check(self, waiting: int, limit: int) -> None:
        if waiting >= limit:
            raise LimitError(what="number of checkpoints that wait", got=waiting + 1, limit=limit)

    def forget(self, job: str) -> None:
        """A job has ended: one that has its name later has asked for nothing."""
        self._paid_at.pop(job, None)
        self.over.discard(job)


def unbegun(job: str, why: str) -> PSError:
    """Return the error for those that asked for a checkpoint that will not be made."""
    return JobError(f"no checkpoint of the job {job!r} was begun: {why}")


def last_wish(run: JobRun, now: float) -> Wish | None:
    """Return the wish for the last checkpoint of a job; None where no step was made since the one before.

    How many pushes there were is known of synchronous jobs alone: others are always saved.
    """
    saved = run.fallback.good[-1].version if run.fallback.good else 0
    if run.is_whole and run.mode == "sync" and run.steps.clock == saved:
        return None
    consistent = run.mode != "async" or not len(run.workers)
    return Wish(job=run.name, consistent=consistent, tries=TRIES, begin_by=now + WAITS_S)


def unsaved(job: str, why: str) -> Log:
    """Say that a job ends without one."""
    return Log("error", f"job {job!r} ends without a last checkpoint: {why}", "checkpoint failed", job=job)


def try_again(making: Making) -> bool:
    """Take note that one has failed; return whether it is tried again, without a pause if that was not kept."""
    wish = making.wish
    if wish.tries < 2 or not making.run.is_whole:
        return False
    wish.tries, wish.pauses = wish.tries - 1, wish.pauses and making.cut.by is None
    return True
