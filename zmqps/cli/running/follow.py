"""Files of logs, read from their beginning and as they grow, through rotations."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import stat
from collections.abc import Iterator
from typing import BinaryIO

from zmqps.folder import Folder
from zmqps.logs.lines import MAX_ENTRY_NBYTES, Lines

SUFFIX = ".log"
CHUNK_NBYTES = 64 << 10
#: Files that are followed are looked at so often.
LOOK_S = 0.25

_GENERATION = re.compile(r"\.log(?:\.([1-9]\d?))?\Z")


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
        self._lines = Lines(MAX_ENTRY_NBYTES)

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
        """Return the file after the one that was read; if that was removed, the oldest there is."""
        own, files = self._own(), generations(self._folder, self.name)
        for file, later in itertools.pairwise(files):
            with contextlib.suppress(FileNotFoundError):
                if _which(os.stat(file, dir_fd=self._folder.fd, follow_symlinks=False)) == own:
                    return later
        return self._oldest()


def _which(facts: os.stat_result) -> tuple[int, int]:
    return facts.st_dev, facts.st_ino


def wait_for_more(output: int | None, timeout: float = LOOK_S) -> None:
    """Wait until it is time to look at the files again.

    Parameters
    ----------
    output
        The output to watch for a reader that ends, as in ``zmqps logs -f | head``; None: not watched.
    timeout
        Seconds.

    Raises
    ------
    BrokenPipeError
        The output has no reader any more.
    """
    poll = select.poll()
    if output is not None and stat.S_ISFIFO(os.fstat(output).st_mode):
        poll.register(output, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(timeout * 1000)):
        raise BrokenPipeError
