"""Whose a checkpoint is, and which cluster a directory of checkpoints belongs to: one at a time.

Where the file system has locks, a cluster holds that of its directory for as long as it lives, and another one is
refused when it starts. So whatever was there when it began is of clusters that have ended, and becomes its own.

Object stores and some network file systems have no lock that all hosts see. There two clusters may write into one
directory. Each removes what is its own only: what it has made, and what was there when it began and is of the run that
it was restored from, or of a cluster that has published nothing for a day.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from zmqps.checkpoint.manifest import Owner
from zmqps.checkpoint.publish import entries, entry_of, job_directory
from zmqps.checkpoint.storage import LocalStorage, Storage, join, naming_the_disk
from zmqps.errors import CheckpointNotFoundError, CheckpointStorageError, listed

if TYPE_CHECKING:
    from zmqps.checkpoint.reader import Checkpoint

#: The file whose lock a cluster holds; no job's directory has this name.
LOCK = ".lock"
#: Where no lock tells, a cluster that has published nothing for so long is taken to have ended.
ENDED_AFTER_S = 86400.0
MAX_NOTE_NBYTES = 4096
MOST_NAMED = 4
_ATTEMPTS = 10

log = logging.getLogger("zmqps.coordinator")


class Claim:
    """One cluster's claim to a directory of checkpoints; a context manager, inside of which it holds the lock.

    Parameters
    ----------
    storage, directory
        Where the checkpoints of all jobs are.
    owner
        The cluster.
    runs
        Job -> the run that continues, of those that begin from a checkpoint.

    Raises
    ------
    CheckpointStorageError
        On entering: a cluster that is alive holds the lock. That the directory cannot be used otherwise is only logged:
        what is saved there says so, and training continues.
    """

    def __init__(self, storage: Storage, directory: str, owner: Owner, runs: Mapping[str, str]) -> None:
        self._storage, self._directory = storage, directory
        self._owner, self._runs = owner, dict(runs)
        self._lock = -1
        self._alone = False  # whether all others that have written here have ended
        self._there: dict[str, int] = {}  # path of a job -> its highest number when this cluster began
        self._named: set[str] = set()  # other clusters that the log has named

    def __enter__(self) -> Self:
        try:
            self._storage.make_directory(self._directory)
            self._lock = _locked(self._storage, self._directory)
            self._alone = self._lock >= 0 and self._is_let_go()
            for name in self._storage.names(self._directory):
                path = join(self._directory, name)
                if found := entries(self._storage, path):
                    self._there[path] = found[-1].number
        except CheckpointStorageError:
            raise
        except Exception as error:  # object stores raise what they like
            log.warning("the directory of checkpoints %s cannot be used: %s", self._directory, error)
        return self

    def __exit__(self, *_: object) -> None:
        _let_go(self._directory, self._lock)
        self._lock = -1

    def _is_let_go(self) -> bool:
        """Write the holder into the lock's file; return whether the one before has ended for sure.

        A lock on a network file system may be known to its own host only.
        """
        before = _noted(self._lock)
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, json.dumps(self._owner.to_plain()).encode(), 0)
        if isinstance(before, Owner) and self._owner.host != before.host and self._owner.cluster != before.cluster:
            log.warning(
                "%s was the last to write checkpoints to %s, and has not ended in order: if it is alive, "
                "give one of them another --checkpoint",
                before, self._directory,
            )  # fmt: skip
            return False
        return True

    def owner_of(self, job: str) -> Owner:
        """Return what the manifests of a job's checkpoints say."""
        return replace(self._owner, run=self._runs.get(job, self._owner.cluster))

    def owned(self, job: str, good: Iterable[Checkpoint], now: float) -> set[str]:
        """Return the paths of those of a job's checkpoints that this cluster may remove; name others in the log.

        Parameters
        ----------
        job
            Whose.
        good
            Its checkpoints.
        now
            Seconds since 1970.
        """
        good, ours = list(good), self.owner_of(job)
        there = self._there.get(job_directory(self._directory, job), 0)
        newest: dict[str, float] = {}
        for one in good:
            if (by := one.manifest.owner) is not None:
                newest[by.cluster] = max(one.manifest.created_at, newest.get(by.cluster, 0.0))
        found = set()
        for one in good:
            by, entry = one.manifest.owner, entry_of(one.path)
            assert entry is not None, "they were listed by their names"
            since = entry.number > there
            if by is not None and by.cluster == ours.cluster:
                found.add(one.path)
            elif since:
                self._name(job, one.path, by)
            elif self._alone or by is None or by.run == ours.run or now - newest[by.cluster] > ENDED_AFTER_S:
                found.add(one.path)
        return found

    def _name(self, job: str, path: str, by: Owner | None) -> None:
        if by is not None and by.cluster not in self._named:
            self._named.add(by.cluster)
            log.warning(
                "job %r: %s publishes into the same directory: %s; --restore would take the latest of either, so give "
                "one of them another --checkpoint",
                job, by, path, extra={"job": job},
            )  # fmt: skip


