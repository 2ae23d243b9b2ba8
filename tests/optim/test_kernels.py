"""What holds for every kernel, whatever it computes: sizes, slices, aliasing, dtypes, and that backends agree."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.devices import NewDevice, kernel_on, on_device, on_every_backend, on_host
from tests.optim.specs import BY_SLOTS, SPECS, rule_of
from tests.tables import for_each
from zmqps import optim
from zmqps.core.server.dense.aggregate import mean_in_passes
from zmqps.errors import OptimizerError
from zmqps.gpu.device import Device
from zmqps.nodes.server import CompiledRules, ServerConfig
from zmqps.optim import Rule, all_finite, kernels, make_kernel, warm_up
from zmqps.optim.kernels import Backend
from zmqps.optim.rules.sgd import SGD

BACKENDS = ["numpy", "numba"]
DTYPES = ["float32", "float64"]
BLOCK = {dtype: kernels.BLOCK_NBYTES // np.dtype(dtype).itemsize for dtype in DTYPES}


class State:
    """Values, gradient and slots, the same for the same seed."""

    def __init__(self, rule: Rule, size: int, dtype: str, device: Device | None = None) -> None:
        rng = np.random.default_rng(1)
        self.w = rng.standard_normal(size).astype(dtype)
        self.g = rng.standard_normal(size).astype(dtype)
        self.g.flags.writeable = False
        self.slots = tuple(np.full(size, fill, dtype) for fill in rule.slot_fill)
        self.device = device
        if device is not None:
            self.w, self.g, *slots = (on_device(device, array) for array in (self.w, self.g, *self.slots))
            self.slots = tuple(slots)

    def changed(self) -> list[np.ndarray]:
        """Return values and slots, as arrays of this host."""
        arrays = [self.w, *self.slots]
        return arrays if self.device is None else [on_host(self.device, array) for array in arrays]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and all(map(np.array_equal, self.changed(), other.changed()))


@for_each("dtype", DTYPES)
@for_each("case", BY_SLOTS)
def test_backends_agree_bit_for_bit_and_keep_the_dtype(case: str, dtype: str) -> None:
    rule = rule_of(SPECS[case])
    for size in (0, 1, 2, 997, BLOCK[dtype] - 1, BLOCK[dtype], BLOCK[dtype] + 1):
        reference, compiled = (State(rule, size, dtype) for _ in BACKENDS)
        for step in (1, 2, 3):
            make_kernel(rule, "numpy")(reference.w, reference.g, reference.w, reference.slots, step)
            make_kernel(rule, "numba")(compiled.w, compiled.g, compiled.w, compiled.slots, step)
        assert reference == compiled, f"{size} elements"
        assert {a.dtype for a in (reference.w, *reference.slots)} == {np.dtype(dtype)}


@for_each("backend", BACKENDS)
@for_each("case", BY_SLOTS)
def test_updating_in_two_pieces_is_updating_whole(case: str, backend: str) -> None:
    rule, dtype = rule_of(SPECS[case]), "float32"
    size = BLOCK[dtype] + 101
    whole, pieces = State(rule, size, dtype), State(rule, size, dtype)
    kernel = make_kernel(rule, backend)
    for step in (1, 2):
        kernel(whole.w, whole.g, whole.w, whole.slots, step)
        for part in (slice(0, 333), slice(333, size)):
            kernel(pieces.w[part], pieces.g[part], pieces.w[part], tuple(s[part] for s in pieces.slots), step)
    assert whole == pieces


@for_each("backend", BACKENDS)
@for_each("case", BY_SLOTS)
def test_updating_into_another_array_is_updating_in_place(case: str, backend: str) -> None:
    rule, dtype = rule_of(SPECS[case]), "float32"
    size = BLOCK[dtype] + 101
    inside, outside = State(rule, size, dtype), State(rule, size, dtype)
    kernel = make_kernel(rule, backend)
    for step in (1, 2):
        kernel(inside.w, inside.g, inside.w, inside.slots, step)
        before, spare = outside.w.copy(), np.full(size, np.nan, dtype)
        outside.w.flags.writeable = False
        kernel(outside.w, outside.g, spare, outside.slots, step)
        assert np.array_equal(outside.w, before)
        outside.w = spare
    assert inside == outside


@for_each("backend", BACKENDS)
def test_a_gradient_may_be_unaligned(backend: str) -> None:
    rule = rule_of(SPECS["adam"])
    aligned, unaligned = State(rule, 100, "float32"), State(rule, 100, "float32")
    unaligned.g = np.frombuffer(b"x" + aligned.g.tobytes(), "float32", offset=1)
    assert not unaligned.g.flags.aligned
    for state in (aligned, unaligned):
        make_kernel(rule, backend)(state.w, state.g, state.w, state.slots, 1)
    assert aligned == unaligned
    assert all_finite(unaligned.g, backend)


@for_each("backend", BACKENDS)
def test_a_frozen_rule_copies_the_values_and_leaves_the_slots(backend: str) -> None:
    (rule,), _ = optim.adam(groups=[optim.group("*", frozen=True)]).rules(["w"])
    state = State(rule, 10, "float32")
    out = np.zeros_like(state.w)
    make_kernel(rule, backend)(state.w, state.g, out, state.slots, 1)
    assert np.array_equal(out, state.w)
    assert not any(slot.any() for slot in state.slots)


@for_each("backend", BACKENDS)
def test_a_schedule_is_asked_for_the_number_of_updates_before(backend: str) -> None:
    kernel = make_kernel(rule_of(optim.sgd(optim.step_decay(1.0, every=1, factor=0.5))), backend)
    w, g = np.zeros(3), np.ones(3)
    kernel(w, g, w, (), 1)
    assert w.tolist() == [-1.0] * 3
    kernel(w, g, w, (), 2)
    assert w.tolist() == [-1.5] * 3


@for_each("backend", BACKENDS)
def test_infinities_pass_through_without_a_warning(backend: str) -> None:
    rule = rule_of(SPECS["adam"])
    state = State(rule, 4, "float32")
    state.g = np.array([np.nan, np.inf, -np.inf, 3e38], np.float32)
    make_kernel(rule, backend)(state.w, state.g, state.w, state.slots, 1)
    assert np.isnan(state.w[:3]).all()


@for_each("backend", BACKENDS)
def test_a_variance_that_rounds_below_zero_does_not_give_nan(backend: str) -> None:
    rule = rule_of(optim.rmsprop(centered=True, decay=0.5))
    state = State(rule, 1000, "float32")
    for step in range(1, 60):  # of a constant gradient the variance converges to zero
        make_kernel(rule, backend)(state.w, state.g, state.w, state.slots, step)
    assert np.isfinite(state.w).all()


@for_each("backend", BACKENDS)
@for_each("dtype", DTYPES)
def test_one_nan_or_infinity_is_found(backend: str, dtype: str) -> None:
    g = np.ones(BLOCK[dtype] + 7, dtype)
    g[1:7] = [
        0.0,
        -0.0,
        np.finfo(dtype).max,
        np.finfo(dtype).min,
        np.finfo(dtype).tiny,
        np.finfo(dtype).smallest_subnormal,
    ]
    assert all_finite(g, backend)
    for bad, where in product([np.nan, -np.nan, np.inf, -np.inf], [0, 500, -1]):
        one = g.copy()
        one[where] = bad
        one.flags.writeable = False
        assert not all_finite(one, backend), (bad, where)


@for_each("backend", BACKENDS)
@for_each("dtype", DTYPES)
def test_nothing_at_all_is_finite(backend: str, dtype: str) -> None:
    assert all_finite(np.empty(0, dtype), backend)


@for_each("dtype", DTYPES)
@for_each("count", range(2, kernels.MOST_ADDED + 1))
def test_the_compiled_mean_has_the_bits_of_the_one_in_passes(count: int, dtype: str) -> None:
    rng = np.random.default_rng(count)
    arrays = [np.float64(10) ** rng.integers(-9, 9, 1_003) * rng.standard_normal(1_003) for _ in range(count)]
    arrays = [array.astype(dtype) for array in arrays]
    expected, mean = np.empty((2, 1_003), dtype)
    assert mean_in_passes(arrays, 1 / count, expected)
    assert kernels.mean(arrays, 1 / count, mean)
    assert np.array_equal(expected, mean)


@for_each("dtype", DTYPES)
@for_each("where", [0, 500, -1])
def test_the_compiled_mean_says_where_a_sum_is_too_large(where: int, dtype: str) -> None:
    arrays = [np.ones(1_003, dtype) for _ in range(3)]
    for array in arrays[:2]:
        array[where] = np.finfo(dtype).max
    assert not kernels.mean(arrays, 1 / 3, np.empty(1_003, dtype))
    assert not mean_in_passes(arrays, 1 / 3, np.empty(1_003, dtype))


@for_each("backend", BACKENDS)
@for_each("count", [2, 3, 9])
@for_each("bad", [np.nan, np.inf])
def test_a_servers_mean_is_that_of_numpy_beside_what_is_not_finite(bad: float, count: int, backend: Any) -> None:
    arrays = [np.random.default_rng(seed).standard_normal(99).astype(np.float32) for seed in range(count)]
    arrays[1][7] = bad
    expected, mean = np.empty((2, 99), np.float32)
    assert mean_in_passes(arrays, 1 / count, expected)
    rules = CompiledRules(optim.sgd(0.1), ServerConfig(coordinator="tcp://x:1", kernels=backend))
    assert rules.mean(arrays, 1 / count, mean)
    assert np.array_equal(expected, mean, equal_nan=True)


def test_the_devices_way_runs_in_the_namespace_it_is_given() -> None:
    rule = rule_of(SPECS["adam with options"])
    reference, other = State(rule, 100, "float32"), State(rule, 100, "float32")
    make_kernel(rule, "numpy")(reference.w, reference.g, reference.w, reference.slots, 1)
    make_kernel(rule, "device", xp=np)(other.w, other.g, other.w, other.slots, 1)
    assert reference == other
    assert all_finite(other.g, "device", xp=np)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(OptimizerError, match="choose numpy, numba or device"):
        make_kernel(rule_of(SPECS["sgd"]), "torch")


@dataclass(frozen=True, kw_only=True)
class Hoarder(Rule):
    name = "hoarder"
    slots = ("a", "b", "c", "d")

    def scalars(self, step):
        return ()

    def equation(self, xp):
        return lambda w, g, a, b, c, d: (w, a, b, c, d)


def test_a_rule_with_too_many_slots_is_refused() -> None:
    with pytest.raises(OptimizerError, match="4 slots; at most 3"):
        make_kernel(Hoarder(learning_rate=0.1))


@dataclass(frozen=True, kw_only=True)
class Shouting(Rule):
    name = "shouting"

    def scalars(self, step):
        return ()

    def equation(self, xp):
        return lambda w, g: (str.upper(w),)


def test_an_equation_that_numba_cannot_compile_is_an_optimizer_error() -> None:
    with pytest.raises(OptimizerError, match="numba cannot compile shouting"):
        warm_up(Shouting(learning_rate=0.1), "float32", "numba")


# --- compiled loops on disk ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Step(Rule):
    """An equation with a captured number, as somebody might write it."""

    name = "step"
    literal: float = 1.0

    def scalars(self, step):
        return (self.rate(step),)

    def equation(self, xp):
        literal = self.literal
        return lambda w, g, rate: (w - rate * literal * xp.sign(g),)


def test_equations_of_one_name_but_different_code_do_not_share_a_compiled_loop() -> None:
    for literal in (1.0, 2.0):
        w = np.zeros(1)
        make_kernel(Step(learning_rate=0.5, literal=literal), "numba")(w, np.ones(1), w, (), 1)
        assert w[0] == -0.5 * literal


def test_rules_that_differ_in_numbers_only_share_a_compiled_loop() -> None:
    first, second = (rule_of(optim.adam(rate, b1=rate, clip_value=rate)) for rate in (0.1, 0.2))
    assert kernels.Equation(first) == kernels.Equation(second)
    assert kernels.Equation(first) != kernels.Equation(rule_of(optim.adam()))


def test_without_a_directory_for_compiled_loops_they_are_compiled_all_the_same(monkeypatch) -> None:
    from numba.core import caching

    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    kernels._compiled.cache_clear()
    w = np.zeros(1)
    make_kernel(rule_of(optim.sgd(0.5)), "numba")(w, np.ones(1), w, (), 1)
    assert w[0] == -0.5


SECOND_PROCESS = """
import sys
from zmqps import optim
assert "numba" not in sys.modules, "importing zmqps.optim must not import numba"
from zmqps.optim import kernels
(rule,), _ = optim.adam(clip_value=1.0).rules(["w"])
optim.warm_up(rule, "float32", "numba")
from numpy import dtype
loop = kernels._compiled(kernels.Equation(rule), dtype("float32"), 2, 1, 7)
print(sum(loop.stats.cache_hits.values()), sum(loop.stats.cache_misses.values()))
"""


@pytest.mark.processes
def test_a_second_process_loads_the_loop_and_does_not_compile(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    counts = [
        subprocess.run(
            [sys.executable, "-c", SECOND_PROCESS], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert counts == [["0", "1"], ["1", "0"]]


def test_a_steady_rule_has_the_same_scalars_at_every_step() -> None:
    rules = {spec.rules(["w"])[0][0] for spec in SPECS.values()}
    steady = {rule for rule in rules if rule.steady}
    assert {rule.name for rule in steady} >= {"sgd", "lion"}
    for rule in steady:
        assert len({rule.scalars(step) for step in (1, 2, 1000)}) == 1


def test_a_subclass_of_a_steady_rule_says_for_itself_whether_it_is_steady() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Fading(SGD):
        def scalars(self, step: int) -> tuple[float, ...]:
            return (self.rate(step) / step,)

    w = np.zeros(1, np.float32)
    kernel = make_kernel(Fading(learning_rate=1.0))
    kernel(w, np.ones(1, np.float32), w, (), 1)
    kernel(w, np.ones(1, np.float32), w, (), 2)
    assert w.tolist() == [-1.5]


CLIPPED = {
    "sgd": optim.sgd(0.1, clip_norm=1.0),
    "sgd with decay": optim.sgd(0.1, clip_norm=1.0, weight_decay=0.1),
    "adam clipped twice": optim.adam(0.02, clip_norm=1.0, clip_value=0.05),
    "adam clipped twice with decay": optim.adam(0.02, clip_norm=1.0, clip_value=0.05, weight_decay=0.1),
    "lion": optim.lion(0.02, clip_norm=1.0, weight_decay=0.1),
}


@on_every_backend
@for_each("case", CLIPPED)
def test_a_scale_is_a_gradient_that_was_multiplied_before_all_else(
    case: str, backend: Backend, new_device: NewDevice
) -> None:
    device = new_device()
    device.use()
    rule = rule_of(CLIPPED[case])
    plain = replace(rule, clip_norm=None)
    scaled, multiplied = State(rule, 1000, "float32", device), State(rule, 1000, "float32", device)
    multiplied.g = scaled.g * np.float32(0.3)
    for step in (1, 2):
        kernel_on(device, rule, backend)(scaled.w, scaled.g, scaled.w, scaled.slots, step, 0.3)
        kernel_on(device, plain, backend)(multiplied.w, multiplied.g, multiplied.w, multiplied.slots, step, 0.7)
    assert scaled == multiplied


@on_every_backend
@for_each("case", BY_SLOTS)
def test_a_learning_rate_that_was_set_takes_the_place_of_the_rules_own(
    case: str, backend: Backend, new_device: NewDevice
) -> None:
    device = new_device()
    device.use()
    rule = rule_of(SPECS[case])
    other = replace(rule, learning_rate=0.07)
    told, own = State(rule, 100, "float64", device), State(rule, 100, "float64", device)
    kernel = kernel_on(device, rule, backend)
    for step in (1, 2, 3):
        kernel(told.w, told.g, told.w, told.slots, step, 1.0, () if step == 2 else (0.07,))
        kernel_on(device, rule if step == 2 else other, backend)(own.w, own.g, own.w, own.slots, step)
    assert told == own


def test_a_schedule_takes_one_step_for_the_updates_of_all_workers() -> None:
    spec = optim.sgd(optim.piecewise(1.0, {1: 0.5, 2: 0.5}), count="steps")
    (rule,), _ = spec.rules(["w"], workers=3)
    assert [rule.rate(update) for update in range(1, 10)] == [1.0] * 3 + [0.5] * 3 + [0.25] * 3
    (rule,), _ = replace(spec, count="pushes").rules(["w"], workers=3)
    assert [rule.rate(update) for update in range(1, 4)] == [1.0, 0.5, 0.25]
