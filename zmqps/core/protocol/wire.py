"""Message <-> list of frames, and the limits a receiver holds a sender to.

A message is one msgpack header frame, ``[kind, field, field, ...]`` in the order of its dataclass,
followed by its array frames. The header's last field says what follows: the payload itself when it
is small, else the byte length of each frame, so that a frame that is missing, truncated or too
long is noticed before anything is read from it. Array bytes are little-endian.

`decode` returns a message or raises a documented `ProtocolError`, whatever the bytes. It
allocates nothing in proportion to what a header merely claims, and of a large header at most
`MAX_GROWTH` times its own bytes.
"""

from __future__ import annotations

import contextlib
import gc
import math
import reprlib
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack  # type: ignore[import-untyped]
import numpy as np

from zmqps.core.protocol import messages as m
from zmqps.core.protocol.message import (
    INCARNATION_NBYTES,
    MAX_BLOB_NBYTES,
    MAX_FACT_CHARS,
    MAX_FACTS,
    MAX_TEXT_CHARS,
)
from zmqps.core.protocol.security.keys import KEY_NBYTES
from zmqps.core.protocol.terms import MOST_NUMBERS, SET, SET_TO_MEAN, are_sets
from zmqps.core.protocol.typed import are_ordered, pack, reader
from zmqps.errors import LimitError, ProtocolError

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

#: A job of 50,000 parameters with long names fits; nothing honest is larger.
MAX_HEADER_NBYTES = 8 << 20
#: Of an `Init`: the rest of `Job` and `Assign` then fits into them.
MAX_INIT_HEADER_NBYTES = 6 << 20
#: Of the messages that carry arrays: two bounds of five bytes for each of 200,000 parameters fit.
MAX_DATA_HEADER_NBYTES = 2 << 20
#: Of messages with a list of workers, or with counters or facts.
MAX_LIST_HEADER_NBYTES = 1 << 20
#: Of all other messages: their longest text fits.
MAX_SHORT_HEADER_NBYTES = 64 << 10
#: Of a message on a connection whose peer has not said `Hello` yet.
MAX_STRANGE_HEADER_NBYTES = 4 << 10
#: A large header decodes to at most about this many times its bytes: parts, which are lists of small
#: numbers, take 33 times.
MAX_GROWTH = 40
#: First byte of a msgpack object -> bytes that it takes at most once it is decoded, for those that take much of little.
_COSTS = np.zeros(256, np.uint8)
_COSTS[0x80:0x90] = 240  # a map; one of many entries takes less for each than they have bytes
_COSTS[0x90:0xA0] = 72  # a list
_COSTS[0xDC:0xDE] = 72  # the same with separate lengths
_COSTS[0xDE:0xE0] = 240
_COSTS[0xE0:] = 36  # a negative integer
#: Above 32 MiB malloc maps and faults every buffer again (measured: 3 times slower), so no sender of zmqps
#: comes near it.
MAX_FRAME_NBYTES = 64 << 20
#: An atomic push sends a shard as one message: 4 MiB frames of a 16 GiB shard.
MAX_FRAMES = 4096
#: Up to here a payload travels inside the header: one frame less is worth more than one copy.
INLINE_NBYTES = 4096
#: Fields of a `Hello` of the first version of the protocol, which all later ones begin with.
HELLO_FIELDS = 9
MAX_DEPTH = 8
#: Bytes of a large header that are read without a turn for other threads: well below a millisecond.
PIECE_NBYTES = 16 << 10

#: Looks at a few items a level only: what a peer sent may be megabytes, or nested beyond the stack.
_brief = reprlib.Repr()
_brief.maxlevel = 2


def _integer(bits: int) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) is not int or not 0 <= value < 1 << bits:
            raise ProtocolError(f"{_show(value)} is not an unsigned integer of {bits} bits")
        return value

    return check


