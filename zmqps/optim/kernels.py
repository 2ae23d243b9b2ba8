"""From an optimizer's equation to code that runs it over arrays.

Three ways, one result: ``numpy`` walks the arrays in blocks that stay in the cache (the reference);
``numba`` compiles the equation into one loop over single elements, without the interpreter lock;
``device`` runs the equation as one kernel of a GPU (`fused`), or, where it cannot be written as such, the
numpy way with another namespace and one block.

A numba loop is compiled for one dtype with one signature: gradients are taken as read-only and
possibly unaligned, which every array can pass for, so a received frame needs neither a copy nor a
second compilation. Compiled loops are kept on disk. Numba files them by source file and function
name and would not notice another equation under the same name; so each has a separate name,
made from the rule's name and a hash of its equation.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from ..errors import OptimizerError
from ..jit import compiled, inner
from . import fused, loops
from .options import LARGEST
from .schedules import Schedule
from .spec import Rule

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

Backend = Literal["numpy", "numba", "device"]

#: Compiles a kernel over elements: name, inputs, outputs, body and preamble.
Elementwise = Callable[[str, str, str, str, str], Callable[..., None]]

#: Bytes of one array in a block of the numpy way: arrays and temporaries stay in the cache, the interpreter's share is
#: small, and malloc keeps the temporaries' memory (measured: less is slower, more is not faster).
BLOCK_NBYTES = 128 * 1024
#: Of memory that a processor asks for at once.
LINE_NBYTES = 64

#: How many sets of numbers a kernel remembers: those of the groups that share its rule, at one step.
MOST_SETS = 256

#: One loop in `loops` for each count of slots.
MOST_SLOTS = len(loops.BY_SLOTS) - 1
#: And one for each count of arrays that are added.
MOST_ADDED = len(loops.ADDED) + 1


class Kernel(ABC):
    """Applies one rule to arrays; made by `make_kernel`.

    Parameters
    ----------
    rule : Rule
    slots : sequence of str
        The names of the slots that it is called with: the rule's own at least.

    Attributes
    ----------
    allocates : bool
        Whether it needs memory while it computes. If not, what it raises it raises before it has written anything.
    """

    allocates: ClassVar[bool] = False

    def __init__(self, rule: Rule, slots: Sequence[str]) -> None:
        self._slots = tuple(slots)
        self._others: dict[tuple[int, ...], Self] = {}  # by code: a kernel that has it compiled
        self._sets: dict[tuple[float, ...], Self] = {}  # by the numbers that were set: the kernel with these
        self._take(rule)
        self._compile()

    def _take(self, rule: Rule) -> None:
        """Compute with the numbers of a rule, whose equation is compiled."""
        self.rule = rule
        self._picks = None if rule.slots == self._slots else [self._slots.index(slot) for slot in rule.slots]
        self._gradient_scalars = rule.gradient_scalars()
        steady = rule.steady and not isinstance(rule.learning_rate, Schedule)
        self._scalars = rule.scalars(1) if steady else None  # where they are the same at every step
        self._is_steady = steady and rule.clip_norm is None and not rule.frozen
        self._cast: dict[np.dtype[Any], tuple[tuple[Any, ...], tuple[Any, ...]]] = {}  # of all, by dtype, where steady

    def __call__(
        self,
        w: Any,
        g: Any,
        out: Any,
        slots: tuple[Any, ...],
        step: int,
        scale: float = 1.0,
        numbers: tuple[float, ...] = (),
    ) -> None:
        """Write ``out = update(w, g)`` and update the slots in place.

        Parameters
        ----------
        w, g, out : array
            Values, gradient and new values: contiguous, of one dimension, one size and one float
            dtype. `out` is `w` itself, the same object, or does not overlap it. `g` is not written to.
        slots : tuple of array
            As named when this was made, each like `w`. Those that the rule does not use stay as they are.
        step : int
            Number of this update, the first being 1.
        scale : float
            What gradients are multiplied with, where the rule has a `clip_norm`.
        numbers : tuple of float
            In the place of the rule's own, the first of its `Rule.numbers`: as many as there are. Beyond `LARGEST`:
            the rule's own. If the rule refuses one of them, all are ignored.
        """
        if numbers:
            kernel = self._sets.get(numbers) or self._with(numbers)
            kernel(w, g, out, slots, step, scale)
            return
        if self._picks is not None:
            slots = tuple([slots[pick] for pick in self._picks])
        if self._is_steady and (cast_before := self._cast.get(w.dtype)) is not None:
            self._run(w, g, out, slots, *cast_before)
            return
        rule = self.rule
        if rule.frozen:
            out[...] = w
            return
        cast = w.dtype.type
        with np.errstate(all="ignore"):  # what is too large for the dtype
            scalars = rule.scalars(step) if self._scalars is None else self._scalars
            limits = self._gradient_scalars if rule.clip_norm is None else rule.gradient_scalars(scale)
            both = tuple(map(cast, limits)), tuple(map(cast, scalars))
        if self._is_steady:
            self._cast[w.dtype] = both
        self._run(w, g, out, slots, *both)

    def _with(self, numbers: tuple[float, ...]) -> Self:
        """Return the kernel with other numbers; compiled only if they make it another equation."""
        named = zip(self.rule.numbers(), numbers, strict=False)
        values = {name: number for name, number in named if abs(number) <= LARGEST}
        try:
            rule = self.rule.changed(values)
            usable = set(rule.slots) <= set(self._slots)
        except OptimizerError:
            usable = False
        if not usable:  # workers check what they send; from one that did not, all numbers are ignored
            rule = self.rule
        code = _code(rule)
        same = self if code == _code(self.rule) else self._others.get(code)  # several threads may be here
        made = object.__new__(type(self))
        vars(made).update(vars(same or self), _others={}, _sets={})  # shares what is compiled
        made._take(rule)
        if same is None:
            made._compile()
            self._others[code] = made
        if len(self._sets) >= MOST_SETS:
            self._sets.clear()
        self._sets[numbers] = made
        return made

    @abstractmethod
    def _compile(self) -> None:
        """Prepare for the rule's equation."""

    @abstractmethod
    def _run(
        self, w: Any, g: Any, out: Any, slots: tuple[Any, ...], gradient_scalars: tuple[Any, ...], scalars: Any
    ) -> None: ...


