"""From a path to a checkpoint, one by its own name or the latest good one of a job, and to its arrays."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

from zmqps import checks
from zmqps.checkpoint import manifest as manifests
from zmqps.checkpoint.manifest import Manifest, corrupt, removed
from zmqps.checkpoint.publish import UNFINISHED, Entry, entries, entry_of, job_directory, job_of
from zmqps.checkpoint.reader import Checkpoint
from zmqps.checkpoint.remote import storage_of
from zmqps.checkpoint.storage import Storage, join, naming_the_disk
from zmqps.core.protocol.arrays import Array
from zmqps.errors import CheckpointCorruptError, CheckpointError, CheckpointForeignError, CheckpointNotFoundError

#: A chain is compacted long before; the limit ends a cycle.
MOST_BASES = 100
#: So often those of a job are listed where they are removed faster than they are looked at.
_ATTEMPTS = 10
#: And so often one is read again that was removed meanwhile.
_READS = 5

log = logging.getLogger("zmqps.checkpoint")


def open_checkpoint(path: str, job: str | None = None, *, storage: Storage | None = None) -> Checkpoint:
    """Return a checkpoint, after checking its manifest and the sizes of its files.

    Parameters
    ----------
    path
        A checkpoint, or a directory with checkpoints of jobs; then the latest good one is used.
    job
        Which job, if there are several.
    storage
        By default chosen by the path: this host, or for an address of fsspec, such as ``s3://bucket/run-7``, that
        store.

    Raises
    ------
    CheckpointNotFoundError
        There is no checkpoint.
    CheckpointForeignError, CheckpointFormatError, CheckpointCorruptError
        It was not made by zmqps or never finished, is of a later version, or is damaged.
    CheckpointStorageError
        The disk fails.
    """
    if storage is None:
        storage, path = storage_of(path)
    path = path.rstrip("/") or "/"
    with naming_the_disk(path, "read"):
        if not storage.is_directory(path):
            raise CheckpointNotFoundError(
                path=path, what="there is no such directory", good="", advice="see whether the name is right"
            )
        if is_checkpoint(storage, path):
            return _named(storage, path)
        found = latest(storage, find_job(storage, path, job))
    for error in found.skipped:
        log.warning("a later checkpoint than %s is passed over: %s", found.path, error)
    return found


def is_checkpoint(storage: Storage, path: str) -> bool:
    """Whether a path is that of one checkpoint, good or not."""
    return entry_of(path) is not None or manifests.NAME in storage.names(path)


def find_job(storage: Storage, path: str, job: str | None) -> str:
    """Return the directory of a job's checkpoints: of the named one, or of the only one; it may be the path itself.

    Raises
    ------
    CheckpointNotFoundError
        There is none, or there are several to choose from.
    """
    if entries(storage, path):
        return path
    if job is not None and entries(storage, found := job_directory(path, job)):
        return found
    jobs = [name for name in storage.names(path) if _may_be_of_a_job(storage, join(path, name))]
    if job is None and len(jobs) == 1:
        return join(path, jobs[0])
    names = ", ".join(repr(job_of(name)) for name in jobs[:8])
    if not jobs:
        what, advice = "there is no checkpoint in it", "name the directory that --checkpoint named"
    elif job is None:
        what, advice = f"it has checkpoints of the jobs {names}", "say which"
    else:
        what, advice = f"it has no checkpoint of the job {job!r}, only of {names}", "name one of them"
    raise CheckpointNotFoundError(path=path, what=what, good="", advice=advice)


def _may_be_of_a_job(storage: Storage, path: str) -> bool:
    """Whether there are checkpoints in a directory, as far as this process may see."""
    try:
        return bool(entries(storage, path))
    except PermissionError:  # another user's job
        return False


def latest(storage: Storage, job_path: str, before: Entry | None = None) -> Checkpoint:
    """Return the latest of a job's checkpoints that looks complete."""
    for _ in range(_ATTEMPTS):
        skipped = []
        for entry in reversed(entries(storage, job_path)):
            if before is not None and entry >= before:
                continue
            try:
                checkpoint = look(storage, entry.path)
            except CheckpointError as error:
                if entry not in entries(storage, job_path):
                    break  # it was removed just now, so there are later ones
                skipped.append(error)
            else:
                checkpoint.skipped = tuple(skipped)
                return checkpoint
        else:
            break
    if skipped:
        raise CheckpointNotFoundError(
            path=job_path,
            what=f"none of its {len(skipped)} checkpoints can be used; the latest: {skipped[0].what}",
            good="",
            advice="name a directory with others",
        ) from skipped[0]
    raise CheckpointNotFoundError(
        path=job_path, what="there is no checkpoint in it", good="", advice="name the directory of a job's checkpoints"
    )


