"""In whose place a worker comes back: shown by a claim while the old one still seems to live, else by its name.

A supervisor gives the processes that it starts one after the other for the same task a secret of that task, and numbers
their lives. A *claim* is made of that secret. So whoever shows the claim of a member, and a later life, is started by
the one that saw the member die. A name alone shows nothing: it says only which of the free ranks somebody gets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from zmqps.core.protocol.messages import Hello
from zmqps.core.protocol.security.keys import same
from zmqps.core.protocol.security.roles import KeyHolder
from zmqps.errors import EvictedError


class Claimant(Protocol):
    """A member, as far as it matters here."""

    hello: Hello
    incarnation: bytes
    rank: int

    @property
    def holder(self) -> KeyHolder | None:
        """Whose key it has joined with."""

    @property
    def title(self) -> str:
        """How errors call it."""


M = TypeVar("M", bound=Claimant)


class Last(NamedTuple):
    """Whoever had a rank last that is free."""

    name: str
    claim: bytes
    numbered: bool  # whether it was the number that its launcher had given it


class Claims(Generic[M]):
    """Of one roster: the live members that have a claim, and who had each free rank last.

    The latter are as many as there were members at once, and as launchers have given numbers, which are below
    `zmqps.core.coordinator.members.membership.MAX_MEMBERS`: a rank that somebody else takes is remembered no more.
    """

    def __init__(self) -> None:
        self._living: dict[bytes, dict[bytes, M]] = {}  # by claim and incarnation, in the order they came
        self._last: dict[int, Last] = {}  # by free rank: whoever had it last
        self._ranks: dict[str, set[int]] = {}  # the same by name

    def predecessor(self, hello: Hello, holder: KeyHolder | None) -> M | None:
        """Return the member that was an earlier life of whoever says this `Hello`; None if there is none.

        Members of the same life are no predecessors: a process may join more than once.

        Raises `EvictedError`: a later life is here already: this `Hello` is an echo of one that has ended.
        """
        if not hello.claim:
            return None
        living = [m for m in self._living.get(hello.claim, {}).values() if m.holder == holder]
        later = next((member for member in living if member.hello.life > hello.life), None)
        if later is not None:
            raise EvictedError(f"{hello.name} was started again since: {later.title} has its place")
        return next((member for member in living if member.hello.life < hello.life), None)

    def rank(self, hello: Hello) -> int | None:
        """Return the lowest free rank that was this one's last, by its name and, if that had one, its claim."""
        ranks = self._ranks.get(hello.name, ())
        last = self._last
        return min((r for r in ranks if not last[r].claim or same(last[r].claim, hello.claim)), default=None)

    def is_numbered(self, rank: int) -> bool:
        """Whether a free rank is the number of a process that its launcher may start again."""
        return rank in self._last and self._last[rank].numbered

    @property
    def any_numbered(self) -> bool:
        """Whether any free rank is."""
        return any(last.numbered for last in self._last.values())

    def took(self, member: M) -> None:
        """A member has its rank."""
        if (last := self._last.pop(member.rank, None)) is not None:
            self._ranks[last.name].remove(member.rank)
            if not self._ranks[last.name]:
                del self._ranks[last.name]
        if claim := member.hello.claim:
            self._living.setdefault(claim, {})[member.incarnation] = member

    def left(self, member: M, *, frees: bool) -> None:
        """A member has gone; ``frees``: its rank is nobody's now."""
        claim = member.hello.claim
        if claim:
            del self._living[claim][member.incarnation]
            if not self._living[claim]:
                del self._living[claim]
        if frees:
            self._last[member.rank] = Last(member.hello.name, claim, member.hello.wish == member.rank + 1)
            self._ranks.setdefault(member.hello.name, set()).add(member.rank)

    def dump(self) -> list[list[Any]]:
        """Return who had the free ranks last, as plain data; those who live say the rest of themselves."""
        return [[rank, *last] for rank, last in sorted(self._last.items())]

    def restore(self, kept: Sequence[Sequence[Any]]) -> None:
        """Remember who had the free ranks last."""
        for rank, name, claim, numbered in kept:
            self._last[rank] = Last(name, claim, bool(numbered))
            self._ranks.setdefault(name, set()).add(rank)

    def validate(self, by_rank: Mapping[int, M]) -> None:
        """Assert that both are of those who are here, and of ranks that are free."""
        claimed = {member.incarnation for member in by_rank.values() if member.hello.claim}
        assert {who for living in self._living.values() for who in living} == claimed
        assert self._last.keys().isdisjoint(by_rank)
        ranks: dict[str, set[int]] = {}
        for rank, last in self._last.items():
            ranks.setdefault(last.name, set()).add(rank)
        assert ranks == self._ranks
