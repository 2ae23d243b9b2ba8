"""Messages about servers that come and go while jobs are trained: what is asked for, and how far it is."""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.message import Message, immutable

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U8, U32, U64, Facts, Key, Text, Versions


class DrainState(IntEnum):
    """How far a drain is: the server still has copies; it has none and ends; it stays."""

    GOING, GONE, STAYS = range(3)


@immutable
class Drain(Message):
    """Drain a server: it hands over all its copies, then ends. Repeating the request changes nothing.

    A server asks for itself, with an empty ``server``; a peer that has not joined names it, with ``nonce`` and
    ``guard`` as in `EndJob`. ``stay`` 1 asks it to stay after all.
    """

    kind: ClassVar[int] = 75
    request: U32
    server: Text
    stay: U8
    nonce: Key = b""
    guard: Key = field(default=b"", repr=False)


@immutable
class Draining(Message):
    """How far a drain is: ``state``, and ``text`` in words. Answer to `Drain`, and sent to that server.

    Also the answer to `Scale`, about the change of the number of servers.
    """

    kind: ClassVar[int] = 76
    request: U32
    state: DrainState
    text: Text


@immutable
class Yield(Message):
    """A leader gives up its place to a complete copy, and no longer answers for the shard.

    It waits until its backups have confirmed all it has done. In the synchronous mode it continues as before where it
    has gradients of a step that is not committed. `Lead` of a newer generation gives it its place back.
    """

    kind: ClassVar[int] = 77
    epoch: U32
    generation: U64


@immutable
class Yielded(Message):
    """A leader has given up its place, and its backups have all; or with ``busy`` 1 it has not, for now.

    ``numbers`` has the last record of each backup, by the copy's epoch in decimal digits.
    """

    kind: ClassVar[int] = 78
    epoch: U32
    generation: U64
    busy: U8
    numbers: Facts = field(default_factory=dict)


@immutable
class Scale(Message):
    """The cluster should have that many servers for its jobs; a repeated request changes nothing.

    ``nonce`` and ``guard`` are as in `EndJob`.
    """

    kind: ClassVar[int] = 79
    request: U32
    servers: U32
    nonce: Key = b""
    guard: Key = field(default=b"", repr=False)


@immutable
class Cut(Message):
    """A server fills a copy that was built for it with what its other copies of the job have of that.

    ``parents`` are the epochs of these: backups, or leaders that have yielded; none for a shard without a slice.
    ``version`` is the steps that the job has done, where a step is one for all.
    """

    kind: ClassVar[int] = 83
    epoch: U32
    parents: Versions
    version: U64
