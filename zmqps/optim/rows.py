"""A rule applied to some rows of a table, each with its own number of updates.

The equation is that of dense parameters: `numpy` computes it on the rows that it has taken out (the reference),
`numba` in one loop over rows, in place; `device_rows` is for those on a GPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from ..errors import OptimizerError
from ..jit import compiled, inner
from . import row_loops
from .kernels import MOST_SLOTS, Equation, identity, renamed
from .schedules import Schedule
from .spec import OptimizerSpec, Rule

Array = np.ndarray[Any, np.dtype[Any]]

#: Updates of a row after which its scalars are recomputed each time; until then they are cached.
MOST_KEPT = 1 << 16
_NONE = np.empty(0, np.float32)


class RowKernel:
    """Applies one rule to rows of a table; made by `make_row_kernel`.

    Attributes
    ----------
    slot_fill : tuple of float
        What each slot that is as long as a row begins with.
    row_slot_fill : tuple of float
        What each slot that is one number a row begins with.
    counts : bool
        Whether it needs to know how many updates each row has had.
    """

    def __init__(self, rule: Rule, dim: int, step_counts: Literal["rows", "table"] = "rows") -> None:
        self.rule = rule
        self._xp: Any = np  # the namespace of what it computes with
        self.slot_fill = rule.slot_fill
        self.row_slot_fill = rule.row_slot_fill
        still = rule.variant(learning_rate=1.0)
        self._varies = any(still.scalars(1) != still.scalars(step) for step in (2, 1000))
        self.counts = self._varies and step_counts == "rows"
        self._told = rule  # with the last learning rate that was given
        self._kept: dict[int, tuple[float, ...]] = {}  # its scalars, by the number of the update

    def __call__(
        self,
        values: Array,
        rows: Array,
        grads: Array,
        slots: Sequence[Array],
        row_slots: Sequence[Array],
        counts: Array | None,
        step: int,
        learning_rate: float | None = None,
        missed: Array | None = None,
    ) -> None:
        """Update rows in place. What it raises it raises before it has written anything.

        Parameters
        ----------
        values : float32 array (capacity, dim)
        rows : int64 array (n,)
            Which rows; all different.
        grads : float32 array (n, dim)
            Contiguous; may be read-only and unaligned.
        slots : sequence of float32 array (capacity, dim)
            As `Rule.slots` lists them.
        row_slots : sequence of float32 array (capacity,)
            As `Rule.row_slots` lists them.
        counts : uint32 array (capacity,), optional
            How many updates each row has had; needed where the kernel ``counts``, which adds one to those of ``rows``.
        step : int
            The number of this update of the table, from 1: schedules go by it.
        learning_rate : float, optional
            Instead of the rule's own.
        missed : uint32 array (n,), optional
            How many updates of the table each row has missed: decoupled weight decay, as in AdamW, is made up for
            first. Without it, rows decay only when they are touched.
        """
        rule = self.rule
        if rule.frozen or not rows.size:
            return
        rate = rule.rate(step) if learning_rate is None else learning_rate
        after = counts[rows] + np.uint32(1) if self.counts and counts is not None else None
        numbers, which = self._scalars(rate, step, after)
        with np.errstate(all="ignore"):  # what is infinite was allowed
            scales = _NONE if rule.clip_norm is None else _scales(grads, rule.clip_norm)
            keep = _NONE
            if missed is not None and rule.decouples and rule.weight_decay:
                keep = np.power(1.0 - rate * rule.weight_decay, missed.astype(np.float64)).astype(np.float32)
            self._run(values, rows, grads, (*slots, *row_slots), scales, keep, numbers, which)
        if after is not None and counts is not None:
            counts[rows] = after

    def _scalars(self, rate: float, step: int, after: Array | None) -> tuple[Array, Array]:
        """Return the scalars of some updates, and which of these each row needs."""
        if self._told.learning_rate != rate or isinstance(self._told.learning_rate, Schedule):
            self._told, self._kept = self.rule.variant(learning_rate=rate), {}
        if after is None:
            return np.array([self._at(step)], np.float32), np.empty(0, np.int64)
        different, which = np.unique(after, return_inverse=True)
        return np.array([self._at(number) for number in different.tolist()], np.float32), which.astype(np.int64)

    def _at(self, number: int) -> tuple[float, ...]:
        found = self._kept.get(number)
        if found is None:
            found = self._told.scalars(number)
            if len(self._kept) < MOST_KEPT:
                self._kept[number] = found
        return found

    def _run(
        self, values: Array, rows: Array, grads: Array, state: tuple[Array, ...], scales: Array, keep: Array,
        numbers: Array, which: Array,
    ) -> None:  # fmt: skip
        """Compute on the rows that are taken out; then put them back."""
        rule, xp = self.rule, self._xp
        w, g = values[rows], grads
        if keep.size:
            w *= keep[:, None]
        limits: list[Any] = [np.float32(number) for number in rule.gradient_scalars()[bool(scales.size) :]]
        if scales.size:
            limits.insert(0, scales[:, None])
        d = rule.gradient(xp)(w, g, *limits)
        lines = numbers[which] if which.size else numbers
        if rule.row_slots:
            flat = list(lines.T)
            a = rule.row_equation(xp)((d * d).mean(axis=1, dtype=np.float32), state[0][rows], *flat)
            (updated,) = rule.equation(xp)(w, d, a[:, None], *[line[:, None] for line in flat])
            values[rows], state[0][rows] = updated, a
            return
        results = rule.equation(xp)(w, d, *[slot[rows] for slot in state], *[line[:, None] for line in lines.T])
        for target, result in zip((values, *state), results, strict=True):
            target[rows] = result


class NumbaRowKernel(RowKernel):
    """The equation compiled into one loop over rows, which runs without the interpreter lock."""

    def __init__(self, rule: Rule, dim: int, step_counts: Literal["rows", "table"] = "rows") -> None:
        super().__init__(rule, dim, step_counts)
        num_scalars, num_limits = len(rule.scalars(1)), len(rule.gradient_scalars())
        equation = RowEquation(rule)
        self._loop = _compiled(equation, len(rule.slots), num_limits - (rule.clip_norm is not None), num_scalars)
        self._clips = rule.clip_norm is not None

    def _run(
        self, values: Array, rows: Array, grads: Array, state: tuple[Array, ...], scales: Array, keep: Array,
        numbers: Array, which: Array,
    ) -> None:  # fmt: skip
        limits = tuple(np.float32(number) for number in self.rule.gradient_scalars()[self._clips :])
        lines = which if which.size else np.zeros(rows.size, np.int64)
        if keep.size:
            _shrink()(values, rows, keep)
        self._loop(values, rows, grads, *state, limits, scales, numbers, lines)


def make_row_kernel(
    rule: Rule,
    dim: int,
    backend: Literal["numpy", "numba"] = "numpy",
    step_counts: Literal["rows", "table"] = "rows",
) -> RowKernel:
    """Return the kernel that applies a rule to rows.

    Parameters
    ----------
    rule : Rule
    dim : int
        Elements of a row.
    backend : {"numpy", "numba"}
        Numba compiles here: the first update waits for nothing.
    step_counts : {"rows", "table"}
        What bias corrections count: the updates of each row, or those of the table, as PyTorch's SparseAdam does.

    Raises
    ------
    OptimizerError
        The rule has more than ``MOST_SLOTS`` slots, or numba cannot compile it.
    """
    check_for_rows(rule)
    return (NumbaRowKernel if backend == "numba" else RowKernel)(rule, dim, step_counts)


def kernel_of_table(
    optimizer: object,
    name: str,
    dim: int,
    backend: Literal["numpy", "numba"] = "numpy",
    step_counts: Literal["rows", "table"] = "rows",
    workers: int = 1,
) -> RowKernel:
    """Return the kernel for a table of this name, from the wire form of its optimizer.

    Parameters
    ----------
    optimizer : object
        As `OptimizerSpec.to_wire` returns it.
    name : str
        Of the table: groups of the optimizer may match it.
    dim, backend, step_counts
        As in `make_row_kernel`.
    workers : int
        How many update the table in a step, each alone.

    Raises
    ------
    OptimizerError
        As `make_row_kernel`, or there is no such optimizer.
    """
    return make_row_kernel(rule_of_table(optimizer, name, workers), dim, backend, step_counts)


def rule_of_table(optimizer: object, name: str, workers: int = 1) -> Rule:
    """Return the rule for a table, as `kernel_of_table` takes it from the wire form of its optimizer."""
    rules, (which,) = OptimizerSpec.from_wire(optimizer).rules([name], workers)
    return rules[which]


def check_for_rows(rule: Rule) -> None:
    """Raise `OptimizerError` unless a rule is for rows."""
    if len(rule.slots) > MOST_SLOTS or len(rule.row_slots) > 1 or (rule.slots and rule.row_slots):
        raise OptimizerError(
            f"optimizer {rule.name!r} is not for tables: rows have at most {MOST_SLOTS} slots as long as they are, or "
            "one number"
        )


def _scales(grads: Array, limit: float) -> Array:
    """Return by what each row is multiplied so that its norm is at most ``limit``."""
    norms = np.sqrt(np.einsum("ij,ij->i", grads, grads, dtype=np.float64))
    scales: Array = np.minimum(1.0, limit / np.maximum(norms, np.finfo(np.float64).tiny))
    return scales.astype(np.float32)


class RowEquation(Equation):
    """A rule's equations for numba; equal to another when they compile to the same code."""

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self.row_update = rule.row_equation(np) if rule.row_slots else None
        self.clips = rule.clip_norm is not None
        if self.row_update is not None:  # the name says which code it is: numba keeps it on disk by that
            self.name += f"_{hashlib.sha256(repr(identity(self.row_update)).encode()).hexdigest()[:16]}"


