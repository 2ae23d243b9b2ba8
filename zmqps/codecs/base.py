"""What a codec is: an array to one blob of bytes and back, with its options as plain numbers.

A blob is little-endian and delimits itself: its end follows from the number and dtype of the values in
it. Its source is not trusted, so decoding checks every length, count and index before it
uses it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, get_args

import numpy as np

from .. import checks
from ..errors import CodecError, ConfigurationError, ProtocolError, PSError
from .kernels import ALONE, Backend, CodecKernel, Spread, namespace

if TYPE_CHECKING:
    from numpy.typing import DTypeLike


Array = np.ndarray[Any, np.dtype[Any]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

#: Below this many bytes of values a codec saves less than it costs, so the caller sends them raw.
MIN_NBYTES = 1024
#: Most values in one blob. Indices and counters of 32 bits reach further; no slice comes near it.
MAX_SIZE = 1 << 31
#: What can be encoded; bytes in a blob are little-endian, and so is every machine zmqps runs on.
DTYPES = (np.dtype("<f4"), np.dtype("<f8"))


@dataclass(frozen=True)
class Range:
    """What an option's number may be."""

    kind: type[int] | type[float]
    at_least: float
    at_most: float

    def accept(self, label: str, value: object) -> Any:
        """Return the value in plain form, or raise `ConfigurationError` naming it by `label`."""
        whole = self.kind is int
        return checks.number(label, value, at_least=self.at_least, at_most=self.at_most, whole=whole)


def whole(default: int, at_least: int, at_most: int) -> Any:
    """Return a dataclass field for a whole number of that range."""
    return field(default=default, metadata={"range": Range(int, at_least, at_most)})


def real(default: float, at_least: float, at_most: float) -> Any:
    """Return a dataclass field for a number of that range."""
    return field(default=default, metadata={"range": Range(float, at_least, at_most)})


def block_size() -> Any:
    """Return a dataclass field for how many values share their scales.

    1024 keeps the scales below one byte in eighty of what is sent as int8, and a block in the
    fastest cache.
    """
    return whole(1024, 16, 1 << 20)