class ArrayKernel(Kernel):
    """The equation on blocks of the arrays, in any namespace with numpy's functions.

    Parameters
    ----------
    rule, slots
        As for `Kernel`.
    xp : module
        ``numpy`` or ``device``.
    block_nbytes : int, optional
        Bytes of each array to work on at a time; all at once if None, as suits a GPU.
    """

    allocates = True

    def __init__(self, rule: Rule, slots: Sequence[str], xp: Any, block_nbytes: int | None) -> None:
        # not the namespace itself: machines are copied with their kernels, and a module cannot be
        self._equations: Callable[[Rule], Any] = lambda rule: (rule.equation(xp), rule.gradient(xp))
        self._block_nbytes = block_nbytes
        super().__init__(rule, slots)

    def _compile(self) -> None:
        self._update, self._gradient = self._equations(self.rule)

    def _run(
        self, w: Any, g: Any, out: Any, slots: tuple[Any, ...], gradient_scalars: tuple[Any, ...], scalars: Any
    ) -> None:
        block = max(w.size, 1) if self._block_nbytes is None else self._block_nbytes // w.itemsize
        with np.errstate(all="ignore"):  # whether infinity is an error is decided by `all_finite`, before
            for start in range(0, w.size, block):
                part = slice(start, start + block)
                x, *state = read = [array[part] for array in (w, *slots)]
                d = self._gradient(x, g[part], *gradient_scalars)
                updated = self._update(x, d, *state, *scalars)
                # what is passed on as it is might be overwritten before it is stored
                results = [result.copy() if any(result is old for old in read) else result for result in updated]
                for target, result in zip((out, *slots), results, strict=True):
                    target[part] = result


class NumbaKernel(Kernel):
    """The equation compiled into one loop, which runs without the interpreter lock."""

    def _compile(self) -> None:
        self._loops: dict[np.dtype[Any], Callable[..., None]] = {}

    def _run(
        self, w: Any, g: Any, out: Any, slots: tuple[Any, ...], gradient_scalars: tuple[Any, ...], scalars: Any
    ) -> None:
        loop = self._loops.get(w.dtype)
        if loop is None:
            counts = len(slots), len(gradient_scalars), len(scalars)
            loop = self._loops[w.dtype] = _compiled(Equation(self.rule), w.dtype, *counts)
        loop(w, g, out, *slots, gradient_scalars, scalars)