def _one_of(enum: type[IntEnum]) -> Callable[[Any], Any]:
    known = {member.value: member for member in enum}

    def check(value: Any) -> Any:
        if type(value) is not int or value not in known:
            raise ProtocolError(f"{_show(value)} is not a {enum.__name__}")
        return known[value]

    return check


def _text(value: Any) -> Any:
    if type(value) is not str:
        raise ProtocolError(f"{_show(value)} is not a string")
    if len(value) > MAX_TEXT_CHARS:
        raise LimitError(what="a text's length", got=len(value), limit=MAX_TEXT_CHARS)
    return value


def _seconds(value: Any) -> Any:
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:
        raise ProtocolError(f"{_show(value)} is not a duration in seconds")
    return float(value)


def _incarnation(value: Any) -> Any:
    if type(value) is not bytes or len(value) != INCARNATION_NBYTES:
        raise ProtocolError(f"{_show(value)} is not an incarnation of {INCARNATION_NBYTES} bytes")
    return value


def _key(value: Any) -> Any:
    if type(value) is not bytes or len(value) not in (0, KEY_NBYTES):
        raise ProtocolError(f"a key has {KEY_NBYTES} bytes, or none")  # its value is never shown
    return value


def _blob(value: Any) -> Any:
    if type(value) is not bytes:
        raise ProtocolError(f"{_show(value)} are not bytes")
    if len(value) > MAX_BLOB_NBYTES:
        raise LimitError(what="number of bytes in a header", got=len(value), limit=MAX_BLOB_NBYTES)
    return value


def _plain(value: Any, depth: int = 0) -> Any:
    if type(value) is dict:
        if depth == MAX_DEPTH:
            raise LimitError(what="nesting", got=depth + 1, limit=MAX_DEPTH)
        for key, item in value.items():
            if type(key) is not str:
                raise ProtocolError(f"map key {_show(key)} is not a string")
            _plain(item, depth + 1)
    elif type(value) is list:
        if depth == MAX_DEPTH:
            raise LimitError(what="nesting", got=depth + 1, limit=MAX_DEPTH)
        for item in value:
            _plain(item, depth + 1)
    elif value is not None and type(value) not in (str, int, float, bool):
        raise ProtocolError(f"{_show(value)} is not a string, number, truth value, list or map")
    return value


def _map(value: Any) -> Any:
    if type(value) is not dict:
        raise ProtocolError(f"{_show(value)} is not a map")
    return _plain(value)


def _facts(value: Any) -> Any:
    if len(_map(value)) > MAX_FACTS:
        raise LimitError(what="number of facts", got=len(value), limit=MAX_FACTS)
    for item in value.values():
        if type(item) in (dict, list):
            raise ProtocolError("the facts of an error are strings, numbers, truth values or nil")
        if type(item) is str and len(item) > MAX_FACT_CHARS:
            raise LimitError(what="a fact's length", got=len(item), limit=MAX_FACT_CHARS)
    return value


def _texts(value: Any) -> Any:
    return tuple(_text(item) for item in _list(value))


def _versions(value: Any) -> Any:
    return tuple([_u64(item) for item in _list(value)])


def _terms(value: Any) -> Any:
    terms = tuple(_list(value))
    if len(terms) > 2 + MOST_NUMBERS:
        raise LimitError(what="number of hyperparameters", got=len(terms) - 2, limit=MOST_NUMBERS)
    scale = terms[0] if terms else 1.0
    scaled = type(scale) in (int, float) and (0.0 <= scale <= 1.0 or scale in (SET, SET_TO_MEAN))
    if not scaled or (len(terms) > 1 and not are_sets(terms[1:])):
        raise ProtocolError(f"{_show(value)} are not a scale between 0 and 1, and sets of numbers of one size")
    return tuple(map(float, terms))