@dataclass(frozen=True)
class Codec(ABC):
    """Base of the codecs.

    A subclass is a frozen dataclass. Its fields are its options, declared with `whole`, `real` or
    `block_size`, or of type bool with a default of False. One with a `name` also declares `portable`.
    """

    name: ClassVar[str]
    #: Whether what one blob leaves out is kept in a residual and sent with later ones.
    error_feedback: ClassVar[bool] = False
    #: Whether it gives the same bits in every namespace. Sums of floats depend on their order. Each codec declares it
    #: for itself, as no other can promise that.
    portable: ClassVar[bool]
    #: Whether `check_blob` is all that can be wrong with a blob.
    checkable: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" in vars(cls) and "portable" not in vars(cls):
            raise TypeError(
                f"{cls.__qualname__} lacks `portable`: True, if it gives the same bits on every device, or False"
            )

    def __post_init__(self) -> None:
        for option in fields(self):
            label = f"codec {self.name!r}: {option.name}"
            value = getattr(self, option.name)
            if "range" in option.metadata:
                object.__setattr__(self, option.name, option.metadata["range"].accept(label, value))
            else:
                checks.flag(label, value)

    @cached_property
    def spec(self) -> str:
        """The codec and its options as a short text, which `parse` reads: ``"int8:block=1024"``."""
        values = {option.name: getattr(self, option.name) for option in fields(self)}
        shown = [name if value is True else f"{name}={value!r}" for name, value in values.items() if value is not False]
        return f"{self.name}:{','.join(shown)}" if shown else self.name

    def encode(
        self,
        array: Array,
        residual: Array | None = None,
        *,
        seed: int = 0,
        backend: Backend = "numba",
        spread: Spread = ALONE,
    ) -> Bytes:
        """Return the blob of an array.

        Parameters
        ----------
        array : ndarray
            One dimension, float32 or float64, any size; not written to. Whether its values are
            finite is the caller's to check, and before a residual takes them in: each codec says
            how NaN and infinity come out, and none hides them.
        residual : ndarray, optional
            Like `array`, contiguous, zeros at first; only where `error_feedback` is true. What is
            encoded is ``array + residual``; in place, the residual becomes what the blob leaves out.
            Encoding is then not repeatable: keep the blob for as long as it may have to be sent again.
        seed : int, optional
            What random numbers are made from, where a codec uses any. One seed gives one blob, so
            give every message its own, such as its sequence number.
        backend : {"numba", "numpy"}, optional
        spread : Spread, optional
            Whose threads encode parts of the array at the same time; the blob has the same bytes. By default the one
            that calls.

        Returns
        -------
        ndarray of uint8
            At most ``encoded_nbytes(array.size, array.dtype)`` bytes. It may alias `array` (raw).

        Raises
        ------
        ConfigurationError
            This codec does not take such an array or residual.
        """
        _check_backend(backend)
        if array.ndim != 1 or array.dtype not in DTYPES or array.size > MAX_SIZE:
            raise ConfigurationError(
                f"a codec takes at most {MAX_SIZE} float32 or float64 values in one dimension, "
                f"not {array.dtype} of shape {array.shape}"
            )
        if residual is None:
            if self.error_feedback:
                residual = np.zeros(array.size, array.dtype)
        elif not self.error_feedback:
            raise ConfigurationError(f"codec {self.spec!r} keeps no residual")
        elif residual.shape != array.shape or residual.dtype != array.dtype or not residual.flags.carray:
            raise ConfigurationError("a residual is a writable, contiguous array of the values' shape and dtype")
        return self._encode(np.ascontiguousarray(array), residual, seed, backend, spread)

    def encode_in(self, xp: ModuleType, array: Any, residual: Any = None, *, seed: int = 0) -> Any:
        """Return the blob of an array of another namespace, as an array of that namespace: the same bytes.

        Parameters
        ----------
        xp : module
            A namespace with numpy's functions, such as CuPy's.
        array, residual, seed
            As for `encode`, both contiguous; the residual is not optional where `error_feedback` is true.
        """
        assert self.portable
        with np.errstate(all="ignore"):  # a GPU does not warn either
            return self._encode(array, residual, seed, xp, ALONE)

    def decode(self, view: Any, size: int, dtype: DTypeLike, *, backend: Backend = "numba") -> tuple[Array, int]:
        """Return the array that a blob encodes, and how many bytes the blob has.

        Parameters
        ----------
        view : bytes-like
            Contiguous; starts with the blob, more may follow. Nothing about it is trusted.
        size, dtype : int, dtype
            How many values of which dtype (float32 or float64) are expected, as the receiver knows it.
        backend : {"numba", "numpy"}, optional

        Returns
        -------
        array : ndarray
            `size` values; they may be NaN or infinite. May alias `view` and then be read-only (raw).
        consumed_nbytes : int

        Raises
        ------
        ProtocolError
            The view does not start with a blob of this codec for that many values.
        CodecError
            The codec raised something else: it is wrong.
        """
        _check_backend(backend)
        dtype = np.dtype(dtype)
        if dtype not in DTYPES or not 0 <= size <= MAX_SIZE:
            raise ConfigurationError(f"no codec makes {size} values of {dtype}")
        try:
            return self._decode(octets(view), size, dtype, backend)
        except (PSError, MemoryError):
            raise
        except Exception as error:  # a codec of another package can fail in any way, on a server that others use
            raise self._wrong("decode", size, error) from error

    def decode_in(self, xp: ModuleType, blob: Any, size: int, dtype: DTypeLike) -> Any:
        """Return the array that a blob encodes, both of another namespace; as `decode` otherwise.

        The blob is an array of bytes that begins where any dtype may, and nothing else is in it: what `check_blob`
        returns, or `encode_in`. It decodes without waiting for the device.
        """
        assert self.portable
        return self._decode(blob, size, np.dtype(dtype), xp)[0]

    def check_blob(self, view: Any, size: int, dtype: DTypeLike) -> Bytes:
        """Return the blob that a view starts with, checked but not decoded; arguments and errors as for `decode`.

        Only where `checkable` is true.
        """
        assert self.checkable
        return self._whole_blob(octets(view), self.encoded_nbytes(size, dtype))

    @abstractmethod
    def encoded_nbytes(self, size: int, dtype: DTypeLike) -> int:
        """Return the most bytes a blob of `size` values can have (exact, unless the codec says otherwise)."""

    @abstractmethod
    def _encode(
        self, array: Array, residual: Array | None, seed: int, backend: Backend | ModuleType, spread: Spread
    ) -> Bytes:
        """Encode an array that was checked; with error feedback the residual is never None."""

    @abstractmethod
    def _decode(self, blob: Bytes, size: int, dtype: np.dtype[Any], backend: Backend | ModuleType) -> tuple[Array, int]:
        """Decode a blob that was not checked."""

    def warm_up(self, dtype: DTypeLike, backend: Backend = "numba") -> None:
        """Compile, or load from disk, what the first array would otherwise wait for; raise `CodecError` if it fails."""
        values = np.zeros(4, dtype)
        try:
            blob = self.encode(values, backend=backend)
        except Exception as error:
            raise self._wrong("encode", values.size, error) from error
        array, consumed = self.decode(blob, values.size, dtype, backend=backend)
        if (array.shape, array.dtype, consumed) != (values.shape, values.dtype, blob.nbytes):
            raise CodecError(
                f"codec {self.spec!r} makes {values.size} values of {dtype} into a blob of {blob.nbytes} bytes, and "
                f"{consumed} bytes of that into an array of {array.dtype}, shape {array.shape}; correct it"
            )

    def _wrong(self, what: str, size: int, error: Exception) -> CodecError:
        why = f"{type(error).__name__}: {error}"
        return CodecError(f"codec {self.spec!r} cannot {what} {size} values ({why}); correct it")

    def _whole_blob(self, blob: Bytes, nbytes: int) -> Bytes:
        """Return the first bytes of a view, or raise `ProtocolError` where it is too short."""
        if blob.nbytes < nbytes:
            raise ProtocolError(f"a blob of codec {self.spec!r} takes {nbytes} bytes, only {blob.nbytes} came")
        return blob[:nbytes]


