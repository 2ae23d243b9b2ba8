"""The values of one shard and how a gradient changes them; no messages, no peers.

A slice is updated in one go, so its update is atomic. A buffer that the transport still reads
(a pull being sent without a copy) is never written: the update then goes to a spare buffer, which
takes its place. So a pull never sees a slice half updated, and nobody waits for a lock.

An update has all the memory it needs before the first kernel runs, and nothing is counted before the last one has;
from then on it is applied, and whoever asked for it remembers that first. So what fails changes nothing, and may be
asked for again, and what is done is done once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from zmqps.core.job.keyspace import Placement
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.events import Reader
from zmqps.core.protocol.fields import Contributor, Part
from zmqps.core.protocol.loans import STAYS
from zmqps.core.protocol.terms import are_values
from zmqps.core.server.dense.aggregate import GRADIENT, PushId, Stage
from zmqps.core.server.dense.beside import Beside
from zmqps.core.server.dense.buffers import Buffers
from zmqps.core.server.dense.finiteness import Finiteness
from zmqps.core.server.dense.memory import HostMemory, Memory
from zmqps.core.server.dense.rules import Kernels, Rules
from zmqps.core.server.dense.slices import (
    MAX_DONE_READERS,
    Note,
    SliceState,
    Updates,
    bounds_of,
    check_sort,
    present,
    resolve,
    walk,
)
from zmqps.core.server.dense.slots import Slots
from zmqps.core.server.dense.stale import treat
from zmqps.core.server.dense.steps import ShardSteps
from zmqps.core.server.ledger import Result
from zmqps.core.server.tables.rows import Rows
from zmqps.core.treatments import ReadCopies, Treatment
from zmqps.errors import ProtocolError, SliceRangeError

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer


class Shard:
    """One server's part of the model.

    Parameters
    ----------
    placement, index
        The placement, and which shard of it this is.
    rules
        The optimizer.
    reject_nonfinite
        Whether gradients with NaN or infinity are refused.
    synchronous
        Gradients are kept apart by push until `commit` (`ShardSteps`); otherwise they are applied on arrival.
    aggregate
        Synchronous: how many gradients make a step; None: one of every worker.
    retain
        Synchronous: how many versions before the current one stay readable.
    treatment
        Not synchronous: what is done to stale gradients before they are applied.
    memory
        Where values, slots and gradients are kept.
    required_nbytes
        What was admitted for all of them.
    beside
        What may be there beside the values, for those that are read while they are updated; None: whatever is needed.
    rows
        Its sparse tables.
    """

    def __init__(
        self,
        placement: Placement,
        index: int,
        rules: Rules,
        *,
        reject_nonfinite: bool = True,
        synchronous: bool = False,
        aggregate: int | None = None,
        retain: int = 0,
        treatment: Treatment | None = None,
        memory: Memory | None = None,
        required_nbytes: int = 0,
        beside: Beside | None = None,
        rows: Rows | None = None,
    ) -> None:
        self.placement = placement
        self.required_nbytes = required_nbytes
        self.rows = rows
        self.index = index
        self.counters: Counter[str] = Counter()
        self.memory = memory = memory or HostMemory()
        self.finiteness = Finiteness(placement.keyspace.parameters, rules.all_finite, self.counters)
        self.rejects_nonfinite = reject_nonfinite
        self.kept_nbytes = retain * placement.nbytes(index)  # what kept versions take at most
        self._treatment = treatment
        self.copies = ReadCopies(memory.empty) if treatment is not None and treatment.needs_read else None
        kernels = Kernels(rules, placement.keyspace.parameters)
        self.slices: list[SliceState] = []
        self._has_buffers = any(table.buffers for table in placement.keyspace.dense)
        dtypes = [table.dtype for table in placement.keyspace.dense]
        bounds = [(cuts[index], cuts[index + 1] - cuts[index]) for cuts in placement.cuts[: len(dtypes)]]
        self.beside = beside or Beside()
        self._buffers = Buffers(bounds, dtypes, memory, self.counters, self.beside, self.kept_nbytes)
        self.updates = Updates(kernels, self._buffers, memory, undoes=rules.allocates)
        slots = Slots(bounds, dtypes, memory, rules.slot_fill)
        self.arena_nbytes = slots.nbytes + placement.nbytes(index)
        for slice_ in placement.slices[index]:
            self.slices.append(SliceState(slice_, self._buffers.home(slice_), slots.of(slice_), kernels))
            self._buffers.add(self.slices[-1])
        self._missing = {slice_.index for slice_ in placement.slices[index]}
        self.loaded = not self._missing  # whether every slice has its initial values
        self.filling = False  # a copy that gets its slices one by one; an update of others is none here
        self.steps: ShardSteps | None = None
        if synchronous:
            stage = Stage(placement.nbytes(index), aggregate or 1, memory)
            self.steps = ShardSteps(self.slices, self.updates, stage, self.counters, retain)

    @property
    def version(self) -> int:
        """Synchronous: how many steps have been committed."""
        return 0 if self.steps is None else self.steps.version

    @property
    def has_open_step(self) -> bool:
        """Whether gradients, of parameters or of rows, wait for a commit."""
        return bool(self.rows and self.rows.stage_nbytes) or bool(self.steps and self.steps.is_open)

    def load(self, parts: Sequence[Part], payload: Sequence[Buffer]) -> None:
        """Take initial values of whole slices; ignored once the shard is loaded."""
        states = self._resolve(parts)
        if any(ranges for _, _, ranges in parts):
            raise SliceRangeError("initial values come in whole slices")
        pieces = self._walk(states, parts, payload)
        if self.loaded:
            return
        for state, start, piece in pieces:
            state.value[start : start + piece.size] = self.memory.take(piece)
        self._missing.difference_update(index for index, _, _ in parts)
        self.loaded = not self._missing

    def restore(self, index: int, value: Array, slots: Sequence[Array], steps: Sequence[int], version: int) -> None:
        """Take a slice as it was saved; no slots: they stay as they begin.

        Parameters
        ----------
        index
            Of the slice.
        value, slots
            Its arrays, on this host.
        steps
            How many updates each of its parameters has had.
        version
            Of the slice; in the synchronous mode that which `begin_at` is told.
        """
        self.slices[index].restore(value, slots, steps, version, self.memory)
        self._missing.discard(index)
        self.loaded = not self._missing

    def begin_at(self, version: int) -> None:
        """Go on with a step: the shard was restored, if only without a slice of its own."""
        if self.steps is not None:
            self.steps.version = version

    def push(
        self,
        parts: Sequence[Part],
        payload: Sequence[Buffer],
        worker: str,
        terms: Sequence[float] = (),
        *,
        checked: bool = False,
        puller: bytes = b"",
        note: Callable[[Result], None] | None = None,
    ) -> Result:
        """Apply the gradients of all parts, or set all values, or none of them.

        Parameters
        ----------
        parts, payload
            As in `Push`; or what `decode` made of its payload.
        worker
            Its name, for errors.
        terms
            As they travel (`zmqps.core.protocol.terms`).
        checked
            The gradients are known to be finite.
        puller
            Whose copies (`pull`) say what the gradients were computed from.
        note
            Remembers what is returned, as soon as it is true; called again with the same if memory is short.

        Returns
        -------
        versions, staleness
            Of each part: the slice's version after the update, and how many updates it had had since the
            worker read it. A part that the treatment drops changes nothing, the version neither.

        Raises
        ------
        SliceRangeError, ProtocolError
            The parts do not exist or the payload does not fit them.
        NonFiniteGradientError
            Names ``worker`` and the parameters.
        MemoryError
            There was not enough; nothing has changed.
        ShardBrokenError
            It failed half way for another reason; the shard cannot be used any more.
        """
        states = self._resolve(parts)
        pieces = self._walk(states, parts, payload)
        if self.filling:
            states, parts, pieces = present(self._missing, states, parts, pieces)
        if (values := bool(terms) and are_values(terms)) or self._has_buffers:
            check_sort(states, worker, terms)
        if self.rejects_nonfinite and not checked and not values:
            self.finiteness.check(pieces, worker)
        if self._treatment is not None and not values:
            return self._push_treated(self._treatment, states, parts, pieces, puller, note, terms)
        result = (
            tuple([state.version + 1 for state in states]),
            tuple([max(0, state.version - read) for state, (_, read, _) in zip(states, parts, strict=True)]),
        )
        self._update(states, parts, pieces, (), partial(note, result) if note else None, terms)
        return result

    def _push_treated(
        self, treatment: Treatment, states: Sequence[SliceState], parts: Sequence[Part],
        pieces: Sequence[tuple[SliceState, int, Any]], puller: bytes, note: Callable[[Result], None] | None,
        terms: Sequence[float],
    ) -> Result:  # fmt: skip
        """Apply what a treatment makes of the gradients, each slice's by its own staleness."""
        find = None if self.copies is None else partial(self.copies.find, puller)
        treated = treat(treatment, self.memory, find, states, parts, pieces)
        kept = {index for index, _, _ in treated.parts}
        result = (
            tuple([version + (index in kept) for index, (version, _) in treated.results.items()]),
            tuple([staleness for _, staleness in treated.results.values()]),
        )
        noted = partial(note, result) if note else None
        self._update(treated.states, treated.parts, treated.pieces, treated.gradients, noted, terms)
        self.counters["dropped"] += len(parts) - len(treated.parts)
        self.counters["uncompensated"] += treated.num_uncompensated
        return result

    def _update(
        self, states: Sequence[SliceState], parts: Sequence[Part], pieces: Sequence[tuple[SliceState, int, Any]],
        treated: Sequence[Array | None], note: Note | None, terms: Sequence[float],
    ) -> None:  # fmt: skip
        after = []
        values = bool(terms) and are_values(terms)
        for state, (_, _, ranges) in zip(states, parts, strict=True):
            if not ranges and not values:
                after.append((state, state.version + 1, state.steps + 1))
                continue
            steps = state.steps.copy()
            for start, stop in zip(ranges[::2], ranges[1::2], strict=True):
                first, last = state.segments(start, stop)
                steps[first:last] += not values
            after.append((state, state.version + 1, steps))
        self.updates.apply(states, pieces, treated, after, note, terms, len(pieces) if values else 0)

    def collect(
        self,
        parts: Sequence[Part],
        payload: Sequence[Buffer],
        push: PushId,
        step: int,
        examples: int,
        worker: str,
        terms: Sequence[float] = (),
        *,
        checked: int = 0,
        note: Callable[[Result], None] | None = None,
    ) -> Result:
        """Keep gradients, or values, for a step of the synchronous mode; as `push`, but nothing is applied yet.

        Parameters
        ----------
        parts, payload, worker, terms, checked, note, push, step, examples
            As in `push`, and in `ShardSteps.collect`; ``checked`` as in the message.

        Raises
        ------
        SliceRangeError, ProtocolError, NonFiniteGradientError
            As `push`.
        LimitError
            The worker has brought more to this step than it may; nothing is kept.
        """
        assert self.steps is not None
        states = self._resolve(parts)
        pieces = self._walk(states, parts, payload)
        result = (self.version,) * len(parts), (self.steps.staleness(step),) * len(parts)
        if (values := bool(terms) and are_values(terms)) or self._has_buffers:
            check_sort(states, worker, terms)
        if self.rejects_nonfinite and not checked and not values:
            self.finiteness.check(pieces, worker)
        brought = [(state, bounds_of(state, ranges)) for state, (_, _, ranges) in zip(states, parts, strict=True)]
        noted, sort = partial(note, result) if note else None, terms[0] if values else GRADIENT
        self.steps.collect(brought, pieces, push, step, examples, noted, sort, stays=checked == STAYS)
        return result

    def commit(
        self, step: int, contributors: Sequence[Contributor], terms: Sequence[float] = (), examples: int = 0, *,
        left_out: bool = False,
    ) -> None:  # fmt: skip
        """Apply the mean of a step's gradients, as `ShardSteps.commit`."""
        assert self.steps is not None
        if self.rows is not None:
            self.rows.commit(step, contributors, examples, left_out=left_out)
        self.steps.commit(step, contributors, terms, examples, left_out=left_out)
        if self.rows is not None:
            self.rows.close(step)

    def follow(self) -> None:
        """Become a copy that gets all it has from others, if that is only a step."""
        self._missing.update(self.rows.numbers if self.rows is not None else ())
        self.filling, self.loaded = True, False

    def adopted(self) -> None:
        """Another copy has told something: be whole if that was all."""
        self.loaded = not self._missing
        self.filling = not self.loaded

    def adopt(self, index: int, version: int, steps: Sequence[int], payload: Sequence[Buffer]) -> None:
        """Take a slice as another copy of this shard has it: its value and slots, one after the other.

        Raises
        ------
        SliceRangeError, ProtocolError
            There is no such slice, or it is not what was sent.
        """
        [state] = resolve(self.slices, self.index, ((index, version, ()),))
        state.adopt(version, steps, payload, self.memory)
        self._missing.discard(index)
        self.adopted()

    def adopt_table(self, index: int, step: int) -> None:
        """All rows of a table have come, of which another copy has told after so many steps."""
        self.begin_at(step)
        self._missing.discard(index)
        self.adopted()

    def filled(self) -> None:
        """All slices have come, and all rows."""
        self._missing.clear()
        self.adopted()

    def lacks(self, index: int) -> bool:
        """Whether a slice has yet to come."""
        return index in self._missing

    @property
    def num_present(self) -> int:
        """How many slices need not come any more."""
        return sum(not self.lacks(state.slice.index) for state in self.slices)

    def replay(
        self, parts: Sequence[Part], payload: Sequence[Buffer], terms: Sequence[float] = (), values: Sequence[int] = ()
    ) -> None:
        """Apply means of a step that another copy has computed, unless their slice is not here yet.

        Of the ranges of a part those that begin at one of ``values`` are set.
        """
        assert self.steps is not None
        states = self._resolve(parts)
        found = self._walk(states, parts, payload)
        for state, (index, version, ranges) in zip(states, parts, strict=True):
            if index not in self._missing:
                if version != state.version or version != self.version:
                    raise ProtocolError(f"slice {index} is at {state.version}, the mean is for {version}")
                self.steps.replay(state, bounds_of(state, ranges), found, terms, values)

    def close(self, step: int) -> None:
        """End a step that another copy has committed: slices that nobody pushed get its version, too."""
        assert self.steps is not None
        present = [state for state in self.slices if not self.lacks(state.slice.index)]
        if not present:  # of what came before it this copy knows nothing yet
            self.steps.version = step
        if step != self.version:
            raise ProtocolError(f"this copy is at step {self.version}, the one that ends is {step}")
        self.steps.close(present)
        if self.rows is not None:
            self.rows.end_step(step)

    def sizes(self, parts: Sequence[Part]) -> list[tuple[int, np.dtype[Any]]]:
        """Return elements and dtype of each part; raise `SliceRangeError` if a slice does not exist."""
        states = self._resolve(parts)
        bounds = [bounds_of(state, ranges) for state, (_, _, ranges) in zip(states, parts, strict=True)]
        totals = (sum(stop - start for start, stop in pairs) for pairs in bounds)
        return [(total, state.value.dtype) for total, state in zip(totals, states, strict=True)]

    def available(self, parts: Sequence[Part], version: int, *, exact: bool = False) -> bool:
        """Whether a pull of this version, or a later one, can be answered.

        Raises
        ------
        SliceRangeError
            The parts do not exist.
        VersionError
            Exactly that version was asked for, and it is not kept any more.
        """
        states = self._resolve(parts)
        if exact:
            for state in states:
                state.check_kept(version)
        return all(state.version >= version for state in states)

    def pull(
        self, parts: Sequence[Part], exact: int | None = None, puller: bytes = b""
    ) -> tuple[list[list[Array]], tuple[int, ...], list[list[Reader]]]:
        """Return the values of the parts, without a copy.

        Parameters
        ----------
        parts
            What to read.
        exact
            Which version; None: the current one. It must be `available`.
        puller
            A worker that may push what it computes from them (`note_read`); empty: it will not.

        Returns
        -------
        parts
            For each part its pieces; they alias the arena, or are copies where others read too much of it.
        versions
            A version a part.
        readers
            Lists to append to while somebody still reads the payload.
        """
        states = self._resolve(parts)
        for state in states:
            if len(state.readers) >= MAX_DONE_READERS:
                state.forget_done()
        if exact is None:
            found = [(state.version, state.value, state.readers) for state in states]
        else:
            found = [state.at(exact) for state in states]
        beside = self.beside
        for _, value, _ in found:
            beside.read_nbytes += value.nbytes
        if beside.read_nbytes > beside.lendable_nbytes:
            found = self._buffers.lend(found)
        if self.copies is not None and puller:
            self.copies.prepare(puller, [(state.slice.index, state.value) for state in states])
        if len(parts) == 1 and not parts[0][2]:  # as in most messages
            [(version, value, readers)] = found
            return [[value]], (version,), [readers]
        pieces = [
            [value[start:stop] for start, stop in bounds_of(state, ranges)]
            for state, (_, value, _), (_, _, ranges) in zip(states, found, parts, strict=True)
        ]
        return pieces, tuple([version for version, _, _ in found]), [readers for _, _, readers in found]

    def names_buffers(self, parts: Sequence[Part]) -> bool:
        """Whether a message is about buffers, which are sent as they are."""
        return self._has_buffers and any(self.slices[index].slice.buffers for index, _, _ in parts)

    def note_read(self, parts: Sequence[Part], puller: bytes) -> None:
        """The answer to a pull of the current version is made: from now on a worker's gradients are of these values."""
        if self.copies is not None and puller:
            for index, _, _ in parts:
                state = self.slices[index]
                self.copies.note(puller, index, state.version, state.value)

    def _resolve(self, parts: Sequence[Part]) -> list[SliceState]:
        """Return the slice of each part."""
        if len(parts) == 1 and not parts[0][2] and parts[0][0] < len(self.slices):  # as in most messages
            return [self.slices[parts[0][0]]]
        return resolve(self.slices, self.index, parts)

    def _walk(
        self, states: Sequence[SliceState], parts: Sequence[Part], payload: Sequence[Buffer]
    ) -> list[tuple[SliceState, int, Any]]:
        """Return the pieces of a payload, each with its slice and its first element there."""
        if len(parts) == 1 and not parts[0][2]:
            [state] = states
            pieces = self.memory.scatter(payload, [(state.size, state.value.dtype)])
            return [(state, offset, piece) for _, offset, piece in pieces]
        return walk(self.memory, states, parts, payload)

    def validate(self) -> None:
        """Assert that slices cover the shard and that steps add up."""
        for state, slice_ in zip(self.slices, self.placement.slices[self.index], strict=True):
            assert state.slice is slice_ or state.slice == slice_
            state.validate()
            assert self.steps is not None or not state.history
        if self.steps is not None:
            self.steps.validate(self._missing)
        if self.rows is not None:
            self.rows.validate(None if self.steps is None else self.version, self._missing)
