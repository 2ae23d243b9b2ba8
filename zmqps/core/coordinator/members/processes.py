"""Which members live in which process, as their supervisors know those; and which of these have ended.

A supervisor gives each process that it starts a token of its own. The members in it say what is made of that, so only
the supervisor, which has the token itself, can say that the process has ended. A token is of one life: what is said of
it never concerns the next one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

from zmqps.core.protocol.messages import Hello
from zmqps.errors import EvictedError

#: So many are remembered that have ended: a `Hello` of one may still be on its way when its supervisor has said so.
MAX_ENDED = 1024


class Inhabitant(Protocol):
    """A member, as far as it matters here."""

    hello: Hello

    @property
    def role(self) -> str:
        """Its role."""

    @property
    def incarnation(self) -> bytes:
        """The unique id of this life of the process."""


M = TypeVar("M", bound=Inhabitant)


class Processes(Generic[M]):
    """The members by process, of those that say in which one they live."""

    def __init__(self) -> None:
        self._living: dict[bytes, dict[bytes, M]] = {}  # by process and incarnation
        self._ended: OrderedDict[bytes, None] = OrderedDict()

    def took(self, member: M) -> None:
        """A member has come."""
        if process := member.hello.process:
            self._living.setdefault(process, {})[member.incarnation] = member

    def left(self, member: M) -> None:
        """A member has gone."""
        if process := member.hello.process:
            del self._living[process][member.incarnation]
            if not self._living[process]:
                del self._living[process]

    def end(self, process: bytes) -> list[M]:
        """A process has ended: return the members that lived in it, which are to leave; servers first."""
        assert process
        self._ended[process] = None
        self._ended.move_to_end(process)
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        return sorted(self._living.get(process, {}).values(), key=lambda member: member.role != "server")

    def check(self, hello: Hello) -> None:
        """Raise `EvictedError` for the `Hello` of a process that has ended, as its supervisor has said meanwhile."""
        if hello.process in self._ended:
            raise EvictedError(f"the process of {hello.name} has ended, says its supervisor: connect from another one")

    def validate(self, members: Mapping[bytes, M]) -> None:
        """Assert that those who live in a process are members, and none is in one that has ended."""
        said = {who: member for who, member in members.items() if member.hello.process}
        assert {who: m for living in self._living.values() for who, m in living.items()} == said
        assert all(self._living.values())
        assert self._ended.keys().isdisjoint(self._living)
        assert len(self._ended) <= MAX_ENDED
