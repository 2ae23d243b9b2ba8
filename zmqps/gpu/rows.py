"""Rows of a table on a device: found on this host, read and updated in place.

A device gives memory when it is asked for, not when it is written to as this host does, and a larger array elsewhere
would need room for both and a copy of all that there is. So rows are in chunks of 2**shift rows. A chunk is one
allocation, because a table grows as a whole or not at all: first the values of its rows, then each slot, then what is
one number a row. Chunks of one table are all the same, as sizes that double would leave up to half of the device
unused. Kernels find a row by the addresses of chunks, in an array of the device: with 16 MiB a chunk it is 40 KiB for
all of an 80 GiB GPU, and stays in its cache.

Which rows are meant is known to this host. Their numbers are staged as gradients are, some at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from zmqps.core.protocol.arrays import Array
from zmqps.gpu.device import Device
from zmqps.optim.row_fused import CHUNKS, PREAMBLE, ROWS, element
from zmqps.rows.initial import Filler, Initial, filler
from zmqps.rows.kept import Kept
from zmqps.rows.store import RowStore

#: A table takes at least one chunk, and grows by one; asking for one may make the device wait.
CHUNK_NBYTES = 16 << 20
_FLOAT = np.dtype(np.float32)


class Staging(Protocol):
    """What chunks need of `zmqps.gpu.staging.DeviceMemory`."""

    @property
    def device(self) -> Device:
        """Where they are."""

    def empty(self, size: int, dtype: np.dtype[Any]) -> Any:
        """Return a new array on the device."""

    def staged(self, arrays: Sequence[Array]) -> list[Any]:
        """Return arrays on the device, flat, until others are staged."""

    def staged_rows(self, nbytes: int) -> int:
        """Return how many rows of that many bytes each can be staged together."""

    def fetched(self, arrays: Sequence[Any]) -> list[Array]:
        """Return arrays on this host, once all that was enqueued has written them."""


class Column:
    """One number, or ``dim``, of each row: the values, or a slot.

    It is indexed by rows that this host knows, and returns and takes arrays on the device.
    """

    def __init__(self, chunks: Chunks, width: int, offset: int) -> None:
        self._chunks = chunks
        self.width = width
        self.offset = offset  # in a chunk, in elements

    def __getitem__(self, rows: Array) -> Any:
        """Return a new array of some rows, ``(n, dim)``, or ``(n,)`` of what is one number a row."""
        out = self._chunks.empty(rows.size * self.width)
        self._chunks.load(self, rows, out)
        return self._shaped(out)

    def __setitem__(self, rows: Array, numbers: Any) -> None:
        """Write an array like that, or one number to all; needs no memory of the device."""
        if not isinstance(numbers, int | float):
            numbers = self._chunks.spread(numbers, (rows.size, self.width) if self._is_long else (rows.size,))
        for block in self._chunks.blocks(rows.size, rows.itemsize):
            [there] = self._chunks.staged([rows[block]])
            self._chunks.store(self, there, numbers if isinstance(numbers, int | float) else numbers[block])

    def write(self, rows: Array, numbers: Array) -> None:
        """Write an array of this host."""
        for block in self._chunks.blocks(rows.size, rows.itemsize + 4 * self.width):
            there, some = self._chunks.staged([rows[block], np.asarray(numbers[block], np.float32)])
            self._chunks.store(self, there, some)

    def _shaped(self, flat: Any) -> Any:
        return flat.reshape(-1, self.width) if self._is_long else flat

    @property
    def _is_long(self) -> bool:
        return self.offset < self._chunks.end_of_long


class Chunks:
    """The columns of a table (`zmqps.optim.device_rows.Chunks`).

    Parameters
    ----------
    staging
        The device's memory.
    dim
        Elements of a row.
    num_long, num_short
        Of how many columns: those that have ``dim`` elements a row, and those of one number.
    most_rows
        The most rows there will be.
    """

    def __init__(self, staging: Staging, dim: int, num_long: int, num_short: int, most_rows: int) -> None:
        self._staging = staging
        self._dim = dim
        device = staging.device
        width = dim * num_long + num_short
        fitting = max(1, CHUNK_NBYTES // (width * _FLOAT.itemsize)).bit_length() - 1
        self.shift = min(fitting, (max(1, most_rows) - 1).bit_length())  # a small table needs no whole chunk
        self.stride = dim << self.shift
        self.end_of_long = self.stride * num_long
        self.columns = (
            *(Column(self, dim, self.stride * number) for number in range(num_long)),
            *(Column(self, 1, self.end_of_long + (number << self.shift)) for number in range(num_short)),
        )
        self.addresses = staging.empty(max(1, -(-most_rows >> self.shift)), np.dtype(np.uint64))
        self._size = width << self.shift
        self._chunks: list[Any] = []
        self._xp = device.xp
        self._kernels = _Kernels(device, dim) if device.compiles else None

    @property
    def nbytes(self) -> int:
        """Bytes of all chunks."""
        return len(self._chunks) * self._size * _FLOAT.itemsize

    def have_room(self, num_rows: int) -> None:
        """Have chunks for rows up to this number; raises `DeviceMemoryError`, and keeps what there is."""
        while len(self._chunks) << self.shift < num_rows:
            chunk = self._staging.empty(self._size, _FLOAT)
            self.addresses[len(self._chunks)] = self._staging.device.address(chunk)
            self._chunks.append(chunk)

    # --- for kernels ---------------------------------------------------------------------------

    def empty(self, size: int) -> Any:
        """Return a new array of float32 on the device."""
        return self._staging.empty(size, _FLOAT)

    def blocks(self, num_rows: int, row_nbytes: int) -> Iterator[slice]:
        """Yield parts of that many rows that can be staged, each row of that many bytes."""
        most = self._staging.staged_rows(row_nbytes)
        for start in range(0, num_rows, most):
            yield slice(start, min(num_rows, start + most))

    def staged(self, arrays: Sequence[Array]) -> list[Any]:
        """Return arrays on the device, flat, until others are staged."""
        return self._staging.staged(arrays)

    def spread(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Return an array of the device as a contiguous one of a shape; itself if it is that."""
        return self._xp.ascontiguousarray(self._xp.broadcast_to(array, shape))

    def uploaded(self, array: Array) -> Any:
        """Return an array of float32 on the device."""
        out = self.empty(array.size)
        flat = array.reshape(-1)
        for block in self.blocks(flat.size, flat.itemsize):
            [out[block]] = self._staging.staged([flat[block]])
        return out.reshape(array.shape)

    # --- rows ----------------------------------------------------------------------------------

    def load(self, column: Column, rows: Array, out: Any) -> None:
        """Write some rows to a flat array of the device, one after the other."""
        width = column.width
        for block in self.blocks(rows.size, rows.itemsize):
            [there] = self._staging.staged([rows[block]])
            part = out[block.start * width : block.stop * width]
            if self._kernels is not None:
                self._kernels.load[width](there, self.shift, column.offset, part, self.addresses)
                continue
            for here, lines, local in self._found(column, there):
                part.reshape(-1, width)[here] = lines[local]

    def store(self, column: Column, there: Any, numbers: Any) -> None:
        """Write to rows whose numbers are on the device, what is on the device or one number."""
        if self._kernels is not None and isinstance(numbers, int | float):
            fill = self._kernels.fill[column.width]
            fill(np.float32(numbers), there, self.shift, column.offset, self.addresses, size=there.size * column.width)
        elif self._kernels is not None:
            self._kernels.store[column.width](numbers.reshape(-1), there, self.shift, column.offset, self.addresses)
        else:
            for here, lines, local in self._found(column, there):
                lines[local] = numbers if isinstance(numbers, int | float) else numbers.reshape(-1, column.width)[here]

    def place(self, out: Any, places: Array, numbers: Array) -> None:
        """Write rows of this host to lines of an array ``(n, dim)`` of the device."""
        for block in self.blocks(places.size, places.itemsize + 4 * self._dim):
            there, some = self._staging.staged([places[block], numbers[block]])
            if self._kernels is not None:
                self._kernels.place(some, there, out.reshape(-1))
            else:
                out[there] = some.reshape(-1, self._dim)

    def _found(self, column: Column, there: Any) -> Iterator[tuple[Any, Any, Any]]:
        """Yield for each chunk which rows are in it, its lines of a column, and the numbers of these rows in it."""
        for number, chunk in enumerate(self._chunks):
            here = self._xp.flatnonzero(there >> self.shift == number)
            lines = chunk[column.offset : column.offset + (column.width << self.shift)].reshape(-1, column.width)
            yield here, lines, there[here] - (number << self.shift)


