"""Memory of one process that others on its host map and read: anonymous files, which leave nothing behind.

A file made by ``memfd_create`` has no name and ends with the last process that has it open or
mapped. Others open it by way of ``/proc/<pid>/fd/<number>``. It cannot shrink, so reading it is
safe whatever its owner does, and its last bytes say which one it is, because numbers of processes
and files are used again.
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import mmap
import os
import secrets
import stat
import threading
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zmqps.core.protocol.arrays import Array, Bytes
from zmqps.files import read_kernel
from zmqps.net.lane.private import PrivateMappings

KEY_NBYTES = 16
PAGE_NBYTES = mmap.PAGESIZE
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")  # psutil reads no settings of the kernel
_MAP_FIXED = 0x10  # on Linux, which alone has memfd_create; `mmap` lacks it
#: Less is not worth a file.
MIN_NBYTES = 64 << 10


class ArenaError(Exception):
    """Memory cannot be shared; says why."""


class Description(NamedTuple):
    """What others need to map an arena."""

    pid: int
    fd: int
    nbytes: int
    key: bytes


class Arena:
    """Where an array of this process is; does not keep the array alive."""

    def __init__(self, root: Bytes, description: Description) -> None:
        self.description = description
        self.address = int(root.__array_interface__["data"][0])
        self.parted = False  # what is written to the array is not seen by others any more
        self._root = weakref.ref(root)

    @property
    def alive(self) -> bool:
        """Whether this process still refers to the memory."""
        return self._root() is not None

    def part(self) -> None:
        """Leave what is there to others: from now on pages that are written to are this process's own.

        Others see the memory as it is, for as long as they map it.

        Raises
        ------
        OSError
            The system has no memory to promise for that; nothing has changed.
        """
        if self.parted:
            return
        total, writable = _total(self.description.nbytes), mmap.PROT_READ | mmap.PROT_WRITE
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
        # in the place of the mapping that is there, which the array continues to own
        how = mmap.MAP_PRIVATE | _MAP_FIXED
        if libc.mmap(self.address, total, writable, how, self.description.fd, 0) != self.address:
            raise OSError(ctypes.get_errno(), "cannot part with shared memory")
        self.parted = True

    def holds(self, address: int, nbytes: int) -> bool:
        """Whether a piece of memory is in this arena."""
        return self.address <= address and address + nbytes <= self.address + self.description.nbytes


class Arenas:
    """The arenas of one process."""

    def __init__(self) -> None:
        self._arenas: list[Arena] = []
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes in all arenas that are in use."""
        return sum(arena.description.nbytes for arena in self._arenas if arena.alive and not arena.parted)

    def empty(self, size: int, dtype: np.dtype[Any]) -> Array:
        """Return a new 1-D array that others can map; one of this process's own where that cannot be."""
        nbytes = size * np.dtype(dtype).itemsize
        if nbytes >= MIN_NBYTES:
            try:
                root, arena = _create(nbytes)
            except OSError:  # no memfd here, or no descriptors left: use private memory
                return np.empty(size, dtype)
            with self._lock:  # a shard may be built aside; and others may be looking at the list
                self._arenas = [*(a for a in self._arenas if a.alive), arena]
            return root[:nbytes].view(dtype)
        return np.empty(size, dtype)

    def find(self, frame: Any) -> tuple[Arena, int] | None:
        """Return the arena that contains a buffer, and where, or None."""
        if not self._arenas:
            return None
        array = np.frombuffer(frame, np.uint8)
        address = int(array.__array_interface__["data"][0])
        for arena in self._arenas:
            if arena.holds(address, array.size) and arena.alive and not arena.parted:
                return arena, address - arena.address
        return None

    def part(self, array: Array) -> None:
        """Leave to others what an array of `empty` holds (`Arena.part`)."""
        found = self.find(array) if array.nbytes else None
        if found is not None:
            found[0].part()


def _create(nbytes: int) -> tuple[Bytes, Arena]:
    total = _total(nbytes)
    if not hasattr(os, "memfd_create"):
        raise OSError("no memfd_create on this system")
    fd = os.memfd_create("zmqps", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, total)
        if _OVERCOMMIT.exists() and read_kernel(_OVERCOMMIT).strip() == "2":
            # the system promises no more memory than it has, and a page it does not have when it is written
            # to would end the process; elsewhere pages are like those of any array, there when they are needed
            os.posix_fallocate(fd, 0, total)
        key = secrets.token_bytes(KEY_NBYTES)
        os.pwrite(fd, key, total - KEY_NBYTES)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _seals())
        root = np.frombuffer(mmap.mmap(fd, total), np.uint8)
    except (OSError, ValueError) as error:
        os.close(fd)
        raise OSError(f"no memory to share: {error}") from error
    weakref.finalize(root, os.close, fd).atexit = False  # the system closes it then
    return root, Arena(root, Description(os.getpid(), fd, nbytes, key))


class Attached(NamedTuple):
    """Another process's arena, mapped here."""

    data: Bytes  # to read
    private: PrivateMappings  # to read, and to write for oneself


def attach(description: Description) -> Attached:
    """Map another process's arena, to read.

    Raises
    ------
    ArenaError
        It is not there, or not what it is said to be.
    """
    pid, number, nbytes, key = description
    total = _total(nbytes)
    try:
        fd = os.open(f"/proc/{pid}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise ArenaError(f"cannot open memory of process {pid}: {error.strerror}") from error
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise ArenaError("the memory is not a private file of this user")
        if facts.st_size != total or not nbytes:
            raise ArenaError(f"{facts.st_size} bytes for an arena of {nbytes}")
        if ~fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _seals():
            raise ArenaError("the memory may shrink")
        if os.pread(fd, KEY_NBYTES, total - KEY_NBYTES) != key:
            raise ArenaError("the memory is another one")
        data = np.frombuffer(mmap.mmap(fd, total, prot=mmap.PROT_READ), np.uint8)[:nbytes]
        return Attached(data, PrivateMappings(fd, total))
    except OSError as error:
        raise ArenaError(f"cannot map memory of process {pid}: {error.strerror}") from error
    finally:
        os.close(fd)


def _seals() -> int:
    return fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def _total(nbytes: int) -> int:
    return math.ceil((nbytes + KEY_NBYTES) / PAGE_NBYTES) * PAGE_NBYTES
