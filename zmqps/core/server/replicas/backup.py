"""The copy of a shard that follows its leader, record by record, until it is promoted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from zmqps.core.protocol.encoding import RAW, named
from zmqps.core.protocol.messages import Replicate, Replicated
from zmqps.core.protocol.messages.replication import ASKED, AVERAGED, NOBODY, PUSHED, REMEMBERED, ROWS, STATE, STEPPED
from zmqps.core.server.dense.memory import Memory
from zmqps.core.server.dense.part import DensePart
from zmqps.core.server.dense.slices import SliceState, bounds_of, resolve, walk
from zmqps.core.server.ledger import Ledger, Ledgers, Result
from zmqps.core.server.replicas.records import remember
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.rows import rows_in
from zmqps.errors import ProtocolError, PSError, ShardBrokenError


class Backup:
    """A backup's handling of its leader's stream.

    Each record is applied once, in order, by the same code as at the leader: so values, slots, versions and steps are
    the same, bit for bit. Ledger entries come with the record, so they cannot diverge from the values.
    """

    def __init__(
        self,
        epoch: int,  # of this copy
        ledgers: Ledgers,
    ) -> None:
        self.number = 0  # of the last applied record
        self.broken: ShardBrokenError | None = None  # it cannot follow any more
        self._epoch = epoch
        self._ledgers = ledgers
        self._asked: int | None = None  # missing records were requested after this one

    @property
    def position(self) -> Replicated:
        """Its position."""
        return Replicated(self._epoch, self.number, 0)

    def take(self, shard: Shard, record: Replicate) -> Replicated | None:
        """Apply a record; return the answer.

        Raises
        ------
        MemoryError
            There is not enough; nothing has changed.
        ShardBrokenError
            This copy differs from its leader.
        """
        if self.broken is not None:
            raise self.broken.again()
        if record.number <= self.number:
            return self.position  # it will be resent
        if record.number > self.number + 1:
            if self._asked == self.number:
                return None
            self._asked = self.number
            return Replicated(self._epoch, self.number, 1)
        try:
            TAKE.get(record.what, Backup._unknown)(self, shard, record)
        except MemoryError:
            self._asked = self.number  # those after it are in flight; the leader resends them after it
            raise
        except PSError as error:
            self.broken = ShardBrokenError(why=f"it cannot follow its leader: {error}"[:300])
            raise self.broken.again() from error
        self.number, self._asked = record.number, None
        return self.position

    def _push(self, shard: Shard, record: Replicate) -> None:
        payload: Any = record.payload
        codec = None if record.codec == RAW else named(record.codec)
        if codec is not None:
            payload = shard.memory.decode(codec, payload, shard.dense.sizes(record.parts), checked=True)
        if not len(record.versions) == len(record.staleness) == len(record.parts):
            raise ProtocolError("a push has a version and a staleness for each part")
        ledger = self._ledgers[record.origin]
        if ledger.look_up(record.seq) is not None:
            raise ProtocolError(f"push {record.seq} has been applied before")
        theirs: Result = tuple(record.versions), tuple(record.staleness)
        note = partial(self._note, ledger, record, theirs)
        ours = shard.dense.push(record.parts, payload, "its leader", record.terms, checked=True, note=note)
        present = [i for i, (index, _, _) in enumerate(record.parts) if index not in shard.came.missing]
        if ours != (tuple(theirs[0][i] for i in present), tuple(theirs[1][i] for i in present)):
            raise ProtocolError(f"push {record.seq} gave {ours}, and {theirs} at the leader")

    def _note(self, ledger: Ledger, record: Replicate, theirs: Result, ours: Result) -> None:
        """It is applied: record the leader's answer, and that it need not be resent."""
        ledger.record(record.seq, theirs)
        self.number = record.number

    def _average(self, shard: Shard, record: Replicate) -> None:
        replay(shard.dense, record)

    def _step(self, shard: Shard, record: Replicate) -> None:
        end_step(shard.dense, record.step)
        rows_in(shard).end_step(record.step)

    def _remember(self, shard: Shard, record: Replicate) -> None:
        remember(self._ledgers[record.origin], record.payload)

    def _restore(self, shard: Shard, record: Replicate) -> None:
        if not record.parts and not shard.slices:
            shard.adopted(record.step)
            return
        if len(record.parts) != 1 or record.parts[0][0] not in shard.came.missing:
            raise ProtocolError("one slice at a time, and each once")
        [state] = resolve(shard.slices, shard.index, record.parts)
        adopt(state, record, shard.memory)
        shard.adopted(record.step, state.slice.index)

    def _rows(self, shard: Shard, record: Replicate) -> None:
        if rows_in(shard).adopt(record):
            shard.adopted(record.step, record.parts[0][0])
        if record.origin != NOBODY:
            self._ledgers[record.origin].record(record.seq, (tuple(record.versions), tuple(record.staleness)))

    def _asked_whether_it_follows(self, shard: Shard, record: Replicate) -> None:
        """Nothing to do: taking the record is the answer."""

    def _unknown(self, shard: Shard, record: Replicate) -> None:
        raise ProtocolError(f"no record is of kind {record.what}")


