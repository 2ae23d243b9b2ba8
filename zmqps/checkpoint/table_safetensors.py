"""Rows of a sparse table in a safetensors file, whose header comes first and says how many there are.

So room is left for it. Values follow as they come; ids, which are few bytes, wait in another file and are put
behind them at the end.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from zmqps.checkpoint.layout import MAX_HEADER_NBYTES, OFFSETS_KEY, header_of
from zmqps.checkpoint.rows import TableFacts, entries_of
from zmqps.checkpoint.storage import LocalStorage, naming_the_disk
from zmqps.core.protocol.arrays import Array
from zmqps.errors import CheckpointCorruptError, ConfigurationError, DtypeError, ShapeError, listed

#: Bytes that are copied at a time.
COPIED_NBYTES = 16 << 20
_LENGTH = struct.Struct("<Q")
_IDS: dict[str, np.dtype[Any]] = {"I64": np.dtype("<i8"), "U64": np.dtype("<u8")}
_VALUES: dict[str, np.dtype[Any]] = {"F16": np.dtype("<f2"), "F32": np.dtype("<f4"), "F64": np.dtype("<f8")}


class SafetensorsWriter:
    """A file in the safetensors format (`zmqps.checkpoint.table_file.RowWriter`)."""

    def __init__(self, path: str, facts: TableFacts) -> None:
        self._path, self._beside, self._facts = path, f"{path}.ids", facts
        self._storage = LocalStorage()
        self._file = self._storage.create(path)
        try:
            self._ids = self._storage.create(self._beside)
        except OSError:
            self._file.close()
            raise
        self._begin = self._end = len(self._header(1 << 59))  # where values begin, and end
        self._rows = 0

    def _header(self, rows: int) -> bytes:
        dim, end = self._facts.dim, 4 * self._facts.dim * rows
        ids, values = entries_of(self._facts.table)
        entries: dict[str, Any] = {
            values: {"dtype": "F32", "shape": [rows, dim], "data_offsets": [0, end]},
            ids: {"dtype": "I64", "shape": [rows], "data_offsets": [end, end + 8 * rows]},
        }
        sharding = {ids: {OFFSETS_KEY: [0]}, values: {OFFSETS_KEY: [0, 0]}}
        return header_of(entries, sharding, self._facts.texts())

    def write(self, ids: Array, values: Array) -> None:
        self._file.write_at(np.ascontiguousarray(values, "<f4").data, self._end)
        self._end += 4 * values.size
        self._ids.write_at(np.ascontiguousarray(ids, "<i8").data, 8 * self._rows)
        self._rows += ids.size

    def finish(self) -> None:
        if self._end % 8:  # an odd number of odd rows: ids would not be aligned behind them
            for at in reversed(range(self._begin, self._end, COPIED_NBYTES)):
                piece = self._storage.read(self._path, at, min(COPIED_NBYTES, self._end - at))
                self._file.write_at(piece, at + 4)
            self._begin, self._end = self._begin + 4, self._end + 4
        for at in range(0, 8 * self._rows, COPIED_NBYTES):
            self._file.write_at(self._storage.read(self._beside, at, COPIED_NBYTES), self._end + at)
        text = self._header(self._rows)[_LENGTH.size :]
        self._file.write_at(_LENGTH.pack(self._begin - _LENGTH.size) + text.ljust(self._begin - _LENGTH.size), 0)
        self._file.sync()
        self.discard()

    def discard(self) -> None:
        self._file.close()
        self._ids.close()
        with suppress(OSError):
            self._storage.remove(self._beside)


def read_safetensors(path: str, table: str, dim: int, most: int) -> Iterator[tuple[Array, Array]]:
    """Yield rows, some at a time, as `zmqps.checkpoint.table_file.read_table`."""
    storage = LocalStorage()
    with naming_the_disk(path, "read"):
        entries, begin, nbytes = _read_header(storage, path)
        ids_name, values_name = _names(path, table, entries)
        ids_at, ids_dtype, [num_rows] = _place(path, ids_name, entries, nbytes - begin, _IDS, 1)
        values_at, values_dtype, shape = _place(path, values_name, entries, nbytes - begin, _VALUES, 2)
        if shape != [num_rows, dim]:
            expected = f"({num_rows}, {dim}), as there are ids, for a table of dim {dim}"
            raise ShapeError(name=f"{values_name} in {path}", got=str(tuple(shape)), expected=expected)
        for first in range(0, num_rows, most):
            count = min(most, num_rows - first)
            ids = _read(storage, path, begin + ids_at + 8 * first, count, ids_dtype)
            offset = begin + values_at + values_dtype.itemsize * dim * first
            values = _read(storage, path, offset, count * dim, values_dtype).reshape(count, dim)
            yield ids.view(np.int64) if ids.dtype.kind == "u" else ids, values


def _read_header(storage: LocalStorage, path: str) -> tuple[dict[str, Any], int, int]:
    """Return what a file has, where its data begin, and its length."""
    nbytes = storage.size(path)
    try:
        [size] = _LENGTH.unpack(storage.read(path, 0, _LENGTH.size))
        if size > min(MAX_HEADER_NBYTES, nbytes - _LENGTH.size):
            raise ValueError("its header is longer than it")
        entries = json.loads(storage.read(path, _LENGTH.size, size))
        entries.pop("__metadata__", None)
    except (ValueError, TypeError, AttributeError, struct.error, RecursionError) as error:
        raise _corrupt(path, f"no safetensors file ({error})") from error
    return entries, _LENGTH.size + size, nbytes


def _names(path: str, table: str, entries: dict[str, Any]) -> tuple[str, str]:
    """Return the names of the arrays of a table, or of the only one there is."""
    tables = [name.removesuffix(".ids") for name in entries if name.endswith(".ids")]
    tables = [name for name in tables if entries_of(name)[1] in entries]
    if table in tables or len(tables) == 1:
        return entries_of(table if table in tables else tables[0])
    found = f"it has those of {listed(tables, 5)}" if tables else "it has none of any"
    raise ConfigurationError(f"{path} has no arrays {table}.ids and {table}.values: {found}; rename the arrays")


def _place(
    path: str, name: str, entries: dict[str, Any], size: int, dtypes: dict[str, np.dtype[Any]], rank: int
) -> tuple[int, np.dtype[Any], list[int]]:
    """Return where an array is in the data, its dtype and shape."""
    try:
        says = entries[name]
        shape, [start, stop] = says["shape"], says["data_offsets"]
        if not all(type(number) is int and number >= 0 for number in (*shape, start, stop)):
            raise ValueError("invalid numbers")
        dtype = dtypes.get(says["dtype"])
    except (ValueError, KeyError, TypeError) as error:
        raise _corrupt(path, f"what its header says of {name!r} cannot be used ({error})") from error
    if dtype is None:
        raise DtypeError(name=f"{name} in {path}", got=str(says["dtype"])[:20], expected=" or ".join(dtypes))
    if len(shape) != rank:
        raise ShapeError(name=f"{name} in {path}", got=str(tuple(shape)), expected=("(n,)", "(n, dim)")[rank - 1])
    if stop - start != dtype.itemsize * int(np.prod(np.array(shape, object))) or stop > size:
        raise _corrupt(path, f"{name!r} is outside of it")
    return start, dtype, shape


def _read(storage: LocalStorage, path: str, offset: int, size: int, dtype: np.dtype[Any]) -> Array:
    data = storage.read(path, offset, size * dtype.itemsize)
    if len(data) < size * dtype.itemsize:
        raise _corrupt(path, "it was cut short")
    return np.frombuffer(bytearray(data), dtype)


def _corrupt(path: str, what: str) -> CheckpointCorruptError:
    return CheckpointCorruptError(path=os.fspath(path), what=what, good="", advice="export the table again")
