"""Equations written as kernels of a GPU: what is written is the equation, and computes the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.devices import NewDevice, kernel_on, on_device, on_every_device, on_host
from tests.optim.specs import SPECS, rule_of
from tests.simulator.host_device import HostDevice
from tests.tables import for_each
from zmqps.errors import OptimizerError
from zmqps.gpu.device import Device
from zmqps.optim import Rule, fused, make_kernel
from zmqps.optim.kernels import ArrayKernel, FusedKernel

SPECIAL = [0.0, -0.0, 1e-45, -1e-45, 1e30, -1e30, np.inf, -np.inf, np.nan]


def arrays(rule: Rule, dtype: str, size: int = 500) -> list[np.ndarray]:
    """Return values, gradient and slots; among them what is treated specially."""
    rng = np.random.default_rng(1)
    drawn = [rng.standard_normal(size).astype(dtype) for _ in range(2)]
    for array in drawn:
        array[: len(SPECIAL)] = SPECIAL
        rng.shuffle(array)
    return [*drawn, *(np.full(size, fill, dtype) for fill in rule.slot_fill)]


@for_each("case", SPECS)
def test_every_optimizer_is_one_kernel_of_a_gpu(case: str) -> None:
    assert fused.can_write(rule_of(SPECS[case]))


@on_every_device
@for_each("dtype", ["float32", "float64"])
def test_kernels_of_a_device_compute_what_the_reference_does(dtype: str, new_device: NewDevice) -> None:
    device = new_device()
    device.use()
    for case, spec in SPECS.items():
        computes_what_the_reference_does(device, rule_of(spec), dtype, case)


def computes_what_the_reference_does(device: Device, rule: Rule, dtype: str, case: str) -> None:
    w, g, *slots = arrays(rule, dtype)
    w2, g2, *slots2 = (on_device(device, array) for array in (w, g, *slots))
    kernel = kernel_on(device, rule)
    assert isinstance(kernel, FusedKernel) == device.compiles
    for step in (1, 2, 3):
        make_kernel(rule)(w, g, w, tuple(slots), step)
        kernel(w2, g2, w2, tuple(slots2), step)
    for ours, theirs in zip((w, *slots), (w2, *slots2), strict=True):
        np.testing.assert_array_equal(on_host(device, theirs), ours, err_msg=case)


@on_every_device
def test_a_kernel_may_write_elsewhere(new_device: NewDevice) -> None:
    device = new_device()
    device.use()
    rule = rule_of(SPECS["adam"])
    expected, g, *slots = arrays(rule, "float32")
    w2, g2, out, *slots2 = (on_device(device, array) for array in (expected, g, np.zeros_like(g), *slots))
    make_kernel(rule)(expected, g, expected, tuple(slots), 1)
    kernel_on(device, rule)(w2, g2, out, tuple(slots2), 1)
    np.testing.assert_array_equal(on_host(device, out), expected)


def with_equation(update: Callable[..., Any]) -> Rule:
    """Return a rule with two slots that updates as told: ``update(xp, w, g, a, b, rate)``."""

    @dataclass(frozen=True, kw_only=True)
    class Own(Rule):
        name = "somebody's own"
        slots = ("a", "b")

        def scalars(self, step: int) -> tuple[float, ...]:
            return (self.rate(step),)

        def equation(self, xp: Any) -> Callable[..., tuple[Any, ...]]:
            return lambda *arguments: update(xp, *arguments)

    return Own(learning_rate=0.5)


@on_every_device
@for_each(
    "update",
    [
        lambda xp, w, g, a, b, rate: (w - 2 * g, b, a),
        lambda xp, w, g, a, b, rate: (xp.where(g > 0.25, w, xp.abs(g) / 3), -a, 1.0 - b),
        lambda xp, w, g, a, b, rate: (g, w, xp.sign(xp.minimum(w, xp.maximum(g, -rate)))),
    ],
    ids=["slots that change places", "a choice", "values that become slots"],
)
@for_each("dtype", ["float32", "float64"])
def test_an_equation_of_somebodys_own_is_written_too(
    update: Callable[..., Any], dtype: str, new_device: NewDevice
) -> None:
    device = new_device()
    device.use()
    rule = with_equation(update)
    assert fused.can_write(rule)
    computes_what_the_reference_does(device, rule, dtype, "somebody's own")


@for_each(
    "update, said",
    [
        (lambda xp, w, g, a, b, rate: (xp.cumsum(w), a, b), "xp.cumsum is not among sqrt"),
        (lambda xp, w, g, a, b, rate: (w if w > 0 else g, a, b), "choose by xp.where"),
        (lambda xp, w, g, a, b, rate: (w + float("inf"), a, b), "cannot be used in an equation"),
        (lambda xp, w, g, a, b, rate: (w + "1", a, b), "cannot be used in an equation"),
    ],
    ids=["another function", "a condition", "infinity", "a text"],
)
def test_what_cannot_be_written_runs_one_operation_after_another(update: Callable[..., Any], said: str) -> None:
    rule = with_equation(update)
    with pytest.raises(OptimizerError, match=said):
        fused.source(rule, np.dtype(np.float32))
    assert isinstance(make_kernel(rule, "device", np, HostDevice().elementwise), ArrayKernel)


def test_a_body_reads_each_array_once_and_writes_each_once() -> None:
    written = fused.source(rule_of(SPECS["adam"]), np.dtype(np.float32))
    assert written.name == "zmqps_adam_float32"
    assert written.outputs == "float32 out, float32 s0, float32 s1"
    lines = written.body.split("\n")
    assert lines[:3] == ["const float v0 = w;", "const float v1 = s0;", "const float v2 = s1;"]
    assert [line.split()[0] for line in lines[-3:]] == ["out", "s0", "s1"]
