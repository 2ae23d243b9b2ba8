"""Optimizers that are translated, and those that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from zmqps.checkpoint.torch_state import TWINS  # noqa: E402
from zmqps.errors import OptimizerError  # noqa: E402
from zmqps.optim import Hyperparameters, make_kernel  # noqa: E402
from zmqps.torch import spec_of  # noqa: E402
from zmqps.torch.translate import KNOWN, Numbers  # noqa: E402


def named() -> dict[str, Any]:
    return {name: torch.nn.Parameter(torch.zeros(3)) for name in ("a", "b", "c")}


def test_groups_become_groups_of_exact_names_and_what_is_in_none_is_frozen() -> None:
    p = named()
    adam = torch.optim.Adam([{"params": [p["a"]]}, {"params": [p["b"]], "lr": 0.5, "weight_decay": 0.1}], lr=0.1)
    spec = spec_of(adam, p.items(), clip_norm=2.0, clip_value=3.0, count="steps")
    assert (spec.name, spec.learning_rate, spec.clip_norm, spec.clip_value, spec.count) == (
        "adam",
        0.1,
        2.0,
        3.0,
        "steps",
    )
    assert [(g.names, g.learning_rate, g.weight_decay, g.frozen) for g in spec.groups] == [
        (("b",), 0.5, 0.1, False),
        (("c",), None, None, True),
    ]


def test_an_optimizer_that_servers_do_not_have_is_refused_by_name() -> None:
    p = named()

    class Own(torch.optim.SGD):
        pass

    for optimizer in (torch.optim.NAdam(p.values()), torch.optim.LBFGS(p.values()), Own(p.values(), lr=0.1)):
        with pytest.raises(OptimizerError, match=rf"{type(optimizer).__name__} has no equal.*SGD, Adam, AdamW"):
            spec_of(optimizer, p.items())


@pytest.mark.parametrize("option", ["maximize", "differentiable"])
def test_an_option_that_servers_do_not_have_is_refused_by_name(option: str) -> None:
    p = named()
    with pytest.raises(OptimizerError, match=rf"Adam\({option}=True\)"):
        spec_of(torch.optim.Adam(p.values(), **{option: True}), p.items())


def test_groups_may_differ_in_every_number() -> None:
    p = named()
    groups = [{"params": [p["a"]]}, {"params": [p["b"]], "betas": (0.5, 0.999), "eps": 1e-3}, {"params": [p["c"]]}]
    spec = spec_of(torch.optim.Adam(groups), p.items())
    assert [dict(g.hyper) for g in spec.groups] == [{"b1": 0.5, "eps": 1e-3}, {}]
    groups = [{"params": [p["a"]]}, {"params": [p["b"]], "momentum": 0.5}]
    spec = spec_of(torch.optim.SGD(groups, lr=0.1), p.items())
    assert (spec.name, spec.hyper["momentum"], spec.groups[0].hyper) == ("sgd", 0.0, {"momentum": 0.5})


def test_every_optimizer_that_pytorch_has_is_one_that_is_translated() -> None:
    p = named()
    options: dict[type, list[dict[str, Any]]] = {torch.optim.Adam: [{}, {"amsgrad": True}]}
    made = [cls(p.values(), **more) for cls in KNOWN for more in options.get(cls, [{}])]
    assert {spec_of(one, p.items()).name for one in made} == set(TWINS)


def test_groups_may_not_differ_in_flags() -> None:
    p = named()
    groups = [{"params": [p["a"]]}, {"params": [p["b"]], "amsgrad": True}]
    with pytest.raises(OptimizerError, match=r"may differ in lr, weight_decay, betas.* not in amsgrad"):
        spec_of(torch.optim.Adam(groups), p.items())
    adagrad = torch.optim.Adagrad([{"params": [p["a"]]}, {"params": [p["b"]], "initial_accumulator_value": 0.5}])
    with pytest.raises(OptimizerError, match=r"not in initial_accumulator_value"):
        spec_of(adagrad, p.items())


def test_what_a_scheduler_writes_into_groups_is_no_option() -> None:
    p = named()
    groups = [{"params": [p["a"]], "lr": 0.1}, {"params": [p["b"]], "lr": 0.2}]
    sgd = torch.optim.SGD(groups, momentum=0.9)
    torch.optim.lr_scheduler.OneCycleLR(sgd, [0.5, 0.7], total_steps=10)
    spec = spec_of(sgd, p.items())
    assert spec.hyper["momentum"] == spec_of(sgd, p.items()).hyper["momentum"] == 0.95


def test_a_tensor_that_is_not_of_the_model_is_refused() -> None:
    p = named()
    with pytest.raises(OptimizerError, match="param group 0"):
        spec_of(torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1), p.items())


# --- numbers that change ------------------------------------------------------------------------


def test_numbers_are_said_of_the_groups_that_the_spec_has() -> None:
    p = named()
    groups: list[dict[str, Any]] = [{"params": [p["a"]]}, {"params": []}, {"params": [p["b"]], "lr": torch.tensor(0.5)}]
    sgd = torch.optim.SGD(groups, lr=0.1)
    numbers = Numbers(sgd, len(p))
    assert len(spec_of(sgd, p.items()).groups) == 2
    first = numbers.now(sgd.param_groups)
    same = {"weight_decay": 0.0, "momentum": 0.0, "dampening": 0.0}
    assert first == ({"learning_rate": 0.1, **same}, [{"learning_rate": 0.5, **same}, None])
    assert numbers.now(sgd.param_groups) is first, "nothing has changed"
    sgd.param_groups[2]["lr"].fill_(0.25)
    assert numbers.now(sgd.param_groups) == (first[0], [{"learning_rate": 0.25, **same}, None])
    assert Numbers(torch.optim.SGD(p.values(), lr=0.1), len(p)).now([{"lr": 1, "momentum": 0, "dampening": 0,
        "weight_decay": 0, "nesterov": False, "maximize": False, "differentiable": False}]) == (
        {"learning_rate": 1.0, **same}, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("made", "option", "value", "refused"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "momentum", 0.9, True),
        (lambda p: torch.optim.SGD(p, lr=0.1), "dampening", 0.9, False),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "dampening", 0.9, False),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "nesterov", True, True),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), "dampening", 0.9, True),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), "momentum", 0.0, False),
        (lambda p: torch.optim.SGD(p, lr=0.1), "maximize", True, True),
        (lambda p: torch.optim.Adam(p), "amsgrad", True, True),
        (lambda p: torch.optim.Adam(p), "betas", [0.5, 0.9], False),
        (lambda p: torch.optim.Adam(p), "decoupled_weight_decay", True, True),
        (lambda p: torch.optim.RMSprop(p), "centered", True, True),
        (lambda p: torch.optim.RMSprop(p), "momentum", 0.5, True),
        (lambda p: torch.optim.RMSprop(p, momentum=0.5), "momentum", 0.9, False),
        (lambda p: torch.optim.Adagrad(p), "initial_accumulator_value", 0.5, True),
        (lambda p: torch.optim.Adagrad(p), "lr_decay", 0.5, False),
    ],
)
def test_what_cannot_change_is_refused_by_name(made: Any, option: str, value: Any, refused: bool) -> None:
    p = named()
    optimizer = made(list(p.values()))
    numbers = Numbers(optimizer, len(p))
    optimizer.param_groups[0][option] = value
    if not refused:
        values, groups = numbers.now(optimizer.param_groups)
        Hyperparameters(spec_of(optimizer, p.items()), list(p)).terms(values, groups)
        return
    for _ in range(2):  # it does not forget
        with pytest.raises(OptimizerError, match=rf"param group 0: {option} changed from .* to {value}"):
            numbers.now(optimizer.param_groups)


#: What is made; and what is written into which group at each step.
CHANGES: dict[str, tuple[Any, list[tuple[int, dict[str, Any]]]]] = {
    "sgd begins to decay": (
        lambda g: torch.optim.SGD(g, lr=0.1), [(0, {}), (1, {"weight_decay": 0.3}), (0, {"lr": 0.3}), (1, {})],
    ),
    "momentum rests and goes on": (
        lambda g: torch.optim.SGD(g, lr=0.1, momentum=0.9, dampening=0.3),
        [(0, {}), (0, {"momentum": 0.0}), (1, {"momentum": 0.5}), (0, {"momentum": 0.8, "dampening": 0.0}), (0, {})],
    ),
    "nesterov rests and goes on": (
        lambda g: torch.optim.SGD(g, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
        [(0, {}), (0, {"momentum": 0.0}), (1, {"momentum": 0.5}), (0, {"momentum": 0.8})],
    ),
    "nesterov where the first group has no momentum": (
        lambda g: torch.optim.SGD([{**g[0], "momentum": 0.0}, *g[1:]], lr=0.1, momentum=0.9, nesterov=True),
        [(0, {}), (1, {"momentum": 0.5}), (0, {"lr": 0.3})],
    ),
    "adam's betas cycle": (
        lambda g: torch.optim.Adam(g, lr=0.1),
        [(0, {"betas": (0.95, 0.99)}), (1, {"betas": (0.9, 0.9)}), (0, {"betas": (0.85, 0.99)}), (0, {"eps": 0.1})],
    ),
    "adamw": (
        lambda g: torch.optim.AdamW(g, lr=0.1),
        [(0, {"weight_decay": 0.0}), (1, {"weight_decay": 0.5}), (0, {"betas": (0.5, 0.9)}), (0, {"lr": 0.0})],
    ),
    "amsgrad": (
        lambda g: torch.optim.Adam(g, lr=0.1, amsgrad=True), [(0, {"betas": (0.5, 0.9)}), (1, {"weight_decay": 0.5})],
    ),
    "rmsprop rests and goes on": (
        lambda g: torch.optim.RMSprop(g, lr=0.1, momentum=0.9, centered=True),
        [(0, {}), (0, {"momentum": 0.0}), (1, {"alpha": 0.5}), (0, {"momentum": 0.5}), (0, {"eps": 0.1})],
    ),
    "adagrad": (
        lambda g: torch.optim.Adagrad(g, lr=0.1, initial_accumulator_value=0.5), [(0, {}), (1, {"lr_decay": 0.5})],
    ),
    "adadelta": (lambda g: torch.optim.Adadelta(g), [(0, {"rho": 0.5}), (1, {"eps": 0.1}), (0, {})]),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("case", CHANGES)
def test_servers_rules_with_the_numbers_of_each_step_compute_what_torch_does(case: str, backend: Any) -> None:
    make, steps = CHANGES[case]
    torch.manual_seed(1)
    p = {name: torch.nn.Parameter(torch.randn(7, dtype=torch.float64)) for name in ("a", "b")}
    theirs = make([{"params": [p["a"]]}, {"params": [p["b"]]}])
    spec, numbers = spec_of(theirs, p.items()), Numbers(theirs, 2)
    rules, rule_of = spec.rules(list(p))
    slots, fills = spec.slots_of(list(p))
    kernels = [make_kernel(rule, backend, slots=slots) for rule in rules]
    values = {name: tensor.detach().numpy().copy() for name, tensor in p.items()}
    state = {name: tuple(np.full(7, fill) for fill in fills) for name in p}
    settable = Hyperparameters(spec, list(p))
    for step, (number, change) in enumerate(steps, 1):
        theirs.param_groups[number].update(change)
        of, *sets = settable.terms(*numbers.now(theirs.param_groups)) or [1.0]
        width = len(sets) // int(of or 1)
        for place, (name, tensor) in enumerate(p.items()):
            tensor.grad = torch.randn(7, dtype=torch.float64)
            at = width * (rule_of[place] if of == len(rules) else place)
            said = tuple(-1e30 if n is None else n for n in sets[at : at + width])
            w = values[name]
            kernels[rule_of[place]](w, tensor.grad.numpy(), w, state[name], step, 1.0, said)
        theirs.step()
        for name, tensor in p.items():
            np.testing.assert_allclose(
                values[name], tensor.detach().numpy(), rtol=1e-12, err_msg=f"{name}, step {step}"
            )
