"""What has changed of what a coordinator keeps in its journal, by key, since that was last written.

The parts say what has changed, by calling what they were given for that; what is written is what they say of
themselves when an event is dealt with, before any of its messages leaves. ``docs/durability.md`` says what is kept, and
what is asked again of those who know it; ``docs/where.md`` what is to be done for something new.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from zmqps.core.protocol.events import Action, Record
from zmqps.core.protocol.messages import Error, Message
from zmqps.core.protocol.wire import decode, encode
from zmqps.errors import PSError, from_wire

#: What the journal holds under one key: maps, lists, texts, bytes and numbers.
Plain: TypeAlias = Any
#: Called when something has changed that is kept.
Changed: TypeAlias = Callable[[], None]
#: What is kept of a job, beside its data sets.
OF_A_JOB = ("job", "spec", "start", "copies", "views", "fallback", "recut", "step")


def nothing() -> None:
    """Nobody keeps a journal."""


class DirtyKeys:
    """The keys whose records are to be written.

    A key is what it is about, as ``job`` or ``member``, and whose; see `zmqps.core.coordinator.remembered`.
    """

    def __init__(self, *, kept: bool = False) -> None:
        self.kept = kept  # whether there is a journal
        self.keys: dict[tuple[str, str], None] = {}

    def add(self, what: str, whose: str = "") -> None:
        if self.kept:
            self.keys[what, whose] = None

    def of(self, what: str, whose: str = "") -> Changed:
        return (lambda: self.add(what, whose)) if self.kept else nothing

    def records(self, dump: Callable[[str, str], Plain]) -> list[Action]:
        """Return what is to be written, and begin anew; ``dump`` says what there is to keep now, None for nothing."""
        keys, self.keys = self.keys, {}
        return [Record(key_of(what, whose), dump(what, whose)) for what, whose in keys]


def key_of(what: str, whose: str = "") -> str:
    return f"{what}/{whose}" if whose else what


def split_key(key: str) -> tuple[str, str]:
    what, _, whose = key.partition("/")
    return what, whose


def set_key(job: str, name: str) -> str:
    return f"{len(job)}/{job}/{name}"


def split_set(whose: str) -> tuple[str, str]:
    length, _, rest = whose.partition("/")
    return rest[: int(length)], rest[int(length) + 1 :]


def packed(message: Message) -> bytes:
    """Return a short message as it travels, to be kept."""
    (header,) = encode(message)
    return bytes(header)


def unpacked(data: bytes) -> Any:
    return decode([data])


def packed_error(error: PSError) -> bytes:
    return packed(Error.of(0, error))


def unpacked_error(data: bytes) -> PSError:
    message = unpacked(data)
    return from_wire(message.code, message.text, message.facts)
