"""One backup as its leader sees it: its unconfirmed records, and how lost ones are resent."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import takewhile

from zmqps.core.node.handshake import Handshake
from zmqps.core.protocol.events import Action, Peer, Send
from zmqps.core.protocol.message import WINDOW_NBYTES
from zmqps.core.protocol.messages import Replicated, Welcome
from zmqps.core.server.dense.slices import SliceState
from zmqps.core.server.replicas.records import ReplicationRecord, state_of
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.row_records import filling
from zmqps.core.server.tables.rows import rows_in
from zmqps.core.server.tables.table import RowTable
from zmqps.errors import PSError

#: A backup that has confirmed nothing for this long is asked for its position.
PROBE_S = 3.0
#: After a refused record it is asked after this long, then after twice as long each time, up to
RETRY_S = 0.1
SLOWEST_RETRY_S = 1.0
#: During training a backup is filled piece by piece, and after each rests this many times as long as it took.
REST = 3.0
#: The longest rest: a host that was stopped during a piece does not show how long pieces take.
LONGEST_REST_S = 2.0

#: Returns the records of the ledgers at this moment.
Ledgers = Callable[[], Iterable[ReplicationRecord]]


class RecordQueue:
    """The records of one backup's stream, numbered, and kept until they are confirmed."""

    def __init__(self, last: int) -> None:  # number of the last record that it has
        self.unconfirmed: deque[tuple[int, ReplicationRecord]] = deque()  # its unconfirmed records, with their numbers
        self.last = last  # number of the newest record
        self.out_nbytes = 0  # bytes of sent, unconfirmed records
        self._sent = last  # number of the newest sent over this connection

    def add(self, record: ReplicationRecord) -> None:
        """Queue a record; repeating one changes nothing."""
        if not self.unconfirmed or self.unconfirmed[-1][1] is not record:
            self.unconfirmed.append((self.last + 1, record))
        self.last = self.unconfirmed[-1][0]

    def take(self) -> list[tuple[int, ReplicationRecord]]:
        """Return the records to send now, as many as fit into the window."""
        if self._sent >= self.last:
            return []
        unsent = list(takewhile(lambda entry: entry[0] > self._sent, reversed(self.unconfirmed)))  # usually a few
        taken = []
        for number, record in reversed(unsent):
            if self.out_nbytes and self.out_nbytes + record.nbytes > WINDOW_NBYTES:
                break
            self._sent = number
            self.out_nbytes += record.nbytes
            taken.append((number, record))
        return taken

    def confirm(self, number: int) -> None:
        """The backup has all up to a record."""
        while self.unconfirmed and self.unconfirmed[0][0] <= number:
            at, record = self.unconfirmed.popleft()
            if at <= self._sent:
                self.out_nbytes -= record.nbytes

    def send_again(self, number: int) -> None:
        """The records after this one have been lost."""
        self._sent, self.out_nbytes = min(number, self.last), 0

    def validate(self, *, is_open: bool) -> None:
        """Assert that numbers are consecutive, and that bytes in flight are counted."""
        numbers = [number for number, _ in self.unconfirmed]
        assert numbers == list(range(self.last - len(numbers) + 1, self.last + 1))
        out = [record.nbytes for number, record in self.unconfirmed if number <= self._sent]
        assert not is_open or self.out_nbytes == sum(out)


class Filling:
    """Everything in a shard, for an empty backup: slice by slice and table by table, in the state of its turn.

    Later changes are sent to the backup separately, in order, so no old state needs to be kept.
    """

    def __init__(
        self,
        shard: Shard,
        # sends all changes so far, or raises `MemoryError`: a row must not come before those evicted for it are removed
        tell: Callable[[], None],
    ) -> None:
        self._shard = shard
        self._tell = tell
        self._turns: list[SliceState | RowTable] = [*shard.slices, *rows_in(shard).tables]
        self._turn = self._start = 0

    @property
    def is_over(self) -> bool:
        """Whether all have had their turn."""
        return self._turn == len(self._turns)

    def next(self) -> ReplicationRecord:
        """Return the next piece; if there was no memory for it, it is repeated (`MemoryError`)."""
        turn, step = self._turns[self._turn], self._shard.version
        self._tell()
        if isinstance(turn, SliceState):
            record = state_of(turn, step, self._shard.memory)
        else:
            record, self._start = filling(turn, self._start, step)
        self._turn += not self._start
        return record


