"""Checkpoints of a running cluster: what servers write and read, and what the coordinator publishes."""

from __future__ import annotations

import errno
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from zmqps.checkpoint import (
    CONSISTENT,
    PER_SLICE,
    Claim,
    FileFact,
    Manifest,
    Owner,
    Save,
    ShardWriter,
    good_ones,
    job_directory,
    look,
    open_checkpoint,
    prune,
    storage_of,
)
from zmqps.checkpoint.manifest import NAME as MANIFEST
from zmqps.checkpoint.storage import File, Storage, naming_the_disk, remove_tree
from zmqps.core.coordinator.saving.files import Served
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.server.dense.snapshot import SnapshotSlice
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.row_snapshot import RowPiece
from zmqps.core.server.tables.rows import rows_in
from zmqps.errors import CheckpointCorruptError, CheckpointError, CheckpointMismatchError
from zmqps.nodes.checkpoint_rows import read_tables, slots_of_table
from zmqps.nodes.processors import Rests
from zmqps.nodes.relay import CHUNK_NBYTES, SCHEME, RelayStorage
from zmqps.optim import OptimizerSpec

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

LOG = logging.getLogger("zmqps.coordinator")

#: A server that writes while training continues rests after each slice, where no processor is idle: this many times as
#: long as the slice took. Steps then take about a tenth longer.
REST = 6.0


