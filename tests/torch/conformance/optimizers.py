"""The optimizers of the suite: each rule that servers have, with the ways a script forms param groups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Rule:
    """A class of `torch.optim` and its options; ``other`` are those that a second group may have."""

    cls: type[torch.optim.Optimizer]
    options: dict[str, Any]
    other: dict[str, Any]


_BETAS = {"betas": (0.7, 0.9), "eps": 1e-6, "weight_decay": 0.02}

RULES: dict[str, Rule] = {
    "sgd": Rule(torch.optim.SGD, {"lr": 0.05}, {"weight_decay": 0.01}),
    "sgd-decay": Rule(torch.optim.SGD, {"lr": 0.05, "weight_decay": 0.02}, {"weight_decay": 0.1}),
    "momentum": Rule(torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}, {"momentum": 0.5}),
    "dampening": Rule(torch.optim.SGD, {"lr": 0.05, "momentum": 0.8, "dampening": 0.3}, {"dampening": 0.1}),
    "nesterov": Rule(torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}, {"momentum": 0.6}),
    "adam": Rule(torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.01}, _BETAS),
    "amsgrad": Rule(torch.optim.Adam, {"lr": 0.01, "amsgrad": True}, _BETAS),
    "adamw": Rule(torch.optim.AdamW, {"lr": 0.01}, _BETAS),
    "adamw-amsgrad": Rule(torch.optim.AdamW, {"lr": 0.01, "amsgrad": True}, _BETAS),
    "adagrad": Rule(torch.optim.Adagrad, {"lr": 0.05, "initial_accumulator_value": 0.1}, {"eps": 1e-4}),
    "adagrad-decay": Rule(torch.optim.Adagrad, {"lr": 0.05, "lr_decay": 0.1}, {"lr_decay": 0.3}),
    "rmsprop": Rule(torch.optim.RMSprop, {"lr": 0.01}, {"alpha": 0.9, "eps": 1e-4}),
    "rmsprop-momentum": Rule(torch.optim.RMSprop, {"lr": 0.01, "momentum": 0.5}, {"momentum": 0.7, "alpha": 0.9}),
    "rmsprop-centered": Rule(torch.optim.RMSprop, {"lr": 0.01, "centered": True, "momentum": 0.5}, {"alpha": 0.9}),
    "adadelta": Rule(torch.optim.Adadelta, {"lr": 0.5}, {"rho": 0.8, "eps": 1e-5}),
}

Split = Callable[[list[torch.nn.Parameter], Rule], list[dict[str, Any]]]


def _parts(parameters: list[torch.nn.Parameter], number: int) -> list[list[torch.nn.Parameter]]:
    return [parameters[first::number] for first in range(number)]


def _of_two(**second: Any) -> Split:
    def split(parameters: list[torch.nn.Parameter], rule: Rule) -> list[dict[str, Any]]:
        one, two = _parts(parameters, 2)
        return [{"params": one}, {"params": two, **second}]

    return split


def _of_three(parameters: list[torch.nn.Parameter], rule: Rule) -> list[dict[str, Any]]:
    one, two, three = _parts(parameters, 3)
    rate = rule.options["lr"]
    return [{"params": one}, {"params": two, "lr": rate / 2, "weight_decay": 0.03}, {"params": three, "lr": rate * 1.5}]


def _numbers(parameters: list[torch.nn.Parameter], rule: Rule) -> list[dict[str, Any]]:
    one, two = _parts(parameters, 2)
    return [{"params": one}, {"params": two, **rule.other}]


def _an_empty_one(parameters: list[torch.nn.Parameter], rule: Rule) -> list[dict[str, Any]]:
    one, two = _parts(parameters, 2)
    return [{"params": one}, {"params": []}, {"params": two, "lr": rule.options["lr"] / 2}]


def _the_first_empty(parameters: list[torch.nn.Parameter], rule: Rule) -> list[dict[str, Any]]:
    return [{"params": []}, {"params": parameters, "lr": rule.options["lr"] / 2}]


def _some_left_out(parameters: list[torch.nn.Parameter], rule: Rule) -> list[dict[str, Any]]:
    return [{"params": parameters[1:] or parameters}]


#: How parameters are divided into groups.
GROUPS: dict[str, Split] = {
    "one": lambda parameters, rule: [{"params": parameters}],
    "two-equal": _of_two(),
    "two-decays": _of_two(weight_decay=0.05),
    "two-rates": lambda parameters, rule: _of_two(lr=rule.options["lr"] / 3)(parameters, rule),
    "three": _of_three,
    "numbers": _numbers,
    "empty": _an_empty_one,
    "first-empty": _the_first_empty,
    "left-out": _some_left_out,
}


def make(rule: str, groups: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return PyTorch's own optimizer of a model."""
    found = RULES[rule]
    return found.cls(GROUPS[groups](list(model.parameters()), found), **found.options)
