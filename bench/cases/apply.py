"""apply: the optimizers' kernels alone, beside a memory copy of the bytes they touch."""

from __future__ import annotations

import time
from pathlib import Path

import click
import numpy as np

from bench import models
from bench.device import Rig, open_or_stand_in, torch_fused
from bench.limits import Copy
from bench.options import device_option, json_option, model_option, optimizer_option, report, steps_option
from bench.results import Row, timed
from bench.setup import GRADIENT_SCALE, OPTIMIZERS, WARM_UP
from bench.stats import Times
from zmqps.core.job.keyspace import SLICE_NBYTES
from zmqps.gpu.device import Device
from zmqps.optim import make_kernel

BACKENDS = ("numba", "numpy")


def measure(model: str, optimizer: str, kernels: str, steps: int) -> Row:
    """Apply one gradient of the whole model, slice by slice as a server does, and copy memory, in turns."""
    size = models.num_elements(models.find(model))
    rules, _ = OPTIMIZERS[optimizer]().rules(["w"])
    kernel = make_kernel(rules[0], kernels)
    values = np.ones(size, np.float32)
    gradient = np.resize(models.arrays({"g": (1 << 16,)}, GRADIENT_SCALE)["g"], size)
    slots = tuple(np.full(size, fill, np.float32) for fill in rules[0].slot_fill)
    touched = values.itemsize * size * (3 + 2 * len(slots))  # reads the gradient; reads and writes the others
    copy = Copy(touched // 2)  # which reads and writes as many together
    parts = [slice(start, start + SLICE_NBYTES // 4) for start in range(0, size, SLICE_NBYTES // 4)]
    ours: list[float] = []
    limits: list[float] = []
    for step in range(1, WARM_UP + steps + 1):
        started = time.perf_counter()
        for part in parts:
            kernel(values[part], gradient[part], values[part], tuple(slot[part] for slot in slots), step)
        ours.append(time.perf_counter() - started)
        limits.append(copy.step())
    times, limit = Times(tuple(ours[WARM_UP:])), Times(tuple(limits[WARM_UP:]))
    return Row(
        case="apply",
        model=model,
        optimizer=optimizer,
        kernels=kernels,
        **timed(times, limit, touched),
        extra={"touched_nbytes": touched, "copy_gb_s": touched / limit.median / 1e9},
    )


def measure_on(device: Device, model: str, optimizer: str, steps: int) -> Row:
    """Apply one gradient of the whole model on a device, and copy its memory, in turns; PyTorch's fused step too."""
    size = models.num_elements(models.find(model))
    rig = Rig(device, size, optimizer)
    fused = torch_fused(optimizer, size, device.spec)
    turns = rig.apply, rig.copy, rig.apply_in_one_piece, fused or (lambda: 0.0)
    found = [[turn() for turn in turns] for _ in range(WARM_UP + steps)][WARM_UP:]
    ours, limits, whole, others = (Times(times) for times in zip(*found, strict=True))
    extra = {"device": device.name, "touched_nbytes": rig.touched_nbytes}
    extra["copy_gb_s"] = rig.touched_nbytes / limits.median / 1e9
    extra["ratio_in_one_piece"] = whole.median / limits.median
    if fused:
        extra |= {"torch_fused_s": others.median, "ratio_to_torch_fused": ours.median / others.median}
    row = timed(ours, limits, rig.touched_nbytes)
    return Row(case="apply", model=model, optimizer=optimizer, kernels=device.spec, **row, extra=extra)


@click.command("apply")
@model_option("resnet50")
@optimizer_option
@click.option("--kernels", type=click.Choice(BACKENDS), default="numba", show_default=True)
@device_option("Measure a GPU's kernels instead; cpu: the same with numpy in the role of a GPU.")
@steps_option
@json_option
def command(model: str, optimizer: str, kernels: str, device: str | None, steps: int, json_path: Path | None) -> None:
    """An optimizer's kernel alone, on one core, slice by slice as a server calls it.

    GB/s counts the bytes read and written. The limit is a memory copy that reads and writes as
    many. With --device the limit is a copy on the device, and where PyTorch is installed the step of its fused
    optimizer stands beside it.
    """
    if device is None:
        row = measure(model, optimizer, kernels, steps)
    else:
        row = measure_on(open_or_stand_in(device), model, optimizer, steps)
    report(row, json_path)
