"""Who is there: members, their last sign of life, and who has gone."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import takewhile
from math import inf
from typing import Any, NamedTuple, Protocol

from zmqps.core.coordinator.journal import Changed, Plain, nothing, packed, packed_error, unpacked, unpacked_error
from zmqps.core.coordinator.members.processes import Processes
from zmqps.core.protocol.events import Peer, Send
from zmqps.core.protocol.messages import Error, Hello, Job, Message, Proceed, Range, Released
from zmqps.core.protocol.messages.hello import SPARE
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.protocol.security.keys import KEY_NBYTES, same
from zmqps.core.protocol.security.roles import KeyHolder, check_same, shut_out
from zmqps.errors import EvictedError, IdentityError, LimitError, ProtocolError, PSError

MAX_MEMBERS = 4096
#: After so many heartbeats that have not come a member is taken for silent.
SILENT_BEATS = 2.5
#: A member has a handful of requests at the coordinator at a time; this many answers are remembered. None is large: the
#: description of a job is one object for all its members.
MAX_ANSWERED = 32
#: Answers that are large, or as many as there are steps; asked again, they are given again by what is kept of the job.
DERIVED = (Job, Proceed)
#: Of those who left, the status shows this many; older ones are forgotten.
MAX_GONE = 256
#: … with their counters as long as these take no more; the newest have the first claim.
MAX_GONE_COUNTERS_NBYTES = 64 << 10
#: So long members have at least to come back to a coordinator that was away: a connection takes up to 2 s to be anew.
RETURN_S = 5.0
#: What begins the name of the connection of a member that has not come back yet to a coordinator that was away.
ABSENT = b"?"


class Ranks(Protocol):
    """Where members have their ranks: `zmqps.core.coordinator.members.roster.Roster`."""

    def enter(
        self, hello: Hello, peer: Peer, now: float, holder: KeyHolder | None = None, before: MemberInfo | None = None
    ) -> MemberInfo:
        """Return a new member, which has its rank."""

    def take(self, member: MemberInfo, rank: int | None = None) -> None:
        """Enter a member under a rank."""

    def leave(self, member: MemberInfo, how: DepartureCause) -> None:
        """A member has gone."""

    def validate(self) -> None:
        """Assert the invariants."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[MemberInfo]: ...


class Answers:
    """What a member was answered, in case that or its request is sent again."""

    __slots__ = ("by_request", "note")

    def __init__(self) -> None:
        self.by_request: OrderedDict[int, Message] = OrderedDict()  # the oldest first
        self.note: Changed = nothing  # called when one is remembered that is kept

    def remember(self, request: int, message: Message) -> None:
        """Remember an answer."""
        self.by_request[request] = message
        forgotten: Message = message
        if len(self.by_request) > MAX_ANSWERED:
            _, forgotten = self.by_request.popitem(last=False)
        if not (isinstance(message, DERIVED) and isinstance(forgotten, DERIVED)):
            self.note()

    def with_job(self, job: object) -> Job | None:
        """Return one that tells this very description of a job; what it holds can be told again."""
        told = (message for message in reversed(self.by_request.values()) if isinstance(message, Job))
        return next((message for message in told if message.job is job), None)

    def go_back(self) -> None:
        """Remember none that tells of steps, ranges or servers that are gone: whoever asks again gets another."""
        for request, message in list(self.by_request.items()):
            if isinstance(message, Released):
                self.by_request[request] = replace(message, step=0)
            elif isinstance(message, Range | Proceed | Job):
                del self.by_request[request]
        self.note()

    def dump(self) -> Plain:
        """Return those that are kept; None for none."""
        kept = [[n, packed(message)] for n, message in self.by_request.items() if not isinstance(message, DERIVED)]
        return kept or None

    def restore(self, kept: Plain) -> None:
        """Remember those that were kept."""
        for request, message in kept:
            self.by_request[request] = unpacked(message)


class LeavingState(IntEnum):
    """Whether a server stays, is to go and gets nothing new, or goes even where shards have fewer backups then."""

    STAYS, GOES, MUST_GO = range(3)


