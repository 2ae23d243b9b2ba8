"""Messages about traces of a running cluster: how one is requested, recorded and fetched."""

from __future__ import annotations

from dataclasses import field
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.message import Message, immutable

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U32, U64, Blob, Facts, Incarnation, Key, Plain, Seconds, Text


class TraceAction(IntEnum):
    """What a request wants of a trace: its progress, to start one, or to end it."""

    LOOK, START, STOP = range(3)


class TraceState(IntEnum):
    """Whether a node has nothing recorded, records, or has recorded."""

    NONE, ON, OFF = range(3)


@immutable
class Trace(Message):
    """Tell nodes to record where time goes, or to stop; or ask how far the trace is.

    Of one job (its workers, and all servers), or of all where ``job`` is empty; for ``seconds``, or until each worker
    has pushed ``steps`` times (0: for the seconds alone); into ``nbytes`` of memory on each node. ``nonce`` and
    ``guard`` are as in `EndJob`. Asked to start again with the same nonce, nothing more is done.
    """

    kind: ClassVar[int] = 100
    request: U32
    action: TraceAction
    job: Text
    seconds: Seconds
    steps: U32
    nbytes: U32
    nonce: Key = b""
    guard: Key = field(default=b"", repr=False)


@immutable
class Tracing(Message):
    """Answer to `Trace`: ``state``, and how many seconds are ``left``; ``nodes`` has a map of each node."""

    kind: ClassVar[int] = 101
    request: U32
    number: U64
    state: TraceState
    left: Seconds
    nodes: Plain


@immutable
class RecordSpans(Message):
    """Let a node record for ``seconds``, into ``nbytes`` of memory; 0: stop. It also ends by itself."""

    kind: ClassVar[int] = 102
    number: U64
    seconds: Seconds
    nbytes: U32


@immutable
class SpansRecorded(Message):
    """A node records, or has: that many bytes, ``lost`` of them overwritten, and ``steps`` since it was asked.

    Said now and then, each time at ``sent`` by its own clock. ``facts`` has what it knows of the coordinator's:
    ``offset_s`` and ``error_s``.
    """

    kind: ClassVar[int] = 103
    number: U64
    state: TraceState
    sent: Seconds
    nbytes: U64
    lost: U64
    steps: U64
    facts: Facts


@immutable
class Clock(Message):
    """Answer to `SpansRecorded`: what was ``sent`` then came ``at`` this time by the coordinator's clock."""

    kind: ClassVar[int] = 104
    number: U64
    state: TraceState
    sent: Seconds
    at: Seconds


@immutable
class Fetch(Message):
    """Fetch what a node has recorded, from ``offset``; the coordinator forwards it to that node.

    ``nonce`` and ``guard`` are as in `EndJob`; to the node they are empty.
    """

    kind: ClassVar[int] = 105
    request: U32
    number: U64
    who: Incarnation
    offset: U64
    nonce: Key = b""
    guard: Key = field(default=b"", repr=False)


@immutable
class Piece(Message):
    """Answer to `Fetch`: a piece of ``total`` bytes; the coordinator forwards it to the requester."""

    kind: ClassVar[int] = 106
    request: U32
    number: U64
    who: Incarnation
    offset: U64
    total: U64
    data: Blob = field(repr=False)
