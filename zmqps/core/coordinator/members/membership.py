"""Membership: members, their ranks and processes, their last sign of life, and departed members.

A supervisor gives the successive processes of one task a secret of that task, and numbers their lives. A *claim* is
derived from that secret: a process with the claim of a member, and a later life, was started by the supervisor that saw
the member die. A name alone proves nothing: it only says which free rank a newcomer gets.

A supervisor also gives each process a separate token. Its members send a hash of it, so only the supervisor, which has
the token itself, can report that the process has ended. A token is of one life: a report never concerns the next one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import takewhile
from math import inf
from typing import Any, NamedTuple

from zmqps.core.coordinator.journal import Changed, Plain, nothing, packed, packed_error, unpacked, unpacked_error
from zmqps.core.protocol.events import Peer, Send
from zmqps.core.protocol.messages import Error, Hello, Job, Message, Proceed, Range, Released
from zmqps.core.protocol.messages.hello import SPARE
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.protocol.security.keys import KEY_NBYTES, same
from zmqps.core.protocol.security.roles import KeyHolder, check_same, shut_out
from zmqps.errors import EvictedError, IdentityError, LimitError, ProtocolError, PSError

MAX_MEMBERS = 4096
#: A member has a handful of pending requests at the coordinator; this many answers are remembered. None is large: the
#: description of a job is one object for all its members.
MAX_ANSWERED = 32
#: Answers that are large, or one per step; a repeated request is answered again from the job's state.
DERIVED = (Job, Proceed)
#: The status shows this many departed members; older ones are forgotten.
MAX_GONE = 256
#: … with their counters up to this many bytes, the newest first.
MAX_GONE_COUNTERS_NBYTES = 64 << 10
#: The least time for members to come back to a coordinator that was away: reconnecting takes up to 2 s.
RETURN_S = 5.0
#: The prefix of the connection name of a member that has not come back yet to a coordinator that was away.
ABSENT = b"?"
#: A newcomer whose number an earlier life of it still seems to have waits until that one is lost, or is heard again
#: after this many heartbeats: its messages before its death have arrived by then, and a live one has sent more.
DOUBT_BEATS = 0.5
#: The most newcomers that wait for the number of one member.
MAX_DOUBTS = 8
#: This many ended processes are remembered: a `Hello` of one may still be in flight when its supervisor reports it.
MAX_ENDED = 1024


class Answers:
    """A member's answers, in case they or their requests are repeated."""

    __slots__ = ("by_request", "note")

    def __init__(self) -> None:
        self.by_request: OrderedDict[int, Message] = OrderedDict()  # the oldest first
        self.note: Changed = nothing  # called when a journaled one is added

    def remember(self, request: int, message: Message) -> None:
        self.by_request[request] = message
        forgotten: Message = message
        if len(self.by_request) > MAX_ANSWERED:
            _, forgotten = self.by_request.popitem(last=False)
        if not (isinstance(message, DERIVED) and isinstance(forgotten, DERIVED)):
            self.note()

    def with_job(self, job: object) -> Job | None:
        """Return an answer with exactly this description of a job, which can be sent again."""
        told = (message for message in reversed(self.by_request.values()) if isinstance(message, Job))
        return next((message for message in told if message.job is job), None)

    def go_back(self) -> None:
        """Forget answers about lost steps, ranges or servers: repeated requests get new ones."""
        for request, message in list(self.by_request.items()):
            if isinstance(message, Released):
                self.by_request[request] = replace(message, step=0)
            elif isinstance(message, Range | Proceed | Job):
                del self.by_request[request]
        self.note()

    def dump(self) -> Plain:
        """Return the journaled ones; None for none."""
        kept = [[n, packed(message)] for n, message in self.by_request.items() if not isinstance(message, DERIVED)]
        return kept or None

    def restore(self, kept: Plain) -> None:
        for request, message in kept:
            self.by_request[request] = unpacked(message)


class LeavingState(IntEnum):
    """Whether a server stays, is draining and gets nothing new, or drains even if shards then have fewer backups."""

    STAYS, GOES, MUST_GO = range(3)