def _parts(value: Any) -> Any:
    parts = []
    for part in _list(value):
        if type(part) is not list or len(part) != 3:
            raise ProtocolError(f"{_show(part)} is not a part [slice, version, ranges]")
        index, version, ranges = part
        if type(ranges) is not list or len(ranges) % 2:
            raise ProtocolError(f"{_show(ranges)} is not a list of starts and stops")
        last = -1
        for i, bound in enumerate(ranges):
            # starts may touch the previous stop; a stop comes after its start
            if _u32(bound) < last or (i % 2 and bound == last):
                raise ProtocolError(f"ranges {_show(ranges)} are not ascending")
            last = bound
        parts.append((_u32(index), _u64(version), tuple(ranges)))
    return tuple(parts)


def _contributors(value: Any) -> Any:
    contributors = []
    for entry in _list(value):
        if type(entry) is not list or len(entry) != 2:
            raise ProtocolError(f"{_show(entry)} is not a contributor [incarnation, attempts]")
        contributors.append((_incarnation(entry[0]), _versions(entry[1])))
    return tuple(contributors)


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise ProtocolError(f"{_show(value)} is not a list")
    return value


def _show(value: Any) -> str:
    text = _brief.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


_u32, _u64 = _integer(32), _integer(64)

#: Annotation, a name of message.py -> check. A check returns the value as the dataclass wants it.
CHECKS: dict[str, Callable[[Any], Any]] = {
    "U8": _integer(8),
    **{enum.__name__: _one_of(enum) for enum in m.STATES},
    "U32": _u32,
    "U64": _u64,
    "Text": _text,
    "Seconds": _seconds,
    "Incarnation": _incarnation,
    "Key": _key,
    "Blob": _blob,
    "Plain": _map,
    "Facts": _facts,
    "Texts": _texts,
    "Versions": _versions,
    "Parts": _parts,
    "Contributors": _contributors,
    "Entries": m.checked_entries,
    "Terms": _terms,
}


class Schema(NamedTuple):
    """What a message of one kind is made of."""

    cls: type[m.Message]
    names: tuple[str, ...]  # of its fields, but for the payload
    checks: tuple[Callable[[Any], Any], ...]
    has_payload: bool
    values: Callable[[m.Message], tuple[Any, ...]]  # of these fields


def _types(cls: type[m.Message]) -> dict[str, str]:
    """Return what the fields of a message are of, those of what it derives from first."""
    annotations = [vars(base).get("__annotations__", {}) for base in reversed(cls.__mro__)]
    return {n: str(t) for found in annotations for n, t in found.items() if "ClassVar" not in str(t)}


def _schema(cls: type[m.Message]) -> Schema:
    fields = _types(cls)
    has_payload = "payload" in fields
    if has_payload:
        assert list(fields)[-1] == "payload", f"{cls.__name__}: the payload comes last"
        del fields["payload"]
    checks = tuple(CHECKS[t] for t in fields.values())
    return Schema(cls, tuple(fields), checks, has_payload, _getter(tuple(fields)))


def _getter(names: tuple[str, ...]) -> Callable[[m.Message], tuple[Any, ...]]:
    if "job" in names and "placement" in names:  # what many receive alike is packed once
        return lambda message: tuple([getattr(value := getattr(message, n), "raw", value) for n in names])
    if len(names) > 1 and "text" not in names:
        return attrgetter(*names)
    return lambda message: tuple([_cut(getattr(message, n)) if n == "text" else getattr(message, n) for n in names])


#: What nodes say to each other in every step, and parts of a model as it is loaded.
IN_EVERY_STEP = (
    m.Ack, m.Arrive, m.Commit, m.Committed, m.Load, m.Proceed, m.Pull, m.PullRows, m.Push, m.PushRows, m.Values,
)  # fmt: skip
SCHEMAS = {cls: _schema(cls) for cls in m.BY_KIND.values()}

