"""Rows of sparse tables in a checkpoint: files in the safetensors format, each with some rows of a table.

A shard has as many of them as it takes. Their arrays are named ``<table>.<array>@<shard>.<number>``, where the array is
``ids``, ``values``, ``stamps``, ``counts``, ``optimizer.<slot>`` or ``gone``: the ids of rows that may be in what a
checkpoint builds upon, but are not rows any more. A stamp is the number of the row's last update, among those of the
table on that shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from zmqps.checkpoint.header import Header, read_header
from zmqps.checkpoint.layout import DTYPES, header_of
from zmqps.checkpoint.manifest import FileFact, Manifest, corrupt
from zmqps.checkpoint.storage import join
from zmqps.core.job.tables import TableSpec
from zmqps.core.protocol.arrays import Array
from zmqps.rows.kept import Kept


class TableFacts(NamedTuple):
    """The metadata of a file."""

    table: str
    dim: int
    job: str
    version: int  # every update up to it is in the rows
    package: str  # the version of zmqps that has written it

    def texts(self) -> dict[str, str]:
        """Return them as metadata."""
        return {f"zmqps.{name}": str(value) for name, value in self._asdict().items()}


_NOTHING = np.empty(0, np.int64)


def rows_file(shard: int, number: int) -> str:
    """Return the name of a shard's ``number``-th file of rows."""
    return f"shard-{shard:05}-rows-{number:05}.safetensors"