class Origin(NamedTuple):
    """A member's origin: the address of the other host (empty: this one), and the key it has joined with."""

    address: str = ""
    holder: KeyHolder | None = None


@dataclass(slots=True, kw_only=True)
class Reported:
    """The contents of a member's heartbeats, for watchers."""

    counters: str = "{}"  # packed, see `zmqps.core.coordinator.watching.status`
    nbytes: int = 0  # of those
    by_epoch: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # a server's, of each job
    num_pushes: int = 0  # a worker's
    doing: str = ""  # and its present activity
    unreached: str = ""  # and the servers it cannot reach
    memory_nbytes: int = 0  # a server's, for the shards of all jobs; 0: unknown
    sample: Any = None  # its counts, `zmqps.core.coordinator.watching.watching`
    awaited_s: float = 0.0  # how long others have waited for it alone


@dataclass(slots=True)
class JobTelling:
    """How a member has joined its job."""

    named: bool = False  # it has described its job itself, and that was accepted
    told: bool = False  # it has got the job, so that this is repeated on request
    again_at: float = 0.0  # when it may repeat a pending request, or soon before


@dataclass(slots=True)
class NoteFlow:
    """How many calls of a script's log have arrived, or are known to be lost.

    ``due``: when their next message would come, if all came at the longest intervals.
    """

    number: int = 0
    due: float = 0.0


@dataclass(slots=True, eq=False, kw_only=True)
class MemberInfo:
    """A node that has joined; ``incarnation`` is the unique id of this life of its process."""

    hello: Hello
    incarnation: bytes = field(init=False)
    peer: Peer
    roster: Roster = field(repr=False)  # unset after its departure
    rank: int
    seen_at: float
    origin: Origin = field(default_factory=Origin)
    leaving: LeavingState = LeavingState.STAYS
    reported: Reported = field(default_factory=Reported)
    answers: Answers = field(default_factory=Answers)
    telling: JobTelling = field(default_factory=JobTelling)
    notes: NoteFlow = field(default_factory=NoteFlow)

    def __post_init__(self) -> None:
        self.incarnation = self.hello.incarnation

    def answer(self, request: int, message: Message) -> Send:
        """Return the answer to a request, remembered in case either is repeated."""
        self.answers.remember(request, message)
        return Send(self.peer, message)

    def fail(self, request: int, error: PSError) -> Send:
        return self.answer(request, Error.of(request, error))

    @property
    def holder(self) -> KeyHolder | None:
        return self.origin.holder

    @property
    def role(self) -> str:
        return self.hello.role

    @property
    def is_spare(self) -> bool:
        """Whether it is a server beyond those that the cluster waits for."""
        return SPARE in self.hello.capabilities

    @property
    def job(self) -> str:
        """The name of its job; empty for a server, which serves all of them."""
        return "" if self.hello.role == "server" else self.hello.job

    @property
    def title(self) -> str:
        """Its name in errors and logs: ``worker 2 (name, host, pid 4711)``."""
        return f"{self.role} {self.rank} ({self.hello.name}, {self.hello.host}, pid {self.hello.pid})"

    def lost(self, now: float) -> EvictedError:
        """Return the error for a member that was silent for too long."""
        silent = now - self.seen_at
        return EvictedError(f"{self.title} was silent for {silent:.1f} s and presumed dead; connect again")

    @property
    def absent(self) -> bool:
        """Whether it was a member before the coordinator was away, and has sent nothing since."""
        return self.peer.startswith(ABSENT)

    def eviction(self, now: float, how: DepartureCause) -> PSError | None:
        """Return the error for a member that comes back after departing without a goodbye."""
        if how == DepartureCause.RESTARTED:
            return EvictedError(f"{self.title} was started again, and its new life has its place; connect again")
        return (
            shut_out(self.role)
            if how == DepartureCause.REVOKED
            else self.lost(now)
            if how == DepartureCause.LOST
            else None
        )


@dataclass(frozen=True, slots=True)
class Departure:
    """A departed member."""

    member: MemberInfo
    how: DepartureCause
    at: float


