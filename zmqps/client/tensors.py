"""Any kind of user array, as flat numpy arrays and back; those on GPUs by way of a `Handover`."""

from __future__ import annotations

import os
import sys
import warnings
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from zmqps import checks
from zmqps.client.beside import NUM_THREADS, TwoThreads
from zmqps.client.naming import check_names
from zmqps.core.job.spec import BUFFER_DTYPES, MAX_NAME_CHARS, STORAGE_DTYPES, Parameter
from zmqps.core.protocol.arrays import Array
from zmqps.errors import ConfigurationError, DtypeError, ShapeError
from zmqps.gpu.handover import Handover, Remote
from zmqps.optim import all_finite
from zmqps.optim.kernels import copy_loop, finite_loop

K = TypeVar("K")
T = TypeVar("T")

#: The common dtypes; asking a dtype for its name takes longer than everything else here.
NATIVE_DTYPES = frozenset(np.dtype(name) for name in STORAGE_DTYPES if name != "bfloat16")
#: A whole push is checked for NaN and infinity before any of it is sent. Below this size one thread finishes before
#: another wakes.
SMALL_NBYTES = 4 << 20
BLOCK_NBYTES = 1 << 20
#: What the loop that copies can look at.
LOOKED_AT = frozenset((np.dtype(np.float32), np.dtype(np.float64)))
#: Smaller arrays are checked together: a copy is cheaper than a call for each.
JOIN_NBYTES = 64 << 10
#: Of this host. A view may be larger: it has an element for many places.
MEMORY_NBYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def as_array(name: str, value: Any, known: Mapping[str, str] = STORAGE_DTYPES) -> Array:
    """Return a value in this host's memory as a numpy array, without a copy if possible.

    Anything with ``__array__``, DLPack or the buffer protocol will do; a bfloat16 tensor of PyTorch,
    which numpy cannot hold, is converted to float32.

    Raises
    ------
    DtypeError
        It is not an array, or not of a ``known`` dtype.
    """
    if type(value) is np.ndarray and value.dtype in NATIVE_DTYPES:
        return value
    value = _plain(name, value)
    if value is None:
        raise DtypeError(name=name, got="None: no array", expected="an array; leave the name out")
    try:
        if isinstance(value, np.ndarray):
            array = value
        elif hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
            array = np.from_dlpack(value)
        else:
            array = np.asarray(value)
    except Exception as error:  # whatever the object's own conversion raises: the array is unusable
        expected = f"an array or something that converts to one ({error})"
        raise DtypeError(name=name, got=type(value).__name__, expected=expected) from error
    return _known(name, array, known)


def on_host(name: str, value: Any, handover: Handover, known: Mapping[str, str] = STORAGE_DTYPES) -> Array:
    """Return a value as an array of this host, wherever it is; errors as of `as_array`."""
    if type(value) is np.ndarray and value.dtype.name in known:
        return value
    seen = _seen({name: value}, handover, {name: known})
    array = _known(name, seen[name], known)
    return array if isinstance(array, np.ndarray) else flatten(seen, handover)[name].reshape(array.shape)


def describe(
    params: Mapping[str, Any], handover: Handover, *, buffers: bool = False
) -> tuple[tuple[Parameter, ...], list[Array]]:
    """Return the parameters, or buffers, that a mapping of name -> initial value defines, and the flat values."""
    what = "buffers" if buffers else "params"
    for name in checks.mapping(what, params, "name -> array"):
        checks.name("a buffer's name" if buffers else "a parameter's name", name, MAX_NAME_CHARS)
    _check_flat(what, params)
    arrays = _seen(params, handover, dict.fromkeys(params, BUFFER_DTYPES) if buffers else {})
    parameters = []
    for name, array in arrays.items():
        dtype = "bfloat16" if _is_torch_bfloat16(params[name]) else array.dtype.name
        parameters.append(Parameter(name, tuple(array.shape), dtype, buffers))
    return tuple(parameters), list(flatten(arrays, handover).values())


def look(
    grads: Mapping[str, Any], parameters: tuple[Parameter, ...], index: Mapping[str, int], handover: Handover
) -> Mapping[int, Array | Remote]:
    """Return gradients, or values, by parameter number, as arrays in place."""
    checks.mapping("gradients", grads, "name -> array")
    _check_flat("gradients", grads)
    numbers = check_names(grads, index)
    known = {name: BUFFER_DTYPES for name, n in zip(grads, numbers, strict=True) if parameters[n].buffer}
    arrays = _seen(grads, handover, known)
    for name, array in arrays.items():
        _check_shape(array, parameters[index[name]])
    return {index[name]: array for name, array in arrays.items()}


