"""What a job's values must be, worked out by numpy in one process, one slice and one push after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zmqps import codecs
from zmqps.core.job.keyspace import Placement, Segment, Slice
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.optim import OptimizerSpec, make_kernel

Array = np.ndarray[Any, np.dtype[Any]]
#: A slice: its shard, and its number there.
Place = tuple[int, int]


class Cell:
    """A slice as it should be, with all the versions it has had."""

    def __init__(self, slice_: Slice, values: Array, fill: Sequence[float]) -> None:
        self.slice = slice_
        self.values = values
        self.slots = tuple(np.full(values.size, f, values.dtype) for f in fill)
        self.steps = {segment.parameter: 0 for segment in slice_.segments}
        self.history = [values.copy()]

    def of(self, arrays: Sequence[Array | None], parameters: set[int]) -> Array:
        """Return what flat arrays by parameter hold of some parameters here, in the slice's dtype."""
        found = [arrays[s.parameter] for s in self.wanted(parameters)]
        pieces = [
            a[s.start : s.start + s.size] for s, a in zip(self.wanted(parameters), found, strict=True) if a is not None
        ]
        with np.errstate(over="ignore"):
            return np.concatenate(pieces).astype(self.values.dtype)

    def wanted(self, parameters: set[int]) -> list[Segment]:
        """Return the stretches of some parameters."""
        return [segment for segment in self.slice.segments if segment.parameter in parameters]

    def where(self, parameters: set[int]) -> Array:
        """Return the positions of their elements."""
        return np.concatenate([np.arange(s.position, s.position + s.size) for s in self.wanted(parameters)])


class Reference:
    """A job's values on all shards.

    Parameters
    ----------
    job, placement
        What is trained, and where.
    values
        Initial values, flat, by parameter.
    """

    def __init__(self, job: JobSpec, placement: Placement, values: Sequence[Array]) -> None:
        self.job = job
        rules, self._rule_of = OptimizerSpec.from_wire(job.optimizer).rules([p.name for p in job.parameters])
        self._kernels = [make_kernel(rule, "numpy") for rule in rules]
        self.cells: dict[Place, Cell] = {}
        for shard, slices in enumerate(placement.slices):
            for slice_ in slices:
                cell = Cell(slice_, np.empty(slice_.size, placement.keyspace.tables[slice_.table].dtype), ())
                start = cell.of(values, {s.parameter for s in slice_.segments})
                self.cells[shard, slice_.index] = Cell(slice_, start, rules[0].slot_fill)
        self._residuals: dict[tuple[int, Place], Array] = {}  # by worker

    def places(self, parameters: set[int]) -> list[Place]:
        """Return the slices that hold elements of some parameters, in their order."""
        return [place for place, cell in self.cells.items() if cell.wanted(parameters)]

    def travelled(
        self, worker: int, place: Place, gradients: Sequence[Array | None], codec: str, nbytes: int | None, seed: int
    ) -> Array:
        """Return what arrives of a worker's gradients for a slice; its residual changes.

        Parameters
        ----------
        nbytes
            Of the whole message, which decides whether it is worth encoding; None: this slice alone.
        """
        cell, parameters = self.cells[place], brought(gradients)
        given = cell.of(gradients, parameters)
        chosen = codecs.parse(codec)
        if codec == "raw" or (given.nbytes if nbytes is None else nbytes) < codecs.MIN_NBYTES:
            return given
        if not chosen.error_feedback:
            return round_trip(chosen, given, seed)
        kept = self._residuals.setdefault((worker, place), np.zeros_like(cell.values))
        residual = kept[cell.where(parameters)]
        blob = chosen.encode(given, residual, seed=seed, backend="numpy")
        kept[cell.where(parameters)] = residual
        return chosen.decode(blob, given.size, given.dtype, backend="numpy")[0]

    def apply(self, place: Place, gradient: Array, parameters: set[int]) -> None:
        """Update a slice's elements of some parameters; this makes its next version."""
        cell, at = self.cells[place], 0
        for segment in cell.wanted(parameters):
            there = slice(segment.position, segment.position + segment.size)
            cell.steps[segment.parameter] += 1
            values, slots = cell.values[there], tuple(slot[there] for slot in cell.slots)
            kernel = self._kernels[self._rule_of[segment.parameter]]
            kernel(values, gradient[at : at + segment.size], values, slots, cell.steps[segment.parameter])
            at += segment.size
        cell.history.append(cell.values.copy())

    def read(
        self, place: Place, version: int, parameters: set[int], codec: str, nbytes: int | None = None, seed: int = 0
    ) -> Array:
        """Return what a pull of a version brings of some parameters' elements in a slice."""
        cell = self.cells[place]
        values = cell.history[version][cell.where(parameters)]
        if codec == "raw" or (values.nbytes if nbytes is None else nbytes) < codecs.MIN_NBYTES:
            return values
        return round_trip(codecs.parse(codec), values, seed)


def brought(arrays: Sequence[Array | None]) -> set[int]:
    """Return the numbers of the parameters that there is an array of."""
    return {number for number, array in enumerate(arrays) if array is not None}


def round_trip(codec: codecs.Codec, values: Array, seed: int) -> Array:
    """Return what comes out of a codec without error feedback."""
    blob = codec.encode(np.ascontiguousarray(values), seed=seed, backend="numpy")
    return codec.decode(blob, values.size, values.dtype, backend="numpy")[0]


def odd_parameters(slice_nbytes: int) -> tuple[Parameter, ...]:
    """Return parameters of nothing, one, primes, and a slice's elements, one less and one more."""
    single, double = slice_nbytes // 4, slice_nbytes // 8
    shapes: dict[str, list[tuple[int, ...]]] = {
        "float32": [(), (0,), (997,), (single - 1,), (3, 0, 5), (single,), (single + 1,), (2,), (13, 7)],
        "float64": [(1,), (double - 1,), (0,), (double,), (double + 1,), (101,)],
        "bfloat16": [(17, 3)],  # kept and sent as float32
    }
    return tuple(
        Parameter(f"{dtype}-{number}", shape, dtype)
        for dtype, some in shapes.items()
        for number, shape in enumerate(some)
    )