class FusedKernel(Kernel):
    """The equation as one kernel of a GPU, compiled when it first sees a dtype.

    Parameters
    ----------
    rule, slots
        As for `Kernel`.
    elementwise : callable
        As `zmqps.gpu.device.Device.elementwise`.
    """

    def __init__(self, rule: Rule, slots: Sequence[str], elementwise: Elementwise) -> None:
        self._elementwise = elementwise
        super().__init__(rule, slots)

    def _compile(self) -> None:
        self._compiled: dict[np.dtype[Any], Callable[..., None]] = {}

    def _run(
        self, w: Any, g: Any, out: Any, slots: tuple[Any, ...], gradient_scalars: tuple[Any, ...], scalars: Any
    ) -> None:
        kernel = self._compiled.get(w.dtype)
        if kernel is None:
            kernel = self._compiled[w.dtype] = self._elementwise(*fused.source(self.rule, w.dtype), fused.PREAMBLE)
        # in place: one and the same object, not two views, or a device copies first what it reads
        with np.errstate(all="ignore"):  # of a device's arrays
            kernel(w, g, *gradient_scalars, *scalars, out, *slots)


def _code(rule: Rule) -> tuple[int, ...]:
    """Return what differs where rules of one class need different compiled code."""
    return tuple(id(getattr(part, "__code__", None)) for part in (rule.equation(np), rule.gradient(np)))


def make_kernel(
    rule: Rule,
    backend: Backend = "numpy",
    xp: Any = np,
    elementwise: Elementwise | None = None,
    slots: Sequence[str] | None = None,
) -> Kernel:
    """Return the kernel that applies `rule`.

    Parameters
    ----------
    rule : Rule
    backend : {"numpy", "numba", "device"}
    xp : module
        The namespace of the arrays when the backend is ``"device"``.
    elementwise : callable, optional
        Compiles for the device of ``"device"``; without it the equation runs one operation after another.
    slots : sequence of str, optional
        The names of the slots it will be called with, where those are more than the rule's own.

    Raises
    ------
    OptimizerError
        The backend is unknown, or the rule has more than ``MOST_SLOTS`` slots.
    """
    if rule.row_slots:
        raise OptimizerError(
            f"optimizer {rule.name!r} keeps one number a row, so it is for tables of rows; for dense parameters use "
            "another, such as adagrad"
        )
    if len(rule.slots) > MOST_SLOTS:
        raise OptimizerError(f"optimizer {rule.name!r} has {len(rule.slots)} slots; at most {MOST_SLOTS} are supported")
    slots = rule.slots if slots is None else slots
    match backend:
        case "numpy":
            return ArrayKernel(rule, slots, np, BLOCK_NBYTES)
        case "numba":
            return NumbaKernel(rule, slots)
        case "device" if elementwise is not None and fused.can_write(rule):
            return FusedKernel(rule, slots, elementwise)
        case "device":
            return ArrayKernel(rule, slots, xp, None)
    raise OptimizerError(f"no backend {backend!r}; choose numpy, numba or device")


def all_finite(g: NDArray[Any], backend: Backend = "numpy", xp: Any = np) -> bool:
    """Return whether no element of a gradient is NaN or infinite.

    Parameters
    ----------
    g : array
        Contiguous, of one dimension, float32 or float64; may be read-only.
    backend, xp
        As in `make_kernel`.
    """
    if backend == "numba":
        loop, integers, exponent = finite_loop(g.dtype)
        return loop(g.view(integers), exponent)
    block = max(g.size, 1) if backend == "device" else BLOCK_NBYTES // g.itemsize
    return all(bool(xp.isfinite(g[start : start + block]).all()) for start in range(0, g.size, block))


def mean(arrays: Sequence[NDArray[Any]], share: float, out: NDArray[Any]) -> bool:
    """Write the sum of arrays, added in their order, times a share to another, in one compiled loop.

    Parameters
    ----------
    arrays : sequence of array
        Two to `MOST_ADDED`: contiguous, of one dimension, one size and one float dtype; may be read-only.
    share : float
        What the sum is multiplied with, as a number of their dtype.
    out : array
        Like `arrays`; overlaps none of them.

    Returns
    -------
    bool
        Whether all sums are finite; if not, `out` is undefined.
    """
    loop, largest = mean_loop(out.dtype, len(arrays))
    return loop(tuple(arrays), out.dtype.type(share), largest, out)


def warm_up(
    rule: Rule,
    dtype: DTypeLike,
    backend: Backend = "numpy",
    xp: Any = np,
    elementwise: Elementwise | None = None,
) -> None:
    """Compile, or load from disk, what the first update would otherwise wait for.

    The first time on a machine numba takes about a second for a rule and dtype; afterwards its
    import and the loading are what takes time.
    """
    w, g, *slots = (xp.zeros(1, dtype) for _ in range(2 + len(rule.slots)))  # for empty arrays nothing is compiled
    make_kernel(rule, backend, xp, elementwise)(w, g, w, tuple(slots), 1)
    all_finite(g, backend, xp)


