"""The ranks of one role: who has which, and who gets which next."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping

from zmqps.core.coordinator.journal import Plain
from zmqps.core.coordinator.members.claims import Claims
from zmqps.core.coordinator.members.membership import MAX_MEMBERS, MemberInfo, Origin
from zmqps.core.protocol.events import Peer
from zmqps.core.protocol.messages import Hello
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.protocol.security.roles import KeyHolder

#: A newcomer whose number an earlier life of it still seems to have waits until that one is lost, or has been heard
#: again after so many heartbeats: what it sent before it died has arrived by then, and one that lives has said more.
DOUBT_BEATS = 0.5
#: So many newcomers at a time wait for the number of one member; others do not.
MAX_DOUBTS = 8


class Roster:
    """The members of one role: of the cluster its servers, of a job its workers, and its observers.

    A launcher gives each process that it starts a number, its index, and the process wishes to have it: that is its
    rank, unless another member has that. Others get ranks that no launcher has given to anybody.
    """

    def __init__(self, expected: Callable[[], int | None] = int) -> None:
        self._by_rank: dict[int, MemberInfo] = {}
        self._expected = expected  # how many are awaited: launchers' numbers below are theirs
        self._numbered = False  # whether anybody has come, or may come back, that a launcher has given a number
        self._lowest = 0  # all ranks below are taken
        self._next = 0  # no rank from here on is
        self._names: set[str] = set()  # of all who ever joined
        self._claims: Claims[MemberInfo] = Claims()
        # by member: since when newcomers wait for its number
        self._doubts: dict[bytes, dict[bytes, float]] = {}
        self.num_finished = 0

    def __len__(self) -> int:
        return len(self._by_rank)

    def __iter__(self) -> Iterator[MemberInfo]:
        """Yield the members by rank; a few of them cost no more than that."""
        by_rank = self._by_rank
        return (by_rank[rank] for rank in range(self._next) if rank in by_rank)

    @property
    def num_joined(self) -> int:
        """How many have joined so far: one that is restarted under its name is not counted twice.

        Those that all have the same name are counted while they are here, and when they have finished.
        """
        return max(len(self._names), len(self) + self.num_finished)

    def predecessor(self, hello: Hello, holder: KeyHolder | None) -> MemberInfo | None:
        """Return the member whose next life says this `Hello`, as `Claims.predecessor` knows it."""
        return self._claims.predecessor(hello, holder)

    def rival(self, hello: Hello) -> MemberInfo | None:
        """Return the member that has the number that a newcomer wishes; None if that is free, or it wishes none."""
        return None if (wish := index_of(hello)) is None else self._by_rank.get(wish)

    def awaits(self, hello: Hello, now: float, heartbeat_interval: float) -> MemberInfo | None:
        """Return the member that has to be heard again, or lost, before it is known whose its number is.

        Such a member has the same name and number as the newcomer and is another process: mostly the life before, that
        has died and is not missed yet. None: nobody.
        """
        rival = self.rival(hello)
        if rival is None or (rival.hello.name, rival.hello.wish) != (hello.name, hello.wish):
            return None
        if (rival.hello.host, rival.hello.pid) == (hello.host, hello.pid):
            return None  # a process may join more than once
        heard_by = rival.seen_at - DOUBT_BEATS * heartbeat_interval
        doubts = self._doubts.setdefault(rival.incarnation, {})
        if len(doubts) >= MAX_DOUBTS:  # who has not said Hello again since may never do
            for who in [who for who, since in doubts.items() if since < heard_by and who != hello.incarnation]:
                del doubts[who]
        if hello.incarnation not in doubts and len(doubts) >= MAX_DOUBTS:
            return None
        if doubts.setdefault(hello.incarnation, now) >= heard_by:
            return rival
        del doubts[hello.incarnation]
        return None

    def is_doubted(self, rival: MemberInfo, hello: Hello) -> bool:
        """Whether a newcomer waits already for the number of a member."""
        return hello.incarnation in self._doubts.get(rival.incarnation, {})

    def enter(
        self, hello: Hello, peer: Peer, now: float, holder: KeyHolder | None = None, before: MemberInfo | None = None
    ) -> MemberInfo:
        """Return a new member: under the rank of its predecessor, which is to leave, or the one that it wishes.

        If it wishes none, or another has that, it is the one that it had last, or the lowest that is free.
        """
        member = MemberInfo(hello=hello, peer=peer, roster=self, rank=0, seen_at=now, origin=Origin(holder=holder))
        wish = index_of(hello)
        if before is not None:
            rank: int | None = before.rank
        elif wish is not None and wish not in self._by_rank:
            rank = wish
        else:
            rank = self._claims.rank(hello)
        self.take(member, rank)
        return member

    def take(self, member: MemberInfo, rank: int | None = None) -> None:
        """Enter a member under a rank that is free here, or of one that is to leave; by default the lowest."""
        self._numbered |= index_of(member.hello) is not None
        member.roster, member.rank = self, self._free(member) if rank is None else rank
        self._by_rank[member.rank] = member
        self._claims.took(member)
        self._next = max(self._next, member.rank + 1)
        while self._lowest in self._by_rank:
            self._lowest += 1
        if len(self._names) < MAX_MEMBERS:
            self._names.add(member.hello.name)

    def _free(self, member: MemberInfo) -> int:
        """Return the lowest rank that is free, and that no process is to come to by the number of its launcher."""
        is_beyond = self._numbered or member.is_spare
        # a job may expect any number of workers, but no launcher's number is larger than that of members
        rank = max(self._lowest, min(self._expected() or 0, MAX_MEMBERS) if is_beyond else 0)
        while rank in self._by_rank or self._claims.is_numbered(rank):
            rank += 1
        return rank

    def dump(self) -> Plain:
        """Return what is kept of it: who has which rank, and who had those that are free."""
        return [[[member.incarnation, member.rank] for member in self], self._claims.dump()]

    def restore(self, kept: Plain, members: Mapping[bytes, MemberInfo]) -> None:
        """Have the members that were kept at their ranks."""
        ranks, claims = kept
        for who, rank in ranks:
            self.take(members[who], rank)
        self._claims.restore(claims)
        self._numbered |= self._claims.any_numbered

    def promote(self, member: MemberInfo, below: int, settled: Container[bytes]) -> None:
        """Give a member whose rank is not below this one another that is: the lowest that is nobody's by its number.

        Whoever has that and is not settled (by incarnation) takes the member's in exchange.
        """
        if member.rank < below:
            return
        held, before = self._by_rank, member.rank
        ranks = [r for r in range(below) if r not in held or held[r].incarnation not in settled]
        if not ranks:
            return
        rank = min(ranks, key=lambda r: (r in held and index_of(held[r].hello) == r, r))
        other = held.pop(rank, None)
        member.rank, held[rank] = rank, held.pop(before)
        self._claims.took(member)
        if other is None:
            self._lowest = min(self._lowest, before)
        else:
            other.rank, held[before] = before, other

    def leave(self, member: MemberInfo, how: DepartureCause) -> None:
        """A member has gone."""
        self._doubts.pop(member.incarnation, None)
        frees = self._by_rank[member.rank] is member  # else somebody has come in its place
        self._claims.left(member, frees=frees)
        if frees:
            del self._by_rank[member.rank]
            self._lowest = min(self._lowest, member.rank)
        if not self._by_rank:
            self._next = 0
        self.num_finished += how == DepartureCause.FINISHED

    def validate(self) -> None:
        """Assert that ranks are where they are looked for, and that a number is nobody's but the one's that has it."""
        by_rank = self._by_rank
        assert all([rank == member.rank < self._next for rank, member in by_rank.items()])
        assert by_rank.keys() >= set(range(self._lowest))
        assert self._numbered or not any([index_of(member.hello) is not None for member in by_rank.values()])
        self._claims.validate(self._by_rank)


def index_of(hello: Hello) -> int | None:
    """Return the number that a process has of its launcher; None: it has none, or a greater one than ranks may be."""
    return hello.wish - 1 if 0 < hello.wish <= MAX_MEMBERS else None
