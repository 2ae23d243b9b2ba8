"""Reads a checkpoint: whole arrays, or any part of a table of another placement."""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, NoReturn

import numpy as np

from zmqps.checkpoint import checksums
from zmqps.checkpoint.checksums import Chunk
from zmqps.checkpoint.header import Piece, check_tiles, pieces_of, read_header
from zmqps.checkpoint.layout import slot_entry, state_file
from zmqps.checkpoint.manifest import FileFact, Manifest, corrupt, reading
from zmqps.checkpoint.rows import VALUES, RowFiles, Slots, TableState, entries_of
from zmqps.checkpoint.storage import Storage, join
from zmqps.checkpoint.writer import STATE_FORMAT
from zmqps.core.job.keyspace import KeySpace, Slice
from zmqps.core.job.spec import Parameter
from zmqps.core.protocol.arrays import Array
from zmqps.errors import CheckpointMismatchError, UnknownParameterError

ROWS_FILE = re.compile(r"shard-\d{5,}-rows-\d{5,}\.safetensors")
#: Chunks that were read and checked, kept for a read that continues where the last one stopped.
CACHE_NBYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class ShardState:
    """The state of a shard besides its arrays.

    Attributes
    ----------
    versions
        Of each slice.
    steps
        Of each slice, how many updates each of its segments has had.
    state
        The server's state: its ledger, its counters.
    tables
        The state of each sparse table that has rows in the shard, by name.
    slots
        The names of the optimizer's slots of each table.
    rows
        Names of the files that have rows, by the name of the table.
    """

    versions: list[int]
    steps: list[list[int]]
    state: dict[str, Any]
    chunks: dict[str, list[Chunk]]
    tables: dict[str, TableState] = field(default_factory=dict)
    slots: dict[str, Slots] = field(default_factory=dict)
    rows: dict[str, list[str]] = field(default_factory=dict)


class Restored(NamedTuple):
    """A slice of a placement, as read from a checkpoint.

    Its version is the lowest of its parts, because each element has absorbed at least that many updates. A segment's
    step count is the highest, so that the corrections of a young optimizer state are not too large.
    """

    value: Array
    slots: tuple[Array, ...]
    version: int
    steps: list[int]