class Last(NamedTuple):
    """The last member with a free rank."""

    name: str
    claim: bytes
    numbered: bool  # whether it was the number from its launcher


class Claims:
    """Of one roster: the live members with a claim, and the last holder of each free rank.

    The latter are as many as there were members at once, and as launchers have given numbers, which are below
    `MAX_MEMBERS`: a rank that another member takes is forgotten.
    """

    def __init__(self) -> None:
        self._living: dict[bytes, dict[bytes, MemberInfo]] = {}  # by claim and incarnation, in order of arrival
        self._last: dict[int, Last] = {}  # by free rank: its last holder
        self._ranks: dict[str, set[int]] = {}  # the same by name

    def predecessor(self, hello: Hello, holder: KeyHolder | None) -> MemberInfo | None:
        """Return the member that was an earlier life of the sender of this `Hello`; None if there is none.

        Members of the same life are not predecessors: a process may join more than once.

        Raises `EvictedError`: a later life has joined already: this `Hello` is an echo of an ended one.
        """
        if not hello.claim:
            return None
        living = [m for m in self._living.get(hello.claim, {}).values() if m.holder == holder]
        later = next((member for member in living if member.hello.life > hello.life), None)
        if later is not None:
            raise EvictedError(f"{hello.name} was started again since: {later.title} has its place")
        return next((member for member in living if member.hello.life < hello.life), None)

    def rank(self, hello: Hello) -> int | None:
        """Return the lowest free rank last held by this name and, if that holder had one, this claim."""
        ranks = self._ranks.get(hello.name, ())
        last = self._last
        return min((r for r in ranks if not last[r].claim or same(last[r].claim, hello.claim)), default=None)

    def is_numbered(self, rank: int) -> bool:
        """Whether a free rank is the number of a process that its launcher may restart."""
        return rank in self._last and self._last[rank].numbered

    @property
    def any_numbered(self) -> bool:
        """Whether any free rank is."""
        return any(last.numbered for last in self._last.values())

    def took(self, member: MemberInfo) -> None:
        """A member has its rank."""
        if (last := self._last.pop(member.rank, None)) is not None:
            self._ranks[last.name].remove(member.rank)
            if not self._ranks[last.name]:
                del self._ranks[last.name]
        if claim := member.hello.claim:
            self._living.setdefault(claim, {})[member.incarnation] = member

    def left(self, member: MemberInfo, *, frees: bool) -> None:
        """A member has departed; ``frees``: its rank is free now."""
        claim = member.hello.claim
        if claim:
            del self._living[claim][member.incarnation]
            if not self._living[claim]:
                del self._living[claim]
        if frees:
            self._last[member.rank] = Last(member.hello.name, claim, member.hello.wish == member.rank + 1)
            self._ranks.setdefault(member.hello.name, set()).add(member.rank)

    def dump(self) -> list[list[Any]]:
        """Return the last holders of free ranks, as plain data; live members report themselves."""
        return [[rank, *last] for rank, last in sorted(self._last.items())]

    def restore(self, kept: Sequence[Sequence[Any]]) -> None:
        """Restore the last holders of free ranks."""
        for rank, name, claim, numbered in kept:
            self._last[rank] = Last(name, claim, bool(numbered))
            self._ranks.setdefault(name, set()).add(rank)

    def validate(self, by_rank: Mapping[int, MemberInfo]) -> None:
        """Assert that both fit the members, and the free ranks."""
        claimed = {member.incarnation for member in by_rank.values() if member.hello.claim}
        assert {who for living in self._living.values() for who in living} == claimed
        assert self._last.keys().isdisjoint(by_rank)
        ranks: dict[str, set[int]] = {}
        for rank, last in self._last.items():
            ranks.setdefault(last.name, set()).add(rank)
        assert ranks == self._ranks


