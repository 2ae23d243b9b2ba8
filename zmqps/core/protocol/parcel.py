"""Named arrays in one message, as the stages of a pipeline send them to each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from zmqps import checks
from zmqps.codecs import Codec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import RAW, choose, named
from zmqps.core.protocol.messages import Tensors
from zmqps.errors import ConfigurationError, LimitError, ProtocolError

#: The dtypes between stages: of activations and gradients, labels and masks. On the wire little-endian.
_NAMES = "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split()
DTYPES = {name: np.dtype(name).newbyteorder("<") for name in _NAMES}
#: Dtypes that codecs take.
ENCODED = ("float32", "float64")
MAX_ARRAYS = 1024
#: As numpy's own limit.
MAX_DIMENSIONS = 32
#: Larger arrays are sent in pieces: a stranger could leave a frame half sent.
FRAME_NBYTES = 4 << 20


def pack(number: int, arrays: Mapping[str, Any], codec: str = RAW) -> Tensors:
    """Return a message that holds arrays; it aliases those that are contiguous and not encoded.

    Parameters
    ----------
    number
        Of the message on its connection.
    arrays
        Anything that converts to numpy arrays, by name.
    codec
        The codec of float32 and float64 arrays, if they are large enough to gain from it.
    """
    if len(checks.mapping("arrays", arrays, "name -> array")) > MAX_ARRAYS:
        raise LimitError(what="number of arrays in a message", got=len(arrays), limit=MAX_ARRAYS)
    entries: dict[str, list[Any]] = {}
    payload: list[Array] = []
    for name, value in arrays.items():
        array = _as_array(name, value)
        chosen = choose(codec, array.nbytes) if array.dtype.name in ENCODED else None
        flat = np.ascontiguousarray(array, DTYPES[array.dtype.name]).reshape(-1)
        blob = flat.view(np.uint8) if chosen is None else chosen.encode(flat, seed=number)
        entries[name] = [array.dtype.name, list(array.shape), RAW if chosen is None else chosen.spec, blob.nbytes]
        payload += [blob[start : start + FRAME_NBYTES] for start in range(0, blob.nbytes, FRAME_NBYTES)]
    return Tensors(number, entries, payload)


def _as_array(name: object, value: Any) -> Array:
    """Return a value as an array; raise `ConfigurationError` if no message can carry it."""
    what = "not the name of an array"
    try:
        if isinstance(name, str):
            name.encode()  # a lone surrogate cannot be sent
            array = np.asarray(value)
            what = str(array.dtype)
            if array.dtype.name in DTYPES:
                return array
    except (ValueError, TypeError, OverflowError) as error:
        what = str(error)
    shown = checks.shown(name)
    raise ConfigurationError(f"{shown:.60} is {what:.200}; stages send named arrays of {', '.join(DTYPES)}")


def unpack(message: Tensors) -> dict[str, Array]:
    """Return the arrays of a message: new, writable ones.

    Raises
    ------
    LimitError, ProtocolError
        The message does not hold what it claims; nothing is allocated for missing data.
    """
    if len(message.arrays) > MAX_ARRAYS:
        raise LimitError(what="number of arrays in a message", got=len(message.arrays), limit=MAX_ARRAYS)
    entries = [_entry(name, entry) for name, entry in message.arrays.items()]
    frames = [memoryview(buffer).cast("B") for buffer in message.payload]
    announced, came = sum(nbytes for *_, nbytes in entries), sum(frame.nbytes for frame in frames)
    if announced != came:
        raise ProtocolError(f"arrays of {announced} bytes were announced, {came} came")
    arrays: dict[str, Array] = {}
    for name, dtype, shape, codec, nbytes in entries:
        blob = np.empty(nbytes, np.uint8)
        filled = 0
        while filled < nbytes:
            piece = frames[0][: nbytes - filled]
            blob[filled : filled + piece.nbytes] = piece
            filled += piece.nbytes
            frames[0] = frames[0][piece.nbytes :]
            if not frames[0].nbytes:
                del frames[0]
        if codec is None:
            arrays[name] = blob.view(dtype).reshape(shape)
        else:
            arrays[name] = codec.decode(blob, math.prod(shape), dtype)[0].reshape(shape)
    return arrays


def _entry(name: str, entry: Any) -> tuple[str, np.dtype[Any], tuple[int, ...], Codec | None, int]:
    """Check a message's description of one array: its bytes must match its shape and codec."""
    if type(entry) is not list or [type(item) for item in entry] != [str, list, str, int]:
        raise ProtocolError(f"array {name[:60]!r} is not [dtype, shape, codec, bytes]")
    dtype_name, shape, codec_text, nbytes = entry
    if dtype_name not in DTYPES:
        raise ProtocolError(f"array {name[:60]!r} has a dtype that does not travel, {dtype_name[:40]!r}")
    if len(shape) > MAX_DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
        raise ProtocolError(f"array {name[:60]!r} has no usable shape")
    if math.prod(max(1, n) for n in shape) >= 1 << 56:  # numpy refuses it even if another dimension is 0
        raise ProtocolError(f"array {name[:60]!r} has no usable shape")
    size, dtype, codec = math.prod(shape), DTYPES[dtype_name], named(codec_text)
    if codec is None:
        expected = size * dtype.itemsize
    elif codec.error_feedback or dtype_name not in ENCODED:
        raise ProtocolError(f"array {name[:60]!r}: {dtype_name} does not travel in {codec.name}")
    else:
        # bounds the size before a codec sees it: each takes at least a byte per value
        expected = codec.encoded_nbytes(size, dtype) if size <= nbytes else -1
    if nbytes != expected:
        raise ProtocolError(f"array {name[:60]!r} cannot have {nbytes} bytes")
    return name, dtype, tuple(shape), codec, nbytes
