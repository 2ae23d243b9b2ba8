"""What the bus and the memory of a GPU allow at best, and what the servers' kernels make of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench import models
from bench.results import Row
from bench.setup import GRADIENT_SCALE, LEARNING_RATE, OPTIMIZERS, WARM_UP, Setup
from bench.stats import Times
from bench.tables import console, new_table, seconds
from tests.simulator.host_device import HostDevice
from zmqps.core.job.keyspace import SLICE_NBYTES
from zmqps.gpu.device import Array, Device, open_device
from zmqps.nodes.server import CompiledRules, ServerConfig

#: What a server with a GPU does to a slice, one after the other, and where the time of each comes from.
PHASES = ("receive", "host to device", "apply", "device to host", "send")
#: The first and the last of them, as a server records them.
RECORDED = {"receive": "receive", "send": "reply"}


def open_or_stand_in(text: str) -> Device:
    """Return a device; for the processor numpy in the role of one, so that the same code runs."""
    return open_device(text) or HostDevice()


def placed(arrays: Mapping[str, np.ndarray[Any, Any]], text: str | None) -> Mapping[str, Any]:
    """Return arrays on a device, as a script that trains there has them; the processor's as they are."""
    device = None if text is None else open_device(text)
    if device is None:
        return arrays
    device.use()
    return {name: device.xp.asarray(array) for name, array in arrays.items()}


class Rig:
    """A model and a gradient on a device, page-locked memory as large, and a server's kernel.

    Parameters
    ----------
    device
        Where.
    size
        Number of parameters, float32.
    optimizer
        By its name.
    """

    def __init__(self, device: Device, size: int, optimizer: str) -> None:
        device.use()
        self._device = device
        self._stream = device.new_stream()
        self._stream.use()
        spec = OPTIMIZERS[optimizer]()
        rules = CompiledRules(spec, ServerConfig(coordinator="tcp://127.0.0.1:1"), device)
        (self._kernel,), *_ = rules.kernels(["w"])
        self._values, self._gradient = self._full(size, 1.0), self._full(size, GRADIENT_SCALE)
        self._slots = tuple(self._full(size, fill) for fill in rules.slot_fill)
        self._pinned = device.pinned(4 * size).view(np.float32)
        self._pinned[:] = GRADIENT_SCALE
        self._parts = [slice(start, start + SLICE_NBYTES // 4) for start in range(0, size, SLICE_NBYTES // 4)]
        self._steps = 0
        #: Bytes an update reads and writes: the gradient once, the others twice.
        self.touched_nbytes = 4 * size * (3 + 2 * len(self._slots))
        self._copied = self._full(self.touched_nbytes // 8, 1.0), self._full(self.touched_nbytes // 8, 0.0)

    def _full(self, size: int, value: float) -> Array:
        array = self._device.empty(size, np.dtype(np.float32))
        array.fill(value)
        return array

    def apply(self) -> float:
        """Apply the gradient slice by slice, as a server does; return the seconds."""
        self._steps += 1
        return self._timed(self._apply)

    def apply_in_one_piece(self) -> float:
        """Apply the gradient by one call of the kernel, so that it is the device that takes the time."""
        self._steps += 1
        return self._timed(lambda _: self._apply(slice(None)), once=True)

    def _apply(self, part: slice) -> None:
        slots, w = tuple(slot[part] for slot in self._slots), self._values[part]
        self._kernel(w, self._gradient[part], w, slots, self._steps)

    def copy(self) -> float:
        """Copy as many bytes on the device as an update touches, half of them read; return the seconds."""
        source, target = self._copied
        return self._timed(lambda _: self._device.xp.copyto(target, source), once=True)

    def host_to_device(self) -> float:
        """Copy the gradient to the device, slice by slice; return the seconds."""
        return self._timed(lambda part: self._device.copy_in(self._pinned[part], self._gradient[part], self._stream))

    def device_to_host(self) -> float:
        """Copy the values to this host, slice by slice; return the seconds."""
        return self._timed(lambda part: self._device.copy_out(self._values[part], self._pinned[part], self._stream))

    def _timed(self, work: Callable[[slice], Any], *, once: bool = False) -> float:
        self._device.synchronize()
        started = time.perf_counter()
        for part in self._parts[:1] if once else self._parts:
            work(part)
        self._stream.record().wait()
        return time.perf_counter() - started


def torch_fused(optimizer: str, size: int, text: str) -> Callable[[], float] | None:
    """Return what does a step of PyTorch's fused optimizer and says how long it took; None where there is none."""
    try:
        import torch
    except ImportError:
        return None
    place = text if text.startswith("cuda") else "cpu"
    w = torch.ones(size, device=place, requires_grad=True)
    w.grad = torch.full_like(w, GRADIENT_SCALE)
    makers: dict[str, Callable[[], Any]] = {
        "sgd": lambda: torch.optim.SGD([w], lr=LEARNING_RATE, fused=True),
        "momentum": lambda: torch.optim.SGD([w], lr=LEARNING_RATE, momentum=0.9, fused=True),
        "adagrad": lambda: torch.optim.Adagrad([w], lr=LEARNING_RATE, fused=True),
        "adam": lambda: torch.optim.Adam([w], lr=LEARNING_RATE, fused=True),
    }
    try:
        stepper = makers[optimizer]()
    except (KeyError, RuntimeError):  # not every optimizer has a fused form on every device
        return None

    def step() -> float:
        started = time.perf_counter()
        stepper.step()
        if place != "cpu":
            torch.cuda.synchronize(place)
        return time.perf_counter() - started

    return step


def bus(device: Device, setup: Setup) -> dict[str, float]:
    """Return the median seconds of what a server's device does to a whole model, each phase alone."""
    rig = Rig(device, models.num_elements(models.find(setup.model)), setup.optimizer)
    work = {"host to device": rig.host_to_device, "apply": rig.apply, "device to host": rig.device_to_host}
    return {
        phase: Times(tuple(once() for _ in range(WARM_UP + setup.steps))[WARM_UP:]).median
        for phase, once in work.items()
    }


def step_phases(device: Device, setup: Setup, recorded: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds of `PHASES` for one step, one server's share of the model at a time.

    Parameters
    ----------
    device
        A server's.
    setup
        The job.
    recorded
        What `bench.phases.phases_of` has found: receiving and sending, in all servers together.
    """
    totals = {(phase["role"], phase["name"]): phase["total_s"] for phase in recorded["phases"]}
    found = {phase: totals.get(("server", name), 0.0) / setup.servers for phase, name in RECORDED.items()}
    return {phase: found[phase] if phase in found else 0.0 for phase in PHASES} | {
        phase: value / setup.servers for phase, value in bus(device, setup).items()
    }


def print_step_phases(row: Row) -> None:
    """Print the phases of a step on a device; the longest bounds it, for they overlap."""
    phases: dict[str, float] = row.extra["device_phases"]
    nbytes = row.extra["model_nbytes"] / (row.servers or 1)
    table = new_table(f"on {row.extra['device']}, each server", "seconds", "GB/s")
    for phase in PHASES:
        value = phases[phase]
        table.add_row(phase, seconds(value), f"{nbytes / value / 1e9:.2f}" if value else "")
    longest = max(phases, key=phases.__getitem__)
    table.add_row(f"bound: {longest}", seconds(phases[longest]), "")
    console.print(table)
