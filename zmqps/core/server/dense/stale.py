"""What a treatment makes of a push, before any of it is applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.fields import Part
from zmqps.core.server.dense.memory import Memory
from zmqps.core.server.dense.slices import SliceState
from zmqps.core.treatments import Treatment


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


def treat(
    treatment: Treatment,
    memory: Memory,
    find: Callable[[int, int], Array | None] | None,
    states: Sequence[SliceState],
    parts: Sequence[Part],
    pieces: Sequence[tuple[SliceState, int, Any]],
) -> Treated:
    """Let a treatment see the gradients of each slice, with the staleness of that; the slices stay as they are.

    Parameters
    ----------
    treatment
        Which.
    memory
        Takes the pieces.
    find
        Returns the copy of what the worker read: ``find(slice, version)``; None: the treatment needs none.
    states, parts, pieces
        The push.
    """
    results = {i: (s.version, max(0, s.version - read)) for s, (i, read, _) in zip(states, parts, strict=True)}
    kept = [(s, part) for s, part in zip(states, parts, strict=True) if not treatment.drops(results[part[0]][1])]
    copies: dict[int, Array | None] = {}
    if find is not None:
        copies = {index: find(index, version) for _, (index, version, _) in kept}
    indices = {index for _, (index, _, _) in kept}
    pieces = memory.secure([piece for piece in pieces if piece[0].slice.index in indices])
    gradients: list[Array | None] = []
    for state, start, piece in pieces:
        index, gradient = state.slice.index, memory.take(piece)
        stretch = slice(start, start + gradient.size)
        copy = copies.get(index)
        corrected = treatment.correct(
            gradient, state.value[stretch], None if copy is None else copy[stretch], results[index][1]
        )
        gradients.append(None if corrected is gradient else corrected)  # the next that is taken may overwrite it
    uncompensated = sum(copy is None and results[index][1] > 0 for index, copy in copies.items())
    return Treated(results, [s for s, _ in kept], [part for _, part in kept], pieces, gradients, uncompensated)
