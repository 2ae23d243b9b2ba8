"""What a treatment makes of a push, before any of it is applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.fields import Part
from zmqps.core.server.dense.memory import Memory
from zmqps.core.server.dense.slices import SliceState
from zmqps.core.treatments import ReadCopies, Treatment


class Treated(NamedTuple):
    """What is left of a push.

    ``results``: version and staleness of every part, by slice, before anything is applied; ``gradients``: what to
    apply instead of each piece, None for the piece itself; ``num_uncompensated``: stale slices of which it is not
    known what the worker had read.
    """

    results: dict[int, tuple[int, int]]
    states: list[SliceState]
    parts: list[Part]
    pieces: Sequence[tuple[SliceState, int, Any]]
    gradients: list[Array | None]
    num_uncompensated: int


class Treating:
    """Corrects or drops the gradients of pushes, each slice's by its own staleness.

    Parameters
    ----------
    treatment
        Which treatment.
    memory
        Takes the pieces, and copies of what workers have read.

    Attributes
    ----------
    copies
        What each worker has read; None: the treatment need not know.
    """

    def __init__(self, treatment: Treatment, memory: Memory) -> None:
        self._treatment = treatment
        self._memory = memory
        self.copies = ReadCopies(memory.empty) if treatment.needs_read else None

    def prepare(self, puller: bytes, states: Sequence[SliceState]) -> None:
        """A worker is about to be sent some slices: have the memory to remember them."""
        if self.copies is not None:
            self.copies.prepare(puller, [(state.slice.index, state.value) for state in states])

    def note_read(self, puller: bytes, states: Sequence[SliceState]) -> None:
        """From now on a worker's gradients are of these values."""
        if self.copies is not None:
            for state in states:
                self.copies.note(puller, state.slice.index, state.version, state.value)

    def treat(
        self,
        puller: bytes,
        states: Sequence[SliceState],
        parts: Sequence[Part],
        pieces: Sequence[tuple[SliceState, int, Any]],
    ) -> Treated:
        """Let the treatment see the gradients of a push; the slices stay as they are."""
        treatment = self._treatment
        results = {i: (s.version, max(0, s.version - read)) for s, (i, read, _) in zip(states, parts, strict=True)}
        kept = [(s, part) for s, part in zip(states, parts, strict=True) if not treatment.drops(results[part[0]][1])]
        copies: dict[int, Array | None] = {}
        if self.copies is not None:
            copies = {index: self.copies.find(puller, index, version) for _, (index, version, _) in kept}
        indices = {index for _, (index, _, _) in kept}
        pieces = self._memory.secure([piece for piece in pieces if piece[0].slice.index in indices])
        gradients: list[Array | None] = []
        for state, start, piece in pieces:
            index, gradient = state.slice.index, self._memory.take(piece)
            stretch = slice(start, start + gradient.size)
            copy = copies.get(index)
            corrected = treatment.correct(
                gradient, state.value[stretch], None if copy is None else copy[stretch], results[index][1]
            )
            gradients.append(None if corrected is gradient else corrected)  # the next that is taken may overwrite it
        uncompensated = sum(copy is None and results[index][1] > 0 for index, copy in copies.items())
        return Treated(results, [s for s, _ in kept], [part for _, part in kept], pieces, gradients, uncompensated)
