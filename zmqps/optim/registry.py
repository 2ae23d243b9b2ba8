"""From an optimizer's name to its class: ours by import, a user's by entry point, never by code from a peer."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from inspect import isabstract

from ..errors import OptimizerError
from .base import Rule

#: A package that brings an optimizer declares ``[project.entry-points."zmqps.optimizers"]  name = "module:Class"``.
ENTRY_POINT_GROUP = "zmqps.optimizers"

#: Name, which is also its module, -> class. Imported on first use, because those modules use this one.
BUILTIN = {
    "adadelta": "Adadelta",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "adamw": "AdamW",
    "amsgrad": "AMSGrad",
    "ftrl": "FTRL",
    "lion": "Lion",
    "rmsprop": "RMSProp",
    "rowwise_adagrad": "RowwiseAdagrad",
    "sgd": "SGD",
}


def rule_class(name: str) -> type[Rule]:
    """Return the optimizer of that name.

    Raises
    ------
    OptimizerError
        No optimizer has that name, or the package that registered it cannot be loaded.
    """
    if name in BUILTIN:
        found = getattr(import_module(f"{__package__}.rules.{name}"), BUILTIN[name])
    else:
        found = _load(name)
    if not (isinstance(found, type) and issubclass(found, Rule)) or isabstract(found):
        raise OptimizerError(
            f"entry point {name!r} of group {ENTRY_POINT_GROUP!r} is {found!r}; let it name a subclass of "
            "zmqps.optim.Rule with scalars and an equation"
        )
    return found


def _load(name: str) -> object:
    registered = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    if name not in registered:
        raise OptimizerError(
            f"no optimizer named {name!r}; known here are {', '.join([*BUILTIN, *sorted(registered)])}. An optimizer "
            f"of your own is installed on every node as a package with an entry point in group {ENTRY_POINT_GROUP!r}"
        )
    try:
        return registered[name].load()
    except Exception as error:  # importing another package can fail in any way
        raise OptimizerError(
            f"optimizer {name!r} is registered as {registered[name].value!r} but cannot be loaded "
            f"({type(error).__name__}: {error}); repair or remove its package on this node"
        ) from error
