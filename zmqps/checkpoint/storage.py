"""Where checkpoints are kept: the few things that are asked of a file system, and the local one.

Paths are texts with ``/`` between their parts. What fails raises `OSError`; `naming_the_disk` turns it into an error
that says what to do.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from zmqps.errors import CheckpointStorageError, ConfigurationError, UnsafeFileError, printable
from zmqps.files import check_plain, create, make_directory, open_file

Bytes = bytes | bytearray | memoryview

#: More is not read at a time: a manifest has at most half as much, a chunk far less.
MAX_READ_NBYTES = 1 << 30
#: Of what a file system says of an error; others than ours say a page.
MAX_WHY_CHARS = 200
#: Fewer bytes are not worth a call that tells the disk to begin.
BEGIN_NBYTES = 1 << 20


class File(Protocol):
    """A new file that is being written."""

    def write_at(self, data: Bytes, offset: int) -> None:
        """Write all bytes of ``data`` at an offset."""

    def sync(self) -> None:
        """Wait until everything written will survive a crash."""

    def close(self) -> None:
        """Let go of the file; may be called again."""


class Storage(Protocol):
    """A file system, or what can be used like one."""

    #: Whether `rename` publishes a directory as a whole. Where it does not, a manifest written last does.
    renames: bool

    def make_directory(self, path: str) -> None:
        """Make a directory, and those above it, unless they are there."""

    def create(self, path: str) -> File:
        """Return a new, empty file, or raise `FileExistsError`."""

    def read(self, path: str, offset: int = 0, nbytes: int | None = None) -> bytes:
        """Return bytes of a file, fewer where it ends before."""

    def size(self, path: str) -> int:
        """Return the length of a file, or raise `FileNotFoundError`."""

    def names(self, path: str) -> list[str]:
        """Return the names in a directory; none if there is no such directory."""

    def is_directory(self, path: str) -> bool:
        """Whether there is a directory of that name."""

    def modified_at(self, path: str) -> float:
        """Return when a file or directory was last changed, in seconds since 1970."""

    def rename(self, old: str, new: str) -> None:
        """Rename a directory, or raise `FileExistsError` if there is one of the new name."""

    def sync_directory(self, path: str) -> None:
        """Wait until the names in a directory will survive a crash."""

    def remove(self, path: str) -> None:
        """Remove a file or an empty directory, or nothing if it is not there."""


def join(directory: str, name: str) -> str:
    """Return the path of a name in a directory."""
    return f"{directory.rstrip('/')}/{name}"


def remove_tree(storage: Storage, path: str, first: str = "") -> None:
    """Remove a directory with what is in it, the file named ``first`` before all others and for good."""
    names = storage.names(path)
    if first in names:
        storage.remove(f"{path}/{first}")
        storage.sync_directory(path)
    for name in names:
        inner = f"{path}/{name}"
        if storage.is_directory(inner):
            remove_tree(storage, inner)
        elif name != first:
            storage.remove(inner)
    storage.remove(path)


class LocalFile:
    """A file of this host, or of a file system mounted here."""

    _fd: int | None = None  # also of one that could not be opened

    def __init__(self, path: str) -> None:
        self._fd = create(path)

    def write_at(self, data: Bytes, offset: int) -> None:
        assert self._fd is not None, "the file is closed"
        rest, end = memoryview(data).cast("B"), offset
        while rest:
            written = os.pwrite(self._fd, rest, end)
            rest, end = rest[written:], end + written
        if end - offset >= BEGIN_NBYTES and hasattr(os, "posix_fadvise"):
            # the disk begins now, not when all is written: `sync` has less to wait for, and less memory waits
            with suppress(OSError):
                os.posix_fadvise(self._fd, offset, end - offset, os.POSIX_FADV_DONTNEED)

    def sync(self) -> None:
        assert self._fd is not None, "the file is closed"
        os.fsync(self._fd)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()


class LocalStorage:
    """Directories of this host, or mounted here."""

    renames = True

    def make_directory(self, path: str) -> None:
        for directory in make_directory(path):
            self.sync_directory(os.path.dirname(directory) or ".")

    def create(self, path: str) -> LocalFile:
        return LocalFile(path)

    def read(self, path: str, offset: int = 0, nbytes: int | None = None) -> bytes:
        with _as_os_error(), open_file(path) as file:
            length = os.fstat(file.fileno()).st_size - offset
            nbytes = max(0, length if nbytes is None else min(nbytes, length))
            if nbytes > MAX_READ_NBYTES:  # a sparse file may have any length
                raise OSError(errno.EFBIG, f"{nbytes:,} bytes are more than is read at a time", path)
            file.seek(offset)
            parts = []
            while nbytes > 0 and (part := file.read(nbytes)):
                parts.append(part)
                nbytes -= len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self, path: str) -> int:
        facts = os.stat(path)
        with _as_os_error():
            check_plain(facts, path)
        return facts.st_size

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # the last: a link that leads to itself
                raise
            return []

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(path) and not os.path.islink(path)

    def modified_at(self, path: str) -> float:
        return os.lstat(path).st_mtime

    def rename(self, old: str, new: str) -> None:
        if os.path.lexists(new):  # an empty directory would be replaced
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        try:
            os.rename(old, new)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new) from error
            raise

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have no such thing
                raise
        finally:
            os.close(fd)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            if os.path.isdir(path) and not os.path.islink(path):
                os.rmdir(path)
            else:
                os.unlink(path)


@contextmanager
def _as_os_error() -> Iterator[None]:
    """Turn an `UnsafeFileError` into an `OSError`, which is what a storage raises."""
    try:
        yield
    except UnsafeFileError as error:
        raise OSError(errno.EINVAL, error.why, error.path) from error


@contextmanager
def naming_the_disk(path: str, doing: str = "write") -> Iterator[None]:
    """Turn an `OSError`, or too deep a tree, into a `CheckpointStorageError` that says what to do."""
    try:
        yield
    except CheckpointStorageError:
        raise
    except RecursionError as error:  # directories in directories, of others
        raise CheckpointStorageError(
            **_facts(path, doing, OSError(errno.ELOOP, "its directories go too deep"))
        ) from error
    except OSError as error:
        raise CheckpointStorageError(**_facts(path, doing, error)) from error


def _facts(path: str, doing: str, error: OSError) -> dict[str, Any]:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = "the disk is full" if error.errno == errno.ENOSPC else "the quota is used up"
        advice = "free some space, keep fewer checkpoints (--checkpoint-keep), or name another directory"
    elif error.errno == errno.EROFS:
        what, advice = "the file system is read-only", "mount it for writing, or name another directory"
    elif error.errno in (errno.EACCES, errno.EPERM):
        what, advice = f"this process may not {doing} there", "change the owner or the mode, or name another directory"
    else:
        what = f"cannot {doing} there: {printable(error.strerror or str(error))[:MAX_WHY_CHARS]}"
        advice = "see whether the disk is in order and mounted, or name another directory"
    return {"path": path, "what": what, "good": "", "advice": advice}


def check_replaceable(path: str, replace: bool) -> None:
    """Raise `ConfigurationError` where there is such a file already, and it is not to be replaced."""
    if os.path.lexists(path) and not replace:
        raise ConfigurationError(f"{path} is there already; name another file, or remove it")


@contextmanager
def whole(path: str) -> Iterator[str]:
    """Give the path of a file to write, which takes its place at ``path`` when all went well, and else is removed."""
    unfinished, storage = f"{path}.{os.getpid()}.tmp", LocalStorage()
    try:
        with naming_the_disk(path):
            yield unfinished
            os.replace(unfinished, path)
            storage.sync_directory(os.path.dirname(path) or ".")
    finally:
        with suppress(OSError):
            storage.remove(unfinished)