class Equation:
    """A rule's equation for numba; equal to another when they compile to the same code."""

    def __init__(self, rule: Rule) -> None:
        self.update = rule.equation(np)
        self.gradient = rule.gradient(np)
        digest = hashlib.sha256(repr((identity(self.update), identity(self.gradient))).encode()).hexdigest()[:16]
        self.name = f"{rule.name}_{digest}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equation) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def identity(function: Any) -> object:
    """Return what decides the code numba makes of a function, with a `repr` that is the same in every process."""
    if isinstance(function, FunctionType):
        captured = [*(function.__defaults__ or ()), *(cell.cell_contents for cell in function.__closure__ or ())]
        return identity(function.__code__), [identity(value) for value in captured]
    if isinstance(function, CodeType):
        return function.co_code, function.co_names, function.co_varnames, [identity(c) for c in function.co_consts]
    return getattr(function, "__name__", None) or repr(function)


@lru_cache(maxsize=256)  # far more than a job has rules; the limit is for a server that lives through many jobs
def _compiled(
    equation: Equation, dtype: np.dtype[Any], num_slots: int, num_gradient_scalars: int, num_scalars: int
) -> Callable[..., None]:
    """Return the loop over arrays of `dtype` with that equation inside."""
    import numba
    from numba import types

    scalar = numba.from_dtype(dtype)
    array = types.Array(scalar, 1, "C")
    received = types.Array(scalar, 1, "C", readonly=True, aligned=False)
    signature = types.void(
        received,
        received,
        *(array,) * (1 + num_slots),
        types.Tuple((scalar,) * num_gradient_scalars),  # type: ignore[no-untyped-call]
        types.Tuple((scalar,) * num_scalars),  # type: ignore[no-untyped-call]
    )
    parts = {"update": equation.update, "gradient": equation.gradient}
    for role, function in parts.items():
        parts[role] = inner(renamed(function, f"{role}_{equation.name}"))
    try:
        return compiled(renamed(loops.BY_SLOTS[num_slots], f"loop_{equation.name}", **parts), signature)
    except numba.errors.NumbaError as error:  # only a user's own optimizer: ours are tested
        raise OptimizerError(
            f"numba cannot compile {equation.name}; write its equation with operators and functions of xp only "
            f"({type(error).__name__}: {error})"
        ) from error


@lru_cache(maxsize=2)
def finite_loop(dtype: np.dtype[Any]) -> tuple[Callable[..., bool], np.dtype[Any], Any]:
    """Return the loop, the integers to see floats of `dtype` as, and the exponent to look for."""
    import numba
    from numba import types

    integers = np.dtype(f"i{dtype.itemsize}")
    bits = numba.from_dtype(integers)
    received = types.Array(bits, 1, "C", readonly=True, aligned=False)
    exponent = np.array(np.inf, dtype).view(integers)[()]
    return compiled(loops.finite, types.boolean(received, bits)), integers, exponent


@lru_cache(maxsize=2 * len(loops.ADDED))
def mean_loop(dtype: np.dtype[Any], count: int) -> tuple[Callable[..., bool], Any]:
    """Return the loop over ``count`` arrays of `dtype`, and the largest number that is finite."""
    import numba
    from numba import types

    scalar = numba.from_dtype(dtype)
    received = types.Array(scalar, 1, "C", readonly=True, aligned=False)
    several = types.UniTuple(received, count)  # type: ignore[no-untyped-call]
    signature = types.boolean(several, scalar, scalar, types.Array(scalar, 1, "C"))
    added = loops.ADDED[count - 2]
    loop = renamed(loops.mean, f"mean_{count}", added=inner(added))
    return compiled(loop, signature), np.finfo(dtype).max


@lru_cache(maxsize=2)
def copy_loop(dtype: np.dtype[Any]) -> Callable[[NDArray[Any], NDArray[Any]], bool]:
    """Return what copies elements of `dtype` to other memory, and says whether all are finite."""
    import numba
    from numba import types

    _, integers, exponent = finite_loop(dtype)
    bits, line = numba.from_dtype(integers), LINE_NBYTES // dtype.itemsize
    target, source = types.Array(bits, 1, "C"), types.Array(bits, 1, "C", readonly=True, aligned=False)
    loop = compiled(loops.copy_finite, types.boolean(target, source, types.int64, bits))
    return lambda target, source: loop(target.view(integers), source.view(integers), line, exponent)


def renamed(function: Any, name: str, **names: Any) -> FunctionType:
    """Return a copy of a function under another name, with more global names."""
    copy = FunctionType(
        function.__code__, function.__globals__ | names, name, function.__defaults__, function.__closure__
    )
    copy.__qualname__ = name
    return copy
