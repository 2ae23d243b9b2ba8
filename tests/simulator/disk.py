"""A disk in memory that may lose power: what was not synced survives in part, in any order, or not at all."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from random import Random

from zmqps.checkpoint.storage import Bytes


class PowerFailure(BaseException):
    """The disk has lost power at the operation that was chosen; nothing catches it by accident."""


@dataclass(eq=False)
class _File:
    kept: bytes = b""  # what survives for sure
    data: bytearray = field(default_factory=bytearray)
    writes: list[tuple[int, bytes]] = field(default_factory=list)  # since the last sync
    modified_at: float = 0.0


@dataclass(eq=False)
class _Directory:
    kept: dict[str, _File | _Directory] = field(default_factory=dict)
    names: dict[str, _File | _Directory] = field(default_factory=dict)
    #: Since the last sync: what each change took away, and what it put there.
    changes: list[tuple[str | None, tuple[str, _File | _Directory] | None]] = field(default_factory=list)
    modified_at: float = 0.0

    def change(self, old: str | None, new: tuple[str, _File | _Directory] | None) -> None:
        _apply(self.names, old, new)
        self.changes.append((old, new))


class Disk:
    """A `Storage` in memory, for tests.

    Parameters
    ----------
    fails_at
        Which operation that changes something fails, from 0; None: none does.
    error
        With what ``OSError`` number; None: by a `PowerFailure`.
    seed
        What of the operation that fails is still done, and what survives.

    Attributes
    ----------
    num_operations : int
        That would have changed something, so far.
    now : float
        What the clock of the file system says.
    """

    renames = True

    def __init__(self, fails_at: int | None = None, error: int | None = None, seed: int = 0) -> None:
        self.fails_at, self.error = fails_at, error
        self.num_operations = 0
        self.now = 0.0
        self._random = Random(seed)
        self._root = _Directory()

    def after_power_failure(self) -> Disk:
        """Return the disk as it is found after the power has failed now."""
        disk = Disk(seed=self._random.getrandbits(32))
        disk.now = self.now
        disk._root = self._survivor(self._root)
        return disk

    def flip(self, path: str, offset: int) -> None:
        """Change a byte of a file, as a bad disk does."""
        file = self._file(path)
        file.data[offset] ^= 1 << self._random.randrange(8)
        file.kept = bytes(file.data)

    def cut(self, path: str, nbytes: int) -> None:
        """Cut a file short."""
        file = self._file(path)
        del file.data[nbytes:]
        file.kept = bytes(file.data)

    # --- Storage -------------------------------------------------------------------------------

    def make_directory(self, path: str) -> None:
        directory, above = self._root, "/"
        for name in _parts(path):
            inner = directory.names.get(name)
            if inner is None:
                self._operate()
                inner = _Directory(modified_at=self.now)
                directory.change(None, (name, inner))
                self.sync_directory(above)
            if not isinstance(inner, _Directory):
                raise _error(errno.ENOTDIR, path)
            directory, above = inner, f"{above.rstrip('/')}/{name}"

    def create(self, path: str) -> _Open:
        self._operate()
        directory, name = self._place(path)
        if name in directory.names:
            raise _error(errno.EEXIST, path)
        file = _File(modified_at=self.now)
        directory.change(None, (name, file))
        directory.modified_at = self.now
        return _Open(self, file)

    def read(self, path: str, offset: int = 0, nbytes: int | None = None) -> bytes:
        data = self._file(path).data
        return bytes(data[offset : None if nbytes is None else offset + nbytes])

    def size(self, path: str) -> int:
        return len(self._file(path).data)

    def names(self, path: str) -> list[str]:
        found = self._find(path)
        return sorted(found.names) if isinstance(found, _Directory) else []

    def is_directory(self, path: str) -> bool:
        return isinstance(self._find(path), _Directory)

    def modified_at(self, path: str) -> float:
        found = self._find(path)
        if found is None:
            raise _error(errno.ENOENT, path)
        return found.modified_at

    def rename(self, old: str, new: str) -> None:
        self._operate()
        directory, old_name = self._place(old)
        other, new_name = self._place(new)
        assert directory is other, "only within a directory"
        if new_name in directory.names:
            raise _error(errno.EEXIST, new)
        directory.change(old_name, (new_name, directory.names[old_name]))

    def sync_directory(self, path: str) -> None:
        self._operate()
        found = self._find(path)
        if not isinstance(found, _Directory):
            raise _error(errno.ENOENT, path)
        found.kept, found.changes = dict(found.names), []

    def remove(self, path: str) -> None:
        self._operate()
        directory, name = self._place(path)
        found = directory.names.get(name)
        if isinstance(found, _Directory) and found.names:
            raise _error(errno.ENOTEMPTY, path)
        if found is not None:
            directory.change(name, None)

    # --- inside --------------------------------------------------------------------------------

    def _operate(self, file: _File | None = None, data: bytes = b"", offset: int = 0) -> None:
        """Count an operation, and fail if it is its turn; of a write that fails a part may be done."""
        number, self.num_operations = self.num_operations, self.num_operations + 1
        if number != self.fails_at:
            return
        if file is not None:
            self._write(file, data[: self._random.randint(0, len(data))], offset)
        if self.error is None:
            raise PowerFailure
        raise _error(self.error, "the disk")

    def _write(self, file: _File, data: bytes, offset: int) -> None:
        _put(file.data, data, offset)
        file.writes.append((offset, data))
        file.modified_at = self.now

    def _survivor(self, directory: _Directory) -> _Directory:
        """Return a directory as it is found again: of what was not synced any part may have been done."""
        names = dict(directory.kept)
        for old, new in directory.changes:
            if self._random.random() < 0.5:
                _apply(names, old, new)
        found = _Directory(modified_at=directory.modified_at)
        for name, inner in names.items():
            found.names[name] = self._survivor(inner) if isinstance(inner, _Directory) else self._surviving(inner)
        found.kept = dict(found.names)
        return found

    def _surviving(self, file: _File) -> _File:
        data = bytearray(file.kept)
        for offset, written in self._random.sample(file.writes, len(file.writes)):
            fate = self._random.randrange(3)
            if fate:  # lost, torn or whole
                _put(data, written if fate == 2 else written[: self._random.randint(0, len(written))], offset)
        return _File(kept=bytes(data), data=data, modified_at=file.modified_at)

    def _find(self, path: str) -> _File | _Directory | None:
        found: _File | _Directory | None = self._root
        for name in _parts(path):
            found = found.names.get(name) if isinstance(found, _Directory) else None
        return found

    def _file(self, path: str) -> _File:
        found = self._find(path)
        if not isinstance(found, _File):
            raise _error(errno.ENOENT, path)
        return found

    def _place(self, path: str) -> tuple[_Directory, str]:
        above, _, name = path.rstrip("/").rpartition("/")
        directory = self._find(above)
        if not isinstance(directory, _Directory):
            raise _error(errno.ENOENT, path)
        return directory, name


class _Open:
    """A file that is being written."""

    def __init__(self, disk: Disk, file: _File) -> None:
        self._disk, self._file = disk, file

    def write_at(self, data: Bytes, offset: int) -> None:
        self._disk._operate(self._file, bytes(data), offset)
        self._disk._write(self._file, bytes(data), offset)

    def sync(self) -> None:
        self._disk._operate()
        self._file.kept, self._file.writes = bytes(self._file.data), []

    def close(self) -> None:
        pass


def _apply(names: dict[str, _File | _Directory], old: str | None, new: tuple[str, _File | _Directory] | None) -> None:
    if old is not None:
        names.pop(old, None)
    if new is not None:
        names[new[0]] = new[1]


def _put(data: bytearray, written: bytes, offset: int) -> None:
    data.extend(bytes(max(0, offset - len(data))))
    data[offset : offset + len(written)] = written


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
