"""Hypothesis strategies made from the schema table of the wire: any message, any bytes that might be one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from hypothesis import strategies as st

from zmqps.core.job.keyspace import SLICE_NBYTES, SPLIT_NBYTES, KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.core.protocol.messages import BY_KIND, STATES, Message
from zmqps.core.protocol.wire import MAX_DEPTH, encode


def unsigned(bits: int) -> st.SearchStrategy[int]:
    # the powers of two are where msgpack changes its form
    edges = [0, 1, 127, 128, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, (1 << 64) - 1]
    return st.sampled_from([edge for edge in edges if edge < 1 << bits]) | st.integers(0, (1 << bits) - 1)


NUMBERS = st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=40)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
).filter(lambda value: depth(value) < MAX_DEPTH)


def depth(value: Any) -> int:
    """Return how many lists and maps lie inside one another."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, ...]:
    gaps = draw(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 1000)), max_size=5))
    bounds: list[int] = []
    for gap, size in gaps:
        start = (bounds[-1] if bounds else 0) + gap
        bounds += [start, start + size]
    return tuple(bounds)


BUFFERS = st.binary(max_size=60) | st.integers(0, 3).map(lambda n: np.arange(n * 700, dtype="<f4"))

BY_ANNOTATION: dict[str, st.SearchStrategy[Any]] = {
    "U8": unsigned(8),
    **{enum.__name__: st.sampled_from(enum) for enum in STATES},
    "U32": unsigned(32),
    "U64": unsigned(64),
    "Text": st.text(max_size=40),
    "Seconds": st.floats(0, 1e12),
    "Incarnation": st.binary(min_size=16, max_size=16),
    "Key": st.sampled_from([b"", bytes(range(16))]),
    "Blob": st.binary(max_size=60),
    "Plain": st.dictionaries(st.text(max_size=8), PLAIN, max_size=4),
    "Facts": st.dictionaries(st.text(max_size=8), SCALARS, max_size=4),
    "Texts": st.lists(st.text(max_size=20), max_size=4).map(tuple),
    "Versions": st.lists(unsigned(64), max_size=5).map(tuple),
    "Parts": st.lists(st.tuples(unsigned(32), unsigned(64), ranges()), max_size=4).map(tuple),
    "Entries": st.lists(
        st.tuples(
            st.floats(0, 1e9),
            st.none() | unsigned(63),
            st.dictionaries(
                st.text("abc/_ é", min_size=1, max_size=8), st.floats(allow_nan=False), min_size=1, max_size=3
            ),
        ),
        max_size=4,
    ).map(tuple),
    "Terms": st.one_of(
        st.just(()),
        st.builds(
            lambda scale, count, each: (scale, float(count), *(each * count)) if each else (scale,),
            st.floats(0, 1),
            st.integers(1, 3),
            st.lists(st.one_of(st.just(-1e30), st.floats(-1e6, 1e6)), max_size=4),
        ),
    ),
    "Contributors": st.lists(
        st.tuples(st.binary(min_size=16, max_size=16), st.lists(unsigned(64), max_size=3).map(tuple)), max_size=3
    ).map(tuple),
    "Payload": st.lists(BUFFERS, max_size=4).map(tuple),
}


def messages(*kinds: type[Message]) -> st.SearchStrategy[Message]:
    """Return a strategy for messages of these kinds, by default of all."""
    return st.one_of(
        st.builds(cls, **{f.name: BY_ANNOTATION[str(f.type)] for f in fields(cls)})  # type: ignore[arg-type]
        for cls in kinds or BY_KIND.values()
    )


def comparable(message: Message) -> tuple[Any, ...]:
    """Return a message as a tuple to compare by: of a payload only its bytes count."""
    values: list[Any] = [type(message).__name__]
    for field in fields(message):  # type: ignore[arg-type]
        value = getattr(message, field.name)
        if field.name == "payload":
            value = b"".join(bytes(buffer) for buffer in value)
        values.append(_lists(value))
    return tuple(values)


def _lists(value: Any) -> Any:
    return [_lists(item) for item in value] if isinstance(value, list | tuple) else value


def as_bytes(frames: Sequence[Any]) -> list[bytes]:
    """Return frames as bytes."""
    return [bytes(frame) for frame in frames]


@st.composite
def keyspaces(draw: st.DrawFn) -> KeySpace:
    # around the size below which a parameter is not split, and around nothing
    sizes = st.sampled_from([0, 1, 3, 17, SPLIT_NBYTES // 8, SPLIT_NBYTES // 4 - 1, SPLIT_NBYTES // 4, 40_000])
    # rows of all sizes: few and large ones, many and small ones, and such as are cut inside
    shapes = st.one_of(
        sizes.map(lambda size: (size,)),
        st.sampled_from([(), (7, 0), (3, 30_000), (300, 301), (2, 50, 999), (40_000, 1), (1, 1, 33_333)]),
    )
    dtypes = st.sampled_from(["float16", "bfloat16", "float32", "float64"])
    parameters = draw(st.lists(st.tuples(shapes, dtypes), min_size=1, max_size=12))
    return KeySpace([Parameter(f"p{i}", shape, dtype) for i, (shape, dtype) in enumerate(parameters)])


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    slice_nbytes = draw(st.sampled_from([1 << 12, 12_345, SLICE_NBYTES]))
    return Placement.balance(draw(keyspaces()), draw(st.integers(1, 9)), slice_nbytes)


@st.composite
def mutated(draw: st.DrawFn, kinds: tuple[type[Message], ...] = ()) -> list[bytes]:
    """Return the frames of a message, damaged in up to three places."""
    frames = as_bytes(encode(draw(messages(*kinds))))
    for _ in range(draw(st.integers(1, 3))):
        if not frames:
            break
        i = draw(st.integers(0, len(frames) - 1))
        frame = frames[i]
        at = draw(st.integers(0, len(frame)))
        match draw(st.integers(0, 6)):
            case 0:
                frames[i] = frame[:at]
            case 1:
                frames[i] = frame[:at] + draw(st.binary(min_size=1, max_size=4)) + frame[at:]
            case 2:
                frames[i] = frame[:at] + draw(st.binary(min_size=1, max_size=4)) + frame[at + 1 :]
            case 3:
                frames[i] = frame[:at] + frame[at + 1 :]
            case 4:
                del frames[i]
            case 5:
                frames.insert(i, draw(st.binary(max_size=20)))
            case 6:
                frames.append(frame)
    return frames


NOISE = st.lists(st.binary(max_size=80), max_size=4)


@st.composite
def almost(draw: st.DrawFn) -> list[bytes]:
    """Return well-formed msgpack of the right shape for a kind, with fields of any type."""
    import msgpack

    kind = draw(st.sampled_from([*BY_KIND, 0, 99]))
    num_fields = len(fields(BY_KIND[kind])) if kind in BY_KIND else 2  # type: ignore[arg-type]
    junk = SCALARS | st.binary(max_size=20) | st.lists(SCALARS, max_size=3) | BY_ANNOTATION["Plain"]
    junk |= st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=12))
    junk |= st.builds(msgpack.Timestamp, st.integers(0, 1 << 33), st.integers(0, 999_999_999))
    values = draw(st.lists(junk, min_size=num_fields, max_size=num_fields))
    return [msgpack.packb([kind, *values], strict_types=False), *draw(NOISE)]
