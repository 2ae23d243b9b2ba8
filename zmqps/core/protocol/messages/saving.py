"""Messages about checkpoints: the request, what servers write for it, and how workers pause for a consistent cut."""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.message import Message, immutable

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U8, U32, U64, Key, Payload, Plain, Seconds, Text


class SaveStage(IntEnum):
    """How far a server is with a `Save`: it keeps the shard as it is, writes it, has written it, or it has failed."""

    KEPT, WRITING, WRITTEN, FAILED = range(4)


@immutable
class Save(Message):
    """The coordinator lets a server keep its shard as it is, and write it to a directory.

    With ``exact`` 1 at this very version, which the shard has, or will have after commits that are on their way. Of
    tables it writes the rows that have changed since the `Save` with the number ``base``, whose checkpoint is
    published; 0: all rows.
    """

    kind: ClassVar[int] = 50
    epoch: U32
    number: U64
    exact: U8
    version: U64
    path: Text
    base: U64


@immutable
class Saved(Message):
    """How far a server is with a `Save`.

    ``facts`` are ``nbytes`` so far; of what is written what the checkpoint's manifest says of it; of what has failed
    ``why``.
    """

    kind: ClassVar[int] = 51
    epoch: U32
    number: U64
    stage: SaveStage
    facts: Plain


@immutable
class Unsave(Message):
    """The checkpoint has failed elsewhere: a server keeps nothing for it any more."""

    kind: ClassVar[int] = 52
    epoch: U32
    number: U64


@immutable
class Checkpoint(Message):
    """Request a checkpoint of a job without joining, or, as a member with an empty ``job``, of its own job.

    ``consistent`` 1 asks for a cut between pushes, also in the asynchronous mode. ``state`` is stored with it for the
    user. ``nonce`` and ``guard`` are as in `EndJob`.
    """

    kind: ClassVar[int] = 53
    request: U64
    job: Text
    consistent: U8
    state: Plain
    nonce: Key = b""
    guard: Key = field(default=b"", repr=False)


@immutable
class Checkpointed(Message):
    """Answer to `Checkpoint`: where it is, of what version, how long it took and how large it is."""

    kind: ClassVar[int] = 54
    request: U64
    path: Text
    version: U64
    seconds: Seconds
    nbytes: U64


@immutable
class Hold(Message):
    """A worker should begin no push, and report once all that it had begun are acknowledged.

    ``ends`` 1: it may push again, whether or not what the pause was for is done. Of another pause this says nothing.
    """

    kind: ClassVar[int] = 55
    number: U64
    ends: U8 = 0


@immutable
class Holding(Message):
    """No push of this worker is under way."""

    kind: ClassVar[int] = 56
    number: U64


@immutable
class FileAsk(Message):
    """A server that shares no directory with the coordinator's host asks for something of a file there.

    ``what`` is one of `zmqps.nodes.checkpoints.SERVED`; whatever is asked twice does no harm.
    """

    kind: ClassVar[int] = 58
    request: U64
    what: Text
    path: Text
    offset: U64
    nbytes: U64
    payload: Payload = field(repr=False)


@immutable
class FileAnswer(Message):
    """What came of a `FileAsk`: its ``value``, or ``errno`` and ``why`` it failed; or bytes of a file."""

    kind: ClassVar[int] = 59
    request: U64
    value: Plain
    payload: Payload = field(repr=False)