class _Writer:
    """A shard's part of a checkpoint (`zmqps.core.server.saves.Writer`)."""

    def __init__(self, writer: ShardWriter, slots: tuple[str, ...]) -> None:
        self._writer = writer
        self._slots = slots
        self._rests = Rests(REST)
        self._lowest: int | None = None

    def write(self, piece: SnapshotSlice | RowPiece, *, gently: bool = False) -> None:
        """Write a slice, or rows; ``gently``, and where no processor is idle, rest behind it."""
        began = time.monotonic()
        if isinstance(piece, RowPiece):
            self._writer.write_rows(piece.table, piece.kept, piece.gone)
        else:
            steps = piece.steps.tolist()
            self._writer.write(piece.number, piece.value, piece.slots, version=piece.version, steps=steps)
            self._lowest = piece.version if self._lowest is None else min(self._lowest, piece.version)
        self._rests.after(began, wanted=gently)

    def close(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """Bring all to the disk; return the files, the slots and the version of the slice with the fewest updates."""
        files = [list(fact) for fact in self._writer.close(state)]
        if self._lowest is None:  # a job of tables alone
            self._lowest = min((table["version"] for table in state["tables"].values()), default=None)
        return {"files": files, "slots": list(self._slots), "lowest": self._lowest}

    def abandon(self) -> None:
        """Close the files."""
        self._writer.abandon()


class ShardFiles:
    """What a server writes and reads of checkpoints (`zmqps.core.server.saves.Files`).

    Parameters
    ----------
    relay
        The disk of the coordinator's host, for paths that are there; None: none is.
    """

    def __init__(self, relay: RelayStorage | None = None) -> None:
        self._relay = relay

    def _storage_of(self, path: str) -> tuple[Storage, str]:
        if self._relay is not None and path.startswith(SCHEME):
            return self._relay, path.removeprefix(SCHEME)
        return storage_of(path)

    def open(self, path: str, job: Mapping[str, Any], placement: Placement, index: int) -> _Writer:
        """Open the files of a shard."""
        spec = JobSpec.from_wire(job)
        slots, tables = _slots_of(spec), {table.name: slots_of_table(table) for table in spec.tables}
        storage, directory = self._storage_of(path)
        return _Writer(ShardWriter(storage, directory, placement, index, slots, table_slots=tables), slots)

    def read(self, shard: Shard, job: JobSpec, source: Mapping[str, Any]) -> Mapping[str, Any]:
        """Fill a shard from a checkpoint; return what was kept with this very shard, if there was one.

        Raises
        ------
        CheckpointError
            It is damaged, or of another model or optimizer.
        """
        storage, path = self._storage_of(source["path"])
        checkpoint = open_checkpoint(path, storage=storage)
        slots = _slots_of(job) if source["optimizer"] else ()
        restorer = checkpoint.onto(job.parameters, slots, source["names"])
        tables = shard.placement.keyspace.tables
        for slice_ in shard.placement.slices[shard.index]:
            found = restorer.read(slice_, tables[slice_.table].dtype)
            steps = found.steps if source["optimizer"] else [0] * len(found.steps)
            # parts of it may have had more updates than others, and none may have had more than the slice
            version = source["version"] if job.mode == "sync" else max(found.version, *steps)
            shard.dense.restore(slice_.index, found.value, found.slots, steps, version)
        read_tables(checkpoint, rows_in(shard), source, synchronous=job.mode == "sync")
        same = checkpoint.manifest.placement.to_wire() == shard.placement.to_wire()
        return checkpoint.shards[shard.index].state if same else {}


def _slots_of(job: JobSpec) -> tuple[str, ...]:
    names = [parameter.name for parameter in job.parameters]
    if not names:
        return ()
    return OptimizerSpec.from_wire(job.optimizer).slots_of(names)[0]


#: What servers may ask of files -> whether it changes them.
SERVED = {
    "create": True,
    "write": True,
    "sync": True,
    "sync_directory": True,
    "read": False,
    "size": False,
    "names": False,
    "is_directory": False,
}


class CheckpointStore:
    """A directory of checkpoints (`zmqps.core.coordinator.saving.checkpoints.Store`).

    Parameters
    ----------
    directory
        Where the checkpoints of all jobs are: a path, or an address that fsspec knows.
    keep
        How many of a job are kept.
    via
        How servers reach it, see `zmqps.settings.saving.Saving`.
    restore
        What may be read there besides: paths of directories.
    owner
        The cluster.
    runs
        Job -> the run that continues, of those that begin from a checkpoint.

    Attributes
    ----------
    claim : Claim
        To be entered by a cluster that saves here.

    Raises
    ------
    ConfigurationError
        fsspec is not installed, or does not know the address.
    """

    def __init__(
        self,
        directory: str,
        keep: int,
        via: str = "shared",
        restore: Sequence[str] = (),
        *,
        owner: Owner,
        runs: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._storage, self._directory = storage_of(directory)
        self.claim = Claim(self._storage, self._directory, owner, runs)
        self._scheme = scheme_of(directory)
        self._keep = keep
        self.serves = via == "coordinator"
        self._restore = list(restore)
        self._open: dict[str, File] = {}  # by path: what servers write
        self._names = map(f"{secrets.token_hex(8)}-{{}}".format, count(1))  # of saves
        self._saves: dict[str, Save] = {}  # by path
        self._turn = threading.Lock()  # one is begun while the one before is removed, in another thread
        self._replaced: Counter[str] = Counter()  # paths of saves that will be removed, and have become others'

    def begin(self, job: str, version: int) -> str:
        """Make room for a checkpoint; return the path that servers write to."""
        with self._turn:
            owner = next(self._names)  # servers may still write what was given up before
            save = Save.begin(self._storage, self._directory, job, version, owner, time.time())
            path = self._scheme + save.directory
            if path in self._saves:  # where nothing can be renamed
                self._replaced[path] += 1
            self._saves[path] = save
        return SCHEME + path if self.serves else path

    def read_at(self, path: str) -> str:
        """Return where servers read a checkpoint."""
        return SCHEME + path if self.serves else path

    def publish(self, path: str, manifest: Mapping[str, Any]) -> tuple[str, int, int]:
        """Let what was written be the newest checkpoint; remove those beyond `keep`."""
        job = JobSpec.from_wire(manifest["job"])
        placement = Placement.from_wire(KeySpace.of(job), manifest["placement"])
        shards = manifest["shards"]
        lowest = [shard["lowest"] for shard in shards if shard["lowest"] is not None]
        whole = Manifest(
            job_name=manifest["name"],
            job=job,
            placement=placement,
            version=min(lowest, default=0) if job.mode == "async" else manifest["version"],
            slots=tuple(shards[0]["slots"]),
            shards=tuple(tuple(map(FileFact.from_wire, shard["files"])) for shard in shards),
            created_at=time.time(),
            kind=CONSISTENT if manifest["consistent"] else PER_SLICE,
            data=list(manifest["data"]),
            state=manifest["state"],
            run=manifest.get("run", {}),
            base=self._base(manifest["base"], placement),
            owner=self.claim.owner_of(manifest["name"]),
        )
        path = path.removeprefix(SCHEME)
        published = self._saves[path].commit(whole)
        self._taken(path)  # not before: what could not be published must be removed
        self._prune(manifest["name"], published)
        return self._scheme + published, whole.nbytes, whole.version

    def _prune(self, job: str, published: str) -> None:
        """Remove this cluster's checkpoints of a job beyond `keep`, once the new one is known to be whole."""
        job_path = job_directory(self._directory, job)
        good = list(good_ones(self._storage, job_path))
        if all(one.path != published for one in good):
            try:
                look(self._storage, published)
            except CheckpointCorruptError:  # its base was removed
                with naming_the_disk(published, "remove"):
                    remove_tree(self._storage, published, MANIFEST)
                raise
        try:
            owned = self.claim.owned(job, good, time.time())
            prune(self._storage, job_path, self._keep, {one.path for one in good}, owned)
        except CheckpointError as error:  # the new one is there all the same
            LOG.warning("older checkpoints of job %r stay: %s", job, error)

    def _base(self, path: str | None, placement: Placement) -> tuple[str, str] | None:
        """Return name and checksum of what is built upon, which must be there with all that it builds upon itself."""
        if path is None:
            return None
        place = path.removeprefix(self._scheme)
        base = look(self._storage, place).manifest
        if base.placement.to_wire() != placement.to_wire():  # no reader could use it
            raise CheckpointMismatchError(path=place, what="its shards are cut otherwise", good="", advice="save all")
        return place.rpartition("/")[2], base.digest

    def abandon(self, path: str) -> None:
        """Remove what was written of one that failed."""
        path = path.removeprefix(SCHEME)
        with self._turn:
            if path in self._replaced:
                self._replaced -= Counter([path])  # which forgets what is 0
            elif path in self._saves:
                self._taken(path).abandon()

    def _taken(self, path: str) -> Save:
        """Return a save that is over, with no file of it open."""
        save = self._saves.pop(path)
        directory = path.removeprefix(self._scheme)
        for name in [name for name in self._open if name.startswith(directory + "/")]:
            self._open.pop(name).close()
        return save

    def serve(self, what: str, path: str, offset: int, nbytes: int, payload: Sequence[Buffer]) -> Served:
        """Do something with a file for a server that does not have the directory.

        Raises
        ------
        OSError
            As the file system says; or a server asks for what is none of its business.
        """
        if what not in SERVED or ".." in path.split("/"):
            raise PermissionError(errno.EPERM, f"no server may {what[:40]} {path[:200]}")
        saves = [save.directory for save in self._saves.values()]
        readable = [self._directory, *self._restore]
        if not any(path == place or path.startswith(place + "/") for place in (saves if SERVED[what] else readable)):
            raise PermissionError(errno.EPERM, f"{path[:200]} is not a file of a checkpoint that is made, or restored")
        return self._serve(what, path, offset, nbytes, payload)

    def _serve(self, what: str, path: str, offset: int, nbytes: int, payload: Sequence[Buffer]) -> Served:
        storage = self._storage
        if what == "create":
            if path not in self._open:  # else it is asked again
                self._open[path] = storage.create(path)
        elif what == "write":
            for buffer in payload:
                view = memoryview(buffer).cast("B")
                self._open[path].write_at(view, offset)
                offset += view.nbytes
        elif what == "sync":
            self._open[path].sync()
        elif what == "sync_directory":
            storage.sync_directory(path)
        elif what == "read":
            return Served({}, (storage.read(path, offset, min(nbytes, CHUNK_NBYTES)),))
        elif what == "size":
            return Served({"size": storage.size(path)})
        elif what == "names":
            return Served({"names": storage.names(path)})
        elif what == "is_directory":
            return Served({"is": storage.is_directory(path)})
        return Served({})


def scheme_of(path: str) -> str:
    """Return what an address begins with; nothing for a path."""
    scheme, found, _ = path.partition("://")
    return f"{scheme}://" if found else ""
