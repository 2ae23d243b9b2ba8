"""What a shard asks of an optimizer, how long its updates take, its slots, and how a failed update is taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from zmqps.core.job.keyspace import Slice
from zmqps.core.job.spec import Parameter
from zmqps.core.protocol.arrays import Array
from zmqps.core.server.dense.memory import Memory


class UpdateKernel(Protocol):
    """One optimizer rule, compiled: ``step`` is the number of this update, from 1.

    Gradients are multiplied with ``scale`` where the rule clips them by their norm; ``numbers`` are in the place of the
    first of the rule's own.

    What it raises it raises before it has written anything, unless its rules say that they allocate, or it is an
    `InternalError`.
    """

    def __call__(
        self,
        w: Array,
        g: Array,
        out: Array,
        slots: tuple[Array, ...],
        step: int,
        scale: float = ...,
        numbers: tuple[float, ...] = ...,
        /,
    ) -> None:
        """Write the updated ``w`` to ``out`` (which may be ``w``) and update ``slots`` in place."""


class Rules(Protocol):
    """What the shard needs of an optimizer; `zmqps.optim` builds it."""

    @property
    def slot_fill(self) -> tuple[float, ...]:
        """The initial value of each slot."""

    @property
    def allocates(self) -> bool:
        """Whether kernels need memory while they compute, and may fail after they have begun to write."""

    def kernels(self, names: Sequence[str]) -> tuple[Sequence[UpdateKernel | None], Sequence[int], Sequence[int]]:
        """Return the kernels in use (None: frozen), the index of each parameter's, and the number of its group."""

    def all_finite(self, g: Array, /) -> bool:
        """Whether an array holds neither NaN nor infinity."""

    def mean(self, arrays: Sequence[Array], share: float, out: Array, /) -> bool:
        """Write the sum of at least two arrays, added in their order, times a share to ``out``, all of this host.

        False, and ``out`` undefined, if a sum is not finite; or if that cannot be determined.
        """


class Kernels:
    """The kernels of a shard.

    Parameters
    ----------
    rules
        The optimizer's.
    parameters
        All of the job's.

    Attributes
    ----------
    each
        The kernels by number: of the rules, None of what is frozen or a buffer; then again, of each group.
    of_rule, of_group
        The number of each parameter's kernel among the former, and among the latter: those that share a rule may be
        updated with other numbers.
    num_rules, num_groups
        How many there are.
    first_group
        The number of the first group's kernel.
    """

    def __init__(self, rules: Rules, parameters: Sequence[Parameter]) -> None:
        kernels, kernel_of, group_of = rules.kernels([parameter.name for parameter in parameters])
        self.num_rules, self.num_groups = len(kernels), 1 + max(group_of, default=0)
        self.first_group = self.num_rules + 1
        by_group: list[UpdateKernel | None] = [None] * (self.num_groups + 1)
        self.of_rule, self.of_group = list[int](), list[int]()
        for parameter, kernel, group in zip(parameters, kernel_of, group_of, strict=True):
            if not parameter.buffer:
                by_group[group] = kernels[kernel]
            self.of_rule.append(self.num_rules if parameter.buffer else kernel)
            self.of_group.append(self.first_group + (self.num_groups if parameter.buffer else group))
        self.each: list[UpdateKernel | None] = [*kernels, None, *by_group]

    def numbers(self, terms: Sequence[float]) -> tuple[bool, int]:
        """Return whether the numbers of terms are of groups, and how many each has; of others than these, none."""
        if len(terms) < 2:
            return False, 0
        of_groups = terms[1] == self.num_groups != self.num_rules
        fit = of_groups or terms[1] == self.num_rules
        return of_groups, (len(terms) - 2) // int(terms[1]) if fit else 0


class Timing:
    """How long updates take, by the shell's clock: the core has none of its own."""

    __slots__ = ("clock", "num", "seconds")

    def __init__(self) -> None:
        self.clock: Callable[[], float] = float  # 0, unless the shell says otherwise
        self.seconds = 0.0
        self.num = 0


class Slots:
    """Allocates all slots of a shard."""

    def __init__(
        self,
        tables: Sequence[tuple[int, int]],  # for each table the shard's first element and how many it has
        dtypes: Sequence[np.dtype[Any]],
        memory: Memory,
        fills: Sequence[float],  # the initial value of each slot
    ) -> None:
        self.nbytes = 0
        self._tables = tables
        self._arenas: list[list[Array]] = []
        for (_, size), dtype in zip(tables, dtypes, strict=True):
            slots = [memory.empty(size, dtype) for _ in fills]
            for slot, fill in zip(slots, fills, strict=True):
                memory.fill(slot, fill)
            self._arenas.append(slots)
            self.nbytes += size * dtype.itemsize * len(slots)

    def of(self, slice_: Slice) -> tuple[Array, ...]:
        """Return the slots of a slice; they alias the shard's."""
        origin, _ = self._tables[slice_.table]
        where = slice(slice_.start - origin, slice_.stop - origin)
        return tuple(slot[where] for slot in self._arenas[slice_.table])


class Undo:
    """Arrays as they were before an update.

    For kernels that need memory while they compute (`Rules.allocates`); the copies cost as
    much as the update.

    Parameters
    ----------
    memory
        Where they are kept.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._saved: list[tuple[Array, Array]] = []

    def save(self, arrays: Iterable[Array]) -> None:
        """Keep what some arrays hold."""
        for array in arrays:
            copy = self._memory.empty(array.size, array.dtype)
            copy[:] = array
            self._saved.append((array, copy))

    def restore(self) -> None:
        """Write it back."""
        for array, copy in self._saved:
            array[:] = copy
