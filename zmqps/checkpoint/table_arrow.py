"""Rows of a sparse table in Parquet and Arrow files, the only place that knows pyarrow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from zmqps.checkpoint.rows import TableFacts
from zmqps.checkpoint.storage import naming_the_disk
from zmqps.core.protocol.arrays import Array
from zmqps.errors import CheckpointCorruptError, ConfigurationError, DtypeError, ShapeError
from zmqps.extras import advice
from zmqps.files import create, open_file

ID, VALUES, OP = "id", "values", "op"
#: What `OP` says of an id.
UPSERT, DELETE = "upsert", "delete"


def _pyarrow() -> Any:
    """Return pyarrow.

    Raises
    ------
    ConfigurationError
        It is not installed.
    """
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigurationError(
            f"Parquet and Arrow files need pyarrow, which is not installed: {advice('arrow')}"
        ) from error
    return pyarrow


def writer_of(format: str) -> Callable[[str, TableFacts], ArrowWriter]:
    """Return what makes files of a format."""
    return partial(ArrowWriter, _pyarrow(), format)


class _Writer:
    """A new Parquet or Arrow file: a row group, or a batch, for each write."""

    def __init__(self, pyarrow: Any, format: str, path: str, facts: TableFacts, *, changes: bool = False) -> None:
        self._pa = pa = pyarrow
        self._values = pa.list_(pa.field("item", pa.float32(), nullable=False), facts.dim)
        fields = [pa.field(ID, pa.int64(), nullable=False), pa.field(VALUES, self._values, nullable=changes)]
        if changes:
            fields.insert(1, pa.field(OP, pa.string(), nullable=False))
        texts = facts.texts()
        if changes:
            del texts["zmqps.version"]  # which is known at the end
        self._schema = pa.schema(fields, metadata=texts)
        self._file = open(create(path), "wb")
        make = pa.parquet.ParquetWriter if format == "parquet" else pa.ipc.new_file
        self._writer = make(self._file, self._schema)

    def _add(self, *columns: Any) -> None:
        self._writer.write_batch(self._pa.record_batch([*columns], schema=self._schema))

    def _lists(self, values: Array) -> Any:
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        return self._pa.FixedSizeListArray.from_arrays(self._pa.array(flat), type=self._values)

    def finish(self) -> None:
        """Complete the file, and wait until it is safe on the disk."""
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def discard(self) -> None:
        """Close it as it is; may be called again."""
        if not self._file.closed:
            with suppress(OSError):
                self._writer.close()
            with suppress(OSError):
                self._file.close()


class ArrowWriter(_Writer):
    """A file of rows (`RowWriter`)."""

    def write(self, ids: Array, values: Array) -> None:
        """Add some rows."""
        self._add(self._pa.array(ids), self._lists(values))


class ChangesWriter(_Writer):
    """A Parquet file of changes: for each id what has become of it, in a column ``op``, and its row if it has one."""

    def __init__(self, path: str, facts: TableFacts) -> None:
        super().__init__(_pyarrow(), "parquet", path, facts, changes=True)

    def has(self, version: int) -> None:
        """Note in the metadata that all updates up to a version are in the file, and those before it."""
        self._writer.add_key_value_metadata({"zmqps.version": str(version)})

    def write(self, gone: Array, ids: Array, rows: Array) -> None:
        """Add removed ids, then rows that were set."""
        deleted = self._pa.nulls(gone.size, self._values)
        for op, some, values in ((DELETE, gone, deleted), (UPSERT, ids, self._lists(rows))):
            if some.size:
                self._add(self._pa.array(some), self._pa.array([op] * some.size), values)


def read_arrow(path: str, format: str, dim: int, most: int) -> Iterator[tuple[Array, Array]]:
    """Yield rows, some at a time, as `zmqps.checkpoint.table_file.read_table`."""
    pa = _pyarrow()
    try:
        yield from _batches(pa, path, format, dim, most)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            with naming_the_disk(path, "read"):
                raise
        what = f"no {format} file, or cut short ({str(error).splitlines()[0]:.100})"
        raise CheckpointCorruptError(path=path, what=what, good="", advice="export the table again") from error


def _batches(pa: Any, path: str, format: str, dim: int, most: int) -> Iterator[tuple[Array, Array]]:
    if format == "parquet":
        with open_file(path) as source, pa.parquet.ParquetFile(source) as file:
            _check(pa, path, file.schema_arrow, dim)
            for batch in file.iter_batches(batch_size=most, columns=[ID, VALUES]):
                yield _rows(pa, path, batch, dim)
        return
    with open_file(path) as source, pa.ipc.open_file(source) as file:
        _check(pa, path, file.schema, dim)
        for number in range(file.num_record_batches):
            batch = file.get_batch(number)
            for first in range(0, batch.num_rows, most):
                yield _rows(pa, path, batch.slice(first, most), dim)


def _check(pa: Any, path: str, schema: Any, dim: int) -> None:
    """Refuse a file whose columns are not those of a table."""
    types = pa.types
    missing = [name for name in (ID, VALUES) if name not in schema.names]
    if missing:
        raise ConfigurationError(
            f"{path} has no column {missing[0]!r}: ids of rows must be in {ID!r}, their values, a list each, in "
            f"{VALUES!r}; rename the columns"
        )
    ids, values = schema.field(ID).type, schema.field(VALUES).type
    if not types.is_integer(ids):
        raise DtypeError(name=f"{ID} in {path}", got=str(ids), expected="int64")
    is_list = types.is_list(values) or types.is_large_list(values) or types.is_fixed_size_list(values)
    if not is_list or not types.is_floating(values.value_type):
        raise DtypeError(name=f"{VALUES} in {path}", got=str(values), expected=f"fixed_size_list<float>[{dim}]")


def _rows(pa: Any, path: str, batch: Any, dim: int) -> tuple[Array, Array]:
    """Return ids and values of a batch."""
    ids, values = batch.column(ID), batch.column(VALUES)
    flat = values.flatten()
    if ids.null_count or values.null_count or flat.null_count:
        raise ConfigurationError(f"{path} has rows without an id or a value: leave them out, or fill them")
    if pa.types.is_fixed_size_list(values.type):
        lengths = {values.type.list_size}
    else:
        lengths = set(np.unique(np.diff(values.offsets.to_numpy())).tolist())
    if wrong := lengths - {dim}:
        name = f"{VALUES} in {path}"
        raise ShapeError(name=name, got=f"rows of {min(wrong)}", expected=f"rows of {dim}, the dim of the table")
    found = ids.to_numpy(zero_copy_only=False)
    found = found.view(np.int64) if found.dtype == np.uint64 else found.astype(np.int64)
    return found, flat.to_numpy(zero_copy_only=False).reshape(-1, dim)
