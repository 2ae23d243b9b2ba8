"""Memory that fails at a chosen request for it, on the host and on a device, and all that such a failure must leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.simulator.host_device import HostDevice
from tests.simulator.jobs.training import ReferenceRules
from zmqps.core.server.dense.aggregate import Stage
from zmqps.core.server.dense.memory import HostMemory, Memory
from zmqps.core.server.dense.part import DensePart
from zmqps.core.server.dense.rules import UpdateKernel
from zmqps.core.server.dense.stale import TreatedPart
from zmqps.core.server.shard import Shard
from zmqps.core.treatments import ReadCopies
from zmqps.gpu.staging import DeviceMemory, Streams
from zmqps.optim import OptimizerSpec, make_kernel


class Scarcity:
    """Raises `MemoryError` once: at the request for memory after so many others."""

    def __init__(self) -> None:
        self.left: int | None = None

    def fail_after(self, requests: int | None) -> None:
        self.left = requests

    def tick(self) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            self.left = None
            raise MemoryError("no more")


class ScarceHost(HostMemory):
    def __init__(self, scarcity: Scarcity) -> None:
        super().__init__()
        self.scarcity = scarcity

    def empty(self, size: int, dtype: np.dtype[Any]) -> Any:
        self.scarcity.tick()
        array = super().empty(size, dtype)
        array.view(np.uint8)[:] = 0x7B  # what is used before it is written shows
        return array

    def values(self, size: int, dtype: np.dtype[Any]) -> Any:
        return self.empty(size, dtype)

    def copied(self, array: Any) -> Any:
        self.scarcity.tick()
        return super().copied(array)

    def decode(self, *arguments: Any, **options: Any) -> Any:
        self.scarcity.tick()
        return super().decode(*arguments, **options)

    def send(self, codec: Any, *arguments: Any) -> Any:
        if codec is not None:
            self.scarcity.tick()
        return super().send(codec, *arguments)


class ScarceDevice(HostDevice):
    def __init__(self, scarcity: Scarcity) -> None:
        super().__init__()
        self.scarcity = scarcity

    def empty(self, size: int, dtype: np.dtype[Any]) -> Any:
        self.scarcity.tick()
        array = super().empty(size, dtype)
        array.view(np.uint8)[:] = 0x7B
        return array


class ScarceDeviceMemory(DeviceMemory):
    def __init__(self, scarcity: Scarcity, slice_nbytes: int) -> None:
        super().__init__(Streams(ScarceDevice(scarcity)), slice_nbytes, inbound_slots=3)
        self.scarcity = scarcity

    def take(self, piece: Any) -> Any:
        blob = getattr(piece, "blob", None)
        if blob is not None and (self._decoded is None or self._decoded[0] is not blob):
            self.scarcity.tick()
        return super().take(piece)

    def send(self, codec: Any, *arguments: Any) -> Any:
        if codec is not None:
            self.scarcity.tick()
        return super().send(codec, *arguments)


def memory_of(where: str, scarcity: Scarcity, slice_nbytes: int = 256) -> Memory:
    return ScarceHost(scarcity) if where == "host" else ScarceDeviceMemory(scarcity, slice_nbytes)


class ScarceRules(ReferenceRules):
    """Kernels that may fail for want of memory after they have written the first half."""

    def __init__(self, spec: OptimizerSpec, scarcity: Scarcity, where: str = "host") -> None:
        super().__init__(spec)
        self.scarcity = scarcity
        self._make: Callable[..., Any] = make_kernel if where == "host" else lambda rule: make_kernel(rule, "device")

    def kernels(self, names: Sequence[str]) -> tuple[Sequence[UpdateKernel | None], Sequence[int], Sequence[int]]:
        rules, kernel_of = self._spec.rules(names)
        self.slot_fill = rules[0].slot_fill
        kernels = [None if rule.frozen else self._half_and_half(self._make(rule)) for rule in rules]
        return kernels, kernel_of, self._spec.groups_of(names)

    def _half_and_half(self, kernel: Any) -> UpdateKernel:
        def run(w: Any, g: Any, out: Any, slots: tuple[Any, ...], step: int) -> None:
            middle = w.size // 2
            for part in (slice(0, middle), slice(middle, w.size)):
                self.scarcity.tick()
                target = out[part]
                kernel(target if w is out else w[part], g[part], target, tuple(slot[part] for slot in slots), step)

        return run


def state_of(shard: Shard | DensePart) -> dict[str, Any]:
    """Return all that a failure must leave as it was."""
    dense = shard.dense if isinstance(shard, Shard) else shard
    stage = dense.steps.stage if dense.steps else None
    return {
        "slices": [slice_state(state) for state in dense.slices],
        "version": dense.steps.version if dense.steps else 0,
        "counters": {name: count for name, count in dense.counters.items() if count and "spare" not in name},
        "used": None if stage is None else {n: {w: c for w, c in u.items() if c} for n, u in stage._used.items() if u},
        "stage": None if stage is None else staged(stage),
        "copies": None if (copies := copies_of(dense)) is None else copied(copies),
        "missing": sorted(dense.came.missing),
    }


def copies_of(dense: DensePart) -> ReadCopies | None:
    """Return what workers have read, where a treatment needs to know."""
    return dense.copies if isinstance(dense, TreatedPart) else None


def slice_state(state: Any) -> tuple[Any, ...]:
    return (
        state.value.tobytes(), [slot.tobytes() for slot in state.slots], state.version, state.steps.tolist(),
        sum(not reader.done for reader in state.readers),
        [(version, value.tobytes(), pin.done) for version, value, _, pin in state.history],
    )  # fmt: skip


def staged(stage: Stage) -> Any:
    return {
        (step, push, index): (brought.bounds, brought.buffer.tobytes(), brought.examples)
        for step, pushes in stage._steps.items()
        for push, slices in pushes.items()
        for index, brought in slices.items()
    }


def copied(copies: ReadCopies) -> Any:
    return {
        (worker, index): (version, value.tobytes())
        for worker, of_worker in copies._copies.items()
        for index, (version, value) in of_worker.items()
        if version >= 0
    }


def held_nbytes(shard: Shard) -> int:
    """Return what the values' buffers beyond the first arena take, counted one by one."""
    buffers = shard.dense._buffers
    seconds = sum(arena.nbytes for arena in buffers._seconds.values())
    spares = {id(spare): spare for (spare, _), _ in buffers._spares}
    for state in shard.slices:
        for value in (state.value, *(kept for _, kept, _, _ in state.history)):
            if not any(value is place for place, _ in state.places):
                spares[id(value)] = value
    return seconds + sum(spare.nbytes for spare in spares.values())
