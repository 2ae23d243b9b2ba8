"""A rule applied to rows of a table in the memory of a device.

What depends on a row alone, by how much its gradient is scaled and the scalars of its update, is computed on the host
as for rows in its memory, so that the results are the same. It goes to the device with the gradients, some rows at a
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from . import row_fused
from .kernels import Elementwise
from .rows import Array, RowKernel, check_for_rows
from .spec import Rule


class Chunks(Protocol):
    """The memory of values and slots on a device (`zmqps.gpu.rows.Chunks`)."""

    @property
    def addresses(self) -> Any:
        """Those of the chunks, on the device."""

    @property
    def shift(self) -> int:
        """A chunk has 2**shift rows."""

    @property
    def stride(self) -> int:
        """Elements of the values of a chunk."""

    @property
    def columns(self) -> Sequence[Any]:
        """Values, slots and slots of one number, each as an array of all rows is read and written."""

    def blocks(self, num_rows: int, row_nbytes: int) -> Iterable[slice]:
        """Return parts of ``num_rows`` rows that can be staged; a row takes ``row_nbytes``."""

    def staged(self, arrays: Sequence[Array]) -> Sequence[Any]:
        """Return arrays on the device, flat, until others are staged."""

    def uploaded(self, array: Array) -> Any:
        """Return an array on the device."""

    def empty(self, size: int) -> Any:
        """Return a new array of float32 on the device."""


class DeviceRowKernel(RowKernel):
    """The equation as kernels of a device (`row_fused`); where it cannot be written so, one operation after another.

    It is called with `Chunks` in place of values, and without slots.

    Parameters
    ----------
    rule, dim, step_counts
        As in `zmqps.optim.rows.make_row_kernel`, and so are errors.
    xp : module
        The namespace of the device's arrays.
    elementwise : callable, optional
        As `zmqps.gpu.device.Device.elementwise`.
    """

    def __init__(
        self, rule: Rule, dim: int, step_counts: Literal["rows", "table"], xp: Any, elementwise: Elementwise | None
    ) -> None:
        check_for_rows(rule)
        super().__init__(rule, dim, step_counts)
        self._xp = xp
        self._dim = dim
        self._elementwise = elementwise if elementwise is not None and row_fused.can_write(rule) else None
        self._made: dict[bool, tuple[Any, Any, Any]] = {}  # by whether rows are multiplied first

    def _run(
        self, values: Any, rows: Array, grads: Array, state: tuple[Array, ...], scales: Array, keep: Array,
        numbers: Array, which: Array,
    ) -> None:  # fmt: skip
        chunks: Chunks = values
        lines = numbers[which] if which.size else numbers
        if self._elementwise is None:
            # all of it is there, and computed, before anything is written: there may be no memory for it
            there, scales, keep, lines = (chunks.uploaded(array) for array in (grads, scales, keep, lines))
            super()._run(chunks.columns[0], rows, there, tuple(chunks.columns[1:]), scales, keep, lines, which[:0])
            return
        update, squares, averaged = self._kernels(bool(keep.size))
        limits = tuple(np.float32(number) for number in self.rule.gradient_scalars()[bool(scales.size) :])
        of_rows = [grads, rows, *(array for array in (scales, keep) if array.size), *([lines] if self.counts else [])]
        constants = limits if self.counts else (*lines[0], *limits)
        blocks = list(chunks.blocks(rows.size, sum(array.nbytes for array in of_rows) // rows.size))
        if squares is not None:
            most = max(block.stop - block.start for block in blocks)
            out, mean = chunks.empty(most * self._dim), chunks.empty(most)
        for block in blocks:
            g, r, *more = chunks.staged([array[block] for array in of_rows])
            inputs = r, chunks.shift, chunks.stride, *more, *constants
            if squares is not None:
                some, means = out[: g.size], mean[: r.size]
                squares(g, *inputs, some, chunks.addresses)
                self._xp.mean(some.reshape(r.size, self._dim), axis=1, dtype=np.float32, out=means)
                averaged(means, *inputs, chunks.addresses)
            update(g, *inputs, chunks.addresses)

    def _kernels(self, keeps: bool) -> tuple[Any, Any, Any]:
        found = self._made.get(keeps)
        if found is None:
            made = row_fused.sources(self.rule, self._dim, counts=self.counts, keeps=keeps)
            update, squares, state = (one and row_fused.compiled(self._elementwise, one) for one in made)
            found = self._made[keeps] = update, squares, state
        return found
