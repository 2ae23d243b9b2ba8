"""Rules written as kernels over rows: what is written, and which cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.devices import on_device, on_host
from tests.optim.specs import rule_of
from tests.optim.test_fused import SPECIAL
from tests.optim.test_rows import ROW_SPECS, SOME
from tests.tables import for_each
from zmqps.errors import OptimizerError
from zmqps.gpu.device import CudaDevice
from zmqps.optim import Rule, row_fused
from zmqps.optim.device_rows import DeviceRowKernel
from zmqps.optim.row_fused import sources

DIM, SHIFT = 4, 2


def test_a_kernel_reads_each_array_once_and_writes_each_once() -> None:
    made = sources(rule_of(ROW_SPECS["adam"]), DIM, counts=True, keeps=False)
    assert made.squares is made.state is None
    lines = made.update.body.split("\n")
    assert sum("load(" in line for line in lines) == 3
    assert [line[:6] for line in lines[-3:]] == ["store("] * 3
    assert sum("store(" in line for line in lines) == 3
    assert made.update.inputs.split(", ") == [
        "float32 g", "raw int64 rows", "int64 shift", "int64 stride", "raw float32 numbers",
    ]  # fmt: skip
    assert made.update.outputs == "raw uint64 chunks"


def test_a_rule_with_one_number_a_row_takes_three_kernels() -> None:
    made = sources(rule_of(ROW_SPECS["rowwise_adagrad with options"]), DIM, counts=False, keeps=True)
    assert made.squares is not None
    assert made.state is not None
    assert made.squares.outputs == "float32 out, raw uint64 chunks"
    assert made.state.inputs.startswith("float32 mean, ")
    assert "keep[k]" in made.squares.body
    assert "keep[k]" in made.update.body


@for_each("name", ROW_SPECS)
def test_every_optimizer_is_kernels_of_a_gpu(name: str) -> None:
    assert row_fused.can_write(rule_of(ROW_SPECS[name]))


@pytest.mark.gpu
@for_each("counts", [False, True])
@for_each("name", [name for name in SOME if not rule_of(ROW_SPECS[name]).row_slots])
def test_what_is_special_is_computed_as_by_the_reference(name: str, counts: bool) -> None:
    """Of one chunk, by the kernel alone: NaN, infinities, and what is too small for other numbers."""
    device = CudaDevice(0)
    device.use()
    rule = rule_of(ROW_SPECS[name])
    rng, size = np.random.default_rng(2), DIM << SHIFT
    w, g, *slots = (rng.standard_normal((1 << SHIFT, DIM)).astype(np.float32) for _ in range(2 + len(rule.slots)))
    slots = [np.abs(slot) for slot in slots]
    for array in (w, g):
        array.reshape(-1)[: len(SPECIAL)] = SPECIAL
        rng.shuffle(array.reshape(-1))
    chunk = on_device(device, np.concatenate([array.reshape(-1) for array in (w, *slots)]))
    scalars = np.array(rule.scalars(3), np.float32)
    scales = np.array([0.5, 1.0, 0.25, 1.0], np.float32)
    limits = [np.float32(number) for number in rule.gradient_scalars()[rule.clip_norm is not None :]]
    rows = np.array([2, 0, 3, 1])
    clips = [scales] if rule.clip_norm is not None else []
    numbers = [np.tile(scalars, rows.size)] if counts else [*scalars]
    given = [g.reshape(-1), rows, SHIFT, size, *clips, *numbers, *limits, np.array([device.address(chunk)], np.uint64)]
    kernel = row_fused.compiled(device.elementwise, sources(rule, DIM, counts=counts, keeps=False).update)
    kernel(*(on_device(device, one) if isinstance(one, np.ndarray) else one for one in given))
    with np.errstate(all="ignore"):
        d = rule.gradient(np)(w[rows], g, *[one[:, None] for one in clips], *limits)
        expected = rule.equation(np)(w[rows], d, *[slot[rows] for slot in slots], *scalars)
    found = on_host(device, chunk)
    for number, result in enumerate(expected):
        np.testing.assert_array_equal(found[number * size :][:size].reshape(-1, DIM)[rows], result)


def own(equation: Any) -> Rule:
    @dataclass(frozen=True, kw_only=True)
    class Own(Rule):
        name = "somebody's own"
        slots = ("a",)

        def scalars(self, step: int) -> tuple[float, ...]:
            return (self.rate(step),)

        def equation(self, xp: Any) -> Any:
            return lambda *arguments: equation(xp, *arguments)

    return Own(learning_rate=0.5)


def test_a_rule_that_cannot_be_written_is_told_from_one_that_can() -> None:
    assert row_fused.can_write(own(lambda xp, w, g, a, rate: (w - rate * g, a + g)))
    assert not row_fused.can_write(own(lambda xp, w, g, a, rate: (xp.cumsum(w), a)))
    with pytest.raises(OptimizerError, match="returns 1 arrays for 1 slots"):
        sources(own(lambda xp, w, g, a, rate: (w,)), 1, counts=False, keeps=False)


def test_a_rule_that_keeps_too_much_is_refused() -> None:
    class Much(type(rule_of(ROW_SPECS["sgd"]))):  # type: ignore[misc]
        slots = ("a",)
        row_slots = ("b",)

    with pytest.raises(OptimizerError, match="is not for tables"):
        DeviceRowKernel(Much(learning_rate=0.1), DIM, "rows", np, None)