def plain_ones(
    values: Mapping[str, Any], parameters: tuple[Parameter, ...], index: Mapping[str, int]
) -> dict[int, Array] | None:
    """Return arrays by parameter number if each of them can be used as it is, else None.

    This is the case in nearly every step of a training loop: one check for each array.
    """
    plain: dict[int, Array] = {}
    if type(values) is not dict and not isinstance(values, Mapping):
        return None
    for name, value in values.items():
        number = index.get(name, -1)
        if number < 0 or type(value) is not np.ndarray:
            return None
        if value.dtype not in NATIVE_DTYPES or value.shape != parameters[number].shape:
            return None
        plain[number] = value
    return plain


def flatten(arrays: Mapping[K, Array | Remote], handover: Handover) -> dict[K, Array]:
    """Return arrays as flat ones of this host.

    Contiguous arrays are aliased, others copied, and so are those on a GPU.

    Raises
    ------
    ConfigurationError
        A copy would be larger than the memory of this host, as of an array that is broadcast.
    """
    remotes = {key: array for key, array in arrays.items() if type(array) is Remote}
    fetched = dict(zip(remotes, handover.fetch(list(remotes.values())), strict=True))
    return {key: fetched[key] if isinstance(array, Remote) else _flat(key, array) for key, array in arrays.items()}


def _flat(key: object, array: Array) -> Array:
    if not array.flags.c_contiguous:
        _check_memory(key, array.shape, array.nbytes)
    return np.ascontiguousarray(array).reshape(-1)


def _check_memory(key: object, shape: Sequence[int], nbytes: int) -> None:
    """Refuse a copy too large for any process of this host, before it begins."""
    if nbytes > MEMORY_NBYTES:
        raise ConfigurationError(
            f"the array {key!r:.80} of shape {tuple(shape)} takes {nbytes:,} bytes as values of its own, and this host "
            f"has {MEMORY_NBYTES:,}: check its shape, or keep rows of it in a sparse table (zmqps.table)"
        )


class Destination:
    """The caller's arrays that receive values.

    Arrays that are not contiguous, on a GPU, or of PyTorch's bfloat16, get their values at `deliver`, through a
    buffer.
    """

    def __init__(
        self, out: Mapping[str, Any], parameters: tuple[Parameter, ...], index: Mapping[str, int], handover: Handover
    ) -> None:
        checks.mapping("out", out, "name -> array")
        self.flat: list[Array | None] = [None] * len(parameters)
        self._strided: list[tuple[Array, Array]] = []
        self._out = out
        self._handover = handover
        self._remotes: dict[str, Remote] = {}
        self._spaces: list[Array] = []
        self._narrowed: dict[str, Any] = {}
        self._wide: dict[str, Array] = {}
        if (plain := plain_ones(out, parameters, index)) is not None and all(map(_is_ready, plain.values())):
            for number, flat in plain.items():
                self.flat[number] = flat.reshape(-1)
            return
        numbers = check_names(out, index)
        seen = {name: _detached(value) for name, value in out.items()}
        self._narrowed = {name: value for name, value in seen.items() if _is_torch_bfloat16(value)}
        self._remotes = handover.adopt({n: value for n, value in seen.items() if n not in self._narrowed}, fill=True)
        for (name, value), number in zip(out.items(), numbers, strict=True):
            if name in self._narrowed:
                value = self._wide[name] = np.empty(tuple(value.shape), np.float32)
            known = BUFFER_DTYPES if parameters[number].buffer else STORAGE_DTYPES
            array = self._remotes.get(name) or as_array(name, value, known)
            _check_shape(array, parameters[number])
            if parameters[number].buffer and not np.can_cast(
                parameters[number].storage_dtype, array.dtype, "same_kind"
            ):
                raise DtypeError(name=name, got=array.dtype.name, expected=parameters[number].dtype)
            if isinstance(array, Remote):
                continue
            if not _in_place(value, array):
                raise DtypeError(name=name, got=type(value).__name__, expected="an array that can be written in place")
            if not array.flags.writeable:
                raise DtypeError(name=name, got="a read-only array", expected="a writable one in out")
            if array.flags.c_contiguous:
                self.flat[number] = array.reshape(-1)
            else:
                buffer = np.empty(array.shape, array.dtype)
                self._strided.append((array, buffer))
                self.flat[number] = buffer.reshape(-1)
        self._spaces = handover.spaces(list(self._remotes.values()))
        for name, space in zip(self._remotes, self._spaces, strict=True):
            self.flat[index[name]] = space

    def deliver(self) -> dict[str, Any]:
        """Return the caller's arrays, all values in place."""
        for array, buffer in self._strided:
            array[...] = buffer
        for name, value in self._narrowed.items():
            torch = sys.modules["torch"]  # whose tensor it is
            value.copy_(torch.from_numpy(self._wide[name]))
            if value.is_cuda:  # the conversion runs in a stream of this thread
                torch.cuda.current_stream(value.device).synchronize()
        self._handover.fill(list(self._remotes.values()), self._spaces)
        return dict(self._out)


