"""Pulls that wait for a version: bounded in bytes, per client and in total, and indexed by what they wait for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from zmqps.core.server.parts import AnyPull, Awaited
from zmqps.errors import LimitError

#: Of one client. A pull of one shard's part of 200,000 parameters, by ranges, is half of it.
MAX_PARKED_NBYTES = 32 << 20
#: Of all clients and jobs of a server.
MAX_ALL_PARKED_NBYTES = 128 << 20
#: Pulls of one client, however small: the interpreter may not return the memory of many small ones.
MAX_PARKED = 4096


#: What a worker's pulls wait for if its pushes are answered only after its backups have confirmed them: a record of the
#: shard's stream, because answers to one worker keep the order of its requests.
CONFIRMED = -2


class DeferredPull(NamedTuple):
    """A waiting pull, and what it waits for."""

    pull: AnyPull
    nbytes: int
    awaits: Sequence[Awaited]
    at: float = 0.0  # since when


class DeferredPulls:
    """The waiting pulls of a job.

    The wait has no timeout: the worker withdraws its pull at its own deadline (`Withdraw`), or by its end.

    A pull waits for one slice that lacks its version, until that has it; then perhaps for another one. A pull of
    exactly a version waits for any change of its slices. So an update checks only the pulls that wait for its result,
    however many others wait for something else.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        #: The waiting requests, by what they wait for; empty if there are none.
        self.awaited: dict[Awaited, dict[tuple[bytes, int], None]] = {}
        self._of: dict[bytes, dict[int, DeferredPull]] = {}  # by incarnation and request
        self._nbytes_of: dict[bytes, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        """Yield the clients of waiting pulls, and their requests."""
        return ((who, request) for who, held in self._of.items() for request in held)

    def check_room(self, who: bytes, nbytes: int) -> None:
        """Raise `LimitError` if a client may not have one more waiting pull of this many bytes."""
        number = len(self._of.get(who, ())) + 1
        if number > MAX_PARKED:
            raise LimitError(what="number of a worker's waiting pulls", got=number, limit=MAX_PARKED)
        in_all = self.nbytes_for(who) + nbytes
        if in_all > MAX_PARKED_NBYTES:
            raise LimitError(what="bytes of a worker's waiting pulls", got=in_all, limit=MAX_PARKED_NBYTES)

    def oldest_s(self, now: float) -> float:
        """Return how long the longest waiting pull has waited; those of a client are in order of arrival."""
        return max([now - next(iter(held.values())).at for held in self._of.values()], default=0.0)

    def add(self, who: bytes, pull: AnyPull, nbytes: int, awaits: Sequence[Awaited], now: float = 0.0) -> None:
        """A pull of this many bytes waits for any of these; this client has no other with its request."""
        held = DeferredPull(pull, nbytes, awaits, now)
        self._of.setdefault(who, {})[pull.request] = held
        self._count(who, held.nbytes)
        for awaited in awaits:
            self.awaited.setdefault(awaited, {})[who, pull.request] = None

    def due(self, awaited: Awaited) -> list[tuple[bytes, AnyPull]]:
        """Remove and return the pulls that waited for this."""
        waited = self.awaited.get(awaited)
        if waited is None:
            return []
        found = [(who, self._of[who][request].pull) for who, request in waited]
        for who, pull in found:
            self.remove(who, pull.request)
        return found

    def remove(self, who: bytes, request: int) -> None:
        """Remove a pull, if it is there."""
        of = self._of.get(who)
        if of is None or request not in of:
            return
        held = of.pop(request)
        if not of:
            del self._of[who]
        self._count(who, -held.nbytes)
        for awaited in held.awaits:
            waited = self.awaited[awaited]
            del waited[who, request]
            if not waited:
                del self.awaited[awaited]

    def drop(self, who: bytes) -> None:
        """Remove all pulls of a client."""
        for request in list(self._of.get(who, ())):
            self.remove(who, request)

    def nbytes_for(self, who: bytes) -> int:
        """Return the bytes of a client's pulls."""
        return self._nbytes_of.get(who, 0)

    def heaviest(self) -> tuple[int, bytes]:
        """Return the client with the most bytes, after that number."""
        return max(((nbytes, who) for who, nbytes in self._nbytes_of.items()), default=(0, b""))

    def newest(self, who: bytes) -> int:
        """Return the request of the last pull of a client that has some here."""
        return next(reversed(self._of[who]))

    def _count(self, who: bytes, nbytes: int) -> None:
        self.nbytes += nbytes
        of_client = self._nbytes_of.get(who, 0) + nbytes
        if of_client:
            self._nbytes_of[who] = of_client
        else:
            del self._nbytes_of[who]

    def validate(self, clients: Iterable[bytes]) -> None:
        """Assert the bounds, that both directions agree, and that all clients are here."""
        if not (self._of or self.awaited or self._nbytes_of or self.nbytes):
            return
        held = {(who, request): held for who, of in self._of.items() for request, held in of.items()}
        assert {key for keys in self.awaited.values() for key in keys} == set(held)
        assert all(self.awaited.values())
        assert all(key in self.awaited[awaited] for key, entry in held.items() for awaited in entry.awaits)
        assert self.nbytes == sum(entry.nbytes for entry in held.values()) == sum(self._nbytes_of.values())
        assert all(nbytes <= MAX_PARKED_NBYTES for nbytes in self._nbytes_of.values())
        assert all(len(of) <= MAX_PARKED for of in self._of.values())
        assert set(self._of) == set(self._nbytes_of) <= set(clients)


def nbytes_of(pull: AnyPull) -> int:
    """Return the approximate memory of a waiting pull."""
    ids = sum([memoryview(buffer).nbytes for buffer in getattr(pull, "payload", ())])
    return 1024 + ids + sum([512 + 40 * len(ranges) for _, _, ranges in pull.parts])
