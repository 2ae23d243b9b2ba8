"""What a leader sends its backups, record by record, and how a backup applies each.

A record is a `Replicate` without the copy it is for and its number there: a backup's stream has its own records in
addition to those of all backups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zmqps.core.protocol.arrays import Borrowed
from zmqps.core.protocol.encoding import RAW
from zmqps.core.protocol.message import Part
from zmqps.core.protocol.messages import Push, Replicate
from zmqps.core.protocol.messages.replication import AVERAGED, NOBODY, PUSHED, REMEMBERED, STATE
from zmqps.core.server.dense.aggregate import Stretches
from zmqps.core.server.dense.memory import Memory
from zmqps.core.server.dense.slices import Note, SliceState
from zmqps.core.server.dense.steps import ShardSteps, unnoted
from zmqps.core.server.ledger import Ledger, Result
from zmqps.core.server.parts import Noted
from zmqps.errors import ProtocolError

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

#: The memory of a record besides its payload and parts.
RECORD_NBYTES = 1024
#: Pushes of a ledger in one record.
LEDGER_PUSHES = 256


class ReplicationRecord:
    """One change that a leader has made, or is about to make."""

    __slots__ = ("message", "nbytes", "position")

    def __init__(self, message: Replicate) -> None:
        self.message = message  # the message to backups
        # its approximate memory
        self.nbytes = nbytes_beside(message.parts) + sum([memoryview(buffer).nbytes for buffer in message.payload])
        self.position = 0  # its number at the leader, from 1; 0: it is not done yet, or concerns one backup only


def nbytes_beside(parts: Sequence[Part]) -> int:
    """Return the approximate memory of a record besides its payload."""
    return RECORD_NBYTES + sum([40 + 8 * len(ranges) for _, _, ranges in parts])


class Listener(NamedTuple):
    """Receives the changes of a part.

    ``queue`` takes a record of a change; ``check`` raises `MemoryError` if there is no room for this many more bytes.
    """

    queue: Callable[[ReplicationRecord], None]
    check: Callable[[int], None]


def owned(payload: Sequence[Buffer]) -> list[Buffer]:
    """Return a payload that does not change.

    A received frame does not change as long as it is referred to, unless it is in the worker's own arrays: the worker
    may write to those again as soon as it gives up.
    """
    return [
        buffer
        if isinstance(buffer, memoryview) and not isinstance(buffer.obj, Borrowed)
        else np.frombuffer(buffer, np.uint8).copy()
        for buffer in payload
    ]


def record(
    what: int, *, origin: bytes = NOBODY, seq: int = 0, step: int = 0, codec: str = RAW, versions: Sequence[int] = (),
    staleness: Sequence[int] = (), terms: Sequence[float] = (), parts: Sequence[Part] = (),
    payload: Sequence[Buffer] = (),
) -> ReplicationRecord:  # fmt: skip
    """Return the record of a change, before the copy is known."""
    return ReplicationRecord(
        Replicate(0, 0, what, origin, seq, step, codec, versions, staleness, terms, parts, payload)
    )


def averaged(
    state: SliceState, step: int, means: Stretches, values: Stretches, terms: Sequence[float], memory: Memory
) -> ReplicationRecord:
    """Return the record of a slice's mean of a step, of its terms, and of values that are set."""
    both = sorted([*means, *values], key=itemgetter(0)) if values else means
    ranges = tuple(bound for start, array in both for bound in (start, start + array.size))
    part = state.slice.index, step, () if ranges == (0, state.size) else ranges
    payload = [memory.copied(array) for _, array in both]
    written = tuple(start for start, _ in values)
    return record(AVERAGED, step=step, versions=written, terms=terms, parts=(part,), payload=payload)


def state_of(state: SliceState, step: int, memory: Memory) -> ReplicationRecord:
    """Return the record of a slice in its present state, after this many synchronous steps."""
    payload = [memory.copied(array) for array in (state.value, *state.slots)]
    part = state.slice.index, state.version, ()
    return record(STATE, step=step, versions=tuple(state.steps.tolist()), parts=(part,), payload=payload)