class Checkpoint:
    """A checkpoint that looks complete, from `zmqps.checkpoint.open_checkpoint`.

    All data read is compared with its checksum. Use it from one thread at a time.

    Attributes
    ----------
    path : str
        Its directory.
    manifest : Manifest
        Its description.
    storage : Storage
        Where the directory is.
    base : Checkpoint, optional
        The checkpoint that it builds upon, if it has only changed rows of tables.
    skipped : tuple of CheckpointError
        Later checkpoints that could not be used, if the latest good one was requested.
    """

    def __init__(self, storage: Storage, path: str, manifest: Manifest, base: Checkpoint | None = None) -> None:
        self.path = path
        self.base = base
        self.manifest = manifest
        self.skipped: tuple[Exception, ...] = ()
        self.storage = storage
        self._cache: OrderedDict[tuple[str, int], memoryview] = OrderedDict()
        self._cached_nbytes = 0

    @property
    def version(self) -> int:
        """How many updates the values have absorbed, at least."""
        return self.manifest.version

    @property
    def keyspace(self) -> KeySpace:
        """The job's flat key space."""
        return self.manifest.placement.keyspace

    @cached_property
    def shards(self) -> tuple[ShardState, ...]:
        """The state of each shard besides its arrays."""
        return tuple(self._shard_state(index) for index in range(self.manifest.placement.num_shards))

    @cached_property
    def facts(self) -> dict[str, FileFact]:
        """The manifest's facts about its files, by name."""
        return {fact.name: fact for fact in self.manifest.files}

    @cached_property
    def _pieces(self) -> dict[str, list[Piece]]:
        """Where each array is, in order."""
        found: dict[str, list[Piece]] = {}
        parameters = self._entries
        for facts in self.manifest.shards:
            for fact in facts[:-1]:
                if ROWS_FILE.fullmatch(fact.name):
                    continue
                header = read_header(self.path, fact, partial(self.read_bytes, fact.name))
                for name, piece in pieces_of(join(self.path, fact.name), header, fact, parameters):
                    found.setdefault(name, []).append(piece)
        for name, parameter in parameters.items():
            found.setdefault(name, []).sort()
            check_tiles(self.path, name, parameter, found[name])
        return found

    @cached_property
    def _entries(self) -> dict[str, Parameter]:
        """Every array by its name in the files."""
        names = self.manifest.slots
        return {
            name: p
            for p in self.keyspace.parameters
            for name in (p.name, *(slot_entry(slot, p.name) for slot in names))
        }

    # --- bytes ---------------------------------------------------------------------------------

    def check_files(self) -> None:
        """Raise `CheckpointCorruptError` unless its files exist with the right sizes; its base's are not checked."""
        for fact in self.manifest.files:
            path = join(self.path, fact.name)
            with reading(self.storage, path):
                nbytes = self.storage.size(path)
            if nbytes != fact.nbytes:
                raise corrupt(path, f"it has {nbytes:,} bytes and should have {fact.nbytes:,}")

    def verify(self) -> Iterator[int]:
        """Read and check everything; yield after each part its number of bytes.

        Raises
        ------
        CheckpointCorruptError
            A file is missing, truncated or changed.
        """
        if self.base is not None:
            yield from self.base.verify()
        self.check_files()
        for shard, facts in zip(self.shards, self.manifest.shards, strict=True):
            yield facts[-1].nbytes
            for fact in facts[:-1]:
                for chunk in shard.chunks[fact.name]:
                    self._read_chunk(fact.name, chunk)
                    yield chunk.nbytes
        assert self._pieces is not None  # the headers say where everything is

    def read_bytes(self, name: str, offset: int, nbytes: int) -> bytes:
        """Return bytes of a file, after checking the chunks that contain them."""
        parts = [bytes(part) for part in self._read_parts(name, offset, nbytes)]
        return b"".join(parts)

    def _read_parts(self, name: str, offset: int, nbytes: int) -> Iterator[memoryview]:
        chunks, starts = self._chunks_of[name]
        stop = offset + nbytes
        if nbytes and (not chunks or stop > chunks[-1].offset + chunks[-1].nbytes):
            raise corrupt(join(self.path, name), f"it has no bytes {offset:,} to {stop:,}")
        number = int(np.searchsorted(starts, offset, "right")) - 1
        while offset < stop:
            chunk = chunks[number]
            data = self._chunk(name, number, chunk)
            part = data[offset - chunk.offset : min(stop - chunk.offset, chunk.nbytes)]
            yield part
            offset, number = offset + len(part), number + 1

    @cached_property
    def _chunks_of(self) -> dict[str, tuple[list[Chunk], Any]]:
        return {
            name: (chunks, np.array([chunk.offset for chunk in chunks], np.int64))
            for shard in self.shards
            for name, chunks in shard.chunks.items()
        }

    def _chunk(self, name: str, number: int, chunk: Chunk) -> memoryview:
        key = name, number
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        data = self._cache[key] = self._read_chunk(name, chunk)
        self._cached_nbytes += chunk.nbytes
        while self._cached_nbytes > CACHE_NBYTES and len(self._cache) > 1:
            self._cached_nbytes -= len(self._cache.popitem(last=False)[1])
        return data

    def _read_chunk(self, name: str, chunk: Chunk) -> memoryview:
        path = join(self.path, name)
        with reading(self.storage, path):
            data = self.storage.read(path, chunk.offset, chunk.nbytes)
        if checksums.chunk_of(chunk.offset, data) != chunk:
            end = chunk.offset + chunk.nbytes
            raise corrupt(path, f"bytes {chunk.offset:,} to {end:,} are not what was written")
        return memoryview(data)

    def _shard_state(self, index: int) -> ShardState:
        facts = self.manifest.shards[index]
        path = join(self.path, facts[-1].name)
        with reading(self.storage, path):
            data = self.storage.read(path, 0, facts[-1].nbytes)
        if checksums.of_bytes(data) != facts[-1].xxh3_128:
            raise corrupt(path, "it is not what was written")
        try:
            if facts[-1].name != state_file(index):
                raise ValueError("another name")
            record = json.loads(data)
            if record["format"] != STATE_FORMAT or record["shard"] != index:
                raise ValueError("another format")
            chunks = {name: [Chunk(*entry) for entry in found] for name, found in record["chunks"].items()}
            slices = self.manifest.placement.slices[index]
            if len(record["versions"]) != len(slices) or set(chunks) != {fact.name for fact in facts[:-1]}:
                raise ValueError("other slices")
            for fact in facts[:-1]:
                if checksums.covered_nbytes(chunks[fact.name]) != fact.nbytes:
                    raise ValueError("other chunks")
                if checksums.of_chunks(chunks[fact.name]) != fact.xxh3_128:
                    raise ValueError("other chunks")
            versions, steps = record["versions"], record["steps"]
            if [len(own) for own in steps] != [len(slice_.segments) for slice_ in slices]:
                raise ValueError("other slices")
            if not all(type(number) is int for numbers in (versions, *steps) for number in numbers):
                raise ValueError("no usable versions")
            return ShardState(
                versions=versions,
                steps=steps,
                state=dict(record["state"]),
                chunks=chunks,
                tables=self._tables_of(index, record),
                slots={name: Slots.from_plain(plain) for name, plain in record.get("table_slots", {}).items()},
                rows=self._rows_of(record, facts),
            )
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise corrupt(path, f"it does not belong to this manifest ({error})") from error

    def _tables_of(self, index: int, record: Mapping[str, Any]) -> dict[str, TableState]:
        """Return what is kept of a shard's tables."""
        told = record["state"].get("tables", {})
        here = [self.keyspace.tables[slice_.table].rows for slice_ in self.manifest.placement.row_slices[index]]
        every = {table.name for table in self.manifest.job.tables}
        if set(told) != {spec.name for spec in here if spec} or set(record.get("table_slots", {})) != every:
            raise ValueError("other tables")
        return {name: TableState.from_plain(plain) for name, plain in told.items()}

    def _rows_of(self, record: Mapping[str, Any], facts: Sequence[FileFact]) -> dict[str, list[str]]:
        """Return the names of a shard's files of rows by the name of their table."""
        found: dict[str, list[str]] = {table.name: [] for table in self.manifest.job.tables}
        for name, table in record.get("rows", {}).items():
            found[table].append(name)
        if set(record.get("rows", {})) != {fact.name for fact in facts[:-1] if ROWS_FILE.fullmatch(fact.name)}:
            raise ValueError("other files of rows")
        return found

    # --- arrays --------------------------------------------------------------------------------

    def read_range(self, name: str, start: int, out: Array, slot: str | None = None) -> None:
        """Fill ``out`` with flattened elements from ``start`` of a parameter, or of one of its slots."""
        entry = name if slot is None else slot_entry(slot, name)
        parameter = self._entries[entry]
        itemsize = parameter.storage_dtype.itemsize
        flat = out.data.cast("B") if out.size else memoryview(b"")
        stop = start + out.size
        for piece in self._pieces[entry]:
            lo, hi = max(start, piece.start), min(stop, piece.start + piece.size)
            if lo >= hi:
                continue
            at = (lo - start) * itemsize
            offset = piece.offset + (lo - piece.start) * itemsize
            for part in self._read_parts(piece.file, offset, (hi - lo) * itemsize):
                flat[at : at + len(part)] = part
                at += len(part)

    def array(self, name: str, slot: str | None = None) -> Array:
        """Return a parameter's values, or one of its slots, in the stored dtype.

        Raises
        ------
        UnknownParameterError
            The checkpoint has no such parameter or slot.
        """
        number = self.keyspace.index.get(name)
        if number is None or (slot is not None and slot not in self.manifest.slots):
            has = (
                f"its slots are {', '.join(self.manifest.slots) or 'none'}" if number is not None else self._hint(name)
            )
            raise UnknownParameterError(name=name if number is None else slot_entry(str(slot), name), hint=has)
        parameter = self.keyspace.parameters[number]
        found = np.empty(parameter.size, parameter.storage_dtype.newbyteorder("<"))
        self.read_range(name, 0, found, slot)
        return found.reshape(parameter.shape)

    def arrays(self, *, optimizer: bool = False) -> dict[str, Array]:
        """Return all values by name, with ``optimizer`` also the slots, as ``optimizer.<slot>.<name>``.

        A sparse table gives ``<table>.ids`` and ``<table>.values``.
        """
        slots = self.manifest.slots if optimizer else ()
        found = {p.name: self.array(p.name) for p in self.keyspace.parameters}
        for spec in self.manifest.job.tables:
            found |= dict(zip(entries_of(spec.name), self.table(spec.name, VALUES).everything(), strict=True))
        found |= {slot_entry(s, p.name): self.array(p.name, s) for s in slots for p in self.keyspace.parameters}
        return found

    def table(self, name: str, slots: Slots | None = None) -> RowFiles:
        """Return the rows of a sparse table.

        Parameters
        ----------
        name
            The table's name.
        slots
            Which of the optimizer's slots to read; None: all.

        Raises
        ------
        UnknownParameterError
            The checkpoint has no such table.
        """
        specs = {table.name: table for table in self.manifest.job.tables}
        if name not in specs:
            raise UnknownParameterError(name=name, hint=f"its sparse tables are {', '.join(specs) or 'none':.200}")
        return RowFiles(self, specs[name], slots)

    def _hint(self, name: str) -> str:
        names = [p.name for p in self.keyspace.parameters]
        return f"the checkpoint has {', '.join(map(repr, names[:5]))}{' and others' if len(names) > 5 else ''}"

    # --- another placement -----------------------------------------------------------------------

    def onto(
        self, parameters: Sequence[Parameter], slots: Sequence[str], names: Mapping[str, str] | None = None
    ) -> Restorer:
        """Return a reader of slices of any placement of a job.

        Parameters
        ----------
        parameters
            The job's parameters.
        slots
            The optimizer's slots to restore; none: only the values.
        names
            Name in the job -> name in the checkpoint, if they differ.

        Raises
        ------
        CheckpointMismatchError
            The checkpoint is of another model or optimizer.
        """
        return Restorer(self, parameters, slots, names or {})

    def steps_of(self, name: str) -> list[tuple[int, int, int, int]]:
        """Return ``(start, stop, steps, version)`` of the parts of a parameter that were in a slice each."""
        return self._steps[self.keyspace.index[name]]

    @cached_property
    def _steps(self) -> list[list[tuple[int, int, int, int]]]:
        found: list[list[tuple[int, int, int, int]]] = [[] for _ in self.keyspace.parameters]
        for shard, slices in zip(self.shards, self.manifest.placement.slices, strict=True):
            for slice_, version, steps in zip(slices, shard.versions, shard.steps, strict=True):
                for segment, count in zip(slice_.segments, steps, strict=True):
                    found[segment.parameter].append((segment.start, segment.start + segment.size, count, version))
        return found


