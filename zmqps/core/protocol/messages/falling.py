"""Messages about shards that go back to a checkpoint, because nobody has their values any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.immutable import immutable
from zmqps.core.protocol.message import Message

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U32, U64, Plain, Versions


@immutable
class GoBack(Message):
    """These shards of the job of this ``epoch`` go back to a checkpoint: where its members find them from now on.

    ``servers`` holds ``rows``, one for each of ``shards``, as in `Job`'s placement. Empty: their servers were lost, and
    others are to load them; who needs them waits. ``version`` is the checkpoint's clock, ``lost`` counts the steps that
    are gone, where steps are one for all. ``restored`` is as in `Job`. What comes under a lower ``revision`` is out of
    date.
    """

    kind: ClassVar[int] = 80
    epoch: U32
    revision: U64
    shards: Versions
    servers: Plain
    version: U64
    lost: U64
    restored: Plain


@immutable
class Recalled(Message):
    """What a copy that was loaded from a checkpoint knows of a worker's pushes: all up to ``floor``, and ``applied``.

    It follows the `Welcome` of each connection.
    """

    kind: ClassVar[int] = 82
    epoch: U32
    floor: U64
    applied: Versions