def look(storage: Storage, path: str, depth: int = 0, seen: dict[str, Checkpoint] | None = None) -> Checkpoint:
    """Return a checkpoint, after checking its manifest and the sizes of its files.

    ``seen`` are checkpoints that were checked just before, so that a common base is checked once.
    """
    if seen is not None and path in seen:
        return seen[path]
    file = join(path, manifests.NAME)
    with naming_the_disk(file, "read"):
        try:
            nbytes = storage.size(file)
            if nbytes > manifests.MAX_NBYTES:
                raise corrupt(path, f"its manifest has {nbytes:,} bytes")
            data = storage.read(file, 0, manifests.MAX_NBYTES)
        except FileNotFoundError as error:
            unfinished = path.rpartition("/")[2].startswith((UNFINISHED, "ckpt-"))
            raise CheckpointForeignError(
                path=path,
                what="it was never finished" if unfinished else "it is not a checkpoint of zmqps",
                good="",
                advice="use another one",
            ) from error
    manifest = Manifest.from_bytes(path, data)
    base = None if manifest.base is None else _base(storage, path, manifest, depth, seen)
    checkpoint = Checkpoint(storage, path, manifest, base)
    checkpoint.check_files()
    if seen is not None:
        seen[path] = checkpoint
    return checkpoint


def _base(
    storage: Storage, path: str, manifest: Manifest, depth: int, seen: dict[str, Checkpoint] | None
) -> Checkpoint:
    """Return what a checkpoint builds upon, which is in the same directory, and all that the base builds upon."""
    assert manifest.base is not None
    name, digest = manifest.base
    place = join(path.rpartition("/")[0], name)
    if depth >= MOST_BASES:
        raise corrupt(path, f"it builds upon more than {MOST_BASES} others")
    try:
        base = look(storage, place, depth + 1, seen)
    except CheckpointError as error:
        if manifests.NAME not in storage.names(path):
            raise removed(path) from error
        raise corrupt(path, f"it builds upon {place}, which cannot be used: {error.what}") from error
    theirs = base.manifest
    same = theirs.job.tables == manifest.job.tables and theirs.placement.to_wire() == manifest.placement.to_wire()
    if theirs.digest != digest or not same:
        raise corrupt(path, f"{place} is not what it builds upon")
    return base


def good_ones(storage: Storage, job_path: str) -> Iterator[Checkpoint]:
    """Yield a job's checkpoints that look complete, the latest first."""
    seen: dict[str, Checkpoint] = {}
    for entry in reversed(entries(storage, job_path)):
        try:
            yield look(storage, entry.path, seen=seen)
        except CheckpointError:
            continue


def with_advice(storage: Storage, path: str, error: CheckpointError) -> CheckpointError:
    """Return an error about a checkpoint with the newest other one that looks complete, if there is one."""
    job_path, name = path.rstrip("/").rpartition("/")[::2]
    for other in good_ones(storage, job_path):
        if other.path.rpartition("/")[2] != name:
            facts = error.facts() | {
                "good": other.path,
                "advice": f"{other.path} looks whole, of version {other.version}",
            }
            better = type(error)(**facts)  # type: ignore[arg-type]
            better.__cause__ = error.__cause__
            return better
    return error


def _named(storage: Storage, path: str) -> Checkpoint:
    try:
        return look(storage, path)
    except CheckpointError as error:
        raise with_advice(storage, path, error) from error.__cause__


def load(path: str | os.PathLike[str], *, job: str | None = None, optimizer: bool = False) -> dict[str, Array]:
    """Return the values of a checkpoint.

    Parameters
    ----------
    path
        Of a checkpoint, or of a directory with checkpoints, of which the latest good one is read.
    job
        Whose, where the directory has checkpoints of several.
    optimizer
        Also return the optimizer's slots, named ``optimizer.<slot>.<name>``; those of tables stay where they are.

    Returns
    -------
    dict of str to ndarray
        By name, in the job's order, each a new array. Half-precision parameters come in float32, as the servers keep
        them. Of a sparse table there are the ids of its rows as ``<table>.ids``, int64 ``(n,)``, and their values as
        ``<table>.values``, float32 ``(n, dim)``, in no order.

    Raises
    ------
    CheckpointError
        There is no checkpoint, or what was read is not what was written; says which older one looks whole.

    Examples
    --------
    >>> arrays = zmqps.load("/data/run-7")  # doctest: +SKIP
    """
    checks.flag("optimizer", optimizer)
    for attempt in range(_READS):
        checkpoint = open_checkpoint(os.fspath(path), job)
        try:
            return checkpoint.arrays(optimizer=optimizer)
        except CheckpointNotFoundError:  # it was removed meanwhile
            if attempt == _READS - 1 or entry_of(os.fspath(path)) is not None:
                raise
        except CheckpointCorruptError as error:
            raise with_advice(checkpoint.storage, checkpoint.path, error) from error.__cause__
    raise AssertionError("the last attempt returns or raises")
