"""Which numbers of which groups are set, how they travel, and what kernels make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tests.devices import NewDevice, kernel_on, on_device, on_every_backend, on_host
from tests.simulator.host_device import HostDevice
from tests.tables import for_each
from zmqps import optim
from zmqps.errors import OptimizerError
from zmqps.gpu.device import Device
from zmqps.optim import Hyperparameters, OptimizerSpec, custom, group, linear_warmup, make_kernel
from zmqps.optim.kernels import Backend

NAMES = ["a.w", "a.b", "c.w", "c.b"]
STAYS = -1e30


def terms(
    spec: OptimizerSpec, values: Mapping[str, float], groups: Sequence[Mapping[str, float] | None] | None = None
) -> list[float | None]:
    return Hyperparameters(spec, NAMES).terms(values, groups)


def rate(value: float) -> dict[str, float]:
    return {"learning_rate": value}


# --- how they travel ----------------------------------------------------------------------------


def test_without_groups_there_is_one_set() -> None:
    assert terms(optim.sgd(0.1), rate(0.5)) == [1, 0.5]
    assert terms(custom("of_somebody_else"), rate(0.5)) == [1, 0.5], "its rules need not be known here"
    assert terms(custom("of_somebody_else"), {"weight_decay": 0.5}) == [1, None, 0.5]


def test_what_equals_the_optimizers_own_does_not_travel() -> None:
    spec = optim.adamw(0.1, groups=[group("*.b", weight_decay=0.0), group("c.*", frozen=True)])
    own = {"learning_rate": 0.1, "weight_decay": 0.01, "b1": 0.9, "b2": 0.999, "eps": 1e-8}
    assert terms(spec, {}) == terms(spec, own) == terms(spec, own, [None, own | rate(7.0)]) == []
    assert terms(spec, own, [own | {"weight_decay": 0.0}, None]) == []
    assert terms(spec, own, [own, None]) == [3, None, None, None, 0.01, None, None]


def test_sets_are_as_long_as_the_last_number_that_is_set() -> None:
    assert terms(optim.adam(0.1), {"b1": 0.5}) == [1, None, None, 0.5]
    assert terms(optim.adam(0.1), {"learning_rate": 0.2, "eps": 0.5}) == [1, 0.2, None, None, None, 0.5]


def test_groups_that_have_no_number_of_their_own_get_the_same_and_others_stay() -> None:
    schedule = linear_warmup(0.2, warmup_steps=5)
    spec = optim.adamw(0.1, groups=[group("*.b", weight_decay=0.0), group("c.*", learning_rate=schedule)])
    assert [(rule.learning_rate, rule.weight_decay) for rule in spec.rules(NAMES)[0]] == [
        (0.1, 0.01), (0.1, 0.0), (schedule, 0.01),
    ]  # fmt: skip
    assert terms(spec, rate(0.5)) == [3, 0.5, 0.5, None]
    assert terms(spec, {"weight_decay": 0.5}) == [3, None, 0.5, None, None, None, 0.5]


def test_each_group_may_have_its_own() -> None:
    spec = optim.sgd(0.1, momentum=0.9, groups=[group("*.b", weight_decay=0.3), group("c.*", momentum=0.2)])
    assert terms(spec, rate(0.5), [rate(0.6), rate(0.7)]) == [3, 0.5, 0.6, 0.7]
    assert terms(spec, rate(0.5), [None, None]) == terms(spec, rate(0.5)) == [3, 0.5, 0.5, 0.5]
    assert terms(spec, {"momentum": 0.5}, [None, {"momentum": 0.4}]) == [
        3, None, None, 0.5, None, None, 0.5, None, None, 0.4,
    ]  # fmt: skip


def test_groups_that_began_alike_travel_as_one_until_they_part() -> None:
    spec = optim.sgd(0.1, groups=[group("*.b"), group("a.*", learning_rate=0.1)])
    assert len(spec.rules(NAMES)[0]) == 1
    assert terms(spec, rate(0.5), [None, rate(0.5)]) == [1, 0.5]
    assert terms(spec, rate(0.5)) == [3, 0.5, 0.5, None], "it has a rate of its own, which is the same"
    assert terms(spec, rate(0.5), [rate(0.6), rate(0.7)]) == [3, 0.5, 0.6, 0.7]


def test_a_model_may_have_a_group_for_each_of_many_parameters() -> None:
    names = [f"w{i}" for i in range(2000)]
    spec = optim.sgd(0.5, groups=[group(names=[name]) for name in names])
    numbers = Hyperparameters(spec, names)
    assert numbers.terms(rate(0.5)) == []
    assert numbers.terms(rate(0.25)) == [1, 0.25]
    assert numbers.terms(rate(0.5), [rate(float(i)) for i in range(2000)]) == [2001, None, *map(float, range(2000))]


@for_each(
    "spec, values, groups, says",
    [
        (optim.sgd(), rate(-1.0), None, "learning_rate must be"),
        (optim.sgd(), rate(float("nan")), None, "learning_rate must be"),
        (optim.sgd(), {"learning_rate": "x"}, None, "learning_rate must be"),
        (optim.sgd(), rate(0.1), [rate(0.1)], "groups has 1 entries, the optimizer 0 groups"),
        (optim.sgd(), 0.1, None, "values must be a mapping"),
        (optim.sgd(), {}, 5, "groups must be a sequence, with an entry for each group"),
        (optim.sgd(groups=[group("*.b")]), {}, [0.1], r"groups\[0\] must be a mapping"),
        (optim.sgd(groups=[group("*.b")]), {}, [rate(float("inf"))], "learning_rate must be"),
        (optim.sgd(), {"b1": 0.9}, None, "'b1' cannot be set of sgd, .* weight_decay, momentum, dampening\n"),
        (optim.sgd(), {"momentum": 0.9}, None, "momentum of sgd cannot go from 0.0 to 0.9.*which state"),
        (optim.sgd(momentum=0.9, nesterov=True), {"dampening": 0.1}, None, "takes no dampening: leave out dampening"),
        (optim.adam(), {"b1": 1.0}, None, "adam: b1 must be a finite number at least 0 and below 1"),
        (optim.adam(), {"eps_hat": 1.0}, None, "'eps_hat' cannot be set of adam, .* b1, b2, eps\n"),
        (optim.adam(), {"clip_norm": 1.0}, None, "'clip_norm' cannot be set"),
        (optim.rmsprop(), {"centered": True}, None, "'centered' cannot be set"),
        (optim.rmsprop(), {"momentum": 0.9}, None, "momentum of rmsprop cannot go from 0.0 to 0.9.*which state"),
        (optim.adagrad(), {"initial_accumulator_value": 1.0}, None, "initial_accumulator_value of adagrad cannot go"),
        (custom("of_somebody_else"), {"floor": 1.0}, None, "'floor' cannot be set of of_somebody_else"),
    ],
)
def test_what_cannot_be_set_is_refused_by_name(spec: OptimizerSpec, values: Any, groups: Any, says: str) -> None:
    with pytest.raises(OptimizerError, match=says):
        terms(spec, values, groups)


# --- groups -------------------------------------------------------------------------------------


def test_groups_differ_in_any_number_of_the_rule_on_the_wire_too() -> None:
    spec = optim.adam(0.1, groups=[group("*.b", b1=0.5, eps=1e-3), group("c.*", learning_rate=0.2, b2=0.9)])
    spec = OptimizerSpec.from_wire(spec.to_wire())
    rules, indices = spec.rules(NAMES)
    assert [(r.learning_rate, r.b1, r.b2, r.eps) for r in rules] == [  # type: ignore[attr-defined]
        (0.1, 0.9, 0.999, 1e-8), (0.1, 0.5, 0.999, 1e-3), (0.2, 0.9, 0.9, 1e-8),
    ]  # fmt: skip
    assert indices == [0, 1, 2, 1]


def test_the_wire_form_of_groups_without_such_numbers_is_what_it_was() -> None:
    assert "hyper" not in group("*.b", weight_decay=0.5).to_wire()


def test_rules_of_which_some_need_fewer_slots_share_those_of_the_others() -> None:
    spec = optim.rmsprop(groups=[group("*.b", momentum=0.9)])
    assert spec.slots_of(NAMES) == (("v", "u"), (0.0, 0.0))
    assert spec.slots_of(["a.w"]) == (("v",), (0.0,))


@for_each(
    "numbers, says",
    [
        ({"b1": 0.9}, "sgd: group has no option 'b1'"),
        ({"weight": "x"}, "weight must be a finite number"),
        ({"nesterov": True}, "nesterov must be a finite number"),
    ],
)
def test_a_group_with_a_number_that_the_rule_does_not_have_is_refused(numbers: dict[str, Any], says: str) -> None:
    with pytest.raises(OptimizerError, match=says):
        optim.sgd(groups=[group("*.b", **numbers)])


def test_groups_cannot_differ_in_what_slots_begin_with() -> None:
    spec = optim.adagrad(groups=[group("*.b", initial_accumulator_value=0.5)])
    with pytest.raises(OptimizerError, match="initial_accumulator_value"):
        spec.rules(NAMES)


# --- what kernels make of them ------------------------------------------------------------------

#: Of each optimizer: what it begins with, and what is set at each step; a number is that of its option.
RUNS: dict[str, tuple[OptimizerSpec, list[dict[str, float]]]] = {
    "sgd decays from the second step on": (optim.sgd(0.1), [{}, {"weight_decay": 0.3}, {"learning_rate": 0.2}, {}]),
    "sgd stops to decay": (optim.sgd(0.1, weight_decay=0.3), [{}, {"weight_decay": 0.0}, {}]),
    "momentum rests and goes on": (
        optim.sgd(0.1, momentum=0.7, dampening=0.4),
        [{}, {"momentum": 0.0}, {"momentum": 0.5, "dampening": 0.1}, {}],
    ),
    "nesterov rests and goes on": (
        optim.sgd(0.1, momentum=0.9, nesterov=True, weight_decay=0.1), [{}, {"momentum": 0.0}, {}],
    ),
    "betas cycle": (optim.adam(0.1), [{"b1": 0.95}, {"b1": 0.9, "b2": 0.99}, {"b1": 0.85, "eps": 1e-3}, {}]),
    "adamw": (optim.adamw(0.1), [{"weight_decay": 0.5}, {"b1": 0.5}, {"weight_decay": 0.0, "learning_rate": 1.0}]),
    "amsgrad": (optim.amsgrad(0.1), [{"weight_decay": 0.5}, {"b2": 0.5}, {}]),
    "rmsprop rests and goes on": (
        optim.rmsprop(0.1, momentum=0.9, centered=True), [{}, {"momentum": 0.0}, {"decay": 0.5}, {}],
    ),
    "adadelta": (optim.adadelta(1.0), [{"rho": 0.5}, {"eps": 1e-3}, {}]),
    "adagrad": (optim.adagrad(0.1), [{"eps": 0.1}, {"learning_rate_decay": 0.5}, {}]),
    "lion": (optim.lion(0.1), [{"b1": 0.5}, {"weight_decay": 0.3}, {}]),
    "ftrl": (optim.ftrl(0.1), [{"l1": 0.5}, {"l2": 0.1, "beta": 2.0}, {}]),
}  # fmt: skip


def numbers_of(spec: OptimizerSpec, values: Mapping[str, float]) -> tuple[float, ...]:
    """Return what a kernel of the only rule is called with."""
    return tuple(STAYS if n is None else n for n in terms(spec, values)[1:])


#: For each backend: no slot, and other code than that of before.
OTHER_CODE = ("sgd decays from the second step on", "momentum rests and goes on", "rmsprop rests and goes on")


@for_each("run", RUNS)
def test_a_kernel_with_set_numbers_computes_what_one_made_with_them_does(run: str) -> None:
    computes_what_one_made_with_them_does(run, "numpy", HostDevice())


@on_every_backend
@for_each("run", OTHER_CODE)
def test_so_does_one_of_each_backend(run: str, backend: Backend, new_device: NewDevice) -> None:
    device = new_device()
    device.use()
    computes_what_one_made_with_them_does(run, backend, device)


def computes_what_one_made_with_them_does(run: str, backend: Backend, device: Device) -> None:
    spec, steps = RUNS[run]
    (rule,), _ = spec.rules(NAMES)
    kernel = kernel_on(device, rule, backend)
    rng = np.random.default_rng(1)
    expected = [rng.random(33), *(np.full(33, fill) for fill in rule.slot_fill)]
    w, *slots = (on_device(device, array) for array in expected)
    for step, values in enumerate(steps, 1):
        g = rng.standard_normal(33)
        kernel(w, on_device(device, g), w, tuple(slots), step, 1.0, numbers_of(spec, values))
        changed = rule.changed(values)
        used = [1 + rule.slots.index(slot) for slot in changed.slots]
        fresh = make_kernel(changed)
        fresh(expected[0], g, expected[0], tuple(expected[i] for i in used), step)
        for got, wanted in zip([w, *slots], expected, strict=True):
            np.testing.assert_allclose(on_host(device, got), wanted, rtol=1e-13, err_msg=f"step {step}")


def test_a_kernel_ignores_numbers_that_no_worker_of_ours_sends() -> None:
    (rule,), _ = optim.adam(0.1).rules(NAMES)
    kernel, rng = make_kernel(rule), np.random.default_rng(1)
    g = rng.standard_normal(5)
    found = []
    for numbers in [(), (STAYS, STAYS, 1.0), (-5.0,), (STAYS, STAYS, STAYS, STAYS, STAYS, 7.0)]:
        w, m, v = np.ones(5), np.zeros(5), np.zeros(5)
        kernel(w, g, w, (m, v), 1, 1.0, numbers)
        found.append(w.tolist())
    assert all(w == found[0] for w in found)


def test_what_a_kernel_remembers_of_numbers_is_bounded() -> None:
    (rule,), _ = optim.sgd(0.1, momentum=0.9).rules(NAMES)
    kernel, w, u = make_kernel(rule), np.ones(3), np.zeros(3)
    for step in range(1, 1000):
        kernel(w, np.ones(3), w, (u,), step, 1.0, (1.0 / step,))
    assert len(kernel._sets) <= 256
