"""What a coordinator's journal should hold: a number and a checksum of its last transaction, in a separate file.

SQLite takes the first frame of its log that is not what was written for the end of the log, and a log that is missing
for one that was empty. So the state of a journal is also written next to it, after each transaction and before that
is acknowledged. A process that is killed between the two leaves a journal that is one transaction ahead. A host that
loses its power may lose what was not forced to the disk: after another start of the host a journal may be behind its
mark, but not behind what was forced.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from dataclasses import dataclass

from zmqps.folder import Folder
from zmqps.net.system.host import boot

#: The file, and its name while it is written.
MARK, NEW_MARK = "coordinator.mark", "coordinator.mark.new"
#: Two places that are written in turn, in separate pages: a write that power cuts short spoils one of them.
SLOTS = (0, 4096)
_SLOT = struct.Struct("<8s16s16sqq16s")  # magic, cluster, boot, number, lasting, checksum of the journal
_MAGIC = b"zmqps-m1"
_CHECK_NBYTES = 8
_NBYTES = SLOTS[-1] + _SLOT.size + _CHECK_NBYTES
#: The number of a mark that says that there is no journal.
_NOTHING = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What a journal has come to.

    ``number`` counts the transactions; ``lasting`` is that of the last one that was forced to the disk. ``digest`` is
    the checksum of the journal; ``boot`` says under which start of the host this was written.
    """

    cluster: bytes
    number: int
    digest: bytes
    lasting: int
    boot: bytes

    @property
    def is_none(self) -> bool:
        """Whether it says that there is no journal, and the files are the rest of one."""
        return self.number == _NOTHING


NONE = Position(cluster=bytes(16), number=_NOTHING, digest=bytes(16), lasting=_NOTHING, boot=bytes(16))


class Contents:
    """What is in a journal, for its checksum: that of all records, in whatever order they are read.

    Parameters
    ----------
    cluster
        Drawn once in the life of a journal.

    Attributes
    ----------
    number : int
        Of the last transaction.
    digest : bytes
        The checksum of everything as of then.
    """

    def __init__(self, cluster: bytes) -> None:
        self.cluster = cluster
        self.number = 0
        self.digest = b""
        self._total = 0
        self._sums: dict[str, int] = {}

    def put(self, key: str, value: bytes | None) -> None:
        """A record takes the place of the one before; None: there is none any more."""
        self._total -= self._sums.pop(key, 0)
        if value is not None:
            self._sums[key] = found = int.from_bytes(_sum(b"%d %s %s" % (len(key), key.encode(), value)), "little")
            self._total += found
        self._total &= (1 << 128) - 1

    def seal(self, number: int) -> None:
        """All records of a transaction are put."""
        self.number = number
        self.digest = _sum(self.cluster + b"%d %d" % (number, self._total))


class Mark:
    """The file next to a journal with the journal's state.

    Parameters
    ----------
    folder
        Where both are.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._fd = -1
        self._boot = _sum(boot().encode())
        self._lasting = 0

    def read(self) -> Position | None:
        """Return what was written last; None: there is no such file.

        Raises
        ------
        ValueError
            It is damaged.
        """
        try:
            fd = self._folder.open(MARK, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            data = os.pread(fd, _NBYTES, 0)
        finally:
            os.close(fd)
        found = [position for at in SLOTS if (position := _unpack(data[at:])) is not None]
        if not found:
            raise ValueError(f"{MARK} is not what was written")
        return max(found, key=lambda position: position.number)

    def judge(self, position: Position, contents: Contents, digest: bytes) -> int:
        """Return how many transactions a journal lacks that its host has lost with its power.

        ``contents`` is what was found, ``digest`` its checksum as its last transaction says.

        Raises
        ------
        ValueError
            It is not what was written, lacks transactions that it cannot have lost so, or is of another cluster.
        """
        ahead = contents.number - position.number
        if contents.digest != digest or (not ahead and digest != position.digest):
            raise ValueError("its checksum is not what was written")
        if contents.cluster != position.cluster:
            raise ValueError(f"{MARK} is of another one")
        if position.boot == self._boot and ahead not in (0, 1):
            raise ValueError(f"it ends with transaction {contents.number}, and {MARK} says {position.number}")
        if contents.number < position.lasting:
            raise ValueError(f"it ends with transaction {contents.number}, and {position.lasting} was on the disk")
        return max(0, -ahead)

    def begin(self, contents: Contents | None) -> None:
        """Write it as a whole, to the disk, as of now; None: there is no journal."""
        self.close()
        position = NONE
        if contents is not None:
            position = self._position(contents, contents.number)
        slot = _pack(position)
        with self._folder.begin(NEW_MARK) as file:
            file.write(slot.ljust(SLOTS[1], b"\0") + slot)
            os.fsync(file.fileno())
        self._folder.rename(NEW_MARK, MARK)
        os.fsync(self._folder.fd)
        self._lasting = position.number
        self._fd = self._folder.open(MARK, os.O_WRONLY)

    def set(self, contents: Contents, *, lasting: bool) -> None:
        """Write what the journal has come to; ``lasting``: to the disk, where the journal is already."""
        if lasting:
            self._lasting = contents.number
        os.pwrite(self._fd, _pack(self._position(contents, self._lasting)), SLOTS[contents.number % 2])
        if lasting:
            os.fdatasync(self._fd)

    def _position(self, contents: Contents, lasting: int) -> Position:
        return Position(
            cluster=contents.cluster, number=contents.number, digest=contents.digest, lasting=lasting, boot=self._boot
        )

    def retire(self) -> None:
        """Say that there is no journal any more, as far as the disk can be written."""
        with contextlib.suppress(OSError):
            self.begin(None)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _pack(position: Position) -> bytes:
    body = _SLOT.pack(
        _MAGIC, position.cluster, position.boot, position.number, position.lasting, position.digest
    )  # fmt: skip
    return body + _sum(body)[:_CHECK_NBYTES]


def _unpack(data: bytes) -> Position | None:
    body, check = data[: _SLOT.size], data[_SLOT.size : _SLOT.size + _CHECK_NBYTES]
    if len(body) < _SLOT.size or _sum(body)[:_CHECK_NBYTES] != check:
        return None
    magic, cluster, began, number, lasting, digest = _SLOT.unpack(body)
    if magic != _MAGIC:
        return None
    return Position(cluster=cluster, number=number, digest=digest, lasting=lasting, boot=began)


def _sum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
