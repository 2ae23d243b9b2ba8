"""What has changed of what a coordinator keeps in its journal, by key, since that was last written.

A part whose state is kept marks what has changed by itself (`KeptRecord`); what is written is what the parts say of
themselves when an event is dealt with, before any of its messages leaves. ``docs/durability.md`` says what is kept, and
what is asked again of those who know it; ``docs/where.md`` what is to be done for something new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeAlias, TypeVar

from zmqps.core.protocol.events import Action, Record
from zmqps.core.protocol.messages import Error, Message
from zmqps.core.protocol.wire import decode, encode
from zmqps.errors import PSError, from_wire

K = TypeVar("K")
V = TypeVar("V")

#: What the journal holds under one key: maps, lists, texts, bytes and numbers.
Plain: TypeAlias = Any
#: Called when something has changed that is kept.
Changed: TypeAlias = Callable[[], None]
#: What is kept of a job, beside its data sets.
OF_A_JOB = ("job", "spec", "start", "copies", "views", "fallback", "recut", "step")


def nothing() -> None:
    """Nobody keeps a journal."""


def unkept(what: str) -> None:
    """Nobody keeps it."""


class KeptRecord:
    """A record of which some attributes are kept: to set one of them marks the key that it is kept under.

    Subclasses have ``changed``, and say in `kept` under which key each attribute is kept.
    """

    __slots__ = ()
    kept: ClassVar[Mapping[str, str]]
    changed: Callable[[str], None]

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if (key := self.kept.get(name)) is not None:
            self.changed(key)


class KeptDict(dict[K, V]):
    """A dict that is kept: to set or remove an entry marks its key; `update`, which restores it, does not."""

    def __init__(self, changed: Changed = nothing) -> None:
        super().__init__()
        self._changed = changed

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        self._changed()

    def __delitem__(self, key: K) -> None:
        super().__delitem__(key)
        self._changed()

    def pop(self, key: K, *default: Any) -> Any:
        """Remove a key, and return what it had."""
        if key in self:
            self._changed()
        return super().pop(key, *default)

    def clear(self) -> None:
        """Remove all."""
        self._changed()
        super().clear()


class KeptSet(set[K]):
    """A set that is kept: to add a member or take one out marks its key; `update`, which restores it, does not."""

    def __init__(self, changed: Changed, members: Iterable[K] = ()) -> None:
        super().__init__(members)
        self._changed = changed

    def add(self, member: K) -> None:
        """Add a member."""
        super().add(member)
        self._changed()

    def discard(self, member: object) -> None:
        """Take one out, if it is there."""
        super().discard(member)
        self._changed()

    def remove(self, member: K) -> None:
        """Take one out that is there."""
        super().remove(member)
        self._changed()

    def clear(self) -> None:
        """Take all out."""
        super().clear()
        self._changed()


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