class Restorer:
    """Reads slices of another placement; get one from `Checkpoint.onto`."""

    def __init__(
        self, checkpoint: Checkpoint, parameters: Sequence[Parameter], slots: Sequence[str], names: Mapping[str, str]
    ) -> None:
        self._checkpoint = checkpoint
        self._parameters = tuple(parameters)
        self._slots = tuple(slots)
        self._names = [names.get(p.name, p.name) for p in parameters]
        self._check()

    def _check(self) -> None:
        has = {p.name: p for p in self._checkpoint.keyspace.parameters}
        for parameter, name in zip(self._parameters, self._names, strict=True):
            theirs = has.get(name)
            if theirs is None:
                self._refuse(f"it has no parameter {name!r}", "map the names, or name a checkpoint of this model")
            if (theirs.shape, theirs.storage_dtype) != (parameter.shape, parameter.storage_dtype):
                self._refuse(
                    f"its parameter {name!r} is {theirs.describe()}, and the job's is {parameter.describe()}",
                    "name a checkpoint of this model",
                )
        missing = [slot for slot in self._slots if slot not in self._checkpoint.manifest.slots]
        if missing:
            self._refuse(
                f"its optimizer {self._checkpoint.manifest.job.optimizer.get('name')!r} has no {', '.join(missing)}",
                "restore with the same optimizer, or only the values with restore_values_only=True",
            )

    def _refuse(self, what: str, advice: str) -> NoReturn:
        raise CheckpointMismatchError(path=self._checkpoint.path, what=what, good="", advice=advice)

    def read(self, slice_: Slice, dtype: np.dtype[Any]) -> Restored:
        """Return a slice of a placement of the job.

        Parameters
        ----------
        slice_
            Of any placement of the job's key space, with any number of shards and size of slices.
        dtype
            Of its table.

        Raises
        ------
        CheckpointCorruptError
            The data differ from their checksum.
        """
        arrays = [np.empty(slice_.size, dtype) for _ in range(1 + len(self._slots))]
        version: int | None = None
        steps = []
        for segment in slice_.segments:
            name = self._names[segment.parameter]
            where = slice(segment.position, segment.position + segment.size)
            for array, slot in zip(arrays, (None, *self._slots), strict=True):
                self._checkpoint.read_range(name, segment.start, array[where], slot)
            parts = self._checkpoint.steps_of(name)
            first = bisect_right(parts, segment.start, key=lambda part: part[1])
            met = parts[first : bisect_left(parts, segment.start + segment.size, key=lambda part: part[0])]
            steps.append(max(part[2] for part in met))
            lowest = min(part[3] for part in met)
            version = lowest if version is None else min(version, lowest)
        return Restored(arrays[0], tuple(arrays[1:]), version or 0, steps)