#: Of those: kind -> class, what reads its header, where its parts are in it (0: it has none), whether it has a payload.
_OFTEN: dict[int, tuple[Callable[..., m.Message], Callable[[memoryview], tuple[Any, ...]], int, bool]] = {
    cls.kind: (
        cls,
        reader([_types(cls)[name] for name in SCHEMAS[cls].names], SCHEMAS[cls].has_payload),
        1 + SCHEMAS[cls].names.index("parts") if "parts" in SCHEMAS[cls].names else 0,
        SCHEMAS[cls].has_payload,
    )
    for cls in IN_EVERY_STEP
}

#: Kind -> bytes that its header has at most, if they are not `MAX_SHORT_HEADER_NBYTES`.
HEADER_NBYTES: dict[int, int] = {
    cls.kind: limit
    for limit, kinds in {
        MAX_INIT_HEADER_NBYTES: (m.Init,),
        MAX_HEADER_NBYTES: (m.Job, m.Assign, m.Status, m.Examined, m.View),
        MAX_DATA_HEADER_NBYTES: (m.Load, m.Push, m.Pull, m.Ack, m.Values, m.Tensors, m.Replicate),
        MAX_LIST_HEADER_NBYTES: (m.Heartbeat, m.Commit, m.Error, m.Checkpoint, m.Saved, m.Tracing),
        MAX_STRANGE_HEADER_NBYTES: (m.Hello, m.StatusRequest, m.Watch, m.EndJob, m.Examine, m.Trace),
    }.items()
    for cls in kinds
}

#: Entries of all maps of a large `Init` together: Python keeps the names of maps in one table, and looks through all of
#: that when it next becomes smaller (16 ms for the 800,000 that 6 MiB could hold).
MAX_INIT_ENTRIES = 1 << 17


def encode(message: m.Message) -> list[Buffer]:
    """Return the frames of a message: the header, then its payload's buffers as they are.

    Payload buffers are C-contiguous and are not copied, so they must not be written to before
    the transport has let go of them; a payload of up to `INLINE_NBYTES` is copied into the header.
    """
    schema = SCHEMAS[type(message)]
    header: list[Any] = [message.kind, *schema.values(message)]
    if not schema.has_payload:
        return [_pack(header)]
    payload: Sequence[Buffer] = message.payload  # type: ignore[attr-defined]
    if len(payload) == 1 and (only := memoryview(payload[0])).nbytes <= INLINE_NBYTES:  # as of most small ones
        header.append(only.tobytes())
        return [_pack(header)]
    views, sizes = [], []
    for buffer in payload:
        view = memoryview(buffer)
        if nbytes := view.nbytes:
            views.append(view.cast("B"))
            sizes.append(nbytes)
    if sum(sizes) <= INLINE_NBYTES:
        header.append(b"".join(views))
        return [_pack(header)]
    if len(views) > MAX_FRAMES:
        raise LimitError(what="number of array frames", got=len(views), limit=MAX_FRAMES)
    if max(sizes) > MAX_FRAME_NBYTES:
        raise LimitError(what="size of an array frame", got=max(sizes), limit=MAX_FRAME_NBYTES)
    header.append(sizes)
    return [_pack(header), *views]


def _cut(text: str) -> str:
    """Shorten words for people: an error that names a hundred workers must still be delivered."""
    return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"


def _pack(header: list[Any]) -> bytes:
    packed = pack(header)
    if len(packed) > MAX_STRANGE_HEADER_NBYTES and len(packed) > (
        limit := HEADER_NBYTES.get(header[0], MAX_SHORT_HEADER_NBYTES)
    ):
        raise LimitError(what="size of the header", got=len(packed), limit=limit)
    return packed


def data_header_nbytes(slices: int, segments: int) -> int:
    """Return how large a header about a shard is at most: all slices, and all stretches of parameters in ranges."""
    return MAX_STRANGE_HEADER_NBYTES + INLINE_NBYTES + 128 * slices + 10 * segments


