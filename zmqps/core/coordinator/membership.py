"""Who is there: members, their ranks, their last sign of life, and who has gone."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Any

from zmqps.core.protocol.events import Peer, Send
from zmqps.core.protocol.messages import Hello, Message
from zmqps.errors import LimitError, ProtocolError

MAX_MEMBERS = 4096
#: A member has a handful of requests at the coordinator at a time; this many answers are remembered.
MAX_ANSWERED = 32
#: Of those who left, the status shows this many; older ones are forgotten.
MAX_GONE = 256


@dataclass(slots=True)
class MemberInfo:
    """A node that has joined."""

    hello: Hello
    peer: Peer
    rank: int
    joined_at: float
    seen_at: float
    counters: Mapping[str, Any] = field(default_factory=dict)
    answered: OrderedDict[int, Message] = field(default_factory=OrderedDict)

    def answer(self, request: int, message: Message) -> Send:
        """Return the answer to a request, remembered in case it or the request is sent again."""
        self.answered[request] = message
        if len(self.answered) > MAX_ANSWERED:
            self.answered.popitem(last=False)
        return Send(self.peer, message)

    @property
    def role(self) -> str:
        """Its role."""
        return self.hello.role

    @property
    def incarnation(self) -> bytes:
        """The unique id of this life of the process."""
        return self.hello.incarnation

    @property
    def title(self) -> str:
        """How errors and logs call it: ``worker 2 (name, host, pid 4711)``."""
        return f"{self.role} {self.rank} ({self.hello.name}, {self.hello.host}, pid {self.hello.pid})"


@dataclass(frozen=True, slots=True)
class Departure:
    """A node that has gone; ``how`` is finished, closed or lost."""

    member: MemberInfo
    how: str
    at: float


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
        self._names: dict[str, set[str]] = {}  # by role, of all who ever joined
        self._num_finished: Counter[str] = Counter()  # by role
        self._by_rank: dict[str, dict[int, MemberInfo]] = {}  # by role
        self._by_silence: OrderedDict[bytes, MemberInfo] = OrderedDict()  # who was silent for longest comes first
        self._peers: dict[Peer, bytes] = {}
        self._lost: dict[bytes, Peer] = {}  # incarnations that may not speak any more

    def join(self, hello: Hello, peer: Peer, now: float) -> MemberInfo:
        """Add a member under the lowest free rank of its role; the same incarnation keeps its rank."""
        if self._peers.get(peer, hello.incarnation) != hello.incarnation:
            raise ProtocolError("a connection belongs to one incarnation; open another one")
        member = self.members.get(hello.incarnation)
        if member is None:
            if len(self.members) >= MAX_MEMBERS:
                raise LimitError(what="number of members", got=len(self.members) + 1, limit=MAX_MEMBERS)
            taken = self._by_rank.setdefault(hello.role, {})
            rank = next(rank for rank in range(len(taken) + 1) if rank not in taken)
            member = MemberInfo(hello, peer, rank, now, now)
            self.members[hello.incarnation] = self._by_silence[hello.incarnation] = taken[rank] = member
            names = self._names.setdefault(hello.role, set())
            if len(names) < MAX_MEMBERS:
                names.add(hello.name)
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

    def of(self, *roles: str) -> list[MemberInfo]:
        """Return the members of these roles, role by role, by rank."""
        return [member for role in roles for _, member in sorted(self._by_rank.get(role, {}).items())]

    def count(self, *roles: str) -> int:
        """Return how many members have these roles."""
        return sum(len(self._by_rank.get(role, ())) for role in roles)

    def num_joined(self, role: str) -> int:
        """Return how many of a role have joined so far: who was restarted under its name is no other one.

        Those that all have the same name are counted while they are here, and when they have finished.
        """
        return max(len(self._names.get(role, ())), self.count(role) + self._num_finished[role])

    def remove(self, member: MemberInfo, how: str, now: float) -> None:
        """A member has gone."""
        del self.members[member.incarnation]
        del self._by_silence[member.incarnation]
        del self._by_rank[member.role][member.rank]
        del self._peers[member.peer]
        self.gone.append(Departure(member, how, now))
        self._num_finished[member.role] += how == "finished"
        if how == "lost":
            self._lost[member.incarnation] = member.peer
            while len(self._lost) > MAX_MEMBERS:
                del self._lost[next(iter(self._lost))]

    def was_lost(self, incarnation: bytes) -> bool:
        """Whether the others went on without this incarnation."""
        return incarnation in self._lost

    def was_lost_at(self, peer: Peer) -> bool:
        """Whether the others went on without who was behind this connection."""
        return peer in self._lost.values()

    def next_deadline(self) -> float | None:
        """Return when the member silent for longest is lost."""
        longest = next(iter(self._by_silence.values()), None)
        return None if longest is None else longest.seen_at + self.timeout

    def overdue(self, now: float) -> list[MemberInfo]:
        """Return the members that were silent for too long."""
        return list(takewhile(lambda m: now >= m.seen_at + self.timeout, self._by_silence.values()))

    def validate(self) -> None:
        """Assert that ranks and connections are unique, and the orders those of the members."""
        assert {peer: m.incarnation for m in self.members.values() for peer in [m.peer]} == self._peers
        ranked = {m.incarnation: (role, rank) for role, ranks in self._by_rank.items() for rank, m in ranks.items()}
        assert ranked == {m.incarnation: (m.role, m.rank) for m in self.members.values()}
        assert set(self._by_silence) == set(self.members)
        assert all(a.seen_at <= b.seen_at for a, b in pairwise(self._by_silence.values()))
        assert not set(self._lost) & set(self.members)
