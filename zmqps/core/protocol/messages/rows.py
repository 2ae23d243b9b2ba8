"""Messages that address rows of sparse tables; the answers are those of dense pushes and pulls, `Ack` and `Values`."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.message import Message, immutable
from zmqps.core.protocol.messages.training import Gradients

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U8, U32, U64, Part, Payload, Text, Versions


@immutable
class PushRows(Gradients):
    """Gradients of some rows of a table.

    ``index`` numbers the shard's part of the table after its slices, ``version`` is the one last read of it. The
    payload has ``count`` ids, which are different, then ``wanted`` ids, both as little-endian 64-bit integers, then the
    gradients of the former in ``codec``. ``begins`` is 1 in one message of each push to a shard: that many pushes the
    table has had there. With ``reply`` 1 the answer is `Values` of the ids wanted.
    """

    kind: ClassVar[int] = 37
    begins: U8
    index: U32
    version: U64
    count: U64
    wanted: U64
    payload: Payload = field(repr=False)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The part it addresses, as messages about slices name theirs."""
        return ((self.index, self.version, ()),)


@immutable
class PullRows(Message):
    """Ask for ``count`` rows of a table, of version ``version`` or a later one; the payload has their ids."""

    kind: ClassVar[int] = 38
    request: U64
    epoch: U32
    version: U64
    codec: Text
    index: U32
    count: U64
    payload: Payload = field(repr=False)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The part it addresses, as messages about slices name theirs."""
        return ((self.index, 0, ()),)

    @property
    def exact(self) -> int:
        """Later versions do, too."""
        return 0


@immutable
class ScanRows(Message):
    """Ask for rows of a table in their order on the server: up to ``most`` of those from place ``start`` on.

    The answer is `Values`. Its payload has little-endian 64-bit integers (`SCANNED`), then the ids of some rows, then
    their values as 32-bit floats. Rows that come or go meanwhile may be missed.

    With a cursor (`CURSOR`) in ``since``, rows that have not changed since are left out, and the payload ends with ids
    of removed rows. A first request has a cursor of zeros. An answer with ``reset`` begins with the first of all rows:
    the changes since that cursor are not known any more.
    """

    kind: ClassVar[int] = 39
    request: U64
    epoch: U32
    index: U32
    start: U64
    most: U64
    since: Versions = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """The part it addresses, as messages about slices name theirs."""
        return ((self.index, 0, ()),)

    @property
    def version(self) -> int:
        """Any does."""
        return 0

    @property
    def exact(self) -> int:
        """Later versions do, too."""
        return 0

    @property
    def codec(self) -> str:
        """Rows that are read for good travel as they are."""
        return "raw"


#: What a shard counts of its part of a table. Rows, and the bytes they take; ids looked up that had a row, and that had
#: none; rows made, refused for want of room, expired, made way for others; touches of rows that are not admitted yet.
COUNTED = ("rows", "nbytes", "hits", "misses", "new", "refused", "expired", "evicted", "waiting")
#: The position of a reader that follows a table: a number that no other copy of a shard has, in any cluster; then
#: the messages or steps applied there, the updates, after how many of these a row expires, and how many rows were
#: removed.
CURSOR = ("copy", "version", "steps", "lifetime", "num_gone")
#: What the answer to a `ScanRows` begins with: how many rows it has, where to continue (0: at the end), how many ids of
#: removed rows, whether it starts over, the cursor to follow with from where this scan began, the counters.
SCANNED = ("count", "next", "gone", "reset", *CURSOR, *COUNTED)
