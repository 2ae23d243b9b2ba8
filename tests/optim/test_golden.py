"""Every optimizer against recorded values of PyTorch's, or of a plain transcription of its paper."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.optim.specs import SPECS, rule_of
from tests.tables import for_each
from zmqps.optim import (
    OptimizerSpec,
    adagrad,
    adam,
    adamw,
    amsgrad,
    cosine_decay,
    exponential_decay,
    linear_decay,
    linear_warmup,
    make_kernel,
    one_cycle,
    piecewise,
    polynomial_decay,
    rmsprop,
    step_decay,
)
from zmqps.optim.kernels import ArrayKernel, NumbaKernel
from zmqps.optim.registry import BUILTIN

FOLDER = Path(__file__).parents[1] / "data" / "optim"


@cache
def golden(file: str) -> dict[str, np.ndarray]:
    with np.load(FOLDER / f"{file}.npz", allow_pickle=False) as arrays:
        return dict(arrays)


BEGIN = golden("begin")

#: The reference first; what a GPU runs is compared with it in test_fused.py.
KERNELS = {"numpy": ArrayKernel, "numba": NumbaKernel}

#: PyTorch interpolates means where we add products, so the last bits differ.
TOLERANCE = {"float32": {"rtol": 4e-6, "atol": 1e-6}, "float64": {"rtol": 1e-12, "atol": 1e-14}}


def test_every_optimizer_has_cases_and_each_case_its_golden_values() -> None:
    optimizers = {spec.name for spec in SPECS.values()}
    assert optimizers == {name for name, cls in BUILTIN.items() if not cls().row_slots}, "write cases in specs.py"
    files = {path.stem for path in FOLDER.glob("*.npz")}
    assert files == {*optimizers, "begin", "schedules"}, "run tests/data/make_optim_golden.py"
    found = {key.split("/")[0] for optimizer in optimizers for key in golden(optimizer)}
    assert found == set(SPECS), "run tests/data/make_optim_golden.py with the name of the optimizer"


@pytest.mark.parametrize("case", SPECS)
def test_values_after_each_step_are_the_reference_values_and_bits_those_of_numpy(case: str) -> None:
    rule, values = rule_of(SPECS[case]), golden(SPECS[case].name)
    kernels = {backend: make_kernel(rule, backend) for backend in KERNELS}
    assert {backend: type(kernel) for backend, kernel in kernels.items()} == KERNELS
    for dtype in ("float32", "float64"):
        w = np.zeros_like(BEGIN["w0"], dtype) if rule.name == "ftrl" else BEGIN["w0"].astype(dtype)
        begin = [w, *(np.full_like(w, fill) for fill in rule.slot_fill)]
        states = {backend: [array.copy() for array in begin] for backend in KERNELS}
        expected = values[f"{case}/{dtype}" if f"{case}/{dtype}" in values else f"{case}/float64"]
        for step, (g, row) in enumerate(zip(BEGIN["g"].astype(dtype), expected, strict=True), start=1):
            for backend, (w, *slots) in states.items():
                kernels[backend](w, g, w, tuple(slots), step)
                where = f"{dtype} by {backend} after step {step}"
                np.testing.assert_allclose(w, row, **TOLERANCE[dtype], err_msg=where)
                bits = zip([w, *slots], states["numpy"], strict=True)
                assert all(a.tobytes() == b.tobytes() for a, b in bits), where
        assert {array.dtype for state in states.values() for array in state} == {np.dtype(dtype)}


@for_each(
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
)
def test_schedules_are_those_of_pytorch(schedule) -> None:
    expected = golden("schedules")[f"{schedule.kind}{' linear' * getattr(schedule, 'linear', False)}"]
    np.testing.assert_allclose([schedule(step) for step in range(len(expected))], expected, rtol=1e-12, atol=1e-15)


def _keras(name: str, w: np.ndarray, g: np.ndarray) -> Iterator[np.ndarray]:
    """Keras' own equations, as it writes them."""
    v, m, u, top = np.full_like(w, 0.1 if name == "adagrad" else 0.0), np.zeros_like(w), np.zeros_like(w), 0.0
    for step, row in enumerate(g, start=1):
        if name == "adagrad":
            v = v + row**2
            w = w - 0.1 * row / np.sqrt(v + 1e-3)
        elif name.startswith("rmsprop"):
            v = 0.9 * v + 0.1 * row**2
            m = 0.9 * m + 0.1 * row
            increment = 0.1 * row / np.sqrt((v - m**2 if "centered" in name else v) + 1e-3)
            u = 0.8 * u + increment
            w = w - (u if "momentum" in name else increment)
        else:
            w = w - w * 0.1 * 0.05 if "decay" in name else w
            m = m + (row - m) * (1 - 0.8)
            v = v + (row**2 - v) * (1 - 0.95)
            top = np.maximum(top, v)
            alpha = 0.05 * np.sqrt(1 - 0.95**step) / (1 - 0.8**step)
            w = w - m * alpha / (np.sqrt(top if "amsgrad" in name else v) + 1e-3)
        yield w


ADAM = {"b1": 0.8, "b2": 0.95, "eps": 1e-3, "eps_hat": True}
RMSPROP = {"decay": 0.9, "eps": 1e-3, "eps_in_sqrt": True}


@pytest.mark.parametrize(
    ("name", "spec"),
    {
        "adagrad": adagrad(0.1, initial_accumulator_value=0.1, eps=1e-3, eps_in_sqrt=True),
        "rmsprop": rmsprop(0.1, **RMSPROP),
        "rmsprop centered": rmsprop(0.1, centered=True, **RMSPROP),
        "rmsprop with momentum": rmsprop(0.1, momentum=0.8, **RMSPROP),
        "rmsprop centered with momentum": rmsprop(0.1, centered=True, momentum=0.8, **RMSPROP),
        "adam": adam(0.05, **ADAM),
        "amsgrad": amsgrad(0.05, **ADAM),
        "adam with decay": adamw(0.05, weight_decay=0.1, **ADAM),
        "amsgrad with decay": amsgrad(0.05, weight_decay=0.1, decoupled=True, **ADAM),
    }.items(),
)
def test_epsilon_can_be_where_keras_has_it(name: str, spec: OptimizerSpec) -> None:
    rule = rule_of(spec)
    kernel = make_kernel(rule, "numba")
    w = BEGIN["w0"].copy()
    slots = tuple(np.full_like(w, fill) for fill in rule.slot_fill)
    for step, (g, values) in enumerate(zip(BEGIN["g"], _keras(name, w.copy(), BEGIN["g"]), strict=True), start=1):
        kernel(w, g.copy(), w, slots, step)
        np.testing.assert_allclose(w, values, rtol=1e-12, atol=1e-13, err_msg=f"after step {step}")
