"""Writes what one shard holds, slice by slice as they come."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from zmqps.checkpoint import checksums
from zmqps.checkpoint.layout import ShardLayout, state_file
from zmqps.checkpoint.manifest import FileFact, plain
from zmqps.checkpoint.rows import Slots, encoded, rows_file
from zmqps.checkpoint.storage import Bytes, File, Storage, join, naming_the_disk
from zmqps.core.job.keyspace import Placement
from zmqps.core.protocol.arrays import Array
from zmqps.errors import ConfigurationError, InternalError
from zmqps.rows.kept import Kept

STATE_FORMAT = 1


class ShardWriter:
    """The files of one shard in a checkpoint that is being written.

    A slice is written as soon as it is given, from the memory it is given in: nothing is gathered or copied. Writing
    and checksums release the interpreter lock. One thread at a time.

    Parameters
    ----------
    storage, directory
        Where: the `directory` of a `Save`.
    placement, index
        Of the job, and of the shard.
    slot_names
        Of the optimizer's slots, in order.
    layout
        Of this shard, from the save before: with very many parameters it takes a second to make.
    table_slots
        Of the optimizer of each sparse table, by its name.

    Raises
    ------
    CheckpointStorageError
        The disk is full or read-only, or fails. Also from the methods.
    ConfigurationError
        A parameter has a name that cannot be stored.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        placement: Placement,
        index: int,
        slot_names: Sequence[str],
        layout: ShardLayout | None = None,
        table_slots: Mapping[str, Slots] | None = None,
    ) -> None:
        self.index = index
        self.layout = layout or ShardLayout(placement, index, slot_names)
        self.nbytes = 0  # written so far
        self._storage, self._directory = storage, directory
        self._slices = placement.slices[index]
        self._tables = placement.keyspace.tables
        self._table_slots = dict(table_slots or {})
        self._awaited = set(range(len(self._slices)))
        self._versions = [0] * len(self._slices)
        self._steps: list[list[int]] = [[] for _ in self._slices]
        self._chunks: list[list[checksums.Chunk]] = [[] for _ in self.layout.files]
        self._files: list[File] = []
        self._row_facts: list[FileFact] = []
        self._row_chunks: dict[str, list[checksums.Chunk]] = {}
        self._row_files: dict[str, str] = {}  # whose rows they have
        try:
            with naming_the_disk(directory):
                for file in self.layout.files:
                    self._files.append(storage.create(join(directory, file.name)))
            for number, file in enumerate(self.layout.files):
                self._put(number, 0, file.header)
        except BaseException:
            self.abandon()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def write(
        self, index: int, value: Array, slots: Sequence[Array], *, version: int = 0, steps: Sequence[int] | None = None
    ) -> None:
        """Write a slice, each once, in any order.

        Parameters
        ----------
        index
            Of the slice in the shard.
        value, slots
            Its arrays in host memory, of the table's dtype; read until this returns.
        version
            How many updates the values have absorbed.
        steps
            Of each of its segments, how many updates the parameter has had there; by default 0.
        """
        slice_ = self._slices[index]
        table = self._tables[slice_.table]
        if index not in self._awaited:
            raise ConfigurationError(f"slice {index} of shard {self.index} has been written already")
        arrays = (value, *slots)
        if len(arrays) != self.layout.num_arrays:
            raise ConfigurationError(f"a slice has {self.layout.num_arrays - 1} slots here, not {len(slots)}")
        counts = [0] * len(slice_.segments) if steps is None else [int(step) for step in steps]
        if len(counts) != len(slice_.segments):
            raise ConfigurationError(f"slice {index} has {len(slice_.segments)} step counts, not {len(counts)}")
        for array in arrays:
            if array.shape != (slice_.size,) or array.dtype != table.dtype:
                raise ConfigurationError(
                    f"slice {index} has {slice_.size} elements of {table.dtype.name}, not {array.dtype} {array.shape}"
                )
        for number, array in enumerate(arrays):
            data = np.ascontiguousarray(array, table.dtype).data.cast("B") if array.size else memoryview(b"")
            for extent in self.layout.extents(number, slice_.table, slice_.start, slice_.stop):
                begin = (extent.start - slice_.start) * table.dtype.itemsize
                self._put(extent.file, extent.offset, data[begin : begin + extent.size * table.dtype.itemsize])
        self._awaited.discard(index)
        self._versions[index] = int(version)
        self._steps[index] = counts

    def write_rows(self, table: str, kept: Kept, gone: Array) -> None:
        """Write rows of a table, as a separate file.

        Parameters
        ----------
        table
            Its name.
        kept
            Each of a table's rows comes once.
        gone
            Ids of rows that may be in a base, and no longer exist.
        """
        slots, [spec] = self._table_slots[table], [t.rows for t in self._tables if t.rows and t.rows.name == table]
        name = rows_file(self.index, len(self._row_facts))
        path = join(self._directory, name)
        chunks: list[checksums.Chunk] = []
        offset = 0
        with naming_the_disk(path):
            file = self._storage.create(path)
            try:
                for array in encoded(spec, slots, self.index, len(self._row_facts), kept, gone):
                    if array.size:
                        file.write_at(array.data, offset)
                        chunks.append(checksums.chunk_of(offset, array.data))
                        offset += array.nbytes
                file.sync()
            finally:
                file.close()
        self.nbytes += offset
        self._row_facts.append(FileFact(name, offset, checksums.of_chunks(chunks)))
        self._row_chunks[name], self._row_files[name] = chunks, table

    def close(self, state: Mapping[str, Any] | None = None) -> list[FileFact]:
        """Wait until all is on the disk; return the manifest's entry for the shard's files.

        Parameters
        ----------
        state
            The rest of the shard's state, as plain data for JSON: its ledger, its counters.

        Raises
        ------
        InternalError
            A slice is missing.
        """
        for chunks, file in zip(self._chunks, self.layout.files, strict=True):
            chunks.sort()
            if checksums.covered_nbytes(chunks) != file.nbytes or self._awaited:
                raise InternalError(
                    node=f"shard {self.index}",
                    what=f"its checkpoint was closed without slices {sorted(self._awaited)[:8]}",
                )
        facts = []
        for open_file, file, chunks in zip(self._files, self.layout.files, self._chunks, strict=True):
            with naming_the_disk(join(self._directory, file.name)):
                open_file.sync()
                open_file.close()
            facts.append(FileFact(file.name, file.nbytes, checksums.of_chunks(chunks)))
        facts += self._row_facts
        dense_chunks = {f.name: chunks for f, chunks in zip(self.layout.files, self._chunks, strict=True)}
        record = {
            "format": STATE_FORMAT,
            "shard": self.index,
            "versions": self._versions,
            "steps": self._steps,
            "chunks": {**dense_chunks, **self._row_chunks},
            **({"rows": self._row_files, "table_slots": self._table_slots} if self._table_slots else {}),
            "state": plain("state", dict(state or {})),
        }
        text = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
        name = state_file(self.index)
        write_file(self._storage, join(self._directory, name), text)
        facts.append(FileFact(name, len(text), checksums.of_bytes(text)))
        with naming_the_disk(self._directory):
            self._storage.sync_directory(self._directory)
        return facts

    def abandon(self) -> None:
        """Let go of the files; after `close` this does nothing."""
        for file in self._files:
            file.close()

    def _put(self, number: int, offset: int, data: Bytes) -> None:
        with naming_the_disk(join(self._directory, self.layout.files[number].name)):
            self._files[number].write_at(data, offset)
        self._chunks[number].append(checksums.chunk_of(offset, data))
        self.nbytes += memoryview(data).nbytes


def write_file(storage: Storage, path: str, data: bytes) -> None:
    """Write a small file as a whole, for good."""
    with naming_the_disk(path):
        file = storage.create(path)
        try:
            file.write_at(data, 0)
            file.sync()
        finally:
            file.close()
