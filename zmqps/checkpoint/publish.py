"""From a directory that is being written to a checkpoint: all of it or nothing, whenever the power fails.

A job's checkpoints are in ``DIR/<job>/``, named ``ckpt-<version>-<number>``: the number counts up, so the
highest is the latest, whatever clocks say and even if training went back to an older version.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote, unquote

from zmqps.checkpoint import manifest as manifests
from zmqps.checkpoint.checksums import of_bytes
from zmqps.checkpoint.manifest import Manifest
from zmqps.checkpoint.storage import Storage, join, naming_the_disk, remove_tree
from zmqps.checkpoint.writer import write_file
from zmqps.errors import CheckpointStorageError

#: A save of another cluster that has not touched its files for so long is taken to be dead.
ABANDONED_AFTER_S = 3600.0
#: What file systems allow a name is 255 bytes.
MAX_NAME_NBYTES = 200
#: A directory of this name is not a checkpoint yet.
UNFINISHED = "tmp-"
#: Where nothing can be renamed, a file says whose an unfinished directory is.
MARK = ".owner"

_NAME = re.compile(r"ckpt-(\d{12,20})-(\d{4,12})")
_UNFINISHED_NAME = re.compile(r"tmp-\d{12,20}-\d{4,12}-(.+)")
_ATTEMPTS = 100


class Entry(NamedTuple):
    """A checkpoint by its name; sorted, the latest comes last."""

    number: int
    version: int
    path: str


def job_directory(directory: str, job: str) -> str:
    """Return the directory of a job's checkpoints: its name, written as a valid directory name."""
    name = "".join(
        c if c.isalnum() or c in " _-+=,@()" or (c == "." and i) else quote(c, "") for i, c in enumerate(job)
    )
    if name.startswith(("ckpt-", UNFINISHED, ".")):
        name = f"%{ord(name[0]):02X}{name[1:]}"
    if len(name.encode()) > MAX_NAME_NBYTES:
        name = f"{name[:40]}%{of_bytes(job.encode())}"
    return join(directory, name)


def job_of(name: str) -> str:
    """Return the job whose checkpoints are in a directory of this name, unless that is too long."""
    return unquote(name)


def entry_of(path: str) -> Entry | None:
    """Return what the name of a directory says; None if it is not one of a checkpoint."""
    found = _NAME.fullmatch(path.rstrip("/").rpartition("/")[2])
    return Entry(int(found[2]), int(found[1]), path) if found else None


def entries(storage: Storage, job_path: str) -> list[Entry]:
    """Return a job's checkpoints, good or not, the latest last."""
    found = [entry_of(join(job_path, name)) for name in storage.names(job_path)]
    return sorted(entry for entry in found if entry is not None)


class Save:
    """One checkpoint on its way: begun, filled by `ShardWriter`, and committed or taken back.

    Attributes
    ----------
    directory : str
        Where the shards' files go.
    """

    def __init__(self, storage: Storage, job_path: str, version: int, owner: str) -> None:
        self._storage, self._job_path, self._version = storage, job_path, version
        with naming_the_disk(job_path):
            storage.make_directory(job_path)
            self._number = max((entry.number for entry in entries(storage, job_path)), default=0) + 1
            self._mark = ""
            if storage.renames:
                self.directory = join(job_path, f"{UNFINISHED}{self._stem()}-{owner}")
                storage.make_directory(self.directory)
            else:
                self.directory = self._marked(f"{owner}{MARK}")

    @classmethod
    def begin(cls, storage: Storage, directory: str, job: str, version: int, owner: str, now: float) -> Save:
        """Begin a checkpoint, after removing what dead saves have left.

        Parameters
        ----------
        storage, directory
            Where the checkpoints of all jobs are kept.
        job, version
            What is saved.
        owner
            The saver, in a form fit for a file's name: one at a time. Its unfinished files are removed, and
            what others have whose names are the same up to a hyphen: so each save may have its own directory.
        now
            Seconds since 1970.

        Raises
        ------
        CheckpointStorageError
            The disk is full or read-only, or fails.
        """
        job_path = job_directory(directory, job)
        clean(storage, job_path, owner, now)
        return cls(storage, job_path, version, owner)

    def commit(self, manifest: Manifest) -> str:
        """Publish it; return its path.

        Raises
        ------
        CheckpointStorageError
            It could not be written or renamed; what was saved before is as it was.
        """
        storage = self._storage
        self._version = manifest.version  # if slices have separate versions it is known only now
        write_file(storage, join(self.directory, manifests.NAME), manifest.to_bytes())
        with naming_the_disk(self.directory):
            storage.sync_directory(self.directory)
            if storage.renames:
                self.directory = self._rename()
                storage.sync_directory(self._job_path)
            else:
                storage.remove(self._mark)
        return self.directory

    def abandon(self) -> None:
        """Remove it."""
        with naming_the_disk(self.directory, "remove"):
            remove_tree(self._storage, self.directory, manifests.NAME)

    def _marked(self, mark: str) -> str:
        """Return a new directory with a mark of this save, used by no other.

        Two saves that take one at the same time see each other's mark, and both continue to the next number.
        """
        for _ in range(_ATTEMPTS):
            path = join(self._job_path, f"ckpt-{self._stem()}")
            self._storage.make_directory(path)
            self._mark = join(path, mark)
            write_file(self._storage, self._mark, b"")
            if self._storage.names(path) == [mark]:
                return path
            self._storage.remove(self._mark)
            self._number += 1
        raise FileExistsError(f"{path} and others of the same version are there already")

    def _rename(self) -> str:
        for _ in range(_ATTEMPTS):
            path = join(self._job_path, f"ckpt-{self._stem()}")
            try:
                self._storage.rename(self.directory, path)
            except FileExistsError:  # another cluster's
                self._number += 1
            else:
                return path
        raise FileExistsError(f"{path} and others of the same version are there already")

    def _stem(self) -> str:
        return f"{self._version:012}-{self._number:04}"


