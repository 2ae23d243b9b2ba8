"""What a treatment makes of a push, before any of it is applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.message import Part
from zmqps.core.server.dense.part import DensePart
from zmqps.core.server.dense.slices import Piece, SliceState
from zmqps.core.server.ledger import Result
from zmqps.core.server.parts import Found, Noted
from zmqps.core.treatments import ReadCopies, Treatment, make_treatment
from zmqps.errors import counted


class Treated(NamedTuple):
    """What is left of a push.

    ``results``: version and staleness of every part, by slice, before anything is applied; ``gradients``: what to
    apply instead of each piece, None for the piece itself; ``num_uncompensated``: stale slices of which it is not
    known what the worker had read.
    """

    results: dict[int, tuple[int, int]]
    states: list[SliceState]
    parts: list[Part]
    pieces: Sequence[Piece]
    gradients: list[Array | None]
    num_uncompensated: int


class TreatedPart(DensePart):
    """Corrects or drops the gradients of pushes, each slice's by its own staleness."""

    def __init__(self, treatment: Treatment, *what: Any, **options: Any) -> None:  # and as of `DensePart`
        super().__init__(*what, **options)
        self._treatment = treatment
        self.remembers_reads = treatment.needs_read
        # what each worker has read; None: the treatment need not know
        self.copies = ReadCopies(self.memory.empty) if treatment.needs_read else None

    def pull(self, parts: Sequence[Part], exact: int | None = None, puller: bytes = b"") -> Found:
        """Return the values of the parts, once there is the memory to remember what a worker is sent."""
        found = super().pull(parts, exact, puller)
        if self.copies is not None and puller:
            self.copies.prepare(puller, [(index, self.slices[index].value) for index, _, _ in parts])
        return found

    def note_read(self, parts: Sequence[Part], puller: bytes) -> None:
        """A worker has the current values of some slices: from now on its gradients are of these."""
        if self.copies is not None and puller:
            for state in [self.slices[index] for index, _, _ in parts]:
                self.copies.note(puller, state.slice.index, state.version, state.value)

    def forget(self, incarnation: bytes) -> None:
        """A worker has left: forget what it has read."""
        if self.copies is not None:
            self.copies.forget(incarnation)

    def update(
        self, states: Sequence[SliceState], parts: Sequence[Part], pieces: Sequence[Piece], puller: bytes,
        note: Noted | None, terms: Sequence[float], *, values: bool,
    ) -> Result:  # fmt: skip
        """Apply what the treatment makes of the gradients; a part that it drops changes nothing, no version either."""
        if values:
            return super().update(states, parts, pieces, puller, note, terms, values=values)
        treated = self.treat(puller, states, parts, pieces)
        kept = {index for index, _, _ in treated.parts}
        result = (
            tuple([version + (index in kept) for index, (version, _) in treated.results.items()]),
            tuple([staleness for _, staleness in treated.results.values()]),
        )
        noted = partial(note, result) if note else None
        self.apply_pieces(treated.states, treated.parts, treated.pieces, treated.gradients, noted, terms, values=False)
        self.counters["dropped"] += len(parts) - len(treated.parts)
        self.counters["uncompensated"] += treated.num_uncompensated
        return result

    def treat(
        self, puller: bytes, states: Sequence[SliceState], parts: Sequence[Part], pieces: Sequence[Piece]
    ) -> Treated:
        """Let the treatment see the gradients of a push; the slices stay as they are."""
        treatment = self._treatment
        results = {i: (s.version, max(0, s.version - read)) for s, (i, read, _) in zip(states, parts, strict=True)}
        kept = [(s, part) for s, part in zip(states, parts, strict=True) if not treatment.drops(results[part[0]][1])]
        copies: dict[int, Array | None] = {}
        if self.copies is not None:
            copies = {index: self.copies.find(puller, index, version) for _, (index, version, _) in kept}
        indices = {index for _, (index, _, _) in kept}
        pieces = self.memory.secure([piece for piece in pieces if piece[0].slice.index in indices])
        gradients: list[Array | None] = []
        for state, start, piece in pieces:
            index, gradient = state.slice.index, self.memory.take(piece)
            stretch = slice(start, start + gradient.size)
            copy = copies.get(index)
            corrected = treatment.correct(
                gradient, state.value[stretch], None if copy is None else copy[stretch], results[index][1]
            )
            gradients.append(None if corrected is gradient else corrected)  # the next that is taken may overwrite it
        uncompensated = sum(copy is None and results[index][1] > 0 for index, copy in copies.items())
        return Treated(results, [s for s, _ in kept], [part for _, part in kept], pieces, gradients, uncompensated)

    @property
    def _copies_nbytes(self) -> int:
        return 0 if self.copies is None else self.copies.nbytes

    def held_nbytes(self, *, loaded: bool) -> int:
        return super().held_nbytes(loaded=loaded) + self._copies_nbytes

    def figures(self) -> Mapping[str, Any]:
        return {**super().figures(), "copies_nbytes": self._copies_nbytes}


def treated(treatment: Treatment | None) -> Callable[..., DensePart]:
    """Return what makes the slices of a shard (`Shard`) whose stale gradients are treated so; None: not at all."""
    return DensePart if treatment is None else partial(TreatedPart, treatment)


def copies_nbytes(placement: Placement, index: int, job: JobSpec, num_workers: int) -> dict[str, int]:
    """Return the bytes that a job's treatment takes of a shard with that many workers, as `required_nbytes`."""
    treatment = make_treatment(job.treatment)
    if treatment is None or not treatment.needs_read:
        return {}
    return {f"copies of what {counted(num_workers, 'worker')} read": placement.nbytes(index) * num_workers}
