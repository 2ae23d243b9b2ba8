"""Files of logs, read from their beginning and as they grow, through rotations."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import select
import stat
from collections.abc import Iterator
from typing import BinaryIO

from zmqps.folder import Folder
from zmqps.logs.lines import Lines

SUFFIX = ".log"
CHUNK_NBYTES = 64 << 10
#: Where nothing tells of what is written, as on a network's file system, files are looked at so often.
LOOK_S = 0.5

_GENERATION = re.compile(r"\.log(?:\.([1-9]\d?))?\Z")
#: From sys/inotify.h: written to, made, moved here.
_IN_MODIFY, _IN_CREATE, _IN_MOVED_TO, _IN_NONBLOCK_CLOEXEC = 0x2, 0x100, 0x80, os.O_NONBLOCK | os.O_CLOEXEC


def logs_in(folder: Folder) -> list[str]:
    """Return the names of the logs, sorted, without what they end in."""
    return sorted(file.removesuffix(SUFFIX) for file in os.listdir(folder.fd) if file.endswith(SUFFIX))


def is_log(file: str) -> bool:
    """Return whether a file in a folder of logs is one, or an older part of one."""
    return _GENERATION.search(file) is not None


def generations(folder: Folder, name: str) -> list[str]:
    """Return the files of a log, the oldest first: ``NAME.log.2``, ``NAME.log.1``, ``NAME.log``."""
    found = {}
    for file in os.listdir(folder.fd):
        if file.startswith(name) and (match := _GENERATION.match(file, len(name))):
            found[int(match[1] or 0)] = file
    return [found[number] for number in sorted(found, reverse=True)]


class FollowedLog:
    """One log, of which each line is read once.

    Parameters
    ----------
    folder
        Where its files are.
    name
        Its name.
    since
        Older files that were written last before this time are left out, in seconds since the epoch.
    """

    def __init__(self, folder: Folder, name: str, since: float | None = None) -> None:
        self.name = name
        self._folder = folder
        self._since = since
        self._file: BinaryIO | None = None
        self._lines = Lines()

    def lines(self, *, to_the_end: bool = False) -> Iterator[str]:
        """Yield what was written since the last call; ``to_the_end``: also a last line that has no end.

        Raises
        ------
        UnsafeFileError
            There is something else in a file's place.
        """
        while self._file is not None or self._open(self._oldest()):
            yield from self._rest()
            if not self._is_over():
                break
            yield from self._rest()  # written between the two looks
            yield from self._lines.take(b"")
            following = self._following()
            self.close()
            if not self._open(following):
                break
        if to_the_end:
            yield from self._lines.take(b"")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _oldest(self) -> str | None:
        for file in generations(self._folder, self.name):
            if file.endswith(SUFFIX) or self._since is None:
                return file
            with contextlib.suppress(FileNotFoundError):
                if os.stat(file, dir_fd=self._folder.fd, follow_symlinks=False).st_mtime >= self._since:
                    return file
        return None

    def _open(self, file: str | None) -> bool:
        if file is None:
            return False
        try:
            self._file = open(self._folder.open(file, os.O_RDONLY), "rb", buffering=0)
        except FileNotFoundError:
            return False
        return True

    def _rest(self) -> Iterator[str]:
        assert self._file is not None
        if os.fstat(self._file.fileno()).st_size < self._file.tell():  # emptied
            self._file.seek(0)
        while data := self._file.read(CHUNK_NBYTES):
            yield from self._lines.take(data)

    def _is_over(self) -> bool:
        """Whether another file is being written to by now."""
        try:
            now = os.stat(f"{self.name}{SUFFIX}", dir_fd=self._folder.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False  # between two, or for ever
        return _which(now) != self._own()

    def _own(self) -> tuple[int, int]:
        assert self._file is not None
        return _which(os.fstat(self._file.fileno()))

    def _following(self) -> str | None:
        """Return the file after the one that was read; the oldest there is, if that one is gone."""
        own, files = self._own(), generations(self._folder, self.name)
        for file, later in itertools.pairwise(files):
            with contextlib.suppress(FileNotFoundError):
                if _which(os.stat(file, dir_fd=self._folder.fd, follow_symlinks=False)) == own:
                    return later
        return self._oldest()


def _which(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino


class Wakeup:
    """Waits until something is written in a folder; a context manager.

    Parameters
    ----------
    folder
        Which.
    output
        The output to watch for a reader that has gone, as in ``zmqps logs -f | head``; None: not watched.
    """

    def __init__(self, folder: Folder, output: int | None) -> None:
        self._poll = select.poll()
        self._fd = _watch(folder.fd)
        if self._fd is not None:
            self._poll.register(self._fd, select.POLLIN)
        self._output = output
        if output is not None and stat.S_ISFIFO(os.fstat(output).st_mode):
            self._poll.register(output, 0)

    def wait(self, timeout: float = LOOK_S) -> None:
        """Wait, at most so many seconds.

        Raises
        ------
        BrokenPipeError
            The output has no reader any more.
        """
        for fd, event in self._poll.poll(timeout * 1000):
            if fd == self._output and event & (select.POLLERR | select.POLLHUP):
                raise BrokenPipeError
            if fd == self._fd:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, CHUNK_NBYTES)

    def __enter__(self) -> Wakeup:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _watch(folder: int) -> int | None:
    """Return a descriptor that can be read from once something in a folder has changed; None where there is none."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "inotify_init1"):  # not Linux
        return None
    fd: int = libc.inotify_init1(_IN_NONBLOCK_CLOEXEC)
    if fd < 0:
        return None  # this user has too many already
    path = f"/proc/self/fd/{folder}".encode()
    if libc.inotify_add_watch(fd, path, _IN_MODIFY | _IN_CREATE | _IN_MOVED_TO) < 0:
        os.close(fd)
        return None
    return fd
