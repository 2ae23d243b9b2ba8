"""A simulated disk, which all nodes share and which outlives them: the checkpoints on it, and those on their way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.simulator.jobs.tables import IDS, numbers_of, shards_of_ids
from zmqps.core.coordinator.placement.resumption import Resumption
from zmqps.core.coordinator.saving.files import Served
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.arrays import Array
from zmqps.core.server.dense.snapshot import SnapshotSlice
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.row_snapshot import RowPiece
from zmqps.core.server.tables.rows import rows_in
from zmqps.core.server.tables.table import RowTable
from zmqps.errors import CheckpointStorageError
from zmqps.rows.hashing import buckets_of
from zmqps.rows.kept import Kept, joined, rebased

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer


@dataclass(slots=True)
class SavedSlice:
    """A slice on the disk."""

    version: int
    steps: list[int]
    arrays: list[Array]  # its value, then its slots


@dataclass(slots=True, kw_only=True)
class Part:
    """What one server has written."""

    slices: dict[int, SavedSlice] = field(default_factory=dict)
    whole: bool = False
    state: Mapping[str, Any] = field(default_factory=dict)
    rows: dict[str, list[RowPiece]] = field(default_factory=dict)  # by table


class SavedJob:
    """A published checkpoint.

    Attributes
    ----------
    path, manifest
        As the coordinator names it, and what it says of it.
    parts
        By shard, with the rows of what it builds upon.
    values, slots, steps
        By parameter: flat arrays, those of each slot, and how many updates it has had, in each segment.
    """

    def __init__(self, path: str, manifest: Mapping[str, Any], parts: Mapping[int, Part]) -> None:
        self.path = path
        self.manifest = manifest
        self.parts = parts
        self.job = JobSpec.from_wire(manifest["job"])
        self.placement = Placement.from_wire(KeySpace.of(self.job), manifest["placement"])
        self.versions: set[int] = set()
        self.values = [np.full(p.size, _nothing(p), p.storage_dtype) for p in self.job.parameters]
        self.slots: list[list[Array]] = []
        self.steps: list[set[int]] = [set() for _ in self.job.parameters]
        self.states = [parts[shard].state for shard in range(len(self.placement.slices))]
        for shard, slices in enumerate(self.placement.slices):
            assert set(parts[shard].slices) == {slice_.index for slice_ in slices}, f"{path} lacks a part of {shard}"
            for slice_ in slices:
                saved = parts[shard].slices[slice_.index]
                self.versions.add(saved.version)
                while len(self.slots) < len(saved.arrays) - 1:
                    self.slots.append([np.full(p.size, _nothing(p), p.storage_dtype) for p in self.job.parameters])
                for segment, steps in zip(slice_.segments, saved.steps, strict=True):
                    self.steps[segment.parameter].add(steps)
                    here = slice(segment.position, segment.position + segment.size)
                    there = slice(segment.start, segment.start + segment.size)
                    for of, array in zip([self.values, *self.slots], saved.arrays, strict=True):
                        of[segment.parameter][there] = array[here]

    def rows_of(self, name: str, number: int) -> tuple[Array, list[Array]]:
        """Return which of `IDS` have a row in one of its tables, their values, and each of their slots."""
        found = self._kept(name, number)
        kept = [piece.only(np.array([row])) for piece, row in found.values()]
        if not kept:
            return np.zeros(0, np.int64), []
        whole = joined(kept)
        return np.array(list(found), np.int64), [whole.values, *whole.slots]

    def ages_of(self, name: str, number: int) -> Array:
        """Return how many updates ago each of these rows was changed."""
        shards, steps = shards_of_ids(self.placement, number), [state["tables"][name]["steps"] for state in self.states]
        found = self._kept(name, number).items()
        return np.array([steps[shards[id_]] - int(piece.stamps[row]) for id_, (piece, row) in found])

    def _kept(self, name: str, number: int) -> dict[int, tuple[Kept, int]]:
        """Return what it has of a table: by number of the id, where the row is."""
        found: dict[int, tuple[Kept, int]] = {}
        shards = shards_of_ids(self.placement, number)
        for shard in range(self.placement.num_shards):
            here: dict[int, tuple[Kept, int]] = {}
            for piece in self.parts[shard].rows.get(name, []):
                for gone in numbers_of(piece.gone.tolist()):
                    here.pop(int(gone), None)
                which = numbers_of(piece.kept.ids.tolist()).tolist()
                here |= {number: (piece.kept, row) for row, number in enumerate(which)}
            strays = [id_ for id_ in here if shards[id_] != shard]
            assert not strays, f"{self.path} has rows {IDS[strays].tolist()} of {name} on shard {shard}, not theirs"
            found |= here
        return found

    def fill(self, table: RowTable, version: int | None) -> None:
        """Let a table have the rows that were saved; ``version`` is that of the job where it is synchronous."""
        name = table.spec.name
        states = {shard: s["tables"][name] for shard, s in enumerate(self.states) if name in s["tables"]}
        table.steps = max(state["steps"] for state in states.values())
        table.version = max(state["version"] for state in states.values()) if version is None else version
        for shard, state in states.items():
            for piece in self.parts[shard].rows.get(name, []):
                gone, kept = piece.gone, piece.kept
                table.remove(gone)
                buckets = buckets_of(kept.ids, table.spec.bucket_seed)
                mine = kept.only((table.slice.start <= buckets) & (buckets < table.slice.stop))
                table.restore(mine._replace(stamps=rebased(mine.stamps, table.steps, state["steps"])))

    @property
    def version(self) -> int:
        """The clock to go on with."""
        return int(self.manifest["version"])

    @property
    def consistent(self) -> bool:
        """Whether it is a cut between pushes, or between steps."""
        return bool(self.manifest["consistent"])

    def resumption(self) -> Resumption:
        """Return what a coordinator is told that begins with it."""
        return Resumption(
            path=self.path, job=self.job, version=self.version, data=self.manifest["data"],
            state=self.manifest["state"], rates=tuple(self.manifest["run"]["rates"]),
        )  # fmt: skip


class Disk:
    """Where simulated nodes save and restore (`zmqps.core.server.saves.Files`, `...coordinator.checkpoints.Store`).

    Parameters
    ----------
    fails
        Whether what is asked for next does.
    """

    serves = False

    def __init__(self, fails: Callable[[], bool] = lambda: False) -> None:
        self.fails = fails
        self.published: list[SavedJob] = []  # the latest last
        #: Called with each checkpoint that is published.
        self.on_publish: Callable[[SavedJob], None] = lambda saved: None
        self._parts: dict[str, dict[int, Part]] = {}  # of those on their way
        self._numbers = count(1)

    def _work(self, path: str) -> None:
        if self.fails():
            raise CheckpointStorageError(path=path, what="the simulated disk fails", good="", advice="try again")

    def serve(self, what: str, path: str, offset: int, nbytes: int, payload: Sequence[Buffer]) -> Served:
        """No request is needed: all have this disk."""
        raise AssertionError("a server asks for files that it has")

    # --- what servers do ----------------------------------------------------------------------

    def open(self, path: str, job: Mapping[str, Any], placement: Placement, index: int) -> _Writer:
        """Open the files of a shard; each only once."""
        self._work(path)
        parts = self._parts.get(path)
        if parts is None:
            raise CheckpointStorageError(path=path, what="it was removed", good="", advice="try again")
        assert index not in parts, f"shard {index} is written twice to {path}"
        part = parts[index] = Part()
        return _Writer(self, path, part)

    def read_at(self, path: str) -> str:
        """Return where servers read a checkpoint."""
        return path

    def read(self, shard: Shard, job: JobSpec, source: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fill a shard with what a checkpoint has for it."""
        self._work(source["path"])
        saved = next(saved for saved in self.published if saved.path == source["path"])
        for slice_ in shard.placement.slices[shard.index]:
            found = []
            for of in [saved.values, *saved.slots]:
                pieces = [of[s.parameter][s.start : s.start + s.size] for s in slice_.segments]
                found.append(np.concatenate(pieces))
            steps = [min(saved.steps[s.parameter]) for s in slice_.segments]
            version = source["version"] if job.mode == "sync" else max(steps)
            shard.dense.restore(slice_.index, found[0], found[1:], steps, version)
        for table in rows_in(shard).tables:
            saved.fill(table, source["version"] if job.mode == "sync" else None)
        return saved.states[shard.index] if saved.placement.to_wire() == shard.placement.to_wire() else {}

    # --- what coordinators do -----------------------------------------------------------------

    def begin(self, job: str, version: int) -> str:
        """Make room for a checkpoint."""
        path = f"/{job}/{next(self._numbers)}"
        self._work(path)
        self._parts[path] = {}
        return path

    def publish(self, path: str, manifest: Mapping[str, Any]) -> tuple[str, int, int]:
        """Let what was written be the newest checkpoint."""
        self._work(path)
        parts = self._parts.pop(path)
        written = [saved for part in parts.values() for saved in part.slices.values()]
        nbytes = sum([array.nbytes for saved in written for array in saved.arrays])
        nbytes += sum([piece.nbytes for part in parts.values() for pieces in part.rows.values() for piece in pieces])
        assert all(part.whole for part in parts.values()), f"{path} is published before all is written"
        self._add_base(path, manifest["base"], parts)
        saved = SavedJob(path, manifest, parts)
        self.on_publish(saved)
        self.published.append(saved)
        return path, nbytes, saved.version

    def _add_base(self, path: str, base: str | None, parts: Mapping[int, Part]) -> None:
        """Let parts have the rows that are in what they build upon."""
        there = next((saved for saved in self.published if saved.path == base), None)
        assert base is None or there is not None, f"{path} builds upon {base}, which was never published"
        for shard, part in parts.items():
            for name in [name for name, table in part.state["tables"].items() if not table["whole"]]:
                assert there is not None, f"{path} builds upon nothing, and lacks rows of {name}"
                part.rows[name] = there.parts[shard].rows.get(name, []) + part.rows.get(name, [])

    def abandon(self, path: str) -> None:
        """Remove what was written."""
        self._parts.pop(path, None)


class _Writer:
    """A server's part (`zmqps.core.server.saves.Writer`)."""

    def __init__(self, disk: Disk, path: str, part: Part) -> None:
        self._disk = disk
        self._path = path
        self._part = part

    def write(self, piece: SnapshotSlice | RowPiece, *, gently: bool = False) -> None:
        """Write a slice, or rows, as they are at this moment."""
        self._disk._work(self._path)
        if isinstance(piece, RowPiece):
            self._part.rows.setdefault(piece.table, []).append(deepcopy(piece))
            return
        assert piece.number not in self._part.slices, f"slice {piece.number} is written twice"
        arrays = [array.copy() for array in (piece.value, *piece.slots)]
        self._part.slices[piece.number] = SavedSlice(piece.version, piece.steps.tolist(), arrays)

    def close(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Bring all to the disk."""
        self._disk._work(self._path)
        self._part.whole, self._part.state = True, deepcopy(state)
        versions = [saved.version for saved in self._part.slices.values()]
        return {"lowest": min(versions, default=None)}

    def abandon(self) -> None:
        """Close the files."""


def _nothing(parameter: Parameter) -> float:
    """Return what no element has that was saved."""
    return np.nan if parameter.storage_dtype.kind == "f" else -1
