"""What a leader has done and its backups have not confirmed yet, and the answers that wait for that."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from zmqps.core.protocol.events import Action
from zmqps.core.protocol.limits import WINDOW_NBYTES
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
#: in flight to a server, or what they lend it in shared memory; beyond this they are to send it again a little later.
MAX_UNCONFIRMED_NBYTES = 32 * WINDOW_NBYTES
#: What backups are told of the changes of a part.
News: TypeAlias = SliceNews | RowNews


class Unconfirmed:
    """The bytes of all streams of a server that wait for backups."""

    def __init__(self, limit: int = MAX_UNCONFIRMED_NBYTES) -> None:
        self.nbytes = 0
        self.limit = limit

    def check(self, nbytes: int) -> None:
        """Raise `MemoryError` if there is no room for so many more; there is for one push, however large."""
        if self.nbytes and self.nbytes + nbytes > self.limit:
            raise MemoryError(f"{self.nbytes:,} bytes wait for the backups of this server, {self.limit:,} may")


class HeldAnswer(NamedTuple):
    """An answer that waits: to the push or pull of a worker, or where that is nobody to the coordinator.

    ``position``: of the last record that must be confirmed; ``nbytes``: what the records since the one before take.
    """

    position: int
    nbytes: int
    who: bytes
    message: AnyPush | AnyPull | Committed
    at: float  # since when


class Stream:
    """Forwards what a shard does to its backups, in its order, and holds the answers until all have it."""

    def __init__(
        self,
        ledgers: Mapping[bytes, Ledger],  # of the shard's workers
        unconfirmed: Unconfirmed,  # counts the bytes of all streams
    ) -> None:
        self.followers: dict[int, Follower] = {}  # by epoch
        self.position = 0  # of the newest record
        self._ledgers = ledgers
        self._unconfirmed = unconfirmed
        self._shard: Shard | None = None  # until it has its values
        self._news: list[News] = []  # of its parts
        self._step = 0  # ended in the stream
        self._held: deque[HeldAnswer] = deque()
        self._asked: set[tuple[bytes, int]] = set()  # whose requests are held
        self._of: Counter[bytes] = Counter()  # how many, by whose they are
        self._nbytes = 0  # of records, and of what waits for them
        self._fresh_nbytes = 0  # of records that no answer waits for yet

    # --- backups -------------------------------------------------------------------------------

    def begin(self, shard: Shard) -> None:
        """The shard has its values: begin to tell the backups of it."""
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
        """There is one more backup, which is to be filled."""
        self.followers[follower.epoch] = follower
        if self._shard is not None:
            self._fill(follower, self._shard)

    def _fill(self, follower: Follower, shard: Shard) -> None:
        def first() -> Iterator[ReplicationRecord]:
            if not shard.slices:  # else they tell it the step
                yield record(STATE, step=shard.version)
            if shard.steps is None:  # else gradients that wait for their step are brought to a promoted copy again
                yield from ledgers_of(self._ledgers)

        follower.fill(first, Filling(shard, self._tell))

    def lose(self, epoch: int) -> None:
        """A copy is no backup any more: nothing waits for it."""
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

    # --- what the shard does -------------------------------------------------------------------

    def _tell(self) -> None:
        """Tell what has changed. Where there is no memory for it, that is done before any answer."""
        for news in self._news:
            news.tell()

    def end_step(self, shard: Shard) -> None:
        """The shard has committed a step, perhaps one that the stream has ended already."""
        if self._step != shard.version:
            self._tell()
            self._queue(record(STEPPED, step=shard.version - 1))
            self._step = shard.version

    def _queue(self, done: ReplicationRecord) -> None:
        """Something is done; said again it goes on where it failed."""
        if not done.position:
            done.position = self.position + 1
        for follower in self.followers.values():
            follower.add(done)
        if self.position < done.position:
            self.position = done.position
            if self.confirmed < self.position:  # else no backup is there yet
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
        """Whether something has changed of which there was no memory to tell."""
        return any([not news.is_empty for news in self._news])

    @property
    def confirmed(self) -> int:
        """Up to which record all backups have confirmed all."""
        return min([follower.confirmed(self.position) for follower in self.followers.values()], default=self.position)

    def ask(self, who: bytes, request: int) -> bool:
        """Ask the backups whether they still follow, for a pull; return whether its answer has to wait for theirs.

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
        """Let an answer wait for all that is done by now; one that waits already stays where it is.

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
        """Nobody waits for the answer to a pull any more, if it is held."""
        if (who, request) not in self._asked:
            return
        for i, held in enumerate(self._held):
            if held.who == who and isinstance(held.message, PULLS) and held.message.request == request:
                self._fresh_nbytes += held.nbytes  # of records: a pull takes nothing itself
                del self._held[i]
                self._let_go(who, request)
                return

    def _let_go(self, who: bytes, request: int) -> None:
        self._asked.discard((who, request))
        self._of[who] -= 1
        if not self._of[who]:
            del self._of[who]

    def awaited(self, who: bytes) -> int | None:
        """Return the record for which a worker's next answer has to wait, to come after its others; None: for none."""
        if who not in self._of:
            return None
        return next(held.position for held in reversed(self._held) if held.who == who)

    def release(self) -> Iterator[HeldAnswer]:
        """Yield the answers that need not wait any more, in their order."""
        confirmed = self.confirmed
        while self._held and self._held[0].position <= confirmed:
            held = self._held.popleft()
            request = held.message.step if isinstance(held.message, Committed) else held.message.request
            self._let_go(held.who, request)
            self._count(-held.nbytes)
            yield held
        if not self._held and self._fresh_nbytes and confirmed >= self.position:  # what failed is asked for again
            self._count(-self._fresh_nbytes)
            self._fresh_nbytes = 0

    def drain(self) -> list[HeldAnswer]:
        """Return all answers that wait, whoever has not confirmed what; they wait no more."""
        held = list(self._held)
        self._held.clear()
        self._asked.clear()
        self._of.clear()
        self._unconfirmed.nbytes -= self._nbytes
        self._nbytes = self._fresh_nbytes = 0
        return held

    def pump(self, now: float) -> list[Action]:
        """Send to the backups what they have not been sent."""
        return [action for follower in self.followers.values() for action in follower.pump(now)]

    def counters(self, now: float = 0.0) -> dict[str, float]:
        """Return what the status shows."""
        filled = sum(follower.is_filled for follower in self.followers.values())
        since_s = round(now - self._held[0].at, 3) if self._held else 0.0
        lag = {"unconfirmed_nbytes": self._nbytes, "unconfirmed_s": since_s}
        return {"backups": len(self.followers), "backups_filled": filled, **lag}

    def validate(self) -> None:
        """Assert that answers wait in order, and what waits is counted."""
        nbytes, last = self._fresh_nbytes, 0
        for held in self._held:
            assert last <= held.position <= self.position
            nbytes, last = nbytes + held.nbytes, held.position
        assert self._nbytes == nbytes
        assert len(self._asked) == len(self._held) == sum(self._of.values())
        for follower in self.followers.values():
            follower.validate()


def _forwarded(
    entrust: Callable[[Any, bytes, Noted], tuple[Sequence[Buffer], Noted]],  # of the news of its part
    apply: Apply, message: AnyPush, client: Client, payload: Sequence[Buffer], note: Noted, now: float,
) -> Result:  # fmt: skip
    """Apply a push, and forward it; raises as both do, and then nothing has changed."""
    payload, note = entrust(message, client.hello.incarnation, note)
    return apply(message, client, payload, note, now)