@lru_cache(maxsize=256)
def _compiled(equation: RowEquation, num_slots: int, num_limits: int, num_scalars: int) -> Callable[..., None]:
    """Return the loop with those equations inside."""
    import numba
    from numba import float32, int64, types

    values, line = float32[:, ::1], float32[::1]
    received = types.Array(float32, 2, "C", readonly=True, aligned=False)
    state = (line,) if equation.row_update is not None else (values,) * num_slots
    limits = types.Tuple((float32,) * num_limits)  # type: ignore[no-untyped-call]
    signature = types.void(values, int64[::1], received, *state, limits, line, values, int64[::1])
    parts: dict[str, Any] = {"update": equation.update, "gradient": equation.gradient}
    parts["limits"] = row_loops.scaled if equation.clips else row_loops.as_they_are
    if equation.row_update is not None:
        parts["row_update"] = equation.row_update
    for role, function in parts.items():
        parts[role] = inner(renamed(function, f"{role}_of_rows_{equation.name}"))
    parts["pick"] = _picker(num_scalars)
    loop = row_loops.loop_row if equation.row_update is not None else row_loops.BY_SLOTS[num_slots]
    try:
        return compiled(renamed(loop, f"rows_{equation.name}", **parts), signature)
    except numba.errors.NumbaError as error:  # only a user's own optimizer: ours are tested
        raise OptimizerError(
            f"numba cannot compile {equation.name}; write its equation with operators and functions of xp only "
            f"({type(error).__name__}: {error})"
        ) from error


@lru_cache(maxsize=64)
def _picker(length: int) -> Any:
    """Return compiled code that makes a tuple of the first numbers of a line."""
    if not length:
        return inner(lambda numbers, line: ())
    before, last = _picker(length - 1), length - 1
    return inner(lambda numbers, line: (*before(numbers, line), numbers[line, last]))


@lru_cache(maxsize=1)
def _shrink() -> Any:
    from numba import float32, int64, void

    return compiled(row_loops.shrink, void(float32[:, ::1], int64[::1], float32[::1]))