class Origin(NamedTuple):
    """Where a member comes from: the address of the other host (empty: this one), and the key it has joined with."""

    address: str = ""
    holder: KeyHolder | None = None


@dataclass(slots=True, kw_only=True)
class Reported:
    """What a member has said in its heartbeats, for those who watch."""

    counters: str = "{}"  # packed, see `zmqps.core.coordinator.watching.status`
    nbytes: int = 0  # of those
    by_epoch: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # a server's, of each job
    num_pushes: int = 0  # a worker's
    doing: str = ""  # and what it is at
    unreached: str = ""  # and which servers it cannot reach
    memory_nbytes: int = 0  # a server's, for the shards of all jobs; 0: it has not said
    sample: Any = None  # what it had counted, `zmqps.core.coordinator.watching.watching`
    awaited_s: float = 0.0  # for how long others have waited for it alone


@dataclass(slots=True)
class JobTelling:
    """How a member has come to its job."""

    named: bool = False  # it has described the job itself that it trains, and that was accepted
    told: bool = False  # it has been told it, so that this is repeated when it asks again
    again_at: float = 0.0  # when it may ask again for what it waits for, or soon before


@dataclass(slots=True)
class NoteFlow:
    """How many calls of a script's log are here, or known to be lost.

    ``due``: when the next message of them were to come, if all came at the longest intervals.
    """

    number: int = 0
    due: float = 0.0


@dataclass(slots=True, eq=False, kw_only=True)
class MemberInfo:
    """A node that has joined; ``incarnation`` is the unique id of this life of its process."""

    hello: Hello
    incarnation: bytes = field(init=False)
    peer: Peer
    roster: Ranks = field(repr=False)  # none any more when it has gone
    rank: int
    seen_at: float
    origin: Origin = field(default_factory=Origin)
    leaving: LeavingState = LeavingState.STAYS
    reported: Reported = field(default_factory=Reported)
    answers: Answers = field(default_factory=Answers)
    telling: JobTelling = field(default_factory=JobTelling)
    notes: NoteFlow = field(default_factory=NoteFlow)

    def __post_init__(self) -> None:
        """Note who it is."""
        self.incarnation = self.hello.incarnation

    def answer(self, request: int, message: Message) -> Send:
        """Return the answer to a request, remembered in case it or the request is sent again."""
        self.answers.remember(request, message)
        return Send(self.peer, message)

    def fail(self, request: int, error: PSError) -> Send:
        """Return the answer to a request that failed."""
        return self.answer(request, Error.of(request, error))

    @property
    def holder(self) -> KeyHolder | None:
        """Whose key it has joined with."""
        return self.origin.holder

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
    def title(self) -> str:
        """How errors and logs call it: ``worker 2 (name, host, pid 4711)``."""
        return f"{self.role} {self.rank} ({self.hello.name}, {self.hello.host}, pid {self.hello.pid})"

    def lost(self, now: float) -> EvictedError:
        """Return what it is told that was silent for too long."""
        silent = now - self.seen_at
        return EvictedError(f"{self.title} was silent for {silent:.1f} s and presumed dead; connect again")

    @property
    def absent(self) -> bool:
        """Whether it was a member of a coordinator that was away, and has not said anything since that is back."""
        return self.peer.startswith(ABSENT)

    def eviction(self, now: float, how: DepartureCause) -> PSError | None:
        """Return what it is told if it comes back after it has gone without a goodbye."""
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
    """A node that has gone."""

    member: MemberInfo
    how: DepartureCause
    at: float


