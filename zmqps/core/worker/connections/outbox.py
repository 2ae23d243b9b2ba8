"""What a worker has to say to one server, and in which order it leaves."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import RAW
from zmqps.core.worker.plan import Cargo
from zmqps.core.worker.transfer import LoadTransfer, PullTransfer, PushTransfer, Transfer


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One message and its answer."""

    transfer: PushTransfer | PullTransfer | LoadTransfer
    cargoes: tuple[Cargo, ...]
    nbytes: int
    head: bool = False  # the first of its transfer on this link
    codec: str = RAW  # its gradients are to travel in
    number: int = 0
    seq: int = 0
    encoded: tuple[str, list[Array]] | None = None
    sent_nbytes: int = 0  # of its payload, as it travels
    received_nbytes: int = 0  # of its answer's
    sent_as: int = 0  # ordinal of the last send among those of the connection
    refused_at: float | None = None  # when the server lacked the memory for it, at first
    retry_at: float | None = None  # while it is put off because of that
    doubted: bool = False  # the server has answered a question that was asked after it, and not this
    place: int = 0  # in the order asked
    behind: int = 0  # a pull's: the place of the last push before it that touches its slices

    @property
    def raw_nbytes(self) -> int:
        """What it moves each way, as plain arrays."""
        return sum([cargo.nbytes for cargo in self.cargoes])

    @property
    def slices(self) -> set[int]:
        """The numbers of the slices it is about."""
        return {cargo.slice.index for cargo in self.cargoes}


class Outbox:
    """Requests that are not sent yet.

    Pushes leave in the order asked, and so do pulls. A pull overtakes pushes, except those asked for before it
    that touch one of its slices: it must see what they change.
    """

    def __init__(self) -> None:
        self._pushes: deque[Request] = deque()  # and loads
        self._pulls: deque[Request] = deque()
        self._last_push: dict[int, int] = {}  # slice -> place
        self._next_place = 1
        self.waiting = 0  # how many there are

    def add(self, request: Request) -> None:
        """Queue a request."""
        request.place = self._next_place
        self._next_place += 1
        self.waiting += 1
        if isinstance(request.transfer, PullTransfer):
            request.behind = max((self._last_push.get(number, 0) for number in request.slices), default=0)
            self._pulls.append(request)
        else:
            self._last_push.update(dict.fromkeys(request.slices, request.place))
            self._pushes.append(request)

    def peek(self) -> Request | None:
        """Return what leaves next; None: there is nothing."""
        if self._pulls and not (self._pushes and self._pushes[0].place <= self._pulls[0].behind):
            return self._pulls[0]
        return self._pushes[0] if self._pushes else None

    def pop(self) -> Request:
        """Take out what leaves next."""
        self.waiting -= 1
        pull = self._pulls and self.peek() is self._pulls[0]
        return (self._pulls if pull else self._pushes).popleft()

    def drop(self, transfer: Transfer) -> None:
        """Forget the requests of a transfer."""
        if any(request.transfer is transfer for request in self):
            self._pushes = deque(request for request in self._pushes if request.transfer is not transfer)
            self._pulls = deque(request for request in self._pulls if request.transfer is not transfer)
            self.waiting = len(self._pushes) + len(self._pulls)

    def clear(self) -> None:
        """Forget everything."""
        self._pushes.clear()
        self._pulls.clear()
        self.waiting = 0

    def __bool__(self) -> bool:
        return self.waiting > 0

    def __iter__(self) -> Iterator[Request]:
        return chain(self._pushes, self._pulls)

    def validate(self) -> None:
        """Assert that what was asked first is first, and that no pull waits for a later push."""
        assert self.waiting == len(self._pushes) + len(self._pulls)
        for queue in (self._pushes, self._pulls):
            last = 0
            for request in queue:
                assert last <= request.place
                last = request.place
        for pull in self._pulls:
            assert pull.behind < pull.place