class _Kernels:
    """The kernels that move rows, for columns of ``dim`` elements and of one."""

    def __init__(self, device: Device, dim: int) -> None:
        def made(name: str, inputs: str, outputs: str, lines: Sequence[str]) -> Callable[..., None]:
            return device.elementwise(f"zmqps_rows_{name}", inputs, outputs, "\n".join(lines), PREAMBLE)

        self.load: dict[int, Callable[..., None]] = {}
        self.store: dict[int, Callable[..., None]] = {}
        self.fill: dict[int, Callable[..., None]] = {}
        where = f"{ROWS}, int64 offset"
        for width in {dim, 1}:
            lines = element(width)
            self.load[width] = made(
                "load", where, f"float32 out, {CHUNKS}", [*lines, "out = load(chunk, at + offset);"]
            )
            write = [*lines, "store(chunk, at + offset, number);"]
            self.store[width] = made("store", f"float32 number, {where}", CHUNKS, write)
            self.fill[width] = made("fill", f"float32 number, {where}", CHUNKS, write)
        line = [f"const ptrdiff_t k = i / {dim};", f"out[places[k] * {dim} + i - k * {dim}] = number;"]
        self.place = made("place", "float32 number, raw int64 places", "raw float32 out", line)


class DeviceRows(RowStore):
    """A store whose values and slots are on a device (`Chunks`).

    The index, ids, stamps and what tells which rows are live stay on this host. So do counts of updates, as the scalars
    that follow from them are computed here: on the device they would have to be waited for with every update.

    Parameters
    ----------
    staging
        The device's memory.
    dim, filler, options
        As those of `RowStore`.
    """

    def __init__(self, staging: Staging, dim: int, filler: Filler, **options: Any) -> None:
        self._staging = staging
        super().__init__(dim, filler, **options)

    def _reserve_columns(self) -> None:
        num_long = 1 + len(self._slot_fill)
        self.chunks = Chunks(self._staging, self.dim, num_long, len(self._row_slot_fill), self._reserved)
        self.values, *slots = self.chunks.columns[:num_long]
        self.slots, self.row_slots = tuple(slots), self.chunks.columns[num_long:]

    def have_room(self, num_rows: int) -> None:
        """Have the device's memory for rows up to this number."""
        self.chunks.have_room(num_rows)

    def _copy(self, rows: Array, out: Any, found: int) -> None:
        if found:
            self.chunks.load(self.values, np.maximum(rows, 0), out.reshape(-1))

    def _fill(self, ids: Array, out: Any, rows: Array) -> None:
        for block in self.chunks.blocks(ids.size, rows.itemsize + 4 * self.dim):
            numbers = np.empty((block.stop - block.start, self.dim), np.float32)
            self._filler.fill(ids[block], numbers)  # here: the device's functions may differ in the last bit
            if out is self.values:
                self.values.write(rows[block], numbers)
            else:
                self.chunks.place(out, rows[block], numbers)

    def buffer(self, num_rows: int) -> Any:
        """Return a new array on the device."""
        return self.chunks.empty(num_rows * self.dim).reshape(num_rows, self.dim)

    def _write(self, column: Any, rows: Array, numbers: Array) -> None:
        column.write(rows, numbers)

    def update(
        self, kernel: Callable[..., None], rows: Array, grads: Array, step: int, missed: Array | None = None
    ) -> None:
        """Enqueue an update (`zmqps.optim.device_rows.DeviceRowKernel`)."""
        kernel(self.chunks, rows, grads, (), (), self.counts, step, None, missed)

    def kept(self, rows: Array) -> Kept:
        """Return copies of rows; waits for the device."""
        values, *others = self._staging.fetched([column[rows] for column in self._columns])
        slots, row_slots = tuple(others[: len(self.slots)]), tuple(others[len(self.slots) :])
        counts = None if self.counts is None else self.counts[rows]
        return Kept(self.ids[rows], values, slots, row_slots, counts, self.stamps[rows])


def warm_up(staging: Staging, kernel: Any, dim: int, *, lazy: bool) -> None:
    """Compile what the first rows of a table would otherwise wait for, by one that is not kept.

    Parameters
    ----------
    kernel
        The table's rule.
    dim
        Elements of a row.
    lazy
        Whether it makes up for updates that a row has missed.
    """
    store = DeviceRows(
        staging, dim, filler(Initial("zeros"), ""), slots=kernel.slot_fill, row_slots=kernel.row_slot_fill,
        counts=kernel.counts, reserve_rows=1,
    )  # fmt: skip
    rows = store.insert(np.zeros(1, np.int64))
    missed = np.ones(1, np.uint32) if lazy else None
    store.update(kernel, rows, np.zeros((1, dim), np.float32), 1, missed)
    store.gather(np.arange(2), store.buffer(2))