def _check_size(header: memoryview, data_nbytes: int) -> None:
    """Raise `LimitError` for a header that is larger, or would grow more when it is decoded, than its kind can need."""
    # the kind is the second byte of every list of up to 15; what begins in another way is not large
    kind = header[1] if header.nbytes > 1 and header[0] & 0xF0 == 0x90 else 0
    limit = HEADER_NBYTES.get(kind, MAX_SHORT_HEADER_NBYTES)
    if limit == MAX_DATA_HEADER_NBYTES:
        limit = min(limit, data_nbytes)
    if header.nbytes > limit:
        raise LimitError(what="size of the header", got=header.nbytes, limit=limit)
    if header.nbytes > MAX_SHORT_HEADER_NBYTES:
        nbytes = decoded_nbytes(header)
        if nbytes > MAX_GROWTH * header.nbytes:
            raise LimitError(what="memory of the decoded header", got=nbytes, limit=MAX_GROWTH * header.nbytes)


def decoded_nbytes(header: Buffer) -> int:
    """Return how much memory a header takes at most once it is decoded.

    Bytes inside of strings and numbers are counted as well: too many rather than too few.
    """
    return int(_COSTS[np.frombuffer(header, np.uint8)].sum(dtype=np.uint64))


def kind_of(header: memoryview) -> int:
    """Return the kind of a message, if this is one."""
    if header.nbytes < 4:
        return 0
    return header[3] if header[0] == 0xDC else header[1]  # behind a list's length, which is in the first byte up to 15


def _unpack(header: memoryview) -> Any:
    return msgpack.unpackb(header, max_ext_len=0)


def _unpack_in_pieces(header: memoryview) -> Any:
    """Read a header that may be large: one call for all of it would keep every other thread waiting."""
    if header.nbytes <= MAX_SHORT_HEADER_NBYTES:
        return _unpack(header)
    options: dict[str, Any] = {"max_ext_len": 0, "max_buffer_size": header.nbytes}
    if kind_of(header) == m.Init.kind:
        options |= {"max_map_len": MAX_INIT_ENTRIES, "object_hook": _counter(MAX_INIT_ENTRIES)}
    unpacker = msgpack.Unpacker(**options)
    with uncollected():
        for start in range(0, header.nbytes, PIECE_NBYTES):
            unpacker.feed(header[start : start + PIECE_NBYTES])
            with contextlib.suppress(msgpack.OutOfData):
                values = unpacker.unpack()
                if unpacker.tell() == header.nbytes:
                    return values
                break
    raise ValueError(f"the first object ends at byte {unpacker.tell()} of {header.nbytes}")


def _counter(most: int) -> Callable[[dict[Any, Any]], dict[Any, Any]]:
    """Return a filter that lets maps pass until they have that many entries in all."""
    left = most

    def count(found: dict[Any, Any]) -> dict[Any, Any]:
        nonlocal left
        left -= len(found)
        if left < 0:
            raise LimitError(what="number of entries of all maps", got=most - left, limit=most)
        return found

    return count


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector, which would look for cycles among the many objects created here.

    It would walk all of them again and again, five times the time, with all threads waiting; and there are no cycles
    among them.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _apart(read: Callable[[memoryview], Any], header: memoryview) -> Any:
    """Read a header that may be large in one call."""
    if header.nbytes <= MAX_SHORT_HEADER_NBYTES:
        return read(header)
    with uncollected():
        return read(header)


def peek(frames: Sequence[Buffer]) -> tuple[str, int]:
    """Return the name of a message that `encode` made and its request (0: none), without decoding the rest."""
    values = msgpack.unpackb(frames[0])
    cls = m.BY_KIND[values[0]]
    return cls.__name__, values[1] if SCHEMAS[cls].names[:1] == ("request",) else 0


