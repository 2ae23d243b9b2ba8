"""The plan of a transfer: which elements of which parameters travel with which slice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from zmqps.core.job.keyspace import Placement, Slice


class Extent(NamedTuple):
    """Elements ``[start, stop)`` of one flattened parameter."""

    parameter: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Cargo:
    """What one transfer moves of one slice."""

    slice: Slice
    ranges: tuple[int, ...]  # as in `zmqps.core.protocol.messages.Part`
    extents: tuple[Extent, ...]
    dtype: np.dtype[Any]
    nbytes: int
    bounds: tuple[tuple[int, int], ...] = field(init=False)  # the ranges as pairs, relative to the slice

    def __post_init__(self) -> None:
        bounds = tuple(pairwise(self.ranges))[::2] if self.ranges else ((0, self.slice.size),)
        object.__setattr__(self, "bounds", bounds)


def plan(placement: Placement, parameters: frozenset[int] | None = None) -> tuple[tuple[Cargo, ...], ...]:
    """Return, for each shard, the cargoes that cover some parameters (None: all)."""
    return tuple(
        tuple(cargo for slice_ in slices if (cargo := _cargo(placement, slice_, parameters)) is not None)
        for slices in placement.slices
    )


def batches(cargoes: Sequence[Cargo], nbytes: int) -> Iterator[tuple[Cargo, ...]]:
    """Yield cargoes in groups of a limited number of bytes, or one by one."""
    batch: list[Cargo] = []
    room = nbytes
    for cargo in cargoes:
        if batch and cargo.nbytes > room:
            yield tuple(batch)
            batch, room = [], nbytes
        room -= cargo.nbytes
        batch.append(cargo)
    yield tuple(batch)


def in_order(cargoes: tuple[tuple[Cargo, ...], ...], parameters: Sequence[int]) -> tuple[tuple[Cargo, ...], ...]:
    """Return a plan that moves its parameters in the order in which they are named, as far as slices allow."""
    place = {parameter: i for i, parameter in enumerate(parameters)}

    def first(cargo: Cargo) -> int:
        return min(place[extent.parameter] for extent in cargo.extents)

    return tuple(tuple(sorted(row, key=first)) for row in cargoes)


def _cargo(placement: Placement, slice_: Slice, parameters: frozenset[int] | None) -> Cargo | None:
    wanted = [s for s in slice_.segments if parameters is None or s.parameter in parameters]
    if not wanted:
        return None
    ranges: list[int] = []
    if len(wanted) < len(slice_.segments):
        for segment in wanted:
            if ranges and ranges[-1] == segment.position:
                ranges[-1] += segment.size
            else:
                ranges += [segment.position, segment.position + segment.size]
    dtype = placement.keyspace.tables[slice_.table].dtype
    extents = tuple(Extent(s.parameter, s.start, s.start + s.size) for s in wanted)
    nbytes = sum(s.size for s in wanted) * dtype.itemsize
    return Cargo(slice=slice_, ranges=tuple(ranges), extents=extents, dtype=dtype, nbytes=nbytes)