def _seen(
    values: Mapping[str, Any], handover: Handover, known: Mapping[str, Mapping[str, str]]
) -> dict[str, Array | Remote]:
    """Return each value as an array in place, of a dtype ``known`` by name, or of a floating one."""
    values = {name: _plain(name, value) for name, value in values.items()}
    remotes = handover.adopt(values)
    for name, remote in remotes.items():
        _known(name, remote, known.get(name, STORAGE_DTYPES))
    return {
        name: remotes.get(name) or as_array(name, value, known.get(name, STORAGE_DTYPES))
        for name, value in values.items()
    }


def _known(name: str, array: T, known: Mapping[str, str]) -> T:
    dtype: Any = array.dtype  # type: ignore[attr-defined]
    if dtype.name not in known:
        raise DtypeError(name=name, got=dtype.name, expected=", ".join(known))
    return array


def _detached(value: Any) -> Any:
    """Return a PyTorch tensor that requires grad, which only PyTorch may read, as one that does not."""
    return value.detach() if hasattr(value, "detach") else value


def _plain(name: str, value: Any) -> Any:
    """Return a value in a form that arrays can be made of: no gradients, no bfloat16 of PyTorch."""
    if isinstance(value, np.ndarray):
        return value
    value = _detached(value)
    if not _is_torch_bfloat16(value):
        return value
    _check_memory(name, value.shape, value.numel() * np.dtype(np.float32).itemsize)
    return value.float()


def _is_torch_bfloat16(value: Any) -> bool:
    dtype = getattr(value, "dtype", "")
    return not isinstance(dtype, np.dtype) and str(dtype) == "torch.bfloat16"


def _is_ready(array: Array) -> bool:
    """Whether values can be written directly to an array."""
    flags = array.flags
    return bool(flags.writeable and flags.c_contiguous)


def _in_place(value: Any, array: Array) -> bool:
    """Whether an array, made by `as_array`, is the memory of the value itself."""
    if array is value:
        return True
    for see in (np.from_dlpack, np.asarray):  # two views of one memory overlap; two copies do not
        try:
            with warnings.catch_warnings(action="ignore"):
                again = see(_detached(value))
        except Exception:  # it offers no such view
            continue
        if np.may_share_memory(again, array):
            return True
    return not array.size


class Tables:
    """Flat tables for pulls without ``out``, reused once their arrays are not referred to any more.

    A fresh buffer of 100 MB costs more page faults than the transfer itself, so a training loop
    that drops the last pull's arrays gets their memory back in the next.
    """

    #: Free tables of one size: a loop that compares two pulls holds two. More are allocated as needed and forgotten.
    KEPT = 2
    #: Smaller ones are reused by the allocator itself, faster than a lease is made.
    SMALL_NBYTES = 64 << 10

    def __init__(self) -> None:
        self._free: dict[tuple[int, np.dtype[Any]], deque[Array]] = {}

    def take(self, shapes: tuple[tuple[int, np.dtype[Any]], ...]) -> list[Array]:
        """Return flat arrays of these sizes and dtypes that are not in use."""
        tables = []
        for size, dtype in shapes:
            if size * dtype.itemsize < self.SMALL_NBYTES:
                tables.append(np.empty(size, dtype))
                continue
            free = self._free.setdefault((size, dtype), deque(maxlen=self.KEPT))
            try:
                table = free.pop()
            except IndexError:
                table = np.empty(size, dtype)
            tables.append(np.asarray(_Lease(table, free)))
        return tables


