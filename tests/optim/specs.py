"""Every optimizer, with default and with other options: the cases of tests/data/optim_golden.npz by name."""

from __future__ import annotations

from typing import Any

from zmqps import optim
from zmqps.optim import OptimizerSpec, Rule

ADAM: dict[str, Any] = {"b1": 0.8, "b2": 0.95, "eps": 1e-3, "weight_decay": 0.1}
RMSPROP: dict[str, Any] = {"decay": 0.9, "eps": 1e-4, "weight_decay": 0.1}

SPECS: dict[str, OptimizerSpec] = {
    "sgd": optim.sgd(),
    "sgd with decay": optim.sgd(0.3, weight_decay=0.1),
    "sgd clipped": optim.sgd(0.3, weight_decay=0.1, clip_value=0.5),
    "momentum": optim.sgd(0.1, momentum=0.9),
    "momentum with options": optim.sgd(0.1, momentum=0.7, dampening=0.4, weight_decay=0.1),
    "nesterov": optim.sgd(0.1, momentum=0.9, nesterov=True),
    "nesterov with decay": optim.sgd(0.1, momentum=0.7, weight_decay=0.1, nesterov=True),
    "adagrad": optim.adagrad(),
    "adagrad with options": optim.adagrad(
        0.2, learning_rate_decay=0.3, initial_accumulator_value=0.5, eps=1e-3, weight_decay=0.1
    ),
    "adadelta": optim.adadelta(),
    "adadelta with options": optim.adadelta(0.5, rho=0.8, eps=1e-3, weight_decay=0.1),
    "rmsprop": optim.rmsprop(),
    "rmsprop with options": optim.rmsprop(0.03, **RMSPROP),
    "rmsprop centered": optim.rmsprop(0.03, centered=True, **RMSPROP),
    "rmsprop with momentum": optim.rmsprop(0.03, momentum=0.8, **RMSPROP),
    "rmsprop centered with momentum": optim.rmsprop(0.03, momentum=0.8, centered=True, **RMSPROP),
    "adam": optim.adam(),
    "adam with options": optim.adam(0.02, **ADAM),
    "adam clipped": optim.adam(0.02, clip_value=0.5, **ADAM),
    "adamw": optim.adamw(),
    "adamw with options": optim.adamw(0.02, **ADAM),
    "amsgrad": optim.amsgrad(),
    "amsgrad with options": optim.amsgrad(0.02, **ADAM),
    "amsgrad decoupled": optim.amsgrad(0.02, decoupled=True, **ADAM),
    "ftrl": optim.ftrl(),
    "ftrl with options": optim.ftrl(0.5, beta=0.7, l1=0.6, l2=0.3, initial_accumulator_value=0.1),
    "lion": optim.lion(),
    "lion with options": optim.lion(0.05, b1=0.8, b2=0.95, weight_decay=0.1),
}


def rule_of(spec: OptimizerSpec) -> Rule:
    """Return the only rule of a spec without groups."""
    (rule,), _ = spec.rules(["w"])
    return rule
