"""One thing that a leader tells its backups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from zmqps.core.protocol.fields import Part
from zmqps.core.protocol.messages import Replicate

#: What a record takes beside its payload and its parts.
RECORD_NBYTES = 1024


class ReplicationRecord:
    """One thing that a leader has done, or is about to do."""

    __slots__ = ("message", "nbytes", "position")

    def __init__(self, message: Replicate) -> None:
        self.message = message  # what backups are told
        # about how much memory it takes
        self.nbytes = nbytes_beside(message.parts) + sum([memoryview(buffer).nbytes for buffer in message.payload])
        self.position = 0  # which one of the leader's it is, from 1; 0: it is not done yet, or concerns one backup only


def nbytes_beside(parts: Sequence[Part]) -> int:
    """Return about how much memory a record takes beside its payload."""
    return RECORD_NBYTES + sum([40 + 8 * len(ranges) for _, _, ranges in parts])


class Listener(NamedTuple):
    """Who is told the news of a part.

    ``queue`` takes a record of something that is done; ``check`` raises `MemoryError` where there is no room for so
    many bytes more.
    """

    queue: Callable[[ReplicationRecord], None]
    check: Callable[[int], None]
