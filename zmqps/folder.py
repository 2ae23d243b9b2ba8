"""Files that commands write for themselves: never through a link, and never into another user's files.

A user with write access to a directory can put a link or a file there before a command runs, maybe as root. So
directories are held open and walked one by one, and a file is either new or proved to be this user's own.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import stat
from pathlib import Path
from types import TracebackType
from typing import IO, NoReturn, Self

from zmqps.errors import ConfigurationError, UnsafeFileError
from zmqps.files import check_plain

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Folder:
    """A directory held open; a context manager.

    Parameters
    ----------
    base
        The path that the user gave; may be a link, and any user's.
    parts
        Names of directories below it, which must be this user's own to write to, and no links.
    make
        Make what does not exist, for this user only.
    own
        Whether ``base``, too, must be this user's own to write to.

    Raises
    ------
    UnsafeFileError
        A directory is a link or another user's, or others may exchange what is in it; says what to do.
    FileNotFoundError
        It does not exist.
    """

    def __init__(self, base: Path, *parts: str, make: bool = False, own: bool = False) -> None:
        self.path = base
        if make:
            base.mkdir(parents=True, exist_ok=True)
        self.fd = os.open(base, DIRECTORY)
        try:
            self._check_mode(own=own)
            for part in parts:
                self._enter(part, make)
        except BaseException:
            self.close()
            raise

    def _enter(self, part: str, make: bool) -> None:
        if "/" in part or part in ("", ".", ".."):
            raise ConfigurationError(f"{part!r} cannot be the name of a directory")
        self.path /= part
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=self.fd)
        try:
            fd = os.open(part, DIRECTORY | os.O_NOFOLLOW, dir_fd=self.fd)
        except OSError as error:
            self._refuse(error, self.path, "a directory")
        os.close(self.fd)
        self.fd = fd
        self._check_owner(os.fstat(fd), self.path)
        self._check_mode(own=True)

    def _check_mode(self, *, own: bool) -> None:
        facts = os.fstat(self.fd)
        if facts.st_mode & stat.S_ISVTX:
            return  # its users may exchange their own files only
        if facts.st_mode & stat.S_IWOTH:
            users, mode = "all users", "o-w"
        elif own and facts.st_mode & stat.S_IWGRP and not _is_private(facts.st_gid):
            users, mode = f"all users of group {facts.st_gid}", "g-w"
        else:
            return
        raise UnsafeFileError(
            path=str(self.path),
            why=f"{users} may exchange what is in it",
            advice=f"chmod {mode}, or use another --directory",
        )

    def open(self, name: str, flags: int) -> int:
        """Open a file of this user's own, made for it alone, or emptied, if ``flags`` say so.

        Raises
        ------
        UnsafeFileError
            It is a link, no plain file, another user's, or has another name as well.
        FileNotFoundError
            It does not exist.
        """
        path = self.path / name
        try:
            safe = flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            fd = os.open(name, safe, 0o600, dir_fd=self.fd)
        except OSError as error:
            self._refuse(error, path, "a file")
        try:
            facts = os.fstat(fd)
            check_plain(facts, path)
            self._check_owner(facts, path)
            if facts.st_nlink > 1:  # writing to it would write to what the other name belongs to
                raise UnsafeFileError(path=str(path), why="it has another name as well", advice="remove it")
            if flags & os.O_TRUNC:  # only now is its owner known
                os.ftruncate(fd, 0)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def begin(self, name: str) -> IO[bytes]:
        """Return a new file of that name; one that was there is removed, and what a link led to is left alone."""
        try:
            self.remove(name)
            return open(self.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb", buffering=0)
        except (PermissionError, IsADirectoryError, FileExistsError) as error:
            self._refuse(error, self.path / name, "a file")

    def rename(self, name: str, to: str) -> None:
        """Give a file another name, in the place of the file that has it; no link is followed."""
        os.rename(name, to, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """Remove a name, if it is there; not what it leads to."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    def close(self) -> None:
        """Let go of the directory."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @staticmethod
    def _check_owner(facts: os.stat_result, path: Path) -> None:
        if facts.st_uid != os.geteuid():
            raise UnsafeFileError(
                path=str(path),
                why=f"it belongs to user {facts.st_uid}, not to user {os.geteuid()}",
                advice="remove it, run this as that user, or use another --directory",
            )

    @staticmethod
    def _refuse(error: OSError, path: Path, kind: str) -> NoReturn:
        if error.errno == errno.ENOENT:
            raise error
        link = error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR)
        why = f"it is a link, or not {kind}" if link else f"it cannot be used: {error.strerror}"
        raise UnsafeFileError(path=str(path), why=why, advice="remove it, or use another --directory") from None


def open_own(path: str | Path, flags: int) -> int:
    """Open a file of this user's own wherever it is, as `Folder.open` does; an ``opener`` of the built-in `open`."""
    path = Path(path)
    with Folder(path.parent) as folder:
        return folder.open(path.name, flags)


def _is_private(gid: int) -> bool:
    """Whether a group has this user alone, by the usual rule: it has its name, and no other member."""
    try:
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}
