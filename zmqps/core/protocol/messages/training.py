"""Messages that address or carry arrays: what workers and servers say to each other, and the stages of pipelines."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.message import Message, immutable

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U8, U32, U64, Parts, Payload, Plain, Terms, Text, Versions


@immutable
class Load(Message):
    """Initial values; ignored, but acknowledged, once the shard has them all."""

    kind: ClassVar[int] = 32
    request: U64
    epoch: U32
    parts: Parts
    payload: Payload = field(repr=False)


@immutable
class Gradients(Message):
    """What all messages with gradients have; all parts of one message are applied, or kept, together.

    Asynchronous and bounded modes apply them on arrival; the synchronous mode keeps them for ``step``, each counting
    as often as it has ``examples``, until that is committed. ``attempt`` is the same in all messages of one push of
    the user's, so that one that failed halfway and was repeated is not taken for two.
    ``reply`` is 1 when the values after the update are wanted (`Values` instead of `Ack`), in ``reply_codec``.
    ``terms`` are those of the update; synchronous ones come with the `Commit`.
    ``checked`` is 1 when the sender has made sure that all of its push is finite: what guards
    against accidents need not be done twice; 0 lets the server check. With `zmqps.core.protocol.arrays.STAYS` gradients
    that the server reads in the sender's memory stay there as they are until the step is over.
    """

    request: U64
    seq: U64
    epoch: U32
    step: U64
    attempt: U64
    examples: U64
    reply: U8
    checked: U8
    codec: Text
    reply_codec: Text
    terms: Terms


@immutable
class Push(Gradients):
    """Gradients of slices."""

    kind: ClassVar[int] = 33
    parts: Parts
    payload: Payload = field(repr=False)


@immutable
class Pull(Message):
    """Ask for values of version ``version`` or a later one; with ``exact`` 1, of that one."""

    kind: ClassVar[int] = 34
    request: U64
    epoch: U32
    version: U64
    exact: U8
    codec: Text
    parts: Parts


@immutable
class Ack(Message):
    """Loaded or applied; a version and, for a push, a staleness for each part."""

    kind: ClassVar[int] = 35
    request: U64
    versions: Versions
    staleness: Versions


@immutable
class Values(Message):
    """Answer to `Pull`, and to a `Push` with ``reply``; payload in the order of the parts asked."""

    kind: ClassVar[int] = 36
    request: U64
    codec: Text
    versions: Versions
    staleness: Versions
    payload: Payload = field(repr=False)


@immutable
class Tensors(Message):
    """Arrays from one stage of a pipeline to another; ``number`` counts them in each direction, from 1.

    ``arrays`` maps each name to ``[dtype, shape, codec, bytes]``, in the order of the payload.
    """

    kind: ClassVar[int] = 40
    number: U64
    arrays: Plain
    payload: Payload = field(repr=False)