class Roster:
    """The members of one role: the servers of the cluster, or a job's workers or observers.

    A launcher gives each of its processes a number, its index, which the process wishes to have: that is its rank,
    unless another member has it. Others get ranks that are not reserved by a launcher.
    """

    def __init__(self, expected: Callable[[], int | None] = int) -> None:
        self._by_rank: dict[int, MemberInfo] = {}
        self._expected = expected  # how many are expected: launchers' numbers below are reserved
        self._numbered = False  # whether any member, present or past, has a launcher's number
        self._lowest = 0  # all lower ranks are taken
        self._next = 0  # no rank from here on is taken
        self._claims = Claims()
        # by member: since when newcomers wait for its number
        self._doubts: dict[bytes, dict[bytes, float]] = {}

    def __len__(self) -> int:
        return len(self._by_rank)

    def __iter__(self) -> Iterator[MemberInfo]:
        """Yield the members by rank; reading a few of them is cheap."""
        by_rank = self._by_rank
        return (by_rank[rank] for rank in range(self._next) if rank in by_rank)

    def predecessor(self, hello: Hello, holder: KeyHolder | None) -> MemberInfo | None:
        """Return the member whose next life sends this `Hello`, as decided by `Claims.predecessor`."""
        return self._claims.predecessor(hello, holder)

    def rival(self, hello: Hello) -> MemberInfo | None:
        """Return the member with the number that a newcomer wishes; None if that is free, or it wishes none."""
        return None if (wish := index_of(hello)) is None else self._by_rank.get(wish)

    def awaits(self, hello: Hello, now: float, heartbeat_interval: float) -> MemberInfo | None:
        """Return the member that must be heard again, or lost, before a number's owner is known.

        Such a member has the same name and number as the newcomer but is another process: usually the previous life,
        which has died and is not missed yet. None: there is none.
        """
        rival = self.rival(hello)
        if rival is None or (rival.hello.name, rival.hello.wish) != (hello.name, hello.wish):
            return None
        if (rival.hello.host, rival.hello.pid) == (hello.host, hello.pid):
            return None  # a process may join more than once
        heard_by = rival.seen_at - DOUBT_BEATS * heartbeat_interval
        doubts = self._doubts.setdefault(rival.incarnation, {})
        if len(doubts) >= MAX_DOUBTS:  # newcomers that have not repeated Hello may never do so
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
        """Return a new member: with the rank of its predecessor, which is about to leave, or its wish.

        Without a wish, or if another has that rank, it gets its last rank, or the lowest free one.
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
        """Enter a member with a free rank, or that of one about to leave; by default the lowest."""
        self._numbered |= index_of(member.hello) is not None
        member.roster, member.rank = self, self._free(member) if rank is None else rank
        self._by_rank[member.rank] = member
        self._claims.took(member)
        self._next = max(self._next, member.rank + 1)
        while self._lowest in self._by_rank:
            self._lowest += 1

    def _free(self, member: MemberInfo) -> int:
        """Return the lowest free rank that is not reserved by a launcher's number."""
        is_beyond = self._numbered or member.is_spare
        # a job may expect any number of workers, but launchers' numbers are below that of members
        rank = max(self._lowest, min(self._expected() or 0, MAX_MEMBERS) if is_beyond else 0)
        while rank in self._by_rank or self._claims.is_numbered(rank):
            rank += 1
        return rank

    def dump(self) -> Plain:
        """Return its journaled state: the rank of each member, and the last holders of free ones."""
        return [[[member.incarnation, member.rank] for member in self], self._claims.dump()]

    def restore(self, kept: Plain, members: Mapping[bytes, MemberInfo]) -> None:
        """Restore the journaled members at their ranks."""
        ranks, claims = kept
        for who, rank in ranks:
            self.take(members[who], rank)
        self._claims.restore(claims)
        self._numbered |= self._claims.any_numbered

    def promote(self, member: MemberInfo, below: int, settled: Container[bytes]) -> None:
        """Give a member with a rank not below this one a lower rank: the lowest that is not reserved.

        A holder of that rank that is not settled (by incarnation) takes the member's in exchange.
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

    def leave(self, member: MemberInfo) -> None:
        self._doubts.pop(member.incarnation, None)
        frees = self._by_rank[member.rank] is member  # else another one has taken its place
        self._claims.left(member, frees=frees)
        if frees:
            del self._by_rank[member.rank]
            self._lowest = min(self._lowest, member.rank)
        if not self._by_rank:
            self._next = 0

    def validate(self) -> None:
        """Assert that ranks are consistent, and that a number has only one holder."""
        by_rank = self._by_rank
        assert all([rank == member.rank < self._next for rank, member in by_rank.items()])
        assert by_rank.keys() >= set(range(self._lowest))
        assert self._numbered or not any([index_of(member.hello) is not None for member in by_rank.values()])
        self._claims.validate(self._by_rank)


def index_of(hello: Hello) -> int | None:
    """Return a process's number from its launcher; None: it has none, or a greater one than ranks may be."""
    return hello.wish - 1 if 0 < hello.wish <= MAX_MEMBERS else None


