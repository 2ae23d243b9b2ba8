"""A leader's changes that its backups have not confirmed yet, and the answers deferred until then."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from zmqps.core.protocol.events import Action
from zmqps.core.protocol.message import WINDOW_NBYTES
from zmqps.core.protocol.messages import Committed, Push
from zmqps.core.protocol.messages.replication import ASKED, STATE, STEPPED
from zmqps.core.server.clients import Client
from zmqps.core.server.ledger import Ledger, Result
from zmqps.core.server.parts import PULLS, PUSHES, AnyPull, AnyPush, Apply, Noted, ShardPart
from zmqps.core.server.replicas.follower import Filling, Follower
from zmqps.core.server.replicas.records import (
    Listener,
    ReplicationRecord,
    SliceNews,
    ledgers_of,
    nbytes_beside,
    record,
)
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.row_records import RowNews
from zmqps.core.server.tables.rows import rows_in

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

#: Bytes of pushes that one server has applied and whose backups have not confirmed them. Workers have `WINDOW_NBYTES`
#: in flight to a server, or what they lend it in shared memory; beyond this they must resend a little later.
MAX_UNCONFIRMED_NBYTES = 32 * WINDOW_NBYTES
#: The forwarding of a part's changes.
News: TypeAlias = SliceNews | RowNews


class Unconfirmed:
    """The bytes of all streams of a server that wait for backups."""

    def __init__(self, limit: int = MAX_UNCONFIRMED_NBYTES) -> None:
        self.nbytes = 0
        self.limit = limit

    def check(self, nbytes: int) -> None:
        """Raise `MemoryError` if there is no room for this many more; there is for one push, however large."""
        if self.nbytes and self.nbytes + nbytes > self.limit:
            raise MemoryError(f"{self.nbytes:,} bytes wait for the backups of this server, {self.limit:,} may")


class HeldAnswer(NamedTuple):
    """A deferred answer: to the push or pull of a worker, or without one to the coordinator.

    ``position``: of the last record to be confirmed; ``nbytes``: of the records since the previous one.
    """

    position: int
    nbytes: int
    who: bytes
    message: AnyPush | AnyPull | Committed
    at: float  # since when


class Stream:
    """Forwards a shard's changes to its backups, in order, and defers answers until all have them."""

    def __init__(
        self,
        ledgers: Mapping[bytes, Ledger],  # of the shard's workers
        unconfirmed: Unconfirmed,  # counts the bytes of all streams
    ) -> None:
        self.followers: dict[int, Follower] = {}  # by epoch
        self.position = 0  # of the newest record
        self._ledgers = ledgers
        self._unconfirmed = unconfirmed
        self._shard: Shard | None = None  # once it has its values
        self._news: list[News] = []  # of its parts
        self._step = 0  # ended in the stream
        self._held: deque[HeldAnswer] = deque()
        self._asked: set[tuple[bytes, int]] = set()  # the deferred requests
        self._of: Counter[bytes] = Counter()  # how many, by worker
        self._nbytes = 0  # of records, and of what waits for them
        self._fresh_nbytes = 0  # of records without a deferred answer

    # --- backups -------------------------------------------------------------------------------

    def begin(self, shard: Shard) -> None:
        """The shard has its values: start to send them to the backups."""
        if self._shard is not None:
            return
        self._shard, self._step = shard, shard.version
        listener = Listener(self._queue, self._unconfirmed.check)
        rows = rows_in(shard)
        parts: list[tuple[ShardPart, News]] = [(shard.dense, SliceNews(shard.steps, shard.memory, listener))]
        if rows.tables:
            parts.append((rows, RowNews(rows.tables, listener)))
        for part, news in parts:
            self._news.append(news)
            if shard.steps is None:  # else what a commit applies is forwarded
                shard.takes.update({kind: partial(_forwarded, news.entrust, do) for kind, do in part.takes.items()})
        for follower in self.followers.values():
            self._fill(follower, shard)

    def follow(self, follower: Follower) -> None:
        """There is one more backup, to be filled."""
        self.followers[follower.epoch] = follower
        if self._shard is not None:
            self._fill(follower, self._shard)

    def _fill(self, follower: Follower, shard: Shard) -> None:
        def first() -> Iterator[ReplicationRecord]:
            if not shard.slices:  # else slices carry the step
                yield record(STATE, step=shard.version)
            if shard.steps is None:  # else gradients that wait for their step are resent to a promoted copy
                yield from ledgers_of(self._ledgers)

        follower.fill(first, Filling(shard, self._tell))

    def lose(self, epoch: int) -> None:
        """A copy is not a backup any more: no answer waits for it."""
        follower = self.followers.pop(epoch, None)
        if follower is not None:
            follower.stop()

    def stop(self) -> None:
        """Forget all backups."""
        for epoch in list(self.followers):
            self.lose(epoch)
        for news in self._news:
            news.stop()
        if self._shard is not None:
            for part in self._shard.parts:
                self._shard.takes.update(part.takes)

    # --- changes of the shard ------------------------------------------------------------------

    def _tell(self) -> None:
        """Send pending changes. If there is no memory for it, this is done before any answer."""
        for news in self._news:
            news.tell()

    def end_step(self, shard: Shard) -> None:
        """The shard has committed a step, perhaps one that the stream has ended already."""
        if self._step != shard.version:
            self._tell()
            self._queue(record(STEPPED, step=shard.version - 1))
            self._step = shard.version

    def _queue(self, done: ReplicationRecord) -> None:
        """A change was made; a repeated call continues where it failed."""
        if not done.position:
            done.position = self.position + 1
        for follower in self.followers.values():
            follower.add(done)
        if self.position < done.position:
            self.position = done.position
            if self.confirmed < self.position:  # else there is no backup yet
                self._fresh_nbytes += done.nbytes
                self._count(done.nbytes)

    def _count(self, nbytes: int) -> None:
        self._nbytes += nbytes
        self._unconfirmed.nbytes += nbytes

    # --- answers -------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether the backups lack something."""
        return self.has_untold or bool(self._held) or self.confirmed < self.position

    @property
    def has_untold(self) -> bool:
        """Whether a change could not be sent for want of memory."""
        return any([not news.is_empty for news in self._news])

    @property
    def confirmed(self) -> int:
        """The last record that all backups have confirmed, with all before it."""
        return min([follower.confirmed(self.position) for follower in self.followers.values()], default=self.position)

    def ask(self, who: bytes, request: int) -> bool:
        """Ask the backups whether they still follow, for a pull; return whether its answer must wait for theirs.

        Raises
        ------
        MemoryError
            Too much waits already.
        """
        self._tell()
        if (who, request) not in self._asked:
            question = record(ASKED)
            self._unconfirmed.check(question.nbytes)
            self._queue(question)
        return self.is_behind

    def hold(self, who: bytes, request: int, message: AnyPush | AnyPull | Committed, now: float) -> None:
        """Defer an answer until everything done so far is confirmed; a deferred one stays in its place.

        Raises
        ------
        MemoryError
            Too much waits already.
        """
        if (who, request) in self._asked:
            return
        self._tell()
        nbytes = 0
        if isinstance(message, PUSHES):
            nbytes = nbytes_beside(message.parts)
            if not self._fresh_nbytes:  # else it was checked when it was applied
                self._unconfirmed.check(nbytes)
            assert self._shard is not None
            if isinstance(message, Push):
                message = replace(message, payload=())
            else:
                message = rows_in(self._shard).unanswered(message)
            nbytes += sum([memoryview(buffer).nbytes for buffer in message.payload])
        self._held.append(HeldAnswer(self.position, nbytes + self._fresh_nbytes, who, message, now))
        self._asked.add((who, request))
        self._of[who] += 1
        self._fresh_nbytes = 0
        self._count(nbytes)

    def withdraw(self, who: bytes, request: int) -> None:
        """The answer to a pull is not awaited any more, if it is deferred."""
        if (who, request) not in self._asked:
            return
        for i, held in enumerate(self._held):
            if held.who == who and isinstance(held.message, PULLS) and held.message.request == request:
                self._fresh_nbytes += held.nbytes  # of records: a pull itself takes nothing
                del self._held[i]
                self._let_go(who, request)
                return

    def _let_go(self, who: bytes, request: int) -> None:
        self._asked.discard((who, request))
        self._of[who] -= 1
        if not self._of[who]:
            del self._of[who]

    def awaited(self, who: bytes) -> int | None:
        """Return the record for which a worker's next answer must wait, to come after its others; None: none."""
        if who not in self._of:
            return None
        return next(held.position for held in reversed(self._held) if held.who == who)

    def release(self) -> Iterator[HeldAnswer]:
        """Yield the answers that need not wait any more, in order."""
        confirmed = self.confirmed
        while self._held and self._held[0].position <= confirmed:
            held = self._held.popleft()
            request = held.message.step if isinstance(held.message, Committed) else held.message.request
            self._let_go(held.who, request)
            self._count(-held.nbytes)
            yield held
        if not self._held and self._fresh_nbytes and confirmed >= self.position:  # a failed request is repeated
            self._count(-self._fresh_nbytes)
            self._fresh_nbytes = 0

    def drain(self) -> list[HeldAnswer]:
        """Return all deferred answers, confirmed or not; they do not wait any more."""
        held = list(self._held)
        self._held.clear()
        self._asked.clear()
        self._of.clear()
        self._unconfirmed.nbytes -= self._nbytes
        self._nbytes = self._fresh_nbytes = 0
        return held

    def pump(self, now: float) -> list[Action]:
        """Send pending records to the backups."""
        return [action for follower in self.followers.values() for action in follower.pump(now)]

    def counters(self, now: float = 0.0) -> dict[str, float]:
        """Return counters for the status."""
        filled = sum(follower.is_filled for follower in self.followers.values())
        since_s = round(now - self._held[0].at, 3) if self._held else 0.0
        lag = {"unconfirmed_nbytes": self._nbytes, "unconfirmed_s": since_s}
        return {"backups": len(self.followers), "backups_filled": filled, **lag}

    def validate(self) -> None:
        """Assert that answers wait in order, and that waiting bytes are counted."""
        nbytes, last = self._fresh_nbytes, 0
        for held in self._held:
            assert last <= held.position <= self.position
            nbytes, last = nbytes + held.nbytes, held.position
        assert self._nbytes == nbytes
        assert len(self._asked) == len(self._held) == sum(self._of.values())
        for follower in self.followers.values():
            follower.validate()


def _forwarded(
    entrust: Callable[[Any, bytes, Noted], tuple[Sequence[Buffer], Noted]],  # of its part's changes
    apply: Apply, message: AnyPush, client: Client, payload: Sequence[Buffer], note: Noted, now: float,
) -> Result:  # fmt: skip
    """Apply a push, and forward it; raises as both do, and then nothing has changed."""
    payload, note = entrust(message, client.hello.incarnation, note)
    return apply(message, client, payload, note, now)
