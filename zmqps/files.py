"""Files that others may have made or may read: only plain files are opened, and reads are bounded.

A user with write access to a directory can put anything under any name. Opening a FIFO blocks, a device has bytes
without an end, a link leads to either, and a sparse file of a few blocks may have any length. So each
file is checked before it is opened, opened without waiting, checked again, and read up to a bound.

What is made here is for its user alone, and for the group of a directory that is shared with one (`shared_with`).
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from io import FileIO

from zmqps.errors import UnsafeFileError, num_bytes

#: Opens a path with flags of `os.open`; `zmqps.folder.open_own` is one.
Opener = Callable[[str, int], int]
#: Of files that people write: hosts, options, secrets.
TEXT_NBYTES = 1 << 20
#: Of those that the kernel makes up, below /proc and /sys; it says that they have no bytes.
KERNEL_NBYTES = 1 << 16

_KINDS = (
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISLNK, "a link"),
)
_PART_NBYTES = 16 << 20
#: Names of descriptors that this process inherited, usually from a shell's ``<(…)``: no other user can put files there.
_GIVEN = re.compile(r"/dev/(?:stdin|fd/\d{1,9})")


def check_plain(facts: os.stat_result, path: str | os.PathLike[str]) -> None:
    """Raise unless these are the facts of a plain file.

    Raises
    ------
    UnsafeFileError
        It is a FIFO, a device or the like.
    IsADirectoryError
        It is a directory.
    """
    if stat.S_ISDIR(facts.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(facts.st_mode):
        kind = next((name for is_one, name in _KINDS if is_one(facts.st_mode)), "something else")
        raise UnsafeFileError(
            path=os.fspath(path), why=f"it is {kind}, no plain file", advice="remove it, or name another one"
        )


def open_plain(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a plain file that there is, and return its descriptor; a link to one will do.

    Raises
    ------
    UnsafeFileError
        It is a FIFO, a device or the like; it was not waited for.
    OSError
        It is not there, or cannot be opened.
    """
    check_plain(os.stat(path), path)  # to open some devices does something
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        check_plain(os.fstat(fd), path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_given(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open what a user names, and return its descriptor; an `Opener`.

    ``/dev/stdin`` and ``/dev/fd/N`` may be anything, and are waited for; all else is as for `open_plain`.
    """
    if _GIVEN.fullmatch(os.fspath(path)):
        return os.open(path, flags | os.O_CLOEXEC)
    return open_plain(path, flags)


def open_file(path: str | os.PathLike[str], opener: Opener | None = None) -> FileIO:
    """Return a plain file to read, without a buffer; see `open_plain`."""
    return open(open_plain(path) if opener is None else opener(os.fspath(path), os.O_RDONLY), "rb", buffering=0)


def read_file(path: str | os.PathLike[str], most: int, opener: Opener | None = None) -> bytes:
    """Return what is in a plain file.

    Parameters
    ----------
    path
        It, or a link to it.
    most
        Bytes. One that has more is not what was expected, and is refused.
    opener
        What opens it; by default `open_plain`.

    Raises
    ------
    UnsafeFileError
        It is a FIFO, a device or the like, or has more bytes.
    OSError
        It is not there, or cannot be read.
    """
    with open_file(path, opener) as file:
        data = bytearray()
        too_much = os.fstat(file.fileno()).st_size > most
        while not too_much and (part := file.read(min(_PART_NBYTES, most + 1 - len(data)))):
            data += part
            too_much = len(data) > most
    if too_much:
        why = f"it has more than {num_bytes(most)}, and no such file is as long"
        raise UnsafeFileError(path=os.fspath(path), why=why, advice="see what it is, and name another one")
    return bytes(data)


def read_kernel(path: str | os.PathLike[str]) -> str:
    """Return what the kernel says in a file below /proc or /sys."""
    return read_file(path, KERNEL_NBYTES).decode(errors="replace")


# --- new ones -----------------------------------------------------------------------------------


def shared_with(directory: str | os.PathLike[str]) -> int:
    """Return the bits of a mode that the group of a directory has in it: none, unless its setgid bit is set.

    New files in such a directory belong to its group, so setting the bit shares what is in it.
    """
    facts = os.stat(directory or ".")
    return facts.st_mode & stat.S_IRWXG if facts.st_mode & stat.S_ISGID else 0


def create(path: str | os.PathLike[str], flags: int = os.O_WRONLY) -> int:
    """Make a file that is not there yet, for this user alone, and return its descriptor.

    Raises
    ------
    FileExistsError
        Something of that name is there, maybe a link.
    """
    mode = 0o600 | (shared_with(os.path.dirname(path)) & 0o060)
    return os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)


def open_to_append(path: str | os.PathLike[str]) -> int:
    """Open a plain file to read it and to add to it, and return its descriptor; it is made if it is not there."""
    with suppress(FileExistsError):
        return create(path, os.O_RDWR | os.O_APPEND)
    return open_plain(path, os.O_RDWR | os.O_APPEND)


def open_to_replace(path: str | os.PathLike[str], flags: int = os.O_WRONLY) -> int:
    """Open a plain file that loses what was in it, or is made, and return its descriptor; an `Opener`."""
    with suppress(FileExistsError):
        return create(path)
    fd = open_plain(path, os.O_WRONLY)
    os.ftruncate(fd, 0)
    return fd


def make_directory(path: str | os.PathLike[str]) -> list[str]:
    """Make a directory, and those above it, for this user alone; return those that were not there, the outermost first.

    One that is there keeps its mode.
    """
    missing, place = [], os.fspath(path)
    while place and not os.path.isdir(place):
        missing.append(place)
        place = os.path.dirname(place)
    missing.reverse()
    for directory in missing:
        with suppress(FileExistsError):  # another process makes it, or it is something else, as its use will show
            os.mkdir(directory, 0o700 | shared_with(os.path.dirname(directory)))
    return missing
