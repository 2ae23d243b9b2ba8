"""Who is there: members, their ranks, their last sign of life, and who has gone."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, pairwise, takewhile
from typing import Any

from zmqps.core.coordinator.claims import Claims
from zmqps.core.protocol.events import Peer, Send
from zmqps.core.protocol.hello import SPARE
from zmqps.core.protocol.keys import KEY_NBYTES, same
from zmqps.core.protocol.messages import Error, Hello, Job, Message
from zmqps.core.protocol.roles import KeyHolder, check_same, shut_out
from zmqps.errors import EvictedError, IdentityError, JobError, LimitError, ProtocolError, PSError, listed

MAX_MEMBERS = 4096
#: After so many heartbeats that have not come a member is called silent.
SILENT_BEATS = 2.5
#: A member has a handful of requests at the coordinator at a time; this many answers are remembered. None is large: the
#: description of a job is one object for all its members.
MAX_ANSWERED = 32
#: Of those who left, the status shows this many; older ones are forgotten.
MAX_GONE = 256
#: … with their counters as long as these take no more; the newest have the first claim.
MAX_GONE_COUNTERS_NBYTES = 64 << 10


@dataclass(slots=True, kw_only=True)
class MemberInfo:
    """A node that has joined."""

    hello: Hello
    peer: Peer
    roster: Roster
    rank: int
    seen_at: float
    origin: str = ""  # the address of the other host that it comes from; empty: from this one
    unreached: str = ""  # which servers it cannot reach, by what it says
    holder: KeyHolder | None = None  # whose key it has joined with
    counters: str = "{}"  # packed, see `zmqps.core.coordinator.status`
    counters_nbytes: int = 0
    num_pushes: int = 0  # a worker's, by what it says
    counters_of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # a server's, by epoch of a job
    answered: OrderedDict[int, Message] = field(default_factory=OrderedDict)
    named: bool = False  # whether it has described the job itself that it trains, and that was accepted
    told: bool = False  # … and has been told it, so that this is repeated when it asks again
    again_at: float = 0.0  # when it may ask again for what it waits for, or soon before
    leaving: bool = False  # a server that is to go, and gets nothing new
    must_leave: bool = False  # it goes even where shards have fewer backups then

    def answer(self, request: int, message: Message) -> Send:
        """Return the answer to a request, remembered in case it or the request is sent again."""
        self.answered[request] = message
        if len(self.answered) > MAX_ANSWERED:
            self.answered.popitem(last=False)
        return Send(self.peer, message)

    def answer_with(self, job: object) -> Job | None:
        """Return a remembered answer that tells this very description of a job; what it holds can be told again."""
        told = (message for message in reversed(self.answered.values()) if isinstance(message, Job))
        return next((message for message in told if message.job is job), None)

    def fail(self, request: int, error: PSError) -> Send:
        """Return the answer to a request that failed."""
        return self.answer(request, Error.of(request, error))

    @property
    def role(self) -> str:
        """Its role."""
        return self.hello.role

    @property
    def is_spare(self) -> bool:
        """Whether it is a server beyond those that the cluster waits for."""
        return SPARE in self.hello.capabilities

    @property
    def job(self) -> str:
        """The name of the job it is there for; empty for a server, which is there for all of them."""
        return "" if self.hello.role == "server" else self.hello.job

    @property
    def incarnation(self) -> bytes:
        """The unique id of this life of the process."""
        return self.hello.incarnation

    @property
    def title(self) -> str:
        """How errors and logs call it: ``worker 2 (name, host, pid 4711)``."""
        return f"{self.role} {self.rank} ({self.hello.name}, {self.hello.host}, pid {self.hello.pid})"

    def lost(self, now: float) -> EvictedError:
        """Return what it is told that was silent for too long."""
        silent = now - self.seen_at
        return EvictedError(f"{self.title} was silent for {silent:.1f} s and presumed dead; connect again")

    def eviction(self, now: float, how: str) -> PSError | None:
        """Return what it is told if it comes back after it has gone without a goodbye."""
        if how == "restarted":
            return EvictedError(f"{self.title} was started again, and its new life has its place; connect again")
        return shut_out(self.role) if how == "revoked" else self.lost(now) if how == "lost" else None


@dataclass(frozen=True, slots=True)
class Departure:
    """A node that has gone; ``how`` is finished, closed, drained, lost, restarted, or ended with its job."""

    member: MemberInfo
    how: str
    at: float


class Roster:
    """The members of one role: of the cluster its servers, of a job its workers, and its observers."""

    def __init__(self) -> None:
        self._by_rank: dict[int, MemberInfo] = {}
        self._free: list[int] = []  # a heap of the ranks below ``_next`` that are free; some are taken again
        self._next = 0
        self._names: set[str] = set()  # of all who ever joined
        self._claims: Claims[MemberInfo] = Claims()
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

    def enter(
        self, hello: Hello, peer: Peer, now: float, holder: KeyHolder | None = None, before: MemberInfo | None = None
    ) -> MemberInfo:
        """Return a new member: under the rank of its predecessor, which is to leave, or the one that it had last.

        Of any other it is the lowest that is free.
        """
        member = MemberInfo(hello=hello, peer=peer, roster=self, rank=0, seen_at=now, holder=holder)
        self.take(member, self._claims.rank(hello) if before is None else before.rank)
        return member

    def take(self, member: MemberInfo, rank: int | None = None) -> None:
        """Enter a member under a rank that is free here, or of one that is to leave; by default the lowest."""
        while rank is None and self._free:
            free = heapq.heappop(self._free)
            rank = None if free in self._by_rank else free
        if rank is None:
            rank = self._next
        while self._next <= rank:
            if self._next < rank:
                heapq.heappush(self._free, self._next)
            self._next += 1
        member.roster, member.rank = self, rank
        self._by_rank[member.rank] = member
        self._claims.took(member)
        if len(self._names) < MAX_MEMBERS:
            self._names.add(member.hello.name)

    def promote(self, member: MemberInfo, below: int, settled: Container[bytes]) -> None:
        """Give a member whose rank is not below this one the lowest that is.

        Whoever has that and is not settled (by incarnation) takes the member's in exchange.
        """
        if member.rank < below:
            return
        held, before = self._by_rank, member.rank
        rank = next((r for r in range(below) if r not in held or held[r].incarnation not in settled), before)
        if rank == before:
            return
        other = held.pop(rank, None)
        member.rank, held[rank] = rank, held.pop(before)
        self._claims.took(member)
        if other is None:
            heapq.heappush(self._free, before)
        else:
            other.rank, held[before] = before, other

    def leave(self, member: MemberInfo, how: str) -> None:
        """A member has gone."""
        frees = self._by_rank[member.rank] is member  # else somebody has come in its place
        self._claims.left(member, frees=frees)
        if frees:
            del self._by_rank[member.rank]
            heapq.heappush(self._free, member.rank)
        if not self._by_rank:
            self._free, self._next = [], 0
        self.num_finished += how == "finished"

    def validate(self) -> None:
        """Assert that every rank below the next one is taken or free."""
        assert set(range(self._next)) <= {*self._by_rank, *self._free}
        assert all(rank < self._next for rank in (*self._by_rank, *self._free))
        self._claims.validate(self._by_rank)


def no_place(servers: Roster, heartbeat_interval: float, heartbeat_timeout: float, now: float) -> JobError:
    """Return the error of a server that comes when all others are here, or seem to be."""
    silent = [s for s in servers if now - s.seen_at > SILENT_BEATS * heartbeat_interval]
    if not silent:
        here = listed([server.title for server in servers], 4)
        more = "start the coordinator with more --servers"
        all_ = "the server is" if len(servers) == 1 else f"all {len(servers)} servers are"
        return JobError(f"{all_} here: {here}; {more}")
    longest = max(silent, key=lambda server: now - server.seen_at)
    silent_s = now - longest.seen_at
    return JobError(
        f"{longest.title} has been silent for {silent_s:.1f} s, but is not lost yet; if it has ended, start this "
        f"server again in {max(1.0, heartbeat_timeout - silent_s):.0f} s: then it takes its place"
    )


class Membership:
    """The members of the cluster.

    Parameters
    ----------
    timeout
        Seconds of silence after which a member is lost.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.members: dict[bytes, MemberInfo] = {}
        self.gone: deque[Departure] = deque(maxlen=MAX_GONE)
        self._by_silence: OrderedDict[bytes, MemberInfo] = OrderedDict()  # the one silent for longest comes first
        self._peers: dict[Peer, bytes] = {}
        # incarnations that may not speak any more, and why; and the connections that they had
        self._barred: dict[bytes, tuple[Peer, PSError]] = {}
        self._barred_peers: dict[Peer, PSError] = {}

    def join(
        self,
        hello: Hello,
        peer: Peer,
        roster: Roster,
        now: float,
        holder: KeyHolder | None = None,
        before: MemberInfo | None = None,
    ) -> MemberInfo:
        """Enter a member in its roster; the same incarnation keeps its rank, whatever connection it comes by.

        One that has a predecessor, ``before``, takes that one's rank, and it is to be removed next.

        Raises
        ------
        IdentityError
            Somebody else says that it is a member: it does not know its secret, or has another key.
        """
        if self._peers.get(peer, hello.incarnation) != hello.incarnation:
            raise ProtocolError("a connection belongs to one incarnation; open another one")
        if len(hello.secret) != KEY_NBYTES:
            raise ProtocolError(f"a member has a secret of {KEY_NBYTES} bytes")
        member = self.members.get(hello.incarnation)
        if member is not None and not same(member.hello.secret, hello.secret):
            raise IdentityError(f"{member.title} is here, and whoever says this Hello is another one; nothing changes")
        if member is not None:
            check_same(member.holder, holder, member.title)
        if member is None:
            if len(self.members) >= MAX_MEMBERS:
                raise LimitError(what="number of members", got=len(self.members) + 1, limit=MAX_MEMBERS)
            member = roster.enter(hello, peer, now, holder, before)
            self.members[hello.incarnation] = self._by_silence[hello.incarnation] = member
        else:
            self._peers.pop(member.peer, None)
            member.peer = peer
        self._peers[peer] = hello.incarnation
        self.heard(member, now)
        return member

    def heard(self, member: MemberInfo, now: float) -> None:
        """A member gave a sign of life; ``now`` never goes back."""
        member.seen_at = now
        self._by_silence.move_to_end(member.incarnation)

    def find(self, peer: Peer) -> MemberInfo | None:
        """Return the member behind a connection."""
        incarnation = self._peers.get(peer)
        return None if incarnation is None else self.members[incarnation]

    def title_of_gone(self, peer: Peer) -> str:
        """Return how the member is called that was behind a connection; empty where none was, or long ago."""
        return next((f"{d.member.title}, {d.how}" for d in reversed(self.gone) if d.member.peer == peer), "")

    def remove(self, member: MemberInfo, how: str, now: float, barred: PSError | None = None) -> None:
        """A member has gone; ``barred`` is the error that it gets if it sends anything again."""
        del self.members[member.incarnation]
        del self._by_silence[member.incarnation]
        del self._peers[member.peer]
        member.roster.leave(member, how)
        member.answered.clear()  # a job's description is large, and nobody asks any more
        self.gone.append(Departure(member, how, now))
        self._forget_counters()
        if barred is not None:
            self._barred[member.incarnation] = member.peer, barred
            self._barred_peers[member.peer] = barred
            while len(self._barred) > MAX_MEMBERS:
                peer, error = self._barred.pop(next(iter(self._barred)))
                if self._barred_peers.get(peer) is error:
                    del self._barred_peers[peer]

    def _forget_counters(self) -> None:
        room = MAX_GONE_COUNTERS_NBYTES
        for departure in reversed(self.gone):
            member = departure.member
            room -= member.counters_nbytes
            if room < 0:
                member.counters, member.counters_nbytes, member.counters_of = "{}", 0, {}

    def check_welcome(self, incarnation: bytes) -> None:
        """Raise what bars an incarnation that the others went on without."""
        if incarnation in self._barred:
            raise self._barred[incarnation][1].again()

    def check_known(self, peer: Peer) -> None:
        """Raise what bars the one that was behind a connection."""
        if peer in self._barred_peers:
            raise self._barred_peers[peer].again()

    def next_deadline(self) -> float | None:
        """Return when the member silent for longest is lost."""
        longest = next(iter(self._by_silence.values()), None)
        return None if longest is None else longest.seen_at + self.timeout

    def overdue(self, now: float, most: int | None = None) -> list[MemberInfo]:
        """Return the members that were silent for too long, or so many of them."""
        return list(islice(takewhile(lambda m: now >= m.seen_at + self.timeout, self._by_silence.values()), most))

    def validate(self) -> None:
        """Assert that ranks and connections are unique, and the orders those of the members."""
        assert {peer: m.incarnation for m in self.members.values() for peer in [m.peer]} == self._peers
        rosters = {id(m.roster): m.roster for m in self.members.values()}.values()
        assert sum(map(len, rosters)) == len(self.members)
        assert all(member.roster is roster for roster in rosters for member in roster)
        for roster in rosters:
            roster.validate()
        assert set(self._by_silence) == set(self.members)
        assert all(a.seen_at <= b.seen_at for a, b in pairwise(self._by_silence.values()))
        assert not set(self._barred) & set(self.members)
        assert {id(error) for error in self._barred_peers.values()} <= {id(e) for _, e in self._barred.values()}