def octets(view: Any) -> Bytes:
    """Return the bytes of a contiguous buffer as an array that aliases it."""
    plain = memoryview(view)  # an empty one can neither be cast nor, by numpy, be read
    return np.frombuffer(plain.cast("B"), np.uint8) if plain.nbytes else np.empty(0, np.uint8)


def num_blocks(size: int, block: int) -> int:
    """Return how many blocks of at most `block` values there are."""
    return -(-size // block)


def padded_blocks(xp: Any, array: Array, block: int) -> Array:
    """Return a copy of an array as one row a block, the last one filled up with zeros."""
    rows: Array = xp.zeros((num_blocks(array.size, block), block), array.dtype)
    rows.reshape(-1)[: array.size] = array
    return rows


def _check_backend(backend: Backend) -> None:
    if backend not in get_args(Backend):
        raise ConfigurationError(f"no backend {backend!r}; choose {' or '.join(get_args(Backend))}")


@dataclass(frozen=True)
class FixedWidthCodec(Codec):
    """A blob is the values in their order, each as a code of the same width; any code is a value.

    A subclass says how one becomes the other: ``encoder(values, codes)`` and ``decoder(codes, values)``. What its
    encoder writes is the dtype of a code: ``"u1"`` for one byte, ``"u2"`` for two.
    """

    checkable: ClassVar[bool] = True
    encoder: ClassVar[CodecKernel]
    decoder: ClassVar[CodecKernel]

    @property
    def code(self) -> np.dtype[Any]:
        """The dtype of a code."""
        return np.dtype(self.encoder.writes[0])

    def encoded_nbytes(self, size: int, dtype: DTypeLike) -> int:
        """Return the size of a blob: a code for each value."""
        return self.code.itemsize * size

    def _encode(
        self, array: Array, residual: Array | None, seed: int, backend: Backend | ModuleType, spread: Spread
    ) -> Bytes:
        codes: Array = namespace(backend).empty(array.size, self.code)
        self.encoder(backend, array.dtype, array, codes)  # with one thread: it is as fast as memory
        blob: Bytes = codes.view(np.uint8)
        return blob

    def _decode(self, blob: Bytes, size: int, dtype: np.dtype[Any], backend: Backend | ModuleType) -> tuple[Array, int]:
        codes = self._whole_blob(blob, self.encoded_nbytes(size, dtype)).view(self.code)
        array = namespace(backend).empty(size, dtype)
        self.decoder(backend, dtype, codes, array)
        return array, codes.nbytes