class Processes:
    """The members by process, of those that name their process."""

    def __init__(self) -> None:
        self._living: dict[bytes, dict[bytes, MemberInfo]] = {}  # by process and incarnation
        self._ended: OrderedDict[bytes, None] = OrderedDict()

    def took(self, member: MemberInfo) -> None:
        """A member has joined."""
        if process := member.hello.process:
            self._living.setdefault(process, {})[member.incarnation] = member

    def left(self, member: MemberInfo) -> None:
        if process := member.hello.process:
            del self._living[process][member.incarnation]
            if not self._living[process]:
                del self._living[process]

    def end(self, process: bytes) -> list[MemberInfo]:
        """A process has ended: return its members, which are about to leave; servers first."""
        assert process
        self._ended[process] = None
        self._ended.move_to_end(process)
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        return sorted(self._living.get(process, {}).values(), key=lambda member: member.role != "server")

    def check(self, hello: Hello) -> None:
        """Raise `EvictedError` for the `Hello` of a process whose end its supervisor has reported."""
        if hello.process in self._ended:
            raise EvictedError(f"the process of {hello.name} has ended, says its supervisor: connect from another one")

    def validate(self, members: Mapping[bytes, MemberInfo]) -> None:
        """Assert that all entries are members, and none is in an ended process."""
        said = {who: member for who, member in members.items() if member.hello.process}
        assert {who: m for living in self._living.values() for who, m in living.items()} == said
        assert all(self._living.values())
        assert self._ended.keys().isdisjoint(self._living)
        assert len(self._ended) <= MAX_ENDED


class Fleet(Roster):
    """The servers; ``wanted`` of them make the cluster."""

    def __init__(self, wanted: int) -> None:
        super().__init__(lambda: self.most)
        #: The number that a new job is placed on: smaller, once some have been drained without replacement.
        self.wanted = wanted
        #: … and the most.
        self.most = wanted

    @property
    def staying(self) -> list[MemberInfo]:
        """Those that are not draining."""
        return [server for server in self if not server.leaving]

    def joined(self) -> None:
        """One more has joined, or stays after all."""
        self.wanted = max(self.wanted, min(self.most, len(self.staying)))

    def shrink(self) -> None:
        """One starts to drain."""
        self.wanted = max(1, min(self.wanted, len(self.staying)))


