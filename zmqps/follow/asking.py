"""What asks a follower for rows: over one connection, again after a break, until the answer is there or it is late."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from zmqps.core.node.handshake import Handshake
from zmqps.core.node.member import Identity
from zmqps.core.protocol import exits
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import RAW, decompress, named
from zmqps.core.protocol.events import (
    Action,
    Connected,
    Disconnected,
    Exit,
    Log,
    Looked,
    Received,
    Resolve,
    Send,
    Stop,
    Unreachable,
    server_peer,
)
from zmqps.core.server.tables.arrays import read_arrays
from zmqps.errors import ClosedError, DeadlineError, NotJoinedError, ProtocolError, PSError, from_wire
from zmqps.follow.machine import DIM

PEER = server_peer(0)
ROW_DTYPE = np.dtype("<f4")


@dataclass(slots=True, eq=False, kw_only=True)
class Lookup:
    """Ids whose rows are wanted, as long as they are in time; resolved by the rows, or an error."""

    ids: Array
    codec: str
    timeout: float
    future: Any
    deadline: float = 0.0


class LookupMachine:
    """The connection of a reader to a follower, without its socket."""

    def __init__(self, identity: Identity, endpoint: str) -> None:
        self.version = 0  # of the last answer
        self.dim: int | None = None
        self._handshake = Handshake(identity.hello(), PEER, endpoint)
        self._numbers = count(1)
        self._pending: dict[int, Lookup] = {}
        self._error: PSError | None = None  # why the follower cannot be asked

    @property
    def title(self) -> str:
        """Its name in errors."""
        return f"a reader of the follower at {self._handshake.endpoint}"

    def start(self, now: float) -> list[Action]:
        """Open the connection."""
        return self._handshake.start(now)

    def handle(self, event: Any, now: float) -> list[Action]:
        """Take an event."""
        if isinstance(event, Lookup):
            return self._ask(event, now)
        if isinstance(event, Received):
            return self._received(event.message, now)
        if isinstance(event, Connected):
            self._handshake.welcome = None
            return self._handshake.again(now)
        if isinstance(event, Disconnected):
            self._handshake.welcome = None
            self._handshake.ended(now)
        if isinstance(event, Looked) and self._handshake.looked(event.why):
            return [Log("info", f"{self.title} waits: {self._handshake.why}")]
        if isinstance(event, Unreachable):
            return self._fail(event.error)
        if isinstance(event, Stop):
            return [*self._fail(ClosedError("the connection to the follower was closed")), Exit(exits.OK, event.reason)]
        return []

    def _ask(self, lookup: Lookup, now: float) -> list[Action]:
        if self._error is not None:
            return [Resolve(lookup, self._error.again())]
        number = next(self._numbers)
        lookup.deadline = now + lookup.timeout
        self._pending[number] = lookup
        return [] if self._handshake.welcome is None else [_question(number, lookup)]

    def _received(self, message: m.Message, now: float) -> list[Action]:
        if isinstance(message, m.Welcome):
            if self._handshake.is_down or self._handshake.welcome is not None:
                return []
            self._handshake.on_welcome(message)
            self.dim = _dim_of(message)
            if not self.dim:
                endpoint = self._handshake.endpoint
                return self._fail(ProtocolError(f"{endpoint} is not a follower; `zmqps follow` prints its address"))
            return [_question(number, lookup) for number, lookup in self._pending.items()]
        if isinstance(message, m.Values):
            lookup = self._pending.pop(message.request, None)
            return [] if lookup is None else [Resolve(lookup, self._rows(lookup, message))]
        if isinstance(message, m.Error):
            if message.code == NotJoinedError.code and message.request in self._pending:
                return self._rejoin(now)
            error = from_wire(message.code, message.text, message.facts)
            if not message.request:
                return self._fail(error)
            lookup = self._pending.pop(message.request, None)
            return [] if lookup is None else [Resolve(lookup, error)]
        return []

    def _rejoin(self, now: float) -> list[Action]:
        """The follower has forgotten this reader: its rows have another length now. Lookups wait for its `Welcome`."""
        if self._handshake.welcome is None:
            return []
        self._handshake.welcome = None
        return self._handshake.again(now)

    def _rows(self, lookup: Lookup, message: m.Values) -> Array | PSError:
        assert self.dim is not None
        sizes = [(lookup.ids.size * self.dim, ROW_DTYPE)]
        try:
            codec = None if message.codec == RAW else named(message.codec)
            read = read_arrays if codec is None else partial(decompress, codec)
            [rows] = read(message.payload, sizes)
        except PSError as error:
            return error
        self.version = message.versions[0] if message.versions else 0
        found: Array = rows.reshape(lookup.ids.size, self.dim)
        return found

    def _fail(self, error: PSError) -> list[Action]:
        """The follower cannot be asked any more."""
        self._error = error
        self._handshake.stop()
        failed, self._pending = list(self._pending.values()), {}
        return [Resolve(lookup, error.again()) for lookup in failed]

    def next_deadline(self) -> float | None:
        """Return when something is due."""
        dues = [self._handshake.due, *(lookup.deadline for lookup in self._pending.values())]
        return min([due for due in dues if due is not None], default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Give up what is late; say Hello again."""
        late = [number for number, lookup in self._pending.items() if lookup.deadline <= now]
        handshake, actions = self._handshake, list[Action]()
        for number in late:
            lookup = self._pending.pop(number)
            awaited = f"the follower at {handshake.endpoint}"
            if handshake.welcome is None:
                awaited += f" to accept the connection, or to have a copy of the table{handshake.because}"
            error = DeadlineError(operation="lookup", seconds=lookup.timeout, waiting_for=awaited)
            actions.append(Resolve(lookup, error))
        if handshake.due is not None and handshake.due <= now:
            actions += handshake.on_deadline(now)
        return actions

    def validate(self) -> None:
        """Assert the invariants."""
        assert self._error is None or not self._pending
        assert self._handshake.welcome is None or self.dim is not None


def _question(number: int, lookup: Lookup) -> Send:
    return Send(PEER, m.PullRows(number, 0, 0, lookup.codec, 0, lookup.ids.size, [lookup.ids]))


def _dim_of(welcome: m.Welcome) -> int:
    told = [text.removeprefix(DIM) for text in welcome.capabilities if text.startswith(DIM)]
    return int(told[0]) if len(told) == 1 and told[0].isdecimal() and len(told[0]) < 10 else 0