class Membership:
    """The members of the cluster."""

    def __init__(self, timeout: float, changed: Callable[[str, bytes], None] = lambda what, who: None) -> None:
        self.timeout = timeout  # seconds of silence after which a member is lost
        self._changed = changed  # called with what is kept of a member, and its incarnation
        self.members: dict[bytes, MemberInfo] = {}
        self._nobody_before = 0.0  # nobody is lost before, although members are overdue
        self.gone: deque[Departure] = deque(maxlen=MAX_GONE)
        self._by_silence: OrderedDict[bytes, MemberInfo] = OrderedDict()  # the one silent for longest comes first
        self._peers: dict[Peer, bytes] = {}
        # incarnations that may not speak any more, and why; and the connections that they had
        self._barred: dict[bytes, tuple[Peer, PSError]] = {}
        self._barred_peers: dict[Peer, PSError] = {}
        self.processes: Processes[MemberInfo] = Processes()

    def join(
        self,
        hello: Hello,
        peer: Peer,
        roster: Ranks,
        now: float,
        holder: KeyHolder | None = None,
        before: MemberInfo | None = None,
    ) -> MemberInfo:
        """Enter a member in its roster; the same incarnation keeps its rank, whatever connection it comes by.

        One that has a predecessor, ``before``, takes that one's rank, and it is to be removed next.

        Raises `IdentityError`: somebody else says that it is a member: it does not know its secret, or has another key.
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

        Raises `IdentityError`: somebody else says that it is this member.
        """
        member = self.members.get(who)
        if member is not None:
            if not same(member.hello.secret, secret):
                raise IdentityError(f"{member.title} is here, and whoever says goodbye is another one; nothing changes")
            check_same(member.holder, holder, member.title)
            self._peers.pop(member.peer, None)
            member.peer = peer
            self._peers[peer] = who
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

    def remove(self, member: MemberInfo, how: DepartureCause, now: float, barred: PSError | None = None) -> None:
        """A member has gone; ``barred`` is the error that it gets if it sends anything again."""
        del self.members[member.incarnation]
        del self._by_silence[member.incarnation]
        del self._peers[member.peer]
        self.processes.left(member)
        member.roster.leave(member, how)
        del member.roster  # it knows its job, of which nothing is to stay
        member.answers.by_request.clear()  # a job's description is large, and nobody asks any more
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
        """Raise what bars an incarnation that the others went on without, or whose process has ended."""
        if hello.incarnation in self._barred:
            raise self._barred[hello.incarnation][1].again()
        self.processes.check(hello)

    def check_known(self, peer: Peer) -> None:
        """Raise what bars the one that was behind a connection."""
        if peer in self._barred_peers:
            raise self._barred_peers[peer].again()

    def next_deadline(self) -> float | None:
        """Return when the member silent for longest is lost."""
        longest = next(iter(self._by_silence.values()), None)
        return None if longest is None else max(longest.seen_at + self.timeout, self._nobody_before)

    def overdue(self, now: float, most: int | None = None) -> list[MemberInfo]:
        """Return the members that were silent for too long, or so many of them.

        Servers come first: no step is to be decided without a worker while it counts on what is lost with a server.
        """
        if now < self._nobody_before:
            return []
        late = takewhile(lambda member: now >= member.seen_at + self.timeout, self._by_silence.values())
        return sorted(late, key=lambda member: member.role != "server")[:most]

    def begin_again(self, now: float) -> float:
        """All have time to come back, however soon they are given up else; return how long."""
        self._nobody_before = now + RETURN_S
        return max(self.timeout, RETURN_S)

    def dump(self, who: bytes) -> Plain:
        """Return what is kept of a member; of those of a job its rank is kept with the job."""
        if (member := self.members.get(who)) is None:
            return None
        address, holder = member.origin
        rank = member.rank if member.role == "server" else 0
        return [packed(member.hello), rank, address, None if holder is None else list(holder)]

    def dump_answers(self, who: bytes) -> Plain:
        """Return the answers that a member may ask for again; None for none."""
        return self.members[who].answers.dump() if who in self.members else None

    @property
    def barred(self) -> Iterable[bytes]:
        """The incarnations that may not speak any more."""
        return self._barred.keys()

    def dump_barred(self, who: bytes) -> Plain:
        """Return what is kept of one that may not speak any more."""
        return packed_error(self._barred[who][1]) if who in self._barred else None

    def restore(self, kept: Plain, servers: Ranks, now: float) -> None:
        """Have a member that was kept; where it is reached it says itself, and its job where it belongs."""
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
        """Bar one that was barred; its connection is not known any more."""
        self._barred[who] = ABSENT + who, unpacked_error(kept)

    def validate(self) -> None:
        """Assert that ranks and connections are unique, and the orders those of the members."""
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