def check_is_of_one(good: Iterable[Checkpoint]) -> None:
    """See that clusters have not written to a directory in turns: its latest checkpoint may be of either.

    Parameters
    ----------
    good
        The checkpoints of a job, the latest first.

    Raises
    ------
    CheckpointNotFoundError
        They have; names the latest of each.
    """
    latest: dict[str, Checkpoint] = {}
    before = ""
    for one in good:
        if (by := one.manifest.owner) is None or by.cluster == before:
            continue
        if by.cluster in latest:
            found = [f"{each.path} of {each.manifest.owner}" for each in latest.values()]
            raise CheckpointNotFoundError(
                path=one.path.rpartition("/")[0],
                what="several clusters have written to it in turns, and the latest may be of any",
                good="",
                advice=f"name the checkpoint to begin from: {listed(found, MOST_NAMED)}",
            )
        latest[by.cluster], before = one, by.cluster


@contextmanager
def held(storage: Storage, directory: str) -> Iterator[None]:
    """Hold the lock of a directory, where there is one, for a command that publishes.

    Raises
    ------
    CheckpointStorageError
        A cluster that is alive holds it, or the directory cannot be made.
    """
    with naming_the_disk(directory):
        storage.make_directory(directory)
    lock = _locked(storage, directory)
    try:
        yield
    finally:
        _let_go(directory, lock)


def _locked(storage: Storage, directory: str) -> int:
    """Return the lock of a directory, which ends with this process; -1 where there is none.

    Raises
    ------
    CheckpointStorageError
        A cluster that is alive holds it.
    """
    if not isinstance(storage, LocalStorage):
        return -1
    path, lock = join(directory, LOCK), -1
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe would be waited for
    try:
        for _ in range(_ATTEMPTS):
            lock = os.open(path, flags, 0o600)  # those that may open it may lock it
            facts = os.fstat(lock)
            if not stat.S_ISREG(facts.st_mode):
                raise FileExistsError(f"{path} is not a regular file")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(facts, os.lstat(path)):
                    return lock
            os.close(lock)  # it was let go, and removed, just now
            lock = -1
        raise FileNotFoundError(f"{path} is removed again and again")
    except BlockingIOError:
        by = _noted(lock)
        os.close(lock)
        raise CheckpointStorageError(
            path=directory,
            what=f"{by or 'another cluster'} saves its jobs there, and is alive",
            good="",
            advice="name another directory (--checkpoint), or end that cluster first",
        ) from None
    except OSError as error:
        if lock >= 0:
            os.close(lock)
        log.warning("there is no lock in %s (%s): see that no other cluster saves its jobs there", directory, error)
        return -1


def _let_go(directory: str, lock: int) -> None:
    """Give a lock back, and remove its file: one that is still there is of a cluster that was killed."""
    if lock >= 0:
        with suppress(OSError):
            os.unlink(join(directory, LOCK))
        os.close(lock)


def _noted(lock: int) -> Owner | None:
    """Return the holder of a lock, or the one that did not release it."""
    with suppress(OSError, ValueError, RecursionError):
        return Owner.from_plain(json.loads(os.pread(lock, MAX_NOTE_NBYTES, 0)))
    return None