class FollowerFill:
    """What a backup is sent first: the ledgers, then the parts of the shard, piece by piece.

    During training it rests after each piece.
    """

    def __init__(self, *, begun: bool) -> None:  # whether it has been sent already
        self.begun = begun
        self.due: float | None = None  # when to continue; None: at once, or when the present piece is confirmed
        self._source: tuple[Ledgers, Filling] | None = None
        self._pieces: Filling | None = None  # while there are some to send
        self._number: int | None = None  # of the record of the present piece
        self._begun_at = 0.0  # the present piece
        self._disturbed = False  # training continues: other records were sent since the last piece

    @property
    def is_over(self) -> bool:
        """Whether everything has been sent."""
        return self.begun and self._pieces is None and self._number is None

    def offer(self, ledgers: Ledgers, pieces: Filling) -> None:
        """Start to send a shard."""
        if not self.begun:
            self._source = ledgers, pieces

    def is_due(self, now: float) -> bool:
        """Whether the next piece may be sent."""
        return self._number is None and now >= (self.due or now)

    def begin(self, now: float) -> list[ReplicationRecord]:
        """Return the records of the ledgers, if it is about to start and there is the memory for them."""
        if self.begun or self._source is None:
            return []
        ledgers, pieces = self._source
        self.due = None
        try:
            found = list(ledgers())
        except MemoryError:
            self.due = now + SLOWEST_RETRY_S
            return []
        self.begun, self._pieces = True, None if pieces.is_over else pieces
        return found

    def next(self, now: float) -> ReplicationRecord | None:
        """Return the next piece, if there is one, and the memory for it."""
        if self._pieces is None:
            return None
        self.due = None
        try:
            return self._pieces.next()
        except MemoryError:
            self.due = now + SLOWEST_RETRY_S
            return None

    def note_queued(self, number: int, now: float) -> None:
        """A piece is in flight, in the record of this number."""
        self._number, self._begun_at, self._disturbed = number, now, False

    def disturb(self) -> None:
        """Training continues."""
        self._disturbed = True

    def reopened(self, now: float) -> None:
        """The backup is back: its absence does not measure the time of a piece."""
        self._begun_at = now

    def confirmed(self, number: int, now: float) -> None:
        """It has all up to a record."""
        if self._number is None or number < self._number:
            return
        self._number = None
        if self._pieces is not None and self._pieces.is_over:
            self._pieces = None
        elif self._disturbed:
            self.due = now + min(REST * (now - self._begun_at), LONGEST_REST_S)

    def stop(self) -> None:
        """Stop sending."""
        self._source = self._pieces = self._number = self.due = None


