"""Values that a host reads once: the members that want them, the versions present, and the memory free for reuse."""

from __future__ import annotations

from dataclasses import dataclass, field

from zmqps.combine.messages import Alone, Failed, Fetched, FetchValues, HostAction, HostValues, Place, Tell, Want
from zmqps.errors import PSError

#: Places for values: one that members still read, and one that the next are put into.
NUM_PLACES = 2


@dataclass(slots=True, kw_only=True)
class FetchedValues:
    """Values in one of the places; ``number`` counts all that were ever fetched."""

    number: int
    place: int
    step: int
    version: int = 0
    there: bool = False
    readers: set[int] = field(default_factory=set)


@dataclass(slots=True)
class WaitingReader:
    """A member that waits; ``last`` is the number of the last fetch that it waits for."""

    want: Want
    last: int
    after: int  # asynchronous: it has read this number already


class ValueShelf:
    """The values of a host group.

    Parameters
    ----------
    exact
        Whether values of a step never change: those read at it serve every member, any number of times. Otherwise
        a member that has read them needs newer ones.
    """

    def __init__(self, *, exact: bool) -> None:
        self.places: list[list[Place]] = [[] for _ in range(NUM_PLACES)]  # filled in by the shell, before the first
        self._exact = exact
        self._copies: dict[int, FetchedValues] = {}  # by place
        self._number = 0
        self._fetching: FetchedValues | None = None
        self._readers: dict[int, WaitingReader] = {}
        self._seen: dict[int, int] = {}

    def want(self, member: int, want: Want, step: int) -> list[HostAction]:
        """Answer a member that wants values, or begin to fetch some; a fetch that begins now is of ``step``."""
        reader = WaitingReader(want, 0, self._number if want.fresh else self._seen.get(member, 0))
        for copy in sorted(self._copies.values(), key=lambda copy: -copy.number):
            if copy.there and self._serves(copy, reader):
                return [self._give(member, copy)]
        later = step if self._fetching is None else max(step, self._fetching.step)
        if self._exact and want.step < later:  # the leader reads only later ones, for which this reader may be awaited
            return [Tell(member, Alone(reads=True))]
        if self._fetching is not None:
            reader.last = self._number + 1
            self._readers[member] = reader
            return []
        return self._fetch({member: reader}, step)

    def fetched(self, event: Fetched, step: int) -> list[HostAction]:
        """Hand out what has come."""
        copy, self._fetching = self._fetching, None
        assert copy is not None
        assert copy.number == event.number
        waiting, self._readers = self._readers, {}
        if event.error is not None:
            del self._copies[copy.place]
            return [Tell(member, failed(event.error, reads=True)) for member in waiting]
        copy.step, copy.version, copy.there = event.step, event.version, True
        actions, rest = list[HostAction](), dict[int, WaitingReader]()
        for member, reader in waiting.items():
            if self._serves(copy, reader):
                actions.append(self._give(member, copy))
            elif reader.last > copy.number:
                rest[member] = reader
            else:  # the leader is at another step
                actions.append(Tell(member, Alone(reads=True)))
        return actions + (self._fetch(rest, step) if rest else [])

    def joined(self, member: int) -> None:
        """A member is new: what was read before may be older than what it has read elsewhere."""
        self._seen[member] = self._number

    def got(self, member: int, number: int) -> None:
        """A member has read what it was given."""
        for copy in self._copies.values():
            if copy.number == number:
                copy.readers.discard(member)

    def forget(self, member: int) -> None:
        """A member has left."""
        self._readers.pop(member, None)
        self._seen.pop(member, None)
        for copy in self._copies.values():
            copy.readers.discard(member)

    def outdate(self) -> None:
        """No member may use the present values any more, nor those in flight."""
        for copy in self._copies.values():
            copy.step = -1
        for member in self._seen:
            self._seen[member] = self._number
        for reader in self._readers.values():
            reader.after, reader.last = self._number, self._number + 1

    def _serves(self, copy: FetchedValues, reader: WaitingReader) -> bool:
        if copy.step < 0:
            return False
        if self._exact:
            return copy.step == reader.want.step and (not reader.want.fresh or copy.number > reader.after)
        return copy.step >= reader.want.step and copy.number > reader.after

    def _give(self, member: int, copy: FetchedValues) -> HostAction:
        copy.readers.add(member)
        self._seen[member] = copy.number
        return Tell(member, HostValues(copy.number, copy.version, self.places[copy.place]))

    def _fetch(self, readers: dict[int, WaitingReader], step: int) -> list[HostAction]:
        busy = {copy.place for copy in self._copies.values() if copy.readers}
        free = [place for place in range(NUM_PLACES) if place not in busy]
        if not free:  # slow members still read all of them: do not wait
            return [Tell(member, Alone(reads=True)) for member in readers]
        oldest = min(free, key=lambda place: self._copies[place].number if place in self._copies else 0)
        if self._exact:  # later ones are not there before each reader has brought its gradients
            step = min(reader.want.step for reader in readers.values())
        self._number += 1
        self._fetching = self._copies[oldest] = FetchedValues(number=self._number, place=oldest, step=step)
        for member, reader in readers.items():
            reader.last = self._number
            self._readers[member] = reader
        return [FetchValues(self._number, oldest, step)]

    def validate(self) -> None:
        """Assert that every wait has its cause, and that no memory is written while a member reads it."""
        assert self._fetching is not None or not self._readers
        assert self._fetching is None or not self._fetching.readers
        assert len(self._copies) <= NUM_PLACES


def failed(error: PSError, *, reads: bool) -> Failed:
    """Return the message that says what has failed."""
    return Failed(reads=reads, code=error.code, text=str(error), facts=dict(error.facts()))
