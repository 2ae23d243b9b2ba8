"""From an optimizer of ``torch.optim`` to the one of `zmqps.optim` with the same equation and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from zmqps.errors import OptimizerError, listed
from zmqps.optim import OptimizerSpec, adadelta, adagrad, adam, adamw, amsgrad, group, momentum, nesterov, rmsprop, sgd
from zmqps.torch.rows import is_rows

#: What of a param group may differ from the others.
OF_GROUPS = ("lr", "weight_decay")
#: How PyTorch computes, not what.
OF_NO_CONSEQUENCE = frozenset({"params", "foreach", "fused", "capturable", "initial_lr", "param_names"})
#: Options that zmqps has only at this value.
OFF = {"maximize": False, "differentiable": False}


def _sgd(o: Mapping[str, Any], common: dict[str, Any]) -> OptimizerSpec:
    if o["nesterov"]:
        return nesterov(momentum=o["momentum"], **common)
    if o["momentum"]:
        return momentum(momentum=o["momentum"], dampening=float(o["dampening"]), **common)
    return sgd(**common)


def _adam(o: Mapping[str, Any], common: dict[str, Any]) -> OptimizerSpec:
    (b1, b2), decoupled = map(float, o["betas"]), bool(o.get("decoupled_weight_decay", False))
    numbers = {"b1": b1, "b2": b2, "eps": o["eps"], **common}
    if o["amsgrad"]:
        return amsgrad(decoupled=decoupled, **numbers)
    return adamw(**numbers) if decoupled else adam(**numbers)


def _adamw(o: Mapping[str, Any], common: dict[str, Any]) -> OptimizerSpec:
    return _adam({**o, "decoupled_weight_decay": True}, common)


def _adagrad(o: Mapping[str, Any], common: dict[str, Any]) -> OptimizerSpec:
    start, decay = o["initial_accumulator_value"], o["lr_decay"]
    return adagrad(initial_accumulator_value=start, learning_rate_decay=decay, eps=o["eps"], **common)


def _rmsprop(o: Mapping[str, Any], common: dict[str, Any]) -> OptimizerSpec:
    return rmsprop(decay=o["alpha"], eps=o["eps"], momentum=o["momentum"], centered=o["centered"], **common)


def _adadelta(o: Mapping[str, Any], common: dict[str, Any]) -> OptimizerSpec:
    return adadelta(rho=o["rho"], eps=o["eps"], **common)


#: By class; a class derived from one of these may compute anything, and is refused.
KNOWN: dict[type, Callable[[Mapping[str, Any], dict[str, Any]], OptimizerSpec]] = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adamw,
    torch.optim.Adagrad: _adagrad,
    torch.optim.RMSprop: _rmsprop,
    torch.optim.Adadelta: _adadelta,
}


def spec_of(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]],
    *,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    count: str = "pushes",
) -> OptimizerSpec:
    """Return the optimizer of `zmqps.optim` that computes what one of PyTorch does.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        SGD, Adam, AdamW, Adagrad, RMSprop or Adadelta. Its param groups may differ in ``lr`` and ``weight_decay``.
    named_parameters : iterable of (str, Tensor)
        ``model.named_parameters()``. Those that are in no group of the optimizer are frozen.
    clip_norm, clip_value, count
        As for each optimizer of `zmqps.optim`.

    Raises
    ------
    OptimizerError
        It is of another class, or has an option that zmqps does not have; says which there are.
    """
    make = KNOWN.get(type(optimizer))
    if make is None:
        known = ", ".join(cls.__name__ for cls in KNOWN)
        raise OptimizerError(
            f"torch.optim.{type(optimizer).__name__} has no equal on zmqps' servers; there are {known}, and those of "
            "zmqps.optim for worker.push"
        )
    first, *others = optimizer.param_groups
    _check_options(type(optimizer).__name__, first, others)
    names = {id(tensor): name for name, tensor in named_parameters if not is_rows(tensor)}
    groups, owned = [], set[str]()
    for number, each in enumerate(optimizer.param_groups):
        dense = [tensor for tensor in each["params"] if not is_rows(tensor)]
        if any(id(tensor) not in names for tensor in dense):
            raise OptimizerError(f"param group {number} has tensors that are not among the parameters of the model")
        own = [names[id(tensor)] for tensor in dense]
        owned.update(own)
        if number and own:
            rate, decay = float(each["lr"]), float(each["weight_decay"])
            groups.append(group(names=own, learning_rate=rate, weight_decay=decay))
    if frozen := [name for name in names.values() if name not in owned]:
        groups.append(group(names=frozen, frozen=True))
    common = {
        "learning_rate": float(first["lr"]), "weight_decay": float(first["weight_decay"]), "groups": groups,
        "clip_norm": clip_norm, "clip_value": clip_value, "count": count,
    }  # fmt: skip
    return make(first, common)


def _check_options(name: str, first: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> None:
    for option, value in OFF.items():
        if any(each.get(option, value) != value for each in (first, *others)):
            raise OptimizerError(f"torch.optim.{name}({option}={not value}) has no equal on zmqps' servers")
    for each in others:
        differing = [o for o in each if o not in OF_NO_CONSEQUENCE and o not in OF_GROUPS and each[o] != first.get(o)]
        if differing:
            options = listed(differing, 4)
            raise OptimizerError(f"param groups may differ in lr and weight_decay on zmqps' servers, not in {options}")
