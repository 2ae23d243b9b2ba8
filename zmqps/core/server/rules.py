"""What a shard asks of an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from zmqps.core.job.spec import Parameter
from zmqps.core.protocol.arrays import Array


class UpdateKernel(Protocol):
    """One optimizer rule, compiled: ``step`` is the number of this update, from 1.

    Gradients are multiplied with ``scale`` where the rule clips them by their norm; ``learning_rate`` is one in the
    place of the rule's own.

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
        learning_rate: float | None = ...,
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

    def kernels(self, names: Sequence[str]) -> tuple[Sequence[UpdateKernel | None], Sequence[int]]:
        """Return the kernels in use (None: frozen), and the index of each parameter's."""

    def all_finite(self, g: Array, /) -> bool:
        """Whether an array holds neither NaN nor infinity."""


def kernels_of(rules: Rules, parameters: Sequence[Parameter]) -> tuple[Sequence[UpdateKernel | None], Sequence[int]]:
    """Return the kernels in use, and the index of each parameter's; buffers have none."""
    kernels, kernel_of = rules.kernels([parameter.name for parameter in parameters])
    if not any(parameter.buffer for parameter in parameters):
        return kernels, kernel_of
    own = [len(kernels) if p.buffer else kernel for p, kernel in zip(parameters, kernel_of, strict=True)]
    return [*kernels, None], own
