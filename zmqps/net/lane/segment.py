"""The shared-memory file of a lane: two rings, the table of loans, and a secret that proves that a peer can read it.

::

    0     magic "zmqpslan", version u32, 4 bytes of padding, secret (32 bytes)
    64    bytes in each ring, u64
    128   ready, u64: 1 once the creator has seen the proof
    256   tail of the ring that the creator writes, u64
    384   tail of the ring that it reads, u64
    512   what the creator lends: 16 announcements (`zmqps.net.lane.lending`), then at
    1536  those of the other side
    2560  answers to the creator's, 16 of u64, then at 2688 to those of the other side
    2816  number of the creator's announcements, u64, then at 2944 of the other side's
    4096  loans given, 4096 of u64 (by the one that did not create it), then loans returned
    69632 the ring that the creator writes, then the one that it reads

Counters are two cache lines apart, because processors fetch lines in pairs. The creator holds a
``flock`` on the file as long as it lives; the kernel releases it, however the process ends. So
others can tell a lane in use from one left behind, also across containers with their own pids.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import re
import secrets
import stat
import struct
from pathlib import Path

import numpy as np

from zmqps.net.lane.lending import ANNOUNCEMENT, MAX_ARENAS, MAX_LOANS, Borrower, Counter, Lender, Shelf
from zmqps.net.lane.ring import ALIGNMENT, Bytes, Counter64, RingReader, RingWriter

DIRECTORY = Path("/dev/shm")
NAME = re.compile(r"zmqps-[0-9]{1,10}-[0-9a-f]{32}")
MAGIC = b"zmqpslan"
VERSION = 2
HEADER = struct.Struct("<8sI4x32s16xQ")
READY_AT, TAILS_AT = 128, (256, 384)
DIRECTORIES_AT, ANSWERS_AT, ANNOUNCED_AT = (512, 1536), (2560, 2688), (2816, 2944)
LOANS_AT = (4096, 4096 + 8 * MAX_LOANS)
RINGS_AT = 4096 + 16 * MAX_LOANS
#: Nothing honest is larger; mapped, not allocated.
MAX_RING_NBYTES = 1 << 30
CREATE_ATTEMPTS = 3


class SegmentError(Exception):
    """A segment cannot be made or used; says why."""


class Segment:
    """A mapped file of two rings; made by `create` on one side and `attach` on the other."""

    def __init__(self, fd: int, name: str, ring_nbytes: int, secret: bytes, creator: bool) -> None:
        self.name = name
        self._fd = fd
        self._creator = creator
        self._linked = creator
        memory = mmap.mmap(fd, RINGS_AT + 2 * ring_nbytes)
        everything = np.frombuffer(memory, np.uint8)  # keeps the mapping for as long as there are views
        self._ready = _counters(everything, READY_AT)
        rings = [everything[at : at + ring_nbytes] for at in (RINGS_AT, RINGS_AT + ring_nbytes)]
        tails = [_counters(everything, at) for at in TAILS_AT]
        shelves = [
            Shelf(
                everything[directory : directory + MAX_ARENAS * ANNOUNCEMENT.size],
                _counters(everything, answers, MAX_ARENAS),
                _counters(everything, announced),
            )
            for directory, answers, announced in zip(DIRECTORIES_AT, ANSWERS_AT, ANNOUNCED_AT, strict=True)
        ]
        loans = Counter(*(_counters(everything, at, MAX_LOANS) for at in LOANS_AT))
        out, into = (0, 1) if creator else (1, 0)
        self.writer = RingWriter(rings[out], tails[out])
        self.reader = RingReader(rings[into], tails[into])
        self.lender = Lender(shelves[out], loans)
        self.borrower = Borrower(shelves[into], loans)
        self.proof = hashlib.sha256(b"proof" + secret).hexdigest()
        self.id = hashlib.sha256(b"id" + secret).digest()[:8]

    @classmethod
    def create(cls, ring_nbytes: int) -> Segment:
        """Make a segment that others of this user can attach to by its name.

        Raises
        ------
        SegmentError
            No shared memory, or not enough.
        """
        assert ring_nbytes % ALIGNMENT == 0
        for _ in range(CREATE_ATTEMPTS):
            name = f"zmqps-{os.getpid()}-{secrets.token_hex(16)}"
            try:
                fd = os.open(DIRECTORY / name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise SegmentError(f"cannot make a file in {DIRECTORY}: {error.strerror}") from error
            try:
                if _lock(fd, fcntl.LOCK_EX) and os.fstat(fd).st_nlink:
                    return cls._fill(fd, name, ring_nbytes)
                os.close(fd)  # another process swept it away before it was locked
            except OSError as error:
                os.close(fd)
                (DIRECTORY / name).unlink(missing_ok=True)
                raise SegmentError(f"no room for {2 * ring_nbytes} bytes in {DIRECTORY}: {error.strerror}") from error
        raise SegmentError(f"files in {DIRECTORY} vanish")

    @classmethod
    def _fill(cls, fd: int, name: str, ring_nbytes: int) -> Segment:
        # all of it now: writing to a page for which there is no memory would end the process
        os.posix_fallocate(fd, 0, RINGS_AT + 2 * ring_nbytes)
        secret = secrets.token_bytes(32)
        os.pwrite(fd, HEADER.pack(MAGIC, VERSION, secret, ring_nbytes), 0)
        return cls(fd, name, ring_nbytes, secret, creator=True)

    @classmethod
    def attach(cls, name: str) -> Segment:
        """Map the segment that a peer names, and remove its file, so that no other process can map it.

        Raises
        ------
        SegmentError
            It does not exist, or was not made by a peer of this user.
        """
        if not NAME.fullmatch(name):
            raise SegmentError("that is not a segment's name")
        try:
            fd = os.open(DIRECTORY / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise SegmentError(f"cannot open the segment: {error.strerror}") from error
        try:
            facts = os.fstat(fd)
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
                raise SegmentError("the segment is not a private file of this user")
            magic, version, secret, ring_nbytes = HEADER.unpack(os.pread(fd, HEADER.size, 0).ljust(HEADER.size, b"\0"))
            if magic != MAGIC or version != VERSION:
                raise SegmentError("the segment is of another version")
            if ring_nbytes % ALIGNMENT or not 0 < ring_nbytes <= MAX_RING_NBYTES:
                raise SegmentError(f"rings of {ring_nbytes} bytes")
            if facts.st_size != RINGS_AT + 2 * ring_nbytes:
                raise SegmentError(f"{facts.st_size} bytes for two rings of {ring_nbytes}")
            segment = cls(fd, name, ring_nbytes, secret, creator=False)
        except (SegmentError, OSError) as error:
            os.close(fd)
            raise error if isinstance(error, SegmentError) else SegmentError(f"cannot map it: {error}") from error
        (DIRECTORY / name).unlink(missing_ok=True)
        return segment

    @property
    def ready(self) -> bool:
        """Whether the creator has seen the proof and reads what the other side writes."""
        return bool(self._ready[0])

    def confirm(self) -> None:
        """The proof was right: begin."""
        self._ready[0] = 1

    @property
    def orphaned(self) -> bool:
        """Whether the creator has closed the segment or died."""
        if not _lock(self._fd, fcntl.LOCK_SH):
            return False
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

    def unlink(self) -> None:
        """Remove the file; processes that have mapped it keep it."""
        if self._linked:
            self._linked = False
            (DIRECTORY / self.name).unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the segment; its memory is free once no view is left on either side.

        The creator is there for the other side as long as it holds a loan, whose slot is in here.
        """
        if self._fd >= 0:
            self.unlink()
            if self._creator and not self.borrower.held:
                fcntl.flock(self._fd, fcntl.LOCK_UN)  # the mapping holds the lock as well
            os.close(self._fd)
            self._fd = -1


def sweep() -> int:
    """Remove the segments that processes of this user left behind when they were killed; return how many."""
    swept = 0
    for path in DIRECTORY.glob("zmqps-*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                ours = NAME.fullmatch(path.name) and os.fstat(fd).st_uid == os.geteuid()
                if ours and _lock(fd, fcntl.LOCK_SH):  # held until the file is removed, see `create`
                    path.unlink()
                    swept += 1
            finally:
                os.close(fd)
    return swept


def _lock(fd: int, kind: int) -> bool:
    """Lock a file unless another process has; a shared lock only asks whether its creator is alive."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _counters(everything: Bytes, at: int, count: int = 1) -> Counter64:
    return everything[at : at + 8 * count].view(np.uint64)