class _Lease:
    """Owns the memory of a lent table, and returns the table when it is no longer referred to.

    numpy lets every view of an array refer to the object that owns its memory, whichever view it was made from;
    so this goes with the last of them. That may be in any thread, which a deque allows.
    """

    __slots__ = ("__array_interface__", "_free", "_table")

    def __init__(self, table: Array, free: deque[Array]) -> None:
        self.__array_interface__ = table.__array_interface__
        self._table = table
        self._free = free

    def __del__(self) -> None:
        self._free.append(self._table)


def _check_flat(what: str, values: Mapping[str, Any]) -> None:
    """Refuse nested mappings, as in models of some libraries, and say how to name their entries."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            path: list[str] = [str(name)]
            inner: Any = value
            while isinstance(inner, Mapping):
                key, inner = next(iter(inner.items()), ("w", None))
                path.append(str(key))
            raise ConfigurationError(
                f"{what}: {name!r:.60} is a mapping itself; pass a flat mapping with names joined by '.', "
                f"say {{{'.'.join(path)!r:.60}: …}}"
            )


def _check_shape(array: Array | Remote, parameter: Parameter) -> None:
    if array.shape != parameter.shape:
        raise ShapeError(name=parameter.name, got=str(array.shape), expected=str(parameter.shape))


def are_finite(arrays: Sequence[Array]) -> bool:
    """Return whether no element is NaN or infinite.

    Nothing else of the push can be done meanwhile, so two threads check.

    Parameters
    ----------
    arrays
        Flat, contiguous, float32 or float64.
    """
    if len(arrays) == 1 and arrays[0].nbytes < SMALL_NBYTES:
        loop, integers, exponent = finite_loop(arrays[0].dtype)
        return loop(arrays[0].view(integers), exponent)
    arrays = _joined(arrays)
    if NUM_THREADS == 1 or sum(array.nbytes for array in arrays) < SMALL_NBYTES:
        return _look(arrays)
    blocks = list(_blocks(arrays))
    return _in_two_threads(_look, blocks, [block.nbytes for block in blocks])


def copy_finite(pairs: Sequence[tuple[Array, Array]]) -> bool:
    """Copy arrays to others; return whether no element is NaN or infinite. Two threads copy.

    Parameters
    ----------
    pairs
        Target and source: flat, contiguous, of one dtype, float32 or float64.
    """
    blocks = list(zip(_blocks([to for to, _ in pairs]), _blocks([source for _, source in pairs]), strict=True))
    return _in_two_threads(_copy, blocks, [source.nbytes for _, source in blocks])


def _in_two_threads(work: Callable[[Sequence[T]], bool], blocks: Sequence[T], nbytes: Sequence[int]) -> bool:
    """Return whether some work finds all blocks to be fine: each thread does half of their bytes."""
    if NUM_THREADS == 1 or len(blocks) < 2:
        return work(blocks)
    sums = list(accumulate(nbytes))
    middle = bisect_left(sums, sums[-1] / 2) + 1
    return all(TwoThreads()([partial(work, blocks[:middle]), partial(work, blocks[middle:])]))


def _copy(blocks: Sequence[tuple[Array, Array]]) -> bool:
    found = True
    for target, source in blocks:
        found = copy_loop(source.dtype)(target, source) and found
    return found


def warm_up() -> None:
    """Compile the loops of `are_finite` and `copy_finite`."""
    for dtype in (np.float32, np.float64):
        are_finite([np.empty(0, dtype)])
        copy_loop(np.dtype(dtype))


def _joined(arrays: Sequence[Array]) -> list[Array]:
    """Return the same elements with small arrays joined: a copy is cheaper than a call for each."""
    joined = [array for array in arrays if array.nbytes >= JOIN_NBYTES]
    small = [array for array in arrays if array.nbytes < JOIN_NBYTES]
    return joined + ([np.concatenate(small)] if len(small) > 1 else small)


def _look(blocks: Iterable[Array]) -> bool:
    for block in blocks:
        if not all_finite(block, "numba"):
            return False
    return True


def _blocks(arrays: Iterable[Array]) -> Iterator[Array]:
    for array in arrays:
        size = BLOCK_NBYTES // array.itemsize
        yield from (array[start : start + size] for start in range(0, array.size, size))
