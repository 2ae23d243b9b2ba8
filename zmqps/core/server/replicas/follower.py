"""One backup as its leader sees it: what it has not confirmed yet, and how it is told again what was lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from zmqps.core.node.handshake import Handshake
from zmqps.core.protocol.events import Action, Send
from zmqps.core.protocol.limits import WINDOW_NBYTES
from zmqps.core.protocol.messages import Replicated, Welcome
from zmqps.core.server.replicas.filling import Filling
from zmqps.core.server.replicas.record import ReplicationRecord
from zmqps.errors import PSError

#: A backup that has confirmed nothing for this long is asked what it has.
PROBE_S = 3.0
#: One that could not take a record is asked so much later, then after twice as long each time, up to
RETRY_S = 0.1
SLOWEST_RETRY_S = 1.0
#: While training goes on a backup is filled piece by piece, and after each rests so many times what that took.
REST = 3.0
#: It rests no longer: a host that stood still while a piece was under way says nothing of how long pieces take.
LONGEST_REST_S = 2.0

#: Returns the records of the ledgers as they are at this moment.
Ledgers = Callable[[], Iterable[ReplicationRecord]]


class Follower:
    """The stream to one backup.

    Records are numbered, and kept until they are confirmed. After each `Welcome` the backup says what it has, and is
    sent all that is behind it: so what a broken connection has lost, or the backup had no memory for, comes again, and
    what comes twice it knows by its number. `Hello` is therefore also how a silent backup is asked.

    A backup that has yet to be built is told nothing, and nobody waits for it; when it is there it is told all.

    Parameters
    ----------
    title
        The server's name in errors.
    handshake
        Of the connection.
    proof
        What only the server that the coordinator means can answer it with.
    epoch
        Of the copy.
    number
        Of the last record of another leader that it has, and with that all that this one has; None: it has nothing.
    """

    def __init__(self, title: str, handshake: Handshake, proof: bytes, epoch: int, number: int | None = None) -> None:
        self.title = title
        self.peer = handshake.peer
        self.handshake = handshake
        self.proof = proof
        self.epoch = epoch
        self.unconfirmed: deque[tuple[int, ReplicationRecord]] = deque()
        self.why = ""  # it could not do what it was told, in words
        self.last = number or 0  # number of the newest record
        self._sent = self.last  # of the newest that was sent over this connection
        self._out_nbytes = 0  # of those that were sent and are not confirmed
        self._open = False  # it has said what it has, over this connection
        self._probe_due: float | None = None
        self._retry_due: float | None = None
        self._retry_s = RETRY_S
        self._source: tuple[Ledgers, Filling] | None = None  # of what it is to be told first
        self._begun = number is not None  # to be told
        self._pieces: Filling | None = None  # while it has yet to be told of some
        self._filling: int | None = None  # number of the record of the one that is under way
        self._begun_at = 0.0  # that
        self._fill_due: float | None = None
        self._disturbed = False  # training goes on: something else was told since the last piece

    @property
    def is_filled(self) -> bool:
        """Whether it has been told all that there is."""
        return self._begun and self._pieces is None and self._filling is None

    def confirmed(self, position: int) -> int:
        """Return up to which of the leader's records it has confirmed all, where ``position`` is the last."""
        return next((record.position - 1 for _, record in self.unconfirmed if record.position), position)

    def fill(self, ledgers: Ledgers, pieces: Filling) -> None:
        """Tell it what there is, as soon as it is there: the ledgers, then piece by piece."""
        if not self._begun:
            self._source = ledgers, pieces

    def _begin(self, ledgers: Ledgers, pieces: Filling, now: float) -> None:
        self._fill_due = None
        try:
            found = list(ledgers())
        except MemoryError:
            self._fill_due = now + SLOWEST_RETRY_S
            return
        self._begun, self._pieces = True, None if pieces.is_over else pieces
        for record in found:
            self.add(record)

    def add(self, record: ReplicationRecord) -> None:
        """Queue a record, unless it is to be told all that there is; the same again changes nothing."""
        if not self._begun:
            return
        if not self.unconfirmed or self.unconfirmed[-1][1] is not record:
            self.unconfirmed.append((self.last + 1, record))
        self.last = self.unconfirmed[-1][0]
        self._disturbed |= record.position > 0

    def pump(self, now: float) -> list[Action]:
        """Send what the window has room for."""
        if not self._open:
            return []
        actions: list[Action] = []
        if self._filling is None and now >= (self._fill_due or now):
            if not self._begun and self._source is not None:
                self._begin(*self._source, now)
            if self._pieces is not None:
                self._add_piece(self._pieces, now)
        if self._sent < self.last:
            for number, record in self._unsent():
                if self._out_nbytes and self._out_nbytes + record.nbytes > WINDOW_NBYTES:
                    break
                self._sent = number
                self._out_nbytes += record.nbytes
                actions.append(Send(self.peer, replace(record.message, epoch=self.epoch, number=number)))
        if self._probe_due is None and self._out_nbytes:
            self._probe_due = now + PROBE_S
        return actions

    def _unsent(self) -> list[tuple[int, ReplicationRecord]]:
        """Return what was not sent over this connection, which is a few records at the end, as a rule."""
        found = []
        for entry in reversed(self.unconfirmed):
            if entry[0] <= self._sent:
                break
            found.append(entry)
        return found[::-1]

    def _add_piece(self, pieces: Filling, now: float) -> None:
        """Queue the next piece."""
        self._fill_due = None
        try:
            record = pieces.next()
        except MemoryError:
            self._fill_due = now + SLOWEST_RETRY_S
            return
        self.add(record)
        self._filling, self._begun_at, self._disturbed = self.last, now, False

    # --- what the backup says ------------------------------------------------------------------

    def on_welcome(self, welcome: Welcome, now: float) -> None:
        """It knows us; next it says what it has."""
        if not self.handshake.is_down:  # else that came over the one that has ended
            self.handshake.on_welcome(welcome)
            if not self._open:
                self._retry_due = now + PROBE_S

    def on_replicated(self, message: Replicated, now: float) -> list[Action]:
        """It has all up to a record."""
        self.why, self._retry_s, self._retry_due = "", RETRY_S, None
        if not self._open:
            self._begun_at = now  # how long it was not there is no measure of what a piece takes
        while self.unconfirmed and self.unconfirmed[0][0] <= message.number:
            number, record = self.unconfirmed.popleft()
            if number <= self._sent:
                self._out_nbytes -= record.nbytes
        if self._filling is not None and message.number >= self._filling:
            self._filling = None
            if self._pieces is not None and self._pieces.is_over:
                self._pieces = None
            elif self._disturbed:
                self._fill_due = now + min(REST * (now - self._begun_at), LONGEST_REST_S)
        if message.again if self._open else self.handshake.welcome is not None and self.handshake.due is None:
            self._sent, self._out_nbytes, self._open = min(message.number, self.last), 0, True
        self._probe_due = now + PROBE_S if self._out_nbytes else None
        return self.pump(now)

    def on_error(self, error: PSError, now: float) -> bool:
        """It could not take something: it is asked again a little later; return whether that is news."""
        news, self.why = self.why != str(error), str(error)
        if self._open:  # else the handshake goes on by itself
            self._open = False
            self._retry_due = now + self._retry_s
            self._retry_s = min(2 * self._retry_s, SLOWEST_RETRY_S)
            self._probe_due = None
        return news

    # --- the connection ------------------------------------------------------------------------

    def on_connected(self, now: float) -> list[Action]:
        """The connection is there, perhaps again: what was sent before may be lost."""
        self._close()
        return self.handshake.again(now)

    def on_disconnected(self, now: float) -> None:
        """The connection has ended."""
        self._close()
        self.handshake.ended(now)

    def _close(self) -> None:
        self._open = False
        self._probe_due = self._retry_due = None

    def stop(self) -> None:
        """It is no backup any more."""
        self._close()
        self.handshake.stop()
        self._source = self._pieces = self._filling = self._fill_due = None
        self.unconfirmed.clear()

    def next_deadline(self) -> float | None:
        """Return when something is due."""
        dues = (self.handshake.due, self._probe_due, self._retry_due, self._fill_due if self._open else None)
        return min([due for due in dues if due is not None], default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Say hello again, ask a silent backup what it has, go on to fill it."""
        if self.handshake.due is not None and now >= self.handshake.due:
            return self.handshake.on_deadline(now)
        if any(due is not None and now >= due for due in (self._probe_due, self._retry_due)):
            self._close()
            return self.handshake.again(now)
        return self.pump(now)

    def counters(self) -> dict[str, Any]:
        """Return what the status shows of it."""
        return {"unconfirmed": len(self.unconfirmed), "filled": self.is_filled}

    def validate(self) -> None:
        """Assert that numbers follow each other, and that what is out is counted."""
        numbers = [number for number, _ in self.unconfirmed]
        assert numbers == list(range(self.last - len(numbers) + 1, self.last + 1))
        assert not self._open or self._out_nbytes == sum(r.nbytes for n, r in self.unconfirmed if n <= self._sent)
        assert not (self._open and self._out_nbytes) or self._probe_due is not None
