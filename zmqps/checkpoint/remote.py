"""Object stores and other file systems that fsspec knows: ``s3://bucket/run-7``, ``gs://…``, ``memory://…``.

They cannot rename a directory as a whole, so a checkpoint is written where it will stay, its manifest last: without
one, no reader takes it for a checkpoint.
"""

from __future__ import annotations

import math
import tempfile
from contextlib import suppress
from typing import IO, Any

from zmqps.checkpoint.storage import Bytes, LocalStorage, Storage
from zmqps.errors import ConfigurationError
from zmqps.extras import advice

PART_NBYTES = 16 << 20


def storage_of(path: str) -> tuple[Storage, str]:
    """Return the storage that an address or path is of, and the path in it.

    Raises
    ------
    ConfigurationError
        fsspec is not installed, or knows no such file system.
    """
    path = path.removeprefix("file://")  # fsspec would open whatever it is
    if "://" not in path:
        return LocalStorage(), path
    try:
        import fsspec
    except ImportError as error:
        raise ConfigurationError(f"{path} is not a directory; for addresses: {advice('fsspec')}") from error
    try:
        system, inner = fsspec.core.url_to_fs(path)
    except (ValueError, ImportError) as error:
        raise ConfigurationError(f"{path} cannot be used: {error}") from error
    return FsspecStorage(system), str(inner)


class FsspecStorage:
    """A file system of fsspec.

    Parameters
    ----------
    system
        An ``fsspec.AbstractFileSystem``.
    """

    renames = False

    def __init__(self, system: Any) -> None:
        self._system = system

    def make_directory(self, path: str) -> None:
        self._system.makedirs(path, exist_ok=True)

    def create(self, path: str) -> _Upload:
        if self._system.exists(path):
            raise FileExistsError(f"{path} is there already")
        return _Upload(self._system, path)

    def read(self, path: str, offset: int = 0, nbytes: int | None = None) -> bytes:
        if nbytes == 0:
            return b""
        return bytes(self._system.cat_file(path, offset, None if nbytes is None else offset + nbytes))

    def size(self, path: str) -> int:
        return int(self._system.size(path))

    def names(self, path: str) -> list[str]:
        self._system.invalidate_cache()
        try:
            found = self._system.ls(path, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        names = {str(name).rstrip("/").rpartition("/")[2] for name in found}
        return sorted(names - {"", path.rstrip("/").rpartition("/")[2]})  # some stores list the directory itself

    def is_directory(self, path: str) -> bool:
        return bool(self._system.isdir(path))

    def modified_at(self, path: str) -> float:
        if self._system.isdir(path):
            return 0.0  # in object stores directories are but a part of names
        try:
            return float(self._system.modified(path).timestamp())
        except (NotImplementedError, KeyError, AttributeError):
            return math.inf  # not every store knows: what is of others stays

    def rename(self, old: str, new: str) -> None:
        raise NotImplementedError("object stores rename nothing as a whole")

    def sync_directory(self, path: str) -> None:
        pass

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            if self._system.isdir(path):
                self._system.rmdir(path)
            else:
                self._system.rm_file(path)


class _Upload:
    """A file that is gathered on the local disk, for object stores take it from its beginning to its end."""

    def __init__(self, system: Any, path: str) -> None:
        self._system, self._path = system, path
        self._spool: IO[bytes] = tempfile.TemporaryFile()

    def write_at(self, data: Bytes, offset: int) -> None:
        self._spool.seek(offset)
        self._spool.write(data)

    def sync(self) -> None:
        self._spool.seek(0)
        with self._system.open(self._path, "wb") as target:
            while part := self._spool.read(PART_NBYTES):
                target.write(part)

    def close(self) -> None:
        self._spool.close()
