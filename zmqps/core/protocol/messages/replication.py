"""Messages about copies of a shard: what a leader tells its backups, and what the coordinator tells both."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.message import Message, immutable

if TYPE_CHECKING:
    from zmqps.core.protocol.message import (
        U8,
        U32,
        U64,
        Incarnation,
        Parts,
        Payload,
        Plain,
        Terms,
        Text,
        Versions,
    )

#: What a record of the stream is, ``what`` in `Replicate`: a push that was accepted; the mean of a synchronous step, of
#: one slice; the end of such a step; a part of a worker's ledger; a slice as it is; nothing, to be
#: confirmed before a pull is answered; rows of a table as they are.
PUSHED, AVERAGED, STEPPED, REMEMBERED, STATE, ASKED, ROWS = 1, 2, 3, 4, 5, 6, 7
#: Of a record that belongs to no worker's push.
NOBODY = bytes(16)


@immutable
class Replicate(Message):
    """A leader tells a backup what it has done: record ``number`` of the stream to this copy, from 1.

    ``epoch`` is the backup's. A push comes as its worker (``origin``) sent it, with its ``seq`` and what the ledger
    remembers of it: a version and a staleness for each part. A push and a mean have the ``terms`` of their update. What
    a record of each kind holds is in docs/protocol.md.
    """

    kind: ClassVar[int] = 60
    epoch: U32
    number: U64
    what: U8
    origin: Incarnation
    seq: U64
    step: U64
    codec: Text
    versions: Versions
    staleness: Versions
    terms: Terms
    parts: Parts
    payload: Payload = field(repr=False)


@immutable
class Replicated(Message):
    """A backup has applied all records up to ``number``; ``again`` 1 asks for those behind it, which were lost."""

    kind: ClassVar[int] = 61
    epoch: U32
    number: U64
    again: U8


@immutable
class Lead(Message):
    """The coordinator lets a copy lead its shard: a backup takes over, and ignores the old leader from then on.

    ``backups`` holds ``rows``: for each ``name``, ``rank`` and ``endpoint`` of its server, the copy's ``epoch``, the
    ``ticket`` to show there and the ``proof`` to expect, in hex. These, and no others, confirm from now on what the
    leader acknowledges. One that has all that the leader has comes with the ``number`` of the last record there, which
    the next one follows. Without ``rows`` it is not known what copies there have, and backups stay as they were. What
    is older than ``generation`` counts no more.
    """

    kind: ClassVar[int] = 88
    epoch: U32
    generation: U64
    backups: Plain = field(default_factory=dict)


@immutable
class Leading(Message):
    """A copy leads its shard, with the backups of this ``generation`` and no others; ``step`` steps are committed."""

    kind: ClassVar[int] = 86
    epoch: U32
    generation: U64
    step: U64