#: The handler of each kind of record.
TAKE: dict[int, Callable[[Backup, Shard, Replicate], None]] = {
    PUSHED: Backup._push,
    AVERAGED: Backup._average,
    STEPPED: Backup._step,
    REMEMBERED: Backup._remember,
    STATE: Backup._restore,
    ROWS: Backup._rows,
    ASKED: Backup._asked_whether_it_follows,
}


def adopt(state: SliceState, record: Replicate, memory: Memory) -> None:
    """Set a slice to the leader's state: the payload has its value and slots, one after the other."""
    arrays, steps = [state.value, *state.slots], record.versions
    if len(steps) != len(state.steps):
        raise ProtocolError(f"slice {state.slice.index} has {len(state.steps)} parameters, not {len(steps)}")
    for array, offset, piece in memory.scatter(record.payload, [(array.size, array.dtype) for array in arrays]):
        arrays[array][offset : offset + piece.size] = memory.take(piece)
    state.version, state.steps = record.parts[0][1], np.array(steps, np.int64)


def replay(dense: DensePart, record: Replicate) -> None:
    """Apply means of a step that the leader has computed, unless their slice is not here yet.

    Ranges of a part that begin at one of ``record.versions`` are set.
    """
    assert dense.steps is not None
    states = resolve(dense.slices, dense.index, record.parts)
    pieces = walk(dense.memory, states, record.parts, record.payload)
    for state, (index, version, ranges) in zip(states, record.parts, strict=True):
        if index in dense.came.missing:
            continue
        if version != state.version or version != dense.steps.version:
            raise ProtocolError(f"slice {index} is at {state.version}, the mean is for {version}")
        bounds = bounds_of(state, ranges)
        sorts = [[pair for pair in bounds if (pair[0] in record.versions) == flag] for flag in (False, True)]
        means, written = (
            [piece for piece in pieces if piece[0] is state and any(lo <= piece[1] < hi for lo, hi in pairs)]
            for pairs in sorts
        )
        dense.steps.apply(state, sorts[0], [*means, *written], terms=record.terms, num_values=len(written))


def end_step(dense: DensePart, step: int) -> None:
    """End a step that the leader has committed: slices without a push get its version, too."""
    steps = dense.steps
    assert steps is not None
    present = [state for state in dense.slices if state.slice.index not in dense.came.missing]
    if not present:  # this copy has nothing from before
        steps.version = step
    if step != steps.version:
        raise ProtocolError(f"this copy is at step {steps.version}, the one that ends is {step}")
    for state in present:
        if state.version == step:
            steps.apply(state, (), ())
    steps.stage.close(step)
    steps.version += 1
