"""apply: the optimizers' kernels alone, beside a memory copy of the bytes they touch."""

from __future__ import annotations

import time
from pathlib import Path

import click
import numpy as np

from bench import models
from bench.limits import Copy
from bench.options import json_option, model_option, optimizer_option, report, steps_option
from bench.results import Row, timed
from bench.setup import GRADIENT_SCALE, OPTIMIZERS, WARM_UP
from bench.stats import Times
from zmqps.core.keyspace import SLICE_NBYTES
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


@click.command("apply")
@model_option("resnet50")
@optimizer_option
@click.option("--kernels", type=click.Choice(BACKENDS), default="numba", show_default=True)
@steps_option
@json_option
def command(model: str, optimizer: str, kernels: str, steps: int, json_path: Path | None) -> None:
    """An optimizer's kernel alone, on one core, slice by slice as a server calls it.

    GB/s counts the bytes read and written. The limit is a memory copy that reads and writes as
    many.
    """
    report(measure(model, optimizer, kernels, steps), json_path)
