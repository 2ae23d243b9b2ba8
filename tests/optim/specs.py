"""Every optimizer, with default and with other options, and what PyTorch calls it: the cases of tests/data/optim."""

from __future__ import annotations

from typing import Any, NamedTuple

from zmqps import optim
from zmqps.optim import OptimizerSpec, Rule


class Case(NamedTuple):
    """A spec, and what its golden values come from.

    Parameters
    ----------
    spec
    torch
        The class in ``torch.optim``; none: a function of ``tests/data/make_optim_golden.py``, written after the paper.
    options
        Of that class.
    """

    spec: OptimizerSpec
    torch: str = ""
    options: dict[str, Any] = {}  # noqa: RUF012  (not written to)


ADAM: dict[str, Any] = {"b1": 0.8, "b2": 0.95, "eps": 1e-3, "weight_decay": 0.1}
RMSPROP: dict[str, Any] = {"decay": 0.9, "eps": 1e-4, "weight_decay": 0.1}
TORCH_ADAM: dict[str, Any] = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}
TORCH_RMSPROP: dict[str, Any] = {"lr": 0.03, "alpha": 0.9, "eps": 1e-4, "weight_decay": 0.1}

CASES: dict[str, Case] = {
    "sgd": Case(optim.sgd(), "SGD"),
    "sgd with decay": Case(optim.sgd(0.3, weight_decay=0.1), "SGD", {"lr": 0.3, "weight_decay": 0.1}),
    "sgd clipped": Case(optim.sgd(0.3, weight_decay=0.1, clip_value=0.5), "SGD", {"lr": 0.3, "weight_decay": 0.1}),
    "momentum": Case(optim.sgd(0.1, momentum=0.9), "SGD", {"lr": 0.1, "momentum": 0.9}),
    "momentum with options": Case(
        optim.sgd(0.1, momentum=0.7, dampening=0.4, weight_decay=0.1),
        "SGD",
        {"lr": 0.1, "momentum": 0.7, "dampening": 0.4, "weight_decay": 0.1},
    ),
    "nesterov": Case(
        optim.sgd(0.1, momentum=0.9, nesterov=True), "SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}
    ),
    "nesterov with decay": Case(
        optim.sgd(0.1, momentum=0.7, weight_decay=0.1, nesterov=True),
        "SGD",
        {"lr": 0.1, "momentum": 0.7, "nesterov": True, "weight_decay": 0.1},
    ),
    "adagrad": Case(optim.adagrad(), "Adagrad"),
    "adagrad with options": Case(
        optim.adagrad(0.2, learning_rate_decay=0.3, initial_accumulator_value=0.5, eps=1e-3, weight_decay=0.1),
        "Adagrad",
        {"lr": 0.2, "lr_decay": 0.3, "initial_accumulator_value": 0.5, "eps": 1e-3, "weight_decay": 0.1},
    ),
    "adadelta": Case(optim.adadelta(), "Adadelta"),
    "adadelta with options": Case(
        optim.adadelta(0.5, rho=0.8, eps=1e-3, weight_decay=0.1),
        "Adadelta",
        {"lr": 0.5, "rho": 0.8, "eps": 1e-3, "weight_decay": 0.1},
    ),
    "rmsprop": Case(optim.rmsprop(), "RMSprop"),
    "rmsprop with options": Case(optim.rmsprop(0.03, **RMSPROP), "RMSprop", TORCH_RMSPROP),
    "rmsprop centered": Case(
        optim.rmsprop(0.03, centered=True, **RMSPROP), "RMSprop", TORCH_RMSPROP | {"centered": True}
    ),
    "rmsprop with momentum": Case(
        optim.rmsprop(0.03, momentum=0.8, **RMSPROP), "RMSprop", TORCH_RMSPROP | {"momentum": 0.8}
    ),
    "rmsprop centered with momentum": Case(
        optim.rmsprop(0.03, momentum=0.8, centered=True, **RMSPROP),
        "RMSprop",
        TORCH_RMSPROP | {"momentum": 0.8, "centered": True},
    ),
    "adam": Case(optim.adam(), "Adam"),
    "adam with options": Case(optim.adam(0.02, **ADAM), "Adam", TORCH_ADAM),
    "adam clipped": Case(optim.adam(0.02, clip_value=0.5, **ADAM), "Adam", TORCH_ADAM),
    "adamw": Case(optim.adamw(), "AdamW"),
    "adamw with options": Case(optim.adamw(0.02, **ADAM), "AdamW", TORCH_ADAM),
    "amsgrad": Case(optim.amsgrad(), "Adam", {"amsgrad": True}),
    "amsgrad with options": Case(optim.amsgrad(0.02, **ADAM), "Adam", TORCH_ADAM | {"amsgrad": True}),
    "amsgrad decoupled": Case(optim.amsgrad(0.02, decoupled=True, **ADAM), "AdamW", TORCH_ADAM | {"amsgrad": True}),
    "ftrl": Case(optim.ftrl()),
    "ftrl with options": Case(optim.ftrl(0.5, beta=0.7, l1=0.6, l2=0.3, initial_accumulator_value=0.1)),
    "lion": Case(optim.lion()),
    "lion with options": Case(optim.lion(0.05, b1=0.8, b2=0.95, weight_decay=0.1)),
}
SPECS = {name: case.spec for name, case in CASES.items()}
#: For what does not depend on the equation: one for each loop of `zmqps.optim.loops`, which are by the count of slots.
BY_SLOTS = ("sgd clipped", "momentum with options", "adam clipped", "rmsprop centered with momentum")


def rule_of(spec: OptimizerSpec) -> Rule:
    """Return the only rule of a spec without groups."""
    (rule,), _ = spec.rules(["w"])
    return rule