class Slots(NamedTuple):
    """The names of what a table's optimizer keeps: slots as long as a row, those of one number, and counts."""

    long: tuple[str, ...]
    short: tuple[str, ...]
    counts: bool

    @classmethod
    def from_plain(cls, plain: Any) -> Slots:
        """Return what a shard's state says; raise ``ValueError`` where it cannot be."""
        long, short, counts = plain
        if not all(isinstance(slot, str) for slot in (*long, *short)) or type(counts) is not bool:
            raise ValueError("it has no usable slots of tables")
        return cls(tuple(long), tuple(short), counts)

    def shapes(self, dim: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the arrays of a table's rows, with dtype and shape of one; in the order of `Kept.arrays`."""
        return {
            "ids": ("int64", ()),
            "stamps": ("uint32", ()),
            **({"counts": ("uint32", ())} if self.counts else {}),
            **{f"optimizer.{slot}": ("float32", ()) for slot in self.short},
            "values": ("float32", (dim,)),
            **{f"optimizer.{slot}": ("float32", (dim,)) for slot in self.long},
        }


#: Nothing but values.
VALUES = Slots((), (), counts=False)


def entries_of(table: str) -> tuple[str, str]:
    """Return the names of a table's ids and values among those of parameters."""
    return f"{table}.ids", f"{table}.values"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """The state of a table on one shard besides its rows.

    Attributes
    ----------
    version
        Messages applied, or steps.
    steps
        Updates: rows' stamps are numbers of them.
    expired_before
        Rows with a lower stamp have expired by seconds.
    whole
        Whether to read nothing of what the checkpoint builds upon.
    """

    version: int
    steps: int
    expired_before: int
    whole: bool

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> TableState:
        """Return what a shard's state says; raise ``ValueError`` where it cannot be."""
        found = {name: plain[name] for name in ("version", "steps", "expired_before")}
        if not all(type(value) is int and value >= 0 for value in found.values()) or type(plain["whole"]) is not bool:
            raise ValueError("it has no usable tables")
        return cls(**found, whole=plain["whole"])

    def has_expired(self, stamps: Array, spec: TableSpec) -> Array:
        """Return which rows have expired, by their stamps."""
        ages = (np.uint32(self.steps % (1 << 32)) - stamps).astype(np.int64)
        expired: Array = np.zeros(stamps.size, bool)
        if spec.expire_steps is not None:
            expired |= ages >= spec.expire_steps
        if self.expired_before:
            expired |= ages > self.steps - self.expired_before
        return expired


def encoded(spec: TableSpec, slots: Slots, shard: int, number: int, kept: Kept, gone: Array) -> list[Array]:
    """Return the bytes of a file of rows, in pieces: its header first."""
    entries: dict[str, Any] = {}
    end = 0
    arrays = []
    named = zip(slots.shapes(spec.dim).items(), kept.arrays, strict=True)
    for (name, (dtype, shape)), array in [(("gone", ("int64", ())), gone), *named] if gone.size else named:
        nbytes = array.nbytes
        entries[f"{spec.name}.{name}@{shard}.{number}"] = {
            "dtype": DTYPES[dtype],
            "shape": [array.size // int(np.prod(shape, dtype=np.int64)), *shape],
            "data_offsets": [end, end + nbytes],
        }
        arrays.append(np.ascontiguousarray(array).view(np.uint8))
        end += nbytes
    header = header_of(entries, {name: {"saved_offsets": [0] * len(e["shape"])} for name, e in entries.items()})
    return [np.frombuffer(header, np.uint8), *arrays]


class Source(Protocol):
    """What reading rows needs of `zmqps.checkpoint.reader.Checkpoint`."""

    path: str
    manifest: Manifest

    @property
    def base(self) -> Source | None:
        """What it builds upon."""

    @property
    def shards(self) -> Sequence[Any]:
        """What is kept of each shard (`zmqps.checkpoint.reader.ShardState`)."""

    @property
    def facts(self) -> Mapping[str, FileFact]:
        """What the manifest says of its files, by their names."""

    def read_bytes(self, name: str, offset: int, nbytes: int) -> bytes:
        """Return bytes of a file, checked."""


class RowFiles:
    """The rows of one table in a checkpoint, and in what it builds upon.

    Parameters
    ----------
    checkpoint
        Where.
    spec
        The table.
    slots
        Of its optimizer, those that are read; None: all.
    """

    def __init__(self, checkpoint: Source, spec: TableSpec, slots: Slots | None = None) -> None:
        self._checkpoint = checkpoint
        self.spec = spec
        placement = checkpoint.manifest.placement
        number = [table.rows for table in placement.keyspace.tables].index(spec)
        self._cuts = placement.cuts[number]
        self.slots = checkpoint.shards[0].slots[spec.name]
        self._read = self.slots if slots is None else slots

    def state(self, shard: int) -> TableState:
        """Return the state of the table on a shard besides its rows."""
        found: TableState = self._checkpoint.shards[shard].tables[self.spec.name]
        return found

    def shards_of(self, start: int, stop: int) -> list[int]:
        """Return the shards that had some of the buckets ``[start, stop)``."""
        cuts = list(pairwise(self._cuts))
        return [shard for shard, (first, end) in enumerate(cuts) if max(first, start) < min(end, stop)]

    def lies_within(self, shard: int, start: int, stop: int) -> bool:
        """Return whether a shard had no buckets but some of ``[start, stop)``."""
        first, end = self._cuts[shard : shard + 2]
        return start <= first and end <= stop

    @property
    def shards(self) -> range:
        """All shards."""
        return range(len(self._cuts) - 1)

    def ids(self) -> Array:
        """Return the ids of all rows, in the order in which `read` yields them, shard by shard."""
        return np.concatenate([_NOTHING, *(kept.ids for shard in self.shards for kept in self.read(shard))])

    def everything(self) -> tuple[Array, Array]:
        """Return ids and values of all rows, in no order."""
        found = [kept for shard in self.shards for kept in self.read(shard)]
        ids = [kept.ids for kept in found]
        values = [kept.values for kept in found]
        return np.concatenate([_NOTHING, *ids]), np.concatenate([np.empty((0, self.spec.dim), np.float32), *values])

    def read(self, shard: int) -> Iterator[Kept]:
        """Yield the rows of a shard, each once, as they were last; those that have expired are left out.

        Raises
        ------
        CheckpointCorruptError
            What was read is not what was written.
        """
        state = self.state(shard)
        seen = _NOTHING  # sorted: ids already read from later checkpoints
        one: Source | None = self._checkpoint
        while one is not None:
            goes_on = one.base is not None and not one.shards[shard].tables[self.spec.name].whole
            told = [seen]
            for name in one.shards[shard].rows.get(self.spec.name, ()):
                kept, gone = self._file(one, shard, name)
                if goes_on:
                    told += [kept.ids, gone]
                wanted = ~(_among(kept.ids, seen) | state.has_expired(kept.stamps, self.spec))
                if wanted.any():
                    yield kept if wanted.all() else kept.only(wanted)
            seen = np.unique(np.concatenate(told)) if goes_on else seen
            one = one.base if goes_on else None

    def _file(self, one: Source, shard: int, name: str) -> tuple[Kept, Array]:
        """Return the rows of a file, and the removed ids."""
        fact = one.facts[name]
        path = join(one.path, name)
        header = read_header(one.path, fact, partial(one.read_bytes, name))
        slots = self._read
        number = int(name.removesuffix(".safetensors").rpartition("-")[2])
        stem, mark = f"{self.spec.name}.", f"@{shard}.{number}"

        def array(label: str, dtype: str, shape: Sequence[int]) -> Array:
            return _array(one, path, header, fact, f"{stem}{label}{mark}", dtype, shape)

        found = {label: array(label, *kind) for label, kind in slots.shapes(self.spec.dim).items()}
        if len({len(some) for some in found.values()}) > 1:
            raise corrupt(path, "its arrays are not of the same rows")
        gone = array("gone", "int64", ()) if f"{stem}gone{mark}" in header.entries else _NOTHING
        return Kept(
            found["ids"],
            found["values"],
            tuple(found[f"optimizer.{slot}"] for slot in slots.long),
            tuple(found[f"optimizer.{slot}"] for slot in slots.short),
            found.get("counts"),
            found["stamps"],
        ), gone


def _array(
    one: Source, path: str, header: Header, fact: FileFact, entry: str, dtype: str, shape: Sequence[int]
) -> Array:
    """Return an array of a file, after checking what its header says of it."""
    kind = np.dtype(dtype).newbyteorder("<")
    try:
        says = header.entries[entry]
        begin, end = says["data_offsets"]
        size = (end - begin) // (kind.itemsize * int(np.prod(shape, dtype=np.int64)))
        if (says["dtype"], says["shape"]) != (DTYPES[dtype], [size, *shape]):
            raise ValueError("another dtype or shape")
        if end - begin != size * kind.itemsize * int(np.prod(shape, dtype=np.int64)):
            raise ValueError("another size")
        if not 0 <= begin <= end <= fact.nbytes - header.nbytes:
            raise ValueError("it is outside the file")
    except (ValueError, KeyError, TypeError) as error:
        raise corrupt(path, f"what its header says of {entry!r} cannot be used ({error})") from error
    data = one.read_bytes(fact.name, header.nbytes + begin, end - begin)
    found: Array = np.frombuffer(data, kind).reshape(size, *shape)
    return found.copy() if kind.itemsize == 8 else found  # compiled code wants ids that may be written to


def _among(ids: Array, seen: Array) -> Array:
    """Return which ids are among some that are sorted."""
    if not seen.size:
        return np.zeros(ids.size, bool)
    places = np.minimum(np.searchsorted(seen, ids), seen.size - 1)
    found: Array = seen[places] == ids
    return found