def decode(frames: Sequence[Buffer], data_nbytes: Callable[[], int] = lambda: MAX_DATA_HEADER_NBYTES) -> m.Message:
    """Return the message that ``frames`` hold; its payload aliases them, or the bytes inside the header.

    ``data_nbytes`` returns how large a header of a message with arrays may be here; only asked for large ones.

    Raises
    ------
    LimitError
        A size or count beyond this module's limits.
    ProtocolError
        Anything else that is not a message of docs/protocol.md.
    """
    if not frames:
        raise ProtocolError("a message without frames")
    header = memoryview(frames[0])
    is_small = header.nbytes <= MAX_STRANGE_HEADER_NBYTES  # headers of every kind may be as large
    if not is_small:
        _check_size(header, data_nbytes())
    if (often := _OFTEN.get(kind_of(header))) is not None:
        make, read, parts_at, with_payload = often
        try:
            found = read(header) if is_small else _apart(read, header)
        except (ValueError, RecursionError):
            pass  # the checks below say what is wrong with it
        else:
            if not parts_at or not any([ranges for _, _, ranges in found[parts_at]]) or are_ordered(found[parts_at]):
                if with_payload:
                    return make(*found[1:-1], _payload(found[-1], frames[1:]))
                if len(frames) == 1:
                    return make(*found[1:])
    try:
        values = _unpack(header) if is_small else _unpack_in_pieces(header)
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise ProtocolError(f"the header is not msgpack: {_show(error)}") from error
    if type(values) is not list or not values or type(values[0]) is not int:
        raise ProtocolError(f"the header is not [kind, field, ...]: {_show(values)}")
    cls = m.BY_KIND.get(values[0])
    if cls is None:
        raise ProtocolError(f"no message is of kind {values[0]}")
    names, checks, has_payload = (schema := SCHEMAS[cls]).names, schema.checks, schema.has_payload
    if cls is m.Hello and len(values) > HELLO_FIELDS:
        # what a later version appends is not for us, its number says enough; an earlier one lacks what this one appends
        values[len(names) + 1 :] = []
    elif len(values) != 1 + len(names) + has_payload:
        raise ProtocolError(f"{cls.__name__} has {len(names) + has_payload} fields, not {len(values) - 1}")
    try:
        # a tuple keeps the fields in their order; the checks see each value once
        fields = [check(value) for check, value in zip(checks, values[1:], strict=False)]
    except ProtocolError as error:
        if isinstance(error, LimitError):
            raise
        raise ProtocolError(f"{cls.__name__}: {error}") from None
    if has_payload:
        fields.append(_payload(values[-1], frames[1:]))
    elif len(frames) != 1:
        raise ProtocolError(f"{cls.__name__} carries no array frames, got {len(frames) - 1}")
    return cls(*fields)


def _payload(declared: Any, frames: Sequence[Buffer]) -> tuple[memoryview, ...]:
    if type(declared) is bytes:
        if frames:
            raise ProtocolError(f"the payload is inside the header, yet {len(frames)} frames follow")
        if len(declared) > INLINE_NBYTES:
            raise LimitError(what="size of an inline payload", got=len(declared), limit=INLINE_NBYTES)
        return (memoryview(declared),) if declared else ()
    sizes = _list(declared)
    if len(sizes) > MAX_FRAMES:
        raise LimitError(what="number of array frames", got=len(sizes), limit=MAX_FRAMES)
    if len(sizes) != len(frames):
        raise ProtocolError(f"{len(sizes)} array frames were announced, {len(frames)} came")
    views = []
    for size, frame in zip(sizes, frames, strict=True):
        view = memoryview(frame).cast("B")
        if view.nbytes != _u64(size):
            raise ProtocolError(f"an array frame of {size} bytes was announced, {view.nbytes} came")
        if view.nbytes > MAX_FRAME_NBYTES:
            raise LimitError(what="size of an array frame", got=view.nbytes, limit=MAX_FRAME_NBYTES)
        views.append(view)
    return tuple(views)
