"""From an optimizer's name to its class: ours by import, a user's by entry point, never by code from a peer."""

from __future__ import annotations

from abc import ABC
from importlib.metadata import entry_points
from inspect import cleandoc
from typing import Any, TypeVar

from .. import checks
from ..errors import OptimizerError

T = TypeVar("T")

#: A package that brings an optimizer declares ``[project.entry-points."zmqps.optimizers"]  name = "module:Class"``.
ENTRY_POINT_GROUP = "zmqps.optimizers"

#: Name -> class; `builtin` adds each.
BUILTIN: dict[str, Any] = {}


def builtin(cls: type[T]) -> type[T]:
    """Let peers and scripts name an optimizer; a misspelled option raises an error that names it."""
    name: str = cls.name  # type: ignore[attr-defined]
    BUILTIN[name] = cls
    if cls.__doc__:  # not so with python -OO
        cls.__doc__ = documented(*(each.__doc__ for each in cls.__mro__ if issubclass(each, ABC) and each.__doc__))
    return checks.options_of(name, OptimizerError)(cls)


def documented(doc: str, *bases: str) -> str:
    """Return the docstring of an optimizer with the parameters that only those of its base classes have."""
    begin, own, end = _split(doc)
    first: list[str] = []
    for base in bases:
        names = {name for entry in (*first, *own) for name in _names(entry)}
        others = [entry for entry in _split(base)[1] if names.isdisjoint(_names(entry))]
        first += [entry for entry in others if "learning_rate" in _names(entry)]
        own += [entry for entry in others if entry not in first]
    return begin + "".join([*first, *own]) + end


def _split(doc: str) -> tuple[str, list[str], str]:
    """Return what comes before the parameters of a docstring, each of these, and what comes after."""
    begin, title, rest = cleandoc(doc).partition("Parameters\n----------\n")
    parameters, _, end = rest.partition("\n\n")
    entries: list[str] = []
    for line in parameters.splitlines():
        if line.startswith(" "):
            entries[-1] += f"{line}\n"
        else:
            entries.append(f"{line}\n")
    return begin + title, entries, f"\n{end}"


def _names(entry: str) -> list[str]:
    return entry.partition(" :")[0].split(", ")


def find(name: str) -> object:
    """Return what has that name: the class of an optimizer, if its package is right.

    Raises
    ------
    OptimizerError
        No optimizer has that name, or the package that registered it cannot be loaded.
    """
    if name in BUILTIN:
        return BUILTIN[name]
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
