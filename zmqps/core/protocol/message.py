"""The base of all messages, the decorator of messages, events and actions, and limits of both ends.

The annotations of a message are its schema: `zmqps.core.protocol.wire` has a check for each of these types, found by
its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, dataclass_transform

#: A worker has fewer unacknowledged pushes than this at a server, which remembers as many results: a resent push is
#: always among them.
PUSH_WINDOW = 4096
#: Bytes sent or requested and not yet answered, per server: enough to keep both directions of a connection busy, and
#: little enough that a slow server costs no memory.
WINDOW_NBYTES = 16 << 20
#: Bytes of answers that may wait for one peer to read them, besides one more message.
MAX_BACKLOG_NBYTES = 4 * WINDOW_NBYTES
#: Of all peers of a node: beyond it a peer that does not read, or has the most to read, is shut.
MAX_ALL_BACKLOGS_NBYTES = 64 * WINDOW_NBYTES
#: Steps whose gradients may wait at a server at the same time: the one being collected, and the next, whose first
#: gradients can overtake the commit on another connection. The coordinator lets no worker begin one beyond them.
OPEN_STEPS = 2
#: The identifier of a process's life, drawn when it starts.
INCARNATION_NBYTES = 16
#: Of any text in a message.
MAX_TEXT_CHARS = 4096
#: An error has a handful of facts; if it names hundreds of nodes the rest is cut off.
MAX_FACTS = 16
MAX_FACT_CHARS = 4096
#: Of bytes in a header, so that the header stays below the size that is decoded without a check of its cost.
MAX_BLOB_NBYTES = 48 << 10


class Immutable:
    """Base of all `immutable` classes; objects of one class are equal if their compared fields are."""

    __slots__ = ()
    _compared: ClassVar[Callable[[Any], Any]]
    if TYPE_CHECKING:  # required by `dataclasses.replace` and `dataclasses.fields`
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        compared = type(self)._compared
        return bool(compared(self) == compared(other))

    def __hash__(self) -> int:
        return hash(type(self)._compared(self))

    def __repr__(self) -> str:
        shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
        return f"{type(self).__qualname__}({shown})"


T = TypeVar("T", bound=Immutable)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def immutable(cls: type[T]) -> type[T]:
    """Make a dataclass with slots of a class that derives from `Immutable`; mypy forbids a change of its objects.

    A frozen dataclass sets each field through ``object.__setattr__``, which takes six times as long, and `dataclass`
    compiles seven methods for each class. This one compiles only ``__init__``: the others are shared.
    """
    made: type[T] = dataclass(slots=True, eq=False, repr=False)(cls)
    names = [f.name for f in fields(made) if f.compare]
    # always a tuple, in which arrays that are the same object are equal
    made._compared = attrgetter(*names) if len(names) > 1 else lambda self: tuple([getattr(self, n) for n in names])
    return made


if TYPE_CHECKING:

    @immutable
    class _Example(Immutable):
        number: int

    _Example(1).number = 2  # type: ignore[misc]  # mypy complains of this comment once a change is allowed


#: (slice index, version, ranges): ranges are start, stop, start, stop, … in elements from the start of the slice,
#: ascending; an empty list means the whole slice. In a push ``version`` is the one last read.
Part = tuple[int, int, tuple[int, ...]]

#: (incarnation, attempts): the pushes of a worker that form its part of a committed step.
Contributor = tuple[bytes, tuple[int, ...]]

#: (age, step, values): what a script logged this many seconds before sending, with its step, if it named one.
Entry = tuple[float, int | None, Mapping[str, float]]


if TYPE_CHECKING:
    from dataclasses import Field

    U8: TypeAlias = int
    U32: TypeAlias = int
    U64: TypeAlias = int
    Text: TypeAlias = str
    Seconds: TypeAlias = float
    Incarnation: TypeAlias = bytes
    Key: TypeAlias = bytes  # 16 of them, or none: a secret, or a proof of knowing one
    Plain: TypeAlias = Mapping[str, Any]  # nested maps, lists, strings, numbers: of a job or a status
    Facts: TypeAlias = Mapping[str, str | int | float | bool | None]
    Texts: TypeAlias = Sequence[str]
    Versions: TypeAlias = Sequence[int]
    Parts: TypeAlias = Sequence[Part]
    Contributors: TypeAlias = Sequence[Contributor]
    Entries: TypeAlias = Sequence[Entry]
    Terms: TypeAlias = Sequence[float]  # of an update: `zmqps.core.protocol.terms`
    Blob: TypeAlias = bytes  # such as of a trace: up to `MAX_BLOB_NBYTES` of them, inside the header
    Buffer: TypeAlias = Any  # bytes, memoryview, ndarray: C-contiguous, with the buffer protocol
    Payload: TypeAlias = Sequence[Buffer]


class Message(Immutable):
    """Base of all messages."""

    __slots__ = ()
    kind: ClassVar[int]
