"""The dense slices of one shard and how a gradient changes them; no peers.

A slice is updated in one go, so its update is atomic. A buffer that the transport still reads
(a pull being sent without a copy) is never written: the update then goes to a spare buffer, which
takes its place. So a pull never sees a slice half updated, and no thread waits for a lock.

An update has all the memory it needs before the first kernel runs, and nothing is counted before the last one has;
from then on it is applied, and its requester records that first. So a failed update changes nothing and may be
requested again, and a completed one is never repeated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from zmqps.codecs import Codec
from zmqps.core.job.keyspace import Placement
from zmqps.core.protocol.arrays import STAYS, Array
from zmqps.core.protocol.encoding import RAW, choose, named
from zmqps.core.protocol.message import Contributor, Part
from zmqps.core.protocol.messages import Message, Pull, Push
from zmqps.core.protocol.terms import are_values
from zmqps.core.server.clients import Client
from zmqps.core.server.dense.aggregate import GRADIENT, PushId, Stage
from zmqps.core.server.dense.buffers import Beside, Buffers
from zmqps.core.server.dense.finiteness import Finiteness
from zmqps.core.server.dense.memory import Memory
from zmqps.core.server.dense.rules import Kernels, Rules, Slots, Timing
from zmqps.core.server.dense.slices import (
    MAX_DONE_READERS,
    Note,
    Piece,
    SliceState,
    Updates,
    bounds_of,
    check_sort,
    present,
    resolve,
    walk,
)
from zmqps.core.server.dense.steps import ShardSteps
from zmqps.core.server.ledger import Result
from zmqps.core.server.parts import COMMITTED, Apply, Arrivals, Awaited, Found, Noted
from zmqps.errors import SliceRangeError

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer


class DensePart:
    """The slices of a shard."""

    #: Whether it must hear of answers that workers compute from (`note_read`).
    remembers_reads = False

    def __init__(
        self,
        placement: Placement,  # this and what has no comment here: as of `zmqps.core.server.shard.Shard`
        index: int,
        rules: Rules,
        came: Arrivals,  # which slices have their values; the shard's
        memory: Memory,
        *,
        reject_nonfinite: bool = True,
        # synchronous: how many gradients make a step; None: gradients are applied on arrival
        aggregate: int | None = None,
        retain: int = 0,
        beside: Beside | None = None,
    ) -> None:
        self.index = index  # of the shard
        self.counters: Counter[str] = Counter()
        self.memory = memory
        self.came = came
        self.finiteness = Finiteness(
            placement.keyspace.parameters, rules.all_finite, self.counters, rejects=reject_nonfinite
        )
        kernels = Kernels(rules, placement.keyspace.parameters)
        self.slices: list[SliceState] = []
        self._has_buffers = any(table.buffers for table in placement.keyspace.dense)
        dtypes = [table.dtype for table in placement.keyspace.dense]
        bounds = [(cuts[index], cuts[index + 1] - cuts[index]) for cuts in placement.cuts[: len(dtypes)]]
        kept_nbytes = retain * placement.nbytes(index)  # what kept versions take at most
        self._buffers = Buffers(bounds, dtypes, memory, self.counters, beside or Beside(), kept_nbytes)
        self.updates = Updates(kernels, self._buffers, memory, undoes=rules.allocates)
        slots = Slots(bounds, dtypes, memory, rules.slot_fill)
        self.arena_nbytes = slots.nbytes + placement.nbytes(index)
        for slice_ in placement.slices[index]:
            self.slices.append(SliceState(slice_, self._buffers.home(slice_), slots.of(slice_), kernels))
            self._buffers.add(self.slices[-1])
        self.steps: ShardSteps | None = None
        if aggregate is not None:
            stage = Stage(placement.nbytes(index), aggregate, memory, rules.mean)
            self.steps = ShardSteps(self.slices, self.updates, stage, self.counters, retain)

    @property
    def members(self) -> Sequence[SliceState]:
        return self.slices

    @property
    def numbers(self) -> range:
        return range(len(self.slices))

    @property
    def beside(self) -> Beside:
        """What may be there besides the values."""
        return self._buffers.beside

    # --- messages ------------------------------------------------------------------------------

    @property
    def takes(self) -> Mapping[type[Message], Apply]:
        return {Push: self.apply if self.steps is None else self.gather}

    pulls = (Pull,)

    def apply(
        self, message: Push, client: Client, payload: Sequence[Buffer], note: Noted | None, now: float = 0.0
    ) -> Result:
        """Apply a push on arrival; raises as `push` does."""
        if message.codec != RAW:
            payload = self._decoded(message, payload)
        return self.push(
            message.parts, payload, client.name, message.terms,
            checked=bool(message.checked), puller=client.puller, note=note,
        )  # fmt: skip

    def gather(
        self, message: Push, client: Client, payload: Sequence[Buffer], note: Noted | None, now: float = 0.0
    ) -> Result:
        """Keep a push for its step; raises as `collect` does."""
        if message.codec != RAW:
            payload = self._decoded(message, payload)
        return self.collect(
            message.parts, payload, (client.hello.incarnation, message.attempt), message.step, message.examples,
            client.name, message.terms, checked=message.checked, note=note,
        )  # fmt: skip

    def _decoded(self, message: Push, payload: Sequence[Buffer]) -> Sequence[Any]:
        codec = named(message.codec)
        if codec is None:
            return payload
        unchecked = self.finiteness.rejects and not message.checked
        return self.memory.decode(codec, payload, self.sizes(message.parts), checked=not unchecked)

    def find(self, message: Push | Pull, puller: bytes, now: float = 0.0) -> Found:
        exact = message.version if isinstance(message, Pull) and message.exact else None
        return self.pull(message.parts, exact, puller)

    def is_available(self, message: Pull) -> bool:
        """Whether a pull can be answered now; raises as `available` does."""
        return self.available(message.parts, message.version, exact=bool(message.exact))

    def awaited(self, message: Pull) -> list[Awaited]:
        if self.steps is not None:
            return [(COMMITTED, message.version)]
        versions = {index: self.slices[index].version for index, _, _ in message.parts}
        if message.exact:  # one slice may pass by its version while another has yet to come to it
            return [(index, version + 1) for index, version in versions.items()]
        return [next((index, message.version) for index, version in versions.items() if version < message.version)]

    def codec(self, message: Push | Pull, spec: str, nbytes: int) -> Codec | None:
        """Return what an answer travels in: buffers are sent as they are."""
        if self._has_buffers and any(self.slices[index].slice.buffers for index, _, _ in message.parts):
            return None
        return choose(spec, nbytes)

    def note_read(self, parts: Sequence[Part], puller: bytes) -> None:
        """Note that a worker was sent the current values of some slices; here, nothing is remembered."""

    def forget(self, incarnation: bytes) -> None:
        """A worker has left. Its gradients stay in the `Stage` until their step is closed: it may have arrived."""

    # --- values --------------------------------------------------------------------------------

    def load(self, parts: Sequence[Part], payload: Sequence[Buffer]) -> None:
        """Take initial values of whole slices; ignored once the shard is loaded."""
        states = self._resolve(parts)
        if any(ranges for _, _, ranges in parts):
            raise SliceRangeError("initial values come in whole slices")
        pieces = self._walk(states, parts, payload)
        if self.came.loaded:
            return
        for state, start, piece in pieces:
            state.value[start : start + piece.size] = self.memory.take(piece)
        self.came.add(*[index for index, _, _ in parts])

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
            Of the slice; in the synchronous mode that passed to `begin_at`.
        """
        self.slices[index].restore(value, slots, steps, version, self.memory)
        self.came.add(index)

    def push(
        self,
        parts: Sequence[Part],
        payload: Sequence[Buffer],
        worker: str,
        terms: Sequence[float] = (),
        *,
        checked: bool = False,
        puller: bytes = b"",
        note: Noted | None = None,
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
            worker read it.

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
        if self.came.filling:
            states, parts, pieces = present(self.came.missing, states, parts, pieces)
        if (values := bool(terms) and are_values(terms)) or self._has_buffers:
            check_sort(states, worker, terms)
        if self.finiteness.rejects and not checked and not values:
            self.finiteness.check(pieces, worker)
        return self.update(states, parts, pieces, puller, note, terms, values=values)

    def update(
        self, states: Sequence[SliceState], parts: Sequence[Part], pieces: Sequence[Piece], puller: bytes,
        note: Noted | None, terms: Sequence[float], *, values: bool,
    ) -> Result:  # fmt: skip
        """Apply what a push has brought, which is checked: gradients, or values that are set."""
        result = (
            tuple([state.version + 1 for state in states]),
            tuple([max(0, state.version - read) for state, (_, read, _) in zip(states, parts, strict=True)]),
        )
        self.apply_pieces(states, parts, pieces, (), partial(note, result) if note else None, terms, values=values)
        return result

    def apply_pieces(
        self, states: Sequence[SliceState], parts: Sequence[Part], pieces: Sequence[Piece],
        gradients: Sequence[Array | None], note: Note | None, terms: Sequence[float], *, values: bool,
    ) -> None:  # fmt: skip
        """Update slices by pieces, or by ``gradients`` in the place of some, and count that."""
        after = []
        for state, (_, _, ranges) in zip(states, parts, strict=True):
            if not ranges and not values:
                after.append((state, state.version + 1, state.steps + 1))
                continue
            steps = state.steps.copy()
            for start, stop in zip(ranges[::2], ranges[1::2], strict=True):
                first, last = state.segments(start, stop)
                steps[first:last] += not values
            after.append((state, state.version + 1, steps))
        self.updates.apply(states, pieces, gradients, after, note, terms, len(pieces) if values else 0)

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
        note: Noted | None = None,
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
        result = (self.steps.version,) * len(parts), (self.steps.staleness(step),) * len(parts)
        if (values := bool(terms) and are_values(terms)) or self._has_buffers:
            check_sort(states, worker, terms)
        if self.finiteness.rejects and not checked and not values:
            self.finiteness.check(pieces, worker)
        brought = [(state, bounds_of(state, ranges)) for state, (_, _, ranges) in zip(states, parts, strict=True)]
        noted, sort = partial(note, result) if note else None, terms[0] if values else GRADIENT
        self.steps.collect(brought, pieces, push, step, examples, noted, sort, stays=checked == STAYS)
        return result

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

    def pull(self, parts: Sequence[Part], exact: int | None = None, puller: bytes = b"") -> Found:
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
            Lists to append to while the payload is still being read.
        """
        states = self._resolve(parts)
        for state in states:
            if len(state.readers) >= MAX_DONE_READERS:
                state.forget_done()
        if exact is None:
            found = [(state.version, state.value, state.readers) for state in states]
        else:
            found = [state.at(exact) for state in states]
        beside = self._buffers.beside
        for _, value, _ in found:
            beside.read_nbytes += value.nbytes
        if beside.read_nbytes > beside.lendable_nbytes:
            found = self._buffers.lend(found)
        if len(parts) == 1 and not parts[0][2]:  # as in most messages
            [(version, value, readers)] = found
            return [[value]], (version,), [readers]
        pieces = [
            [value[start:stop] for start, stop in bounds_of(state, ranges)]
            for state, (_, value, _), (_, _, ranges) in zip(states, found, parts, strict=True)
        ]
        return pieces, tuple([version for version, _, _ in found]), [readers for _, _, readers in found]

    def _resolve(self, parts: Sequence[Part]) -> list[SliceState]:
        """Return the slice of each part."""
        if len(parts) == 1 and not parts[0][2] and parts[0][0] < len(self.slices):  # as in most messages
            return [self.slices[parts[0][0]]]
        return resolve(self.slices, self.index, parts)

    def _walk(self, states: Sequence[SliceState], parts: Sequence[Part], payload: Sequence[Buffer]) -> list[Piece]:
        """Return the pieces of a payload, each with its slice and its first element there."""
        if len(parts) == 1 and not parts[0][2]:
            [state] = states
            pieces = self.memory.scatter(payload, [(state.size, state.value.dtype)])
            return [(state, offset, piece) for _, offset, piece in pieces]
        return walk(self.memory, states, parts, payload)

    # --- steps ---------------------------------------------------------------------------------

    @property
    def has_open_step(self) -> bool:
        return self.steps is not None and self.steps.is_open

    def commit(
        self, step: int, contributors: Sequence[Contributor], terms: Sequence[float], examples: int, *, left_out: bool
    ) -> None:
        """Apply the mean of a step's gradients, as `ShardSteps.commit`."""
        assert self.steps is not None
        self.steps.commit(step, contributors, terms, examples, left_out=left_out)

    def close(self, step: int, contributors: Sequence[Contributor]) -> None:
        assert self.steps is not None
        self.steps.end(step, contributors)

    # --- figures -------------------------------------------------------------------------------

    @property
    def granted_nbytes(self) -> int:
        return self.beside.granted_nbytes

    def held_nbytes(self, *, loaded: bool) -> int:
        held = self.arena_nbytes if loaded else self.arena_nbytes - self._buffers.home_nbytes
        beside = self.beside.admitted_nbytes + self.beside.granted_nbytes
        held += min(self.counters["spare_nbytes"], self._buffers.kept_nbytes + beside)
        return held + (self.steps.stage.nbytes if self.steps else 0)

    @property
    def timings(self) -> Iterator[Timing]:
        yield self.updates.timing

    def figures(self) -> Mapping[str, Any]:
        return {
            **self.counters,
            "arena_nbytes": self.arena_nbytes,
            "slots_nbytes": self.arena_nbytes - self._buffers.home_nbytes,
            "stage_nbytes": self.steps.stage.nbytes if self.steps else 0,
        }

    def validate(self, version: int | None, missing: set[int]) -> None:
        for state in self.slices:
            state.validate()
            assert self.steps is not None or not state.history
        if self.steps is not None:
            self.steps.validate(missing)