def clean(storage: Storage, job_path: str, owner: str, now: float, after_s: float = ABANDONED_AFTER_S) -> list[str]:
    """Remove what dead saves have left; return the directories.

    A save is dead if its owner begins another, or if it has not been touched for ``after_s`` seconds.
    """
    removed = []
    for name in storage.names(job_path):
        path = join(job_path, name)
        with suppress(CheckpointStorageError), naming_the_disk(path, "remove"):  # it does no harm
            unfinished = _UNFINISHED_NAME.fullmatch(name)
            if unfinished is None and (entry_of(path) is None or manifests.NAME in storage.names(path)):
                continue
            marks = [name.removesuffix(MARK) for name in storage.names(path) if name.endswith(MARK)]
            owners = [unfinished[1]] if unfinished else marks
            ours = owner.partition("-")[0] in [other.partition("-")[0] for other in owners]
            if ours or now - _touched_at(storage, path) >= after_s:
                remove_tree(storage, path, manifests.NAME)
                removed.append(path)
    return removed


def prune(
    storage: Storage, job_path: str, keep: int, good: Collection[str], owned: Collection[str] | None = None
) -> list[str]:
    """Remove all but the latest checkpoints of those that are known to be good; return what was removed.

    What one that stays builds upon stays as well. Where one cannot be removed the others are, and then
    `CheckpointStorageError` is raised.

    Parameters
    ----------
    storage, job_path
        Where the job's checkpoints are.
    keep
        How many to keep, at least one.
    good
        Paths of checkpoints that look whole. Others are neither counted nor removed: a user may want to look.
    owned
        Paths of those of them that may be removed; others are not counted either. None: all.
    """
    known = [entry.path for entry in entries(storage, job_path) if entry.path in good]
    ours = [path for path in known if owned is None or path in owned]
    needed = {*known} - {*ours[: -max(1, keep)]}
    for path in reversed(known):  # a base comes before what builds upon it
        if path in needed and (base := _base_of(storage, path)) is not None:
            needed.add(join(job_path, base))
    removed = [path for path in reversed(known) if path not in needed]  # what builds upon others before these
    failed = None
    for path in removed:
        try:
            with naming_the_disk(path, "remove"):
                remove_tree(storage, path, manifests.NAME)
        except CheckpointStorageError as error:  # one that cannot be removed keeps no others
            failed = failed or error
    if failed is not None:
        raise failed
    return removed


def _base_of(storage: Storage, path: str) -> str | None:
    with naming_the_disk(path, "read"):
        manifest = Manifest.from_bytes(path, storage.read(join(path, manifests.NAME), 0, manifests.MAX_NBYTES))
    return None if manifest.base is None else manifest.base[0]


def _touched_at(storage: Storage, path: str) -> float:
    try:
        inner = [storage.modified_at(join(path, name)) for name in storage.names(path)]
        return max([storage.modified_at(path), *inner])
    except FileNotFoundError:
        return 0.0