class Membership:
    """The members of the cluster."""

    def __init__(self, timeout: float, changed: Callable[[str, bytes], None] = lambda what, who: None) -> None:
        self.timeout = timeout  # seconds of silence after which a member is lost
        self._changed = changed  # called with a member's journaled part, and its incarnation
        self.members: dict[bytes, MemberInfo] = {}
        self._nobody_before = 0.0  # no overdue member is lost before
        self.gone: deque[Departure] = deque(maxlen=MAX_GONE)
        self._by_silence: OrderedDict[bytes, MemberInfo] = OrderedDict()  # the longest silent comes first
        self._peers: dict[Peer, bytes] = {}
        # incarnations that are refused, and why; and their connections
        self._barred: dict[bytes, tuple[Peer, PSError]] = {}
        self._barred_peers: dict[Peer, PSError] = {}
        self.processes: Processes = Processes()

    def join(
        self,
        hello: Hello,
        peer: Peer,
        roster: Roster,
        now: float,
        holder: KeyHolder | None = None,
        before: MemberInfo | None = None,
    ) -> MemberInfo:
        """Enter a member in its roster; the same incarnation keeps its rank, over any connection.

        One with a predecessor, ``before``, takes its rank, and the predecessor must be removed next.

        Raises `IdentityError`: the sender is not this member: it does not know its secret, or has another key.
        """
        if self._peers.get(peer, hello.incarnation) != hello.incarnation:
            raise ProtocolError("a connection belongs to one incarnation; open another one")
        if len(hello.secret) != KEY_NBYTES:
            raise ProtocolError(f"a member has a secret of {KEY_NBYTES} bytes")
        member = self.members.get(hello.incarnation)
        if member is not None and not same(member.hello.secret, hello.secret):
            raise IdentityError(f"{member.title} is connected, and this Hello lacks its secret; nothing changes")
        if member is not None:
            check_same(member.holder, holder, member.title)
        if member is None:
            if len(self.members) >= MAX_MEMBERS:
                raise LimitError(what="number of members", got=len(self.members) + 1, limit=MAX_MEMBERS)
            member = roster.enter(hello, peer, now, holder, before)
            self.members[hello.incarnation] = self._by_silence[hello.incarnation] = member
            self.processes.took(member)
            self._watch(member)
            self._changed("member", hello.incarnation)
        else:
            self._peers.pop(member.peer, None)
            member.peer = peer
        self._peers[peer] = hello.incarnation
        self.heard(member, now)
        return member

    def _watch(self, member: MemberInfo) -> None:
        member.answers.note = lambda: self._changed("answers", member.incarnation)

    def find_farewell(self, who: bytes, secret: bytes, peer: Peer, holder: KeyHolder | None) -> MemberInfo | None:
        """Return the member that says goodbye over a new connection, which is its own from now on.

        Raises `IdentityError`: the sender is not this member.
        """
        member = self.members.get(who)
        if member is not None:
            if not same(member.hello.secret, secret):
                raise IdentityError(f"{member.title} is connected, and this goodbye lacks its secret; nothing changes")
            check_same(member.holder, holder, member.title)
            self._peers.pop(member.peer, None)
            member.peer = peer
            self._peers[peer] = who
        return member

    def heard(self, member: MemberInfo, now: float) -> None:
        """A member has given a sign of life; ``now`` never goes back."""
        member.seen_at = now
        self._by_silence.move_to_end(member.incarnation)

    def find(self, peer: Peer) -> MemberInfo | None:
        incarnation = self._peers.get(peer)
        return None if incarnation is None else self.members[incarnation]

    def title_of_gone(self, peer: Peer) -> str:
        """Return the name of the member that was behind a connection; empty if there was none, or long ago."""
        return next((f"{d.member.title}, {d.how}" for d in reversed(self.gone) if d.member.peer == peer), "")

    def remove(self, member: MemberInfo, how: DepartureCause, now: float, barred: PSError | None = None) -> None:
        """A member has departed; ``barred`` is the error for its later messages."""
        del self.members[member.incarnation]
        del self._by_silence[member.incarnation]
        del self._peers[member.peer]
        self.processes.left(member)
        member.roster.leave(member)
        del member.roster  # it knows its job, which must be freed completely
        member.answers.by_request.clear()  # a job's description is large, and not requested any more
        self._changed("member", member.incarnation)
        self._changed("answers", member.incarnation)
        self._changed("noted", member.incarnation)
        self.gone.append(Departure(member, how, now))
        self._forget_counters()
        if barred is not None:
            self._barred[member.incarnation] = member.peer, barred
            self._barred_peers[member.peer] = barred
            self._changed("barred", member.incarnation)
            while len(self._barred) > MAX_MEMBERS:
                oldest = next(iter(self._barred))
                self._changed("barred", oldest)
                peer, error = self._barred.pop(oldest)
                if self._barred_peers.get(peer) is error:
                    del self._barred_peers[peer]

    def _forget_counters(self) -> None:
        room = MAX_GONE_COUNTERS_NBYTES
        for departure in reversed(self.gone):
            member = departure.member
            room -= member.reported.nbytes
            if room < 0:
                member.reported = Reported()

    def check_welcome(self, hello: Hello) -> None:
        """Raise the error of an evicted incarnation, or of one whose process has ended."""
        if hello.incarnation in self._barred:
            raise self._barred[hello.incarnation][1].again()
        self.processes.check(hello)

    def check_known(self, peer: Peer) -> None:
        """Raise the error of the refused member of a connection."""
        if peer in self._barred_peers:
            raise self._barred_peers[peer].again()

    def next_deadline(self) -> float | None:
        """Return when the longest silent member is lost."""
        longest = next(iter(self._by_silence.values()), None)
        return None if longest is None else max(longest.seen_at + self.timeout, self._nobody_before)

    def overdue(self, now: float, most: int | None = None) -> list[MemberInfo]:
        """Return the members that were silent for too long, up to a number.

        Servers come first: no step may be decided without a worker while it relies on a lost server.
        """
        if now < self._nobody_before:
            return []
        late = takewhile(lambda member: now >= member.seen_at + self.timeout, self._by_silence.values())
        return sorted(late, key=lambda member: member.role != "server")[:most]

    def begin_again(self, now: float) -> float:
        """Give all members time to come back, whatever their timeouts; return how long."""
        self._nobody_before = now + RETURN_S
        return max(self.timeout, RETURN_S)

    def dump(self, who: bytes) -> Plain:
        """Return a member's journaled state; that of a job's member has its rank with the job."""
        if (member := self.members.get(who)) is None:
            return None
        address, holder = member.origin
        rank = member.rank if member.role == "server" else 0
        return [packed(member.hello), rank, address, None if holder is None else list(holder)]

    def dump_answers(self, who: bytes) -> Plain:
        """Return the answers that a member may request again; None for none."""
        return self.members[who].answers.dump() if who in self.members else None

    @property
    def barred(self) -> Iterable[bytes]:
        """The refused incarnations."""
        return self._barred.keys()

    def dump_barred(self, who: bytes) -> Plain:
        """Return the journaled state of a refused one."""
        return packed_error(self._barred[who][1]) if who in self._barred else None

    def restore(self, kept: Plain, servers: Roster, now: float) -> None:
        """Restore a journaled member; its connection comes from itself, and its job is set by the job."""
        hello, rank, address, holder = kept
        hello = unpacked(hello)
        member = MemberInfo(
            hello=hello, peer=ABSENT + hello.incarnation, roster=servers, rank=rank, seen_at=now,
            origin=Origin(address, None if holder is None else KeyHolder(*holder)),
        )  # fmt: skip
        self.members[hello.incarnation] = self._by_silence[hello.incarnation] = member
        self._peers[member.peer] = hello.incarnation
        self.processes.took(member)
        self._watch(member)
        if member.role == "server":
            servers.take(member, rank)

    def restore_barred(self, who: bytes, kept: Plain) -> None:
        """Restore a refused incarnation; its connection is unknown."""
        self._barred[who] = ABSENT + who, unpacked_error(kept)

    def validate(self) -> None:
        """Assert that ranks and connections are unique, and that the orders fit the members."""
        assert {member.peer: member.hello.incarnation for member in self.members.values()} == self._peers
        rosters = {id(m.roster): m.roster for m in self.members.values()}.values()
        assert sum(map(len, rosters)) == len(self.members)
        for roster in rosters:
            for member in roster:
                assert member.roster is roster
            roster.validate()
        self.processes.validate(self.members)
        assert self._by_silence.keys() == self.members.keys()
        seen_at = -inf
        for member in self._by_silence.values():
            assert seen_at <= member.seen_at
            seen_at = member.seen_at
        assert self._barred.keys().isdisjoint(self.members)
        assert {id(error) for error in self._barred_peers.values()} <= {id(e) for _, e in self._barred.values()}
