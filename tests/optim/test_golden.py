"""Every optimizer against recorded values of PyTorch's, or of a plain transcription of its paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.optim.specs import SPECS, rule_of
from tests.optim.written import elementwise
from zmqps.optim import (
    cosine_decay,
    exponential_decay,
    linear_decay,
    linear_warmup,
    make_kernel,
    one_cycle,
    piecewise,
    polynomial_decay,
    step_decay,
)

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "optim_golden.npz", allow_pickle=False)

#: PyTorch interpolates means where we add products, so the last bits differ.
TOLERANCE = {"float32": {"rtol": 4e-6, "atol": 1e-6}, "float64": {"rtol": 1e-12, "atol": 1e-14}}


def test_every_golden_case_has_a_spec() -> None:
    assert {key.split("/")[0] for key in GOLDEN.files} == {*SPECS, "w0", "g", "schedule"}


@pytest.mark.parametrize("backend", ["numpy", "numba", "device"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", SPECS)
def test_values_after_each_step_are_the_reference_values(case: str, dtype: str, backend: str) -> None:
    rule = rule_of(SPECS[case])
    kernel = make_kernel(rule, backend, np, elementwise)  # what a GPU would run, run by numpy
    w = np.zeros_like(GOLDEN["w0"], dtype) if rule.name == "ftrl" else GOLDEN["w0"].astype(dtype)
    slots = tuple(np.full_like(w, fill) for fill in rule.slot_fill)
    expected = GOLDEN[f"{case}/{dtype}" if f"{case}/{dtype}" in GOLDEN else f"{case}/float64"]
    for step, (g, values) in enumerate(zip(GOLDEN["g"].astype(dtype), expected, strict=True), start=1):
        kernel(w, g, w, slots, step)
        np.testing.assert_allclose(w, values, **TOLERANCE[dtype], err_msg=f"after step {step}")


@pytest.mark.parametrize(
    "schedule",
    [
        step_decay(0.8, every=3, factor=0.5),
        exponential_decay(0.8, decay_rate=0.9),
        cosine_decay(0.8, decay_steps=20, end_value=0.1),
        linear_decay(0.8, decay_steps=10, end_value=0.2),
        polynomial_decay(0.8, decay_steps=15, power=2.0),
        one_cycle(0.8, total_steps=21),
        one_cycle(0.8, total_steps=21, warmup_fraction=0.25, linear=True),
        piecewise(0.8, {3: 0.1, 10: 0.1}),
        linear_warmup(0.8, warmup_steps=10, init_value=0.2),
    ],
    ids=lambda schedule: schedule.kind,
)
def test_schedules_are_those_of_pytorch(schedule) -> None:
    expected = GOLDEN[f"schedule/{schedule.kind}{' linear' * getattr(schedule, 'linear', False)}"]
    np.testing.assert_allclose([schedule(step) for step in range(len(expected))], expected, rtol=1e-12, atol=1e-15)
