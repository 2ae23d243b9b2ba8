"""Workers of a job that were lost and did not come back, and how a job ends that has lost some."""

from __future__ import annotations

from collections import Counter, OrderedDict

from zmqps.core.coordinator.journal import Plain
from zmqps.core.coordinator.members.membership import MAX_MEMBERS, MemberInfo
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import Exit
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.errors import PSError, listed

#: How a job ends whose workers are done.
FINISHED = "its workers have finished"
ASKED = "ended by zmqps jobs end"
DOWN = "ended by zmqps down"
#: How those have gone who may come back.
BROKEN_OFF = (DepartureCause.LOST, DepartureCause.RESTARTED)
#: Of those who were lost so many are named.
MOST_NAMED = 3
#: What is said of them has a bound, for the status tells it of each job that has ended.
MAX_CHARS = 600


class Losses:
    """The workers of a job that were lost, and in whose place nobody has come; those of one name are one worker."""

    def __init__(self) -> None:
        self._lost: OrderedDict[str, tuple[int, str, bool]] = OrderedDict()  # name -> rank, title, has a claim
        self._here: Counter[str] = Counter()  # those who train, by name
        self._finished: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._lost)

    def began(self, worker: MemberInfo, *, by_rank: bool, places: int | None = None) -> None:
        """A worker begins: it is one that was lost, by its name, or takes the place of one, by its rank.

        Where so many ``places`` are left empty, no more than so many are missed: it has come instead of one. Not so if
        it is the restart of a worker that is not lost yet: that one will not be missed, but whose place it has is.
        """
        name = worker.hello.name
        self._here[name] += 1
        if self._lost.pop(name, None) is not None or self._here[name] > 1:
            return  # it was, or is yet to be, lost
        same = [lost for lost, (rank, _, _) in self._lost.items() if rank == worker.rank] if by_rank else []
        if same:
            del self._lost[same[0]]
        elif places is not None and len(self._lost) > places:
            self._lost.popitem()

    def left(self, worker: MemberInfo, how: DepartureCause) -> None:
        """A worker that had begun has gone; one that was restarted under its name before it was lost is there."""
        name = worker.hello.name
        self._here[name] -= 1
        if how == DepartureCause.FINISHED:
            self._finished[name] = None
        elif how in BROKEN_OFF and not self._here[name] and name not in self._finished:
            self._lost[name] = worker.rank, worker.title, bool(worker.hello.claim)
        if not self._here[name]:
            del self._here[name]
        for names in (self._lost, self._finished):
            if len(names) > MAX_MEMBERS:
                names.popitem(last=False)

    def dump(self) -> Plain:
        """Return what is kept of them."""
        lost = [[name, *facts] for name, facts in self._lost.items()]
        return [lost, dict(self._here), list(self._finished)]

    def restore(self, kept: Plain) -> None:
        """Be what was kept."""
        lost, here, finished = kept
        self._lost = OrderedDict((name, (rank, title, has_claim)) for name, rank, title, has_claim in lost)
        self._here = Counter(here)
        self._finished = OrderedDict.fromkeys(finished)

    @property
    def to_return(self) -> bool:
        """Whether one of them is started again by its supervisor, perhaps: that it is lost is no end of the job."""
        return any(has_claim for _, _, has_claim in self._lost.values())

    @property
    def text(self) -> str:
        """Who was lost, in words; empty if nobody was."""
        if not self._lost:
            return ""
        titles = [title for _, title, _ in self._lost.values()]
        were = "was" if len(titles) == 1 else "were"
        return f"{listed(titles, MOST_NAMED)[:MAX_CHARS]} {were} lost, and nobody came instead"

    @property
    def outcome(self) -> str:
        """How a job has ended whose workers are done."""
        return f"{FINISHED}, but {self.text}" if self._lost else FINISHED


def end_of_cluster(how: str, losses: Losses, lost_shard: PSError | None) -> Exit:
    """Return how a cluster ends that was there for one job, which has ended; ``how`` is how."""
    if lost_shard is not None:
        return Exit(exits.FAILED, f"the job has failed: {lost_shard}")
    if how.startswith(FINISHED) and losses:
        return Exit(exits.WORKERS_FAILED, f"the job is finished, but {losses.text}: its part of the data may be unused")
    if how.startswith(FINISHED):
        return Exit(exits.OK, "the job is finished")
    return Exit(exits.OK if how == ASKED else exits.IDLE, f"the job has ended: {how}")
