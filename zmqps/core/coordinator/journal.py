"""The changes of a coordinator's journaled state, by key, since the last write.

A part with journaled state marks its changes (`KeptRecord`). The parts' state is written after an event, before any of
its messages is sent. ``docs/durability.md`` lists what is journaled, and what is requested again from the nodes that
know it; ``docs/where.md`` says what to do for new state.
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

#: The value of one key: maps, lists, texts, bytes and numbers.
Plain: TypeAlias = Any
#: Called when journaled state has changed.
Changed: TypeAlias = Callable[[], None]
#: The journaled keys of a job, besides its data sets.
OF_A_JOB = ("job", "spec", "start", "copies", "views", "fallback", "recut", "step")


def nothing() -> None:
    """There is no journal."""


def unkept(what: str) -> None:
    """It is not journaled."""


class KeptRecord:
    """A record with journaled attributes: setting one marks its key.

    Subclasses have ``changed``, and name in `kept` the key of each journaled attribute.
    """

    __slots__ = ()
    kept: ClassVar[Mapping[str, str]]
    changed: Callable[[str], None]

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        if (key := self.kept.get(name)) is not None:
            self.changed(key)


class KeptDict(dict[K, V]):
    """A journaled dict: setting or removing an entry marks its key; `update`, which restores it, does not."""

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
        """Remove a key, and return its value."""
        if key in self:
            self._changed()
        return super().pop(key, *default)

    def clear(self) -> None:
        """Remove all."""
        self._changed()
        super().clear()


class KeptSet(set[K]):
    """A journaled set: adding or removing a member marks its key; `update`, which restores it, does not."""

    def __init__(self, changed: Changed, members: Iterable[K] = ()) -> None:
        super().__init__(members)
        self._changed = changed

    def add(self, member: K) -> None:
        """Add a member."""
        super().add(member)
        self._changed()

    def discard(self, member: object) -> None:
        """Remove a member, if it is there."""
        super().discard(member)
        self._changed()

    def remove(self, member: K) -> None:
        """Remove an existing member."""
        super().remove(member)
        self._changed()

    def clear(self) -> None:
        """Remove all."""
        super().clear()
        self._changed()


class DirtyKeys:
    """The keys whose records must be written.

    A key has a subject, such as ``job`` or ``member``, and an owner; see `zmqps.core.coordinator.remembered`.
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
        """Return the records to write, and reset; ``dump`` returns the present record, None for none."""
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
    """Return a short message in wire form, for the journal."""
    (header,) = encode(message)
    return bytes(header)


def unpacked(data: bytes) -> Any:
    return decode([data])


def packed_error(error: PSError) -> bytes:
    return packed(Error.of(0, error))


def unpacked_error(data: bytes) -> PSError:
    message = unpacked(data)
    return from_wire(message.code, message.text, message.facts)
