"""A file with the rows of a sparse table: written as they come, read in pieces, in one of several formats.

A file has the ids of rows, int64, their values, float32 ``(n, dim)``, and the table's name. Parquet and Arrow files
have a column ``id`` and a column ``values``, a fixed-size list; safetensors files ``<table>.ids`` and
``<table>.values``.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from zmqps import checks
from zmqps.checkpoint.rows import TableFacts
from zmqps.checkpoint.storage import LocalStorage, check_replaceable, naming_the_disk
from zmqps.checkpoint.table_arrow import ChangesWriter, read_arrow, writer_of
from zmqps.checkpoint.table_safetensors import SafetensorsWriter, read_safetensors
from zmqps.core.protocol.arrays import Array
from zmqps.errors import ConfigurationError

#: The formats, and how names of their files end.
SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "parquet": (".parquet",),
    "arrow": (".arrow", ".feather"),
    "safetensors": (".safetensors",),
}


class NewFile(Protocol):
    """A new file, in one of the formats."""

    def finish(self) -> None:
        """Complete the file, and wait until it is safe on the disk."""

    def discard(self) -> None:
        """Remove it and its temporary files; may be called again."""


class RowWriter(NewFile, Protocol):
    """A new file of rows."""

    def write(self, ids: Array, values: Array) -> None:
        """Add some rows."""


W = TypeVar("W", bound=NewFile)


def format_of(path: str, name: str | None = None) -> str:
    """Return the given format, or the one of a file's suffix.

    Raises
    ------
    ConfigurationError
        There is no such format.
    """
    if name is not None:
        return checks.one_of("format", name, tuple(SUFFIXES))
    for known, suffixes in SUFFIXES.items():
        if path.lower().endswith(suffixes):
            return known
    endings = ", ".join(suffix for suffixes in SUFFIXES.values() for suffix in suffixes)
    raise ConfigurationError(f"{path} ends with none of {endings}: name the format, one of {', '.join(SUFFIXES)}")


def is_for_tables(path: str, name: str | None = None) -> bool:
    """Whether a file's format, named or by its suffix, is one for tables alone."""
    if name is None:
        return any(path.lower().endswith(SUFFIXES[known]) for known in ("parquet", "arrow"))
    return name != "safetensors"


def _writer(format: str) -> Callable[[str, TableFacts], RowWriter]:
    return SafetensorsWriter if format == "safetensors" else writer_of(format)


def check_arrow() -> None:
    """Raise `ConfigurationError` unless files of Parquet and Arrow can be written."""
    writer_of("parquet")


class _NewFile(Generic[W]):
    """A file that is being written; it gets its name when it is complete."""

    def __init__(self, path: str, writer_of: Callable[[str, TableFacts], W], *, replace: bool) -> None:
        self._path = path
        self._writer_of = writer_of
        check_replaceable(path, checks.flag("replace", replace))
        self._unfinished = f"{path}.{secrets.token_hex(4)}.tmp"
        self._writer: W | None = None
        self.rows = 0

    def begin(self, facts: TableFacts) -> None:
        """Begin, or start over."""
        self._discard()
        with naming_the_disk(self._path):
            self._writer = self._writer_of(self._unfinished, facts)
        self.rows = 0

    def publish(self) -> None:
        """Complete the file and give it its name."""
        assert self._writer is not None, "begin comes first"
        with naming_the_disk(self._path):
            self._writer.finish()
            os.replace(self._unfinished, self._path)
            LocalStorage().sync_directory(os.path.dirname(self._path) or ".")

    def _discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()
            self._writer = None
            with suppress(OSError):
                LocalStorage().remove(self._unfinished)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._discard()


class TableFile(_NewFile[RowWriter]):
    """A file of rows that is being written; it gets its name when it is complete.

    Parameters
    ----------
    path
        Of the new file.
    format
        ``"parquet"``, ``"arrow"`` or ``"safetensors"``; by default as the name ends.
    replace
        Whether to replace an existing file.

    Attributes
    ----------
    rows : int
        How many were written.

    Raises
    ------
    ConfigurationError
        The file exists already, or the format is unknown or lacks its library.
    """

    def __init__(self, path: str | os.PathLike[str], *, format: str | None = None, replace: bool = False) -> None:
        name = os.fspath(path)
        super().__init__(name, _writer(format_of(name, format)), replace=replace)

    def write(self, ids: Array, values: Array) -> None:
        """Add some rows."""
        assert self._writer is not None, "begin comes first"
        if ids.size:
            with naming_the_disk(self._path):
                self._writer.write(ids, values)
            self.rows += ids.size


class ChangesFile(_NewFile[ChangesWriter]):
    """A Parquet file of changes that is being written, as `TableFile` is; it needs pyarrow.

    Parameters
    ----------
    path
        Of the new file.

    Attributes
    ----------
    rows : int
        How many ids it has so far.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(os.fspath(path), ChangesWriter, replace=True)

    def write(self, gone: Array, ids: Array, rows: Array) -> None:
        """Add ids whose rows were removed, then rows that were set."""
        assert self._writer is not None, "begin comes first"
        with naming_the_disk(self._path):
            self._writer.write(gone, ids, rows)
        self.rows += gone.size + ids.size

    def publish_at(self, version: int) -> None:
        """Complete the file, which with those before has all updates up to a version, and give it its name."""
        assert self._writer is not None, "begin comes first"
        self._writer.has(version)
        self.publish()


def read_table(
    path: str | os.PathLike[str], table: str, dim: int, *, format: str | None = None, most: int = 65536
) -> Iterator[tuple[Array, Array]]:
    """Yield the rows of a file, some at a time.

    Parameters
    ----------
    path
        Of the file.
    table
        Which table, if a safetensors file has several.
    dim
        Elements of a row.
    format
        ``"parquet"``, ``"arrow"`` or ``"safetensors"``; by default as the name ends.
    most
        How many at a time.

    Yields
    ------
    ids : int64 array ``(n,)``
    values : float array ``(n, dim)``

    Raises
    ------
    ConfigurationError
        There is no such file, it lacks these columns or arrays, or its format is unknown or lacks its library.
    DtypeError, ShapeError
        Its columns or arrays have other types or shapes.
    CheckpointCorruptError
        It is not of that format, or truncated.
    CheckpointStorageError
        It cannot be read.
    """
    path = os.fspath(path)
    chosen = format_of(path, format)
    if not os.path.isfile(path):
        raise ConfigurationError(f"there is no file {path}")
    if chosen == "safetensors":
        yield from read_safetensors(path, table, dim, most)
    else:
        yield from read_arrow(path, chosen, dim, most)