class Follower:
    """The stream to one backup.

    Records are numbered, and kept until they are confirmed. After each `Welcome` the backup reports its position, and
    is sent all later records: so records lost with a broken connection, or for want of the backup's memory, are resent,
    and duplicates are recognized by their numbers. `Hello` is therefore also the question to a silent backup.

    A backup that is not built yet is sent nothing, and no answer waits for it; when it is built it is sent everything.
    """

    def __init__(
        self,
        title: str,  # the server's name in errors
        handshake: Handshake,
        proof: bytes,  # the answer that proves the server's identity
        epoch: int,
        # of another leader's last record that it has, with everything that this one has; None: it has nothing
        number: int | None = None,
    ) -> None:
        self.title = title
        self.handshake = handshake
        self.proof = proof
        self.epoch = epoch
        self.queue = RecordQueue(number or 0)
        self.why = ""  # why it refused a record, in words
        self._filling = FollowerFill(begun=number is not None)
        self._open = False  # it has reported its position over this connection
        self._probe_due: float | None = None
        self._retry_due: float | None = None
        self._retry_s = RETRY_S

    @property
    def peer(self) -> Peer:
        """The connection to its server."""
        return self.handshake.peer

    @property
    def is_filled(self) -> bool:
        """Whether it has been sent everything."""
        return self._filling.is_over

    def confirmed(self, position: int) -> int:
        """Return up to which of the leader's records it has confirmed all, if ``position`` is the last."""
        return next((record.position - 1 for _, record in self.queue.unconfirmed if record.position), position)

    def fill(self, ledgers: Ledgers, pieces: Filling) -> None:
        """Send it everything, as soon as it is there: the ledgers, then piece by piece."""
        self._filling.offer(ledgers, pieces)

    def add(self, record: ReplicationRecord) -> None:
        """Queue a record, unless everything will be sent; repeating one changes nothing."""
        if self._filling.begun:
            self.queue.add(record)
            if record.position:
                self._filling.disturb()

    def pump(self, now: float) -> list[Action]:
        """Send what fits into the window."""
        if not self._open:
            return []
        if self._filling.is_due(now):
            for record in self._filling.begin(now):
                self.add(record)
            if (piece := self._filling.next(now)) is not None:
                self.add(piece)
                self._filling.note_queued(self.queue.last, now)
        actions: list[Action] = [
            Send(self.peer, replace(record.message, epoch=self.epoch, number=number))
            for number, record in self.queue.take()
        ]
        if self._probe_due is None and self.queue.out_nbytes:
            self._probe_due = now + PROBE_S
        return actions

    # --- messages of the backup ----------------------------------------------------------------

    def on_welcome(self, welcome: Welcome, now: float) -> None:
        """It has welcomed us; next it reports its position."""
        if not self.handshake.is_down:  # else that was of the ended connection
            self.handshake.on_welcome(welcome)
            if not self._open:
                self._retry_due = now + PROBE_S

    def on_replicated(self, message: Replicated, now: float) -> list[Action]:
        """It has all up to a record."""
        self.why, self._retry_s, self._retry_due = "", RETRY_S, None
        if not self._open:
            self._filling.reopened(now)
        self.queue.confirm(message.number)
        self._filling.confirmed(message.number, now)
        if message.again if self._open else self.handshake.welcome is not None and self.handshake.due is None:
            self.queue.send_again(message.number)
            self._open = True
        self._probe_due = now + PROBE_S if self.queue.out_nbytes else None
        return self.pump(now)

    def on_error(self, error: PSError, now: float) -> bool:
        """It refused a record: it is asked again a little later; return whether the reason is new."""
        news, self.why = self.why != str(error), str(error)
        if self._open:  # else the handshake continues by itself
            self._open = False
            self._retry_due = now + self._retry_s
            self._retry_s = min(2 * self._retry_s, SLOWEST_RETRY_S)
            self._probe_due = None
        return news

    # --- the connection ------------------------------------------------------------------------

    def on_connected(self, now: float) -> list[Action]:
        """The connection is open, perhaps again: earlier messages may be lost."""
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
        """It is not a backup any more."""
        self._close()
        self.handshake.stop()
        self._filling.stop()
        self.queue.unconfirmed.clear()

    def next_deadline(self) -> float | None:
        """Return when something is due."""
        dues = (self.handshake.due, self._probe_due, self._retry_due, self._filling.due if self._open else None)
        return min([due for due in dues if due is not None], default=None)

    def on_deadline(self, now: float) -> list[Action]:
        """Repeat Hello, ask a silent backup for its position, continue to fill it."""
        if self.handshake.due is not None and now >= self.handshake.due:
            return self.handshake.on_deadline(now)
        if any(due is not None and now >= due for due in (self._probe_due, self._retry_due)):
            self._close()
            return self.handshake.again(now)
        return self.pump(now)

    def validate(self) -> None:
        """Assert that its records are counted, and that it is asked for those in flight."""
        self.queue.validate(is_open=self._open)
        assert not (self._open and self.queue.out_nbytes) or self._probe_due is not None
