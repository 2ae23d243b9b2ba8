"""A checkpoint that is wished for, waits for its turn or is being made, and how often workers may ask for one."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.run import JobRun
from zmqps.core.protocol.events import Action, Log, Peer, Send
from zmqps.core.protocol.messages import Message
from zmqps.core.protocol.security.roles import OPERATOR
from zmqps.errors import CheckpointTooSoonError, JobError, LimitError, PSError, counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """A checkpoint that is published, and may be built upon."""

    number: int  # by which servers know it (`Save.number`)
    path: str
    shards: Mapping[int, int]  # of all copies that wrote it, by epoch
    length: int  # how many checkpoints it consists of, itself included
    whole_nbytes: int  # of the first of these, parameters included
    changed_nbytes: int  # of the others


class Chains:
    """The latest checkpoint of each job with tables, with all that it builds upon."""

    def __init__(self, full_every: int = 1) -> None:
        self._full_every = full_every  # every n-th checkpoint of a job is whole
        self._links: dict[str, ChainLink] = {}  # by job

    def base(self, job: str, shards: Mapping[int, int]) -> ChainLink | None:
        """Return what the next checkpoint of these epochs' copies builds upon; None: it is whole.

        It is also whole once the increments since the last whole one take more room than that one, so that a chain
        never becomes many times as large as its content.
        """
        link = self._links.get(job)
        if link is None or dict(link.shards) != dict(shards) or link.length >= self._full_every:
            return None
        return link if link.changed_nbytes < link.whole_nbytes else None

    def published(
        self, job: str, number: int, path: str, shards: Mapping[int, int], nbytes: int, base: ChainLink | None
    ) -> None:
        """A checkpoint is there, which builds upon ``base``."""
        if self._full_every == 1:
            return
        length, whole, changed = 1, nbytes, 0
        if base is not None:
            length, whole, changed = base.length + 1, base.whole_nbytes, base.changed_nbytes + nbytes
        self._links[job] = ChainLink(
            number=number, path=path, shards=shards, length=length, whole_nbytes=whole, changed_nbytes=changed
        )

    def forget(self, job: str) -> None:
        """The next checkpoint of a job is whole."""
        self._links.pop(job, None)

    def validate(self, jobs: Collection[str]) -> None:
        """Assert that chains are of jobs that are there, and no longer than they may be."""
        assert set(self._links) <= set(jobs)
        assert all(1 <= link.length <= self._full_every for link in self._links.values())


@dataclass(frozen=True, slots=True)
class Cadence:
    """When jobs are saved without being asked: every that many seconds, or steps; None: never.

    Every ``full_every``-th checkpoint of a job with tables is whole; those between hold only the rows that have changed
    since the one before.
    """

    seconds: float | None = None
    steps: int | None = None
    full_every: int = 1


class StoreTask(StrEnum):
    """What the store does for a checkpoint: make a place for it, publish it, or give the place up."""

    BEGIN, PUBLISH, ABANDON = "begin", "publish", "abandon"


class MakingStage(StrEnum):
    """How far a checkpoint is.

    Its place is being made; workers are held for a cut; servers keep and write what they have; the store publishes it.
    """

    OPENED, HELD, SAVED, PUBLISHED = "opened", "held", "saved", "published"


@dataclass(frozen=True, slots=True)
class Storing:
    """Tag of what the store does aside."""

    number: int
    what: StoreTask


@dataclass(slots=True, kw_only=True)
class Wish:
    """A planned checkpoint."""

    job: str
    consistent: bool
    state: Mapping[str, Any] = field(default_factory=dict)
    #: Requesters (an incarnation, or the nonce of a peer that has not joined) by request -> the connection
    askers: dict[tuple[bytes, int], Peer] = field(default_factory=dict)
    #: The requesters' role, `WORKER` or `OPERATOR`; empty: it was not requested, but is due.
    by: str = ""
    #: Of the last one of a job: how often it may still be tried, and until when it may wait to be begun.
    tries: int = 0
    begin_by: float = float("inf")
    #: Whether workers pause for a cut, where one is needed: not, once some did not.
    pauses: bool = True

    @property
    def is_last(self) -> bool:
        """Whether it is made because the job is about to end."""
        return self.tries > 0


@dataclass(eq=False)
class PushCut:
    """A moment at which workers have no push under way, where steps are not common to all."""

    by: float | None = None  # while workers are held: when the cut must be made
    held: dict[bytes, MemberInfo] = field(default_factory=dict)  # workers that begin no push
    awaited: set[bytes] = field(default_factory=set)  # those of them that have not said so yet
    gone: set[bytes] = field(default_factory=set)  # workers that have left, or are about to be forgotten


@dataclass(slots=True, kw_only=True)
class SavePart:
    """What one copy of a shard writes."""

    shard: int
    server: MemberInfo | None  # None: it left after it had written
    heard_at: float
    moved_at: float  # when it had got on
    kept: bool = False  # it keeps the version that is saved
    nbytes: int | None = None
    written: Mapping[str, Any] | None = None  # what it says of what it has written


@dataclass(slots=True)
class SaveTarget:
    """What to publish, and where."""

    path: str = ""
    version: int = 0
    manifest: dict[str, Any] = field(default_factory=dict)
    base: ChainLink | None = None  # its base; None: it must be whole


class Making:
    """The checkpoint that is being made."""

    def __init__(self, wish: Wish, run: JobRun, number: int, now: float) -> None:
        self.wish = wish
        self.run = run
        self.number = number
        self.begun_at = self.again_at = self.moved_at = now  # the store has got on at ``moved_at``
        self.stage = MakingStage.OPENED
        self.cut = PushCut()
        self.target = SaveTarget()
        self.parts: dict[int, SavePart] = {}  # by epoch of the copy

    @property
    def shards(self) -> dict[int, int]:
        """All of them, by epoch of the copy."""
        return {epoch: part.shard for epoch, part in self.parts.items()}

    @property
    def servers(self) -> list[tuple[int, MemberInfo]]:
        """The members that write or have written and are connected, with the epochs of the copies."""
        return [(epoch, part.server) for epoch, part in self.parts.items() if part.server is not None]

    @property
    def unwritten(self) -> list[tuple[int, MemberInfo]]:
        """The servers that have not written their parts, with the epochs."""
        return [(epoch, server) for epoch, server in self.servers if self.parts[epoch].written is None]

    @property
    def is_moot(self) -> bool:
        """Whether shards of the checkpoint go back to an older one, or have."""
        there = self.run.startup.copies.by_epoch
        return not self.run.is_whole or any(epoch not in there for epoch, _ in self.unwritten)

    def status(self, now: float) -> dict[str, Any]:
        waiting, nbytes = len(self.cut.awaited), sum(part.nbytes or 0 for part in self.parts.values())
        stage = f"waiting for {counted(waiting, 'worker')} to pause" if waiting else self.stage
        return {"stage": stage, "since_s": round(now - self.begun_at, 3), "nbytes": nbytes}

    def newcomers(self) -> list[MemberInfo]:
        """Return the workers that may push and are not held."""
        told = self.run.startup.told - self.cut.gone
        return [w for w in self.run.workers if w.incarnation in told and w.incarnation not in self.cut.held]


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
TORN = "some of its values no longer exist"


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
