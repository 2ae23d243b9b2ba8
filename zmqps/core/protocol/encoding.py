"""Arrays of a message in a codec: each part is one blob, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zmqps import checks
from zmqps.codecs import ALONE, CODECS, MIN_NBYTES, Codec, Spread, for_values, parse
from zmqps.codecs.registry import MAX_SPEC_CHARS, is_name
from zmqps.core.protocol.arrays import Array
from zmqps.errors import CodecError, ConfigurationError, ProtocolError

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

RAW = "raw"


def choose(codec: str, nbytes: int) -> Codec | None:
    """Return the codec for a payload; None if it is sent raw, on request or because it is small."""
    return None if codec == RAW or nbytes < MIN_NBYTES else parse(codec)


def check_for_values(codec: str) -> None:
    """Raise `ProtocolError` unless values may be sent in the codec that a message names."""
    found = named(codec)
    if found is not None and found.error_feedback:
        raise ProtocolError(f"{found.name} leaves values out; values travel in {for_values()}")


def named(codec: str) -> Codec | None:
    """Return the codec that a message names; None for raw."""
    return None if codec == RAW else parse(codec)


def check_codec(codec: str | Codec, *, pulls: bool) -> str:
    """Return the text of a codec that the user named.

    Raises
    ------
    ConfigurationError
        There is no such codec, or it cannot encode values of a pull.
    """
    text = codec.spec if isinstance(codec, Codec) else codec
    if not isinstance(text, str):
        raise ConfigurationError(
            f"a codec is one of zmqps.codecs or its name, such as 'bf16', not {checks.shown(text):.60}"
        )
    try:
        found = named(text)
    except CodecError as error:
        near = checks.meant(text.partition(":")[0], CODECS)
        raise ConfigurationError(f"{error}; {near}" if near else str(error)) from error.__cause__
    except ProtocolError as error:
        raise ConfigurationError(str(error)) from None
    if pulls and found is not None and found.error_feedback:
        raise ConfigurationError(
            f"{found.name} leaves values out and sends them later; what is pulled is read once: use {for_values()}"
        )
    return text


def check_codec_of_job(codec: str, *, pulls: bool) -> None:
    """Raise `ConfigurationError` unless a job may have that codec.

    One of a package may be installed where it is used, on workers and servers, and not on a node that only passes the
    job on: of that only the form is checked.
    """
    name = codec.partition(":")[0] if isinstance(codec, str) else ""
    if name in CODECS or len(codec) > MAX_SPEC_CHARS or not is_name(name):
        check_codec(codec, pulls=pulls)


def compress(
    codec: Codec,
    parts: Iterable[Sequence[Array]],
    residuals: Sequence[Sequence[Array]] | None = None,
    seed: int = 0,
    xp: ModuleType | None = None,
    spread: Spread = ALONE,
) -> list[Array]:
    """Return a blob for each part.

    Parameters
    ----------
    codec
        The codec.
    parts
        For each part its pieces, 1-D and of one dtype, one after the other.
    residuals
        For each part the pieces that earlier blobs left out; updated in place. For codecs with error feedback.
    seed
        For stochastic rounding.
    xp
        The namespace of the arrays, if it is not numpy; the blobs are of the same.
    spread
        Its threads encode parts of one array at the same time; not in another namespace.
    """
    encode = partial(codec.encode, spread=spread) if xp is None else partial(codec.encode_in, xp)
    blobs = []
    for number, pieces in enumerate(parts):
        array = _joined(pieces, xp)
        if residuals is None or not codec.error_feedback:
            blobs.append(encode(array, seed=seed))
            continue
        kept = residuals[number]
        residual = _joined(kept, xp)
        blobs.append(encode(array, residual, seed=seed))
        if len(kept) > 1:
            position = 0
            for piece in kept:
                piece[:] = residual[position : position + piece.size]
                position += piece.size
    return blobs


def decompress(
    codec: Codec,
    payload: Sequence[Buffer],
    sizes: Iterable[tuple[int, np.dtype[Any]]],
    read: Callable[[Any, int, np.dtype[Any]], tuple[Any, int]] | None = None,
) -> list[Any]:
    """Return the array of each part.

    Parameters
    ----------
    codec, payload
        The codec and the encoded parts, one after the other.
    sizes
        Elements and dtype of each part.
    read
        Reads the blob at the start of a view; returns its array, and its bytes. By default `Codec.decode`.

    Raises
    ------
    ProtocolError
        The payload does not hold these parts in this codec.
    """
    read = codec.decode if read is None else read
    buffers = iter(payload)
    view = memoryview(b"")
    arrays = []
    for size, dtype in sizes:
        if not view.nbytes:
            view = memoryview(next(buffers, b"")).cast("B")
        array, consumed = read(view, size, dtype)
        view = view[consumed:]
        arrays.append(array)
    if view.nbytes or any(memoryview(rest).nbytes for rest in buffers):
        raise ProtocolError("the payload is longer than the parts it is for")
    return arrays


class Coding(NamedTuple):
    """The door to the codecs; a recorder replaces it by one that measures the time."""

    compress: Callable[..., list[Any]] = compress
    decompress: Callable[..., list[Any]] = decompress


#: The door without recording.
CODING = Coding()


def _joined(pieces: Sequence[Array], xp: ModuleType | None) -> Array:
    joined: Array = pieces[0] if len(pieces) == 1 else (xp or np).concatenate(pieces)
    return joined