def ledgers_of(ledgers: Mapping[bytes, Ledger]) -> Iterator[ReplicationRecord]:
    """Yield the records of the workers' ledgers; each must be taken before anything else is applied."""
    for who, ledger in ledgers.items():
        applied = ((seq, result) for seq, result in ledger.results.items() if result is not None)
        while True:
            numbers = [ledger.floor]
            for seq, (versions, staleness) in islice(applied, LEDGER_PUSHES):
                numbers += [seq, len(versions), *versions, *staleness]
            if len(numbers) == 1 and not ledger.floor:
                break
            payload = [np.array(numbers, "<u8")]
            yield record(REMEMBERED, origin=who, payload=payload)
            if len(numbers) == 1:
                break


def remember(ledger: Ledger, payload: Sequence[Buffer]) -> None:
    """Apply a part of a ledger made by `ledgers_of`.

    Raises
    ------
    ProtocolError
        It is malformed.
    """
    data = b"".join(bytes(buffer) for buffer in payload)
    if not data or len(data) % 8:
        raise ProtocolError(f"a part of a ledger of {len(data)} bytes")
    numbers = np.frombuffer(data, "<u8").tolist()
    ledger.floor = max(ledger.floor, numbers[0])
    at = 1
    while at < len(numbers):
        seq, count = numbers[at : at + 2] if at + 2 <= len(numbers) else (0, len(numbers))
        if at + 2 + 2 * count > len(numbers):
            raise ProtocolError("a part of a ledger ends inside a push")
        versions, staleness = numbers[at + 2 : at + 2 + count], numbers[at + 2 + count : at + 2 + 2 * count]
        result: Result = tuple(versions), tuple(staleness)
        ledger.record(seq, result)
        at += 2 + 2 * count


class SliceNews:
    """Forwards changes of a shard's slices."""

    #: Each change is queued at once.
    is_empty = True

    def __init__(
        self,
        steps: ShardSteps | None,  # of the shard, in synchronous mode
        memory: Memory,  # where the slices are
        listener: Listener,  # takes the records
    ) -> None:
        self._steps = steps
        self._memory = memory
        self._listener = listener
        if steps is not None:
            steps.forward = partial(self._average, steps)

    def entrust(self, message: Push, origin: bytes, note: Noted) -> tuple[Sequence[Buffer], Noted]:
        """Prepare to forward a push that is about to be applied: the backups apply the same bytes.

        Returns
        -------
        payload
            To be applied: it does not change.
        note
            To be called instead of ``note`` as soon as it is applied.

        Raises
        ------
        MemoryError
            Too much waits for the backups already, or there is no memory for a copy. Nothing has changed.
        """
        nbytes = sum([memoryview(buffer).nbytes for buffer in message.payload])
        self._listener.check(nbytes + 2 * nbytes_beside(message.parts))  # its record, and the deferred answer
        payload = owned(message.payload)
        pushed = record(
            PUSHED, origin=origin, seq=message.seq, codec=message.codec, terms=message.terms, parts=message.parts,
            payload=payload,
        )  # fmt: skip

        def noted(result: Result) -> None:
            note(result)
            if not pushed.position:
                pushed.message = replace(pushed.message, versions=result[0], staleness=result[1])
            self._listener.queue(pushed)

        return payload, noted

    def _average(
        self, steps: ShardSteps, state: SliceState, means: Stretches, values: Stretches, terms: Sequence[float]
    ) -> Note:
        """Prepare to forward the values with which a slice is about to be updated."""
        if not means and not values:
            return unnoted  # the end of the step implies it
        return partial(self._listener.queue, averaged(state, steps.version, means, values, terms, self._memory))

    def tell(self) -> None:
        """There is nothing left to send."""

    def stop(self) -> None:
        if self._steps is not None:
            self._steps.forward = None
