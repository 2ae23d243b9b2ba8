"""Options declared once, as dataclass fields that know their range, and checked wherever they come from.

A spec built by a training script and one received from a peer go through the same checks, so
nothing an optimizer computes with is ever unchecked, and every refusal is an `OptimizerError`.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from numbers import Integral
from typing import Any, Protocol

from .. import checks
from ..errors import OptimizerError

#: No number may be larger: a float32 holds it, and its quotient with any ``1 - b``, without overflow.
LARGEST = 1e20
#: A rule has a handful of hyperparameters; the limit bounds what a peer can make us look at.
MOST_OPTIONS = 64


class Option(Protocol):
    """What a field's value may be."""

    def accept(self, label: str, value: object) -> Any:
        """Return `value` in its plain form, or raise `OptimizerError` naming it by `label`."""


@dataclass(frozen=True, kw_only=True)
class Number:
    """A finite number, a bound either part of the range or (`above`, `below`) just outside it."""

    at_least: float = -LARGEST
    above: float | None = None
    at_most: float = LARGEST
    below: float | None = None
    whole: bool = False
    optional: bool = False

    def accept(self, label: str, value: object) -> Any:
        return checks.number(
            label,
            value,
            at_least=self.at_least if self.above is None else None,
            above=self.above,
            at_most=self.at_most if self.below is None else None,
            below=self.below,
            whole=self.whole,
            optional=self.optional,
            error=OptimizerError,
        )


@dataclass(frozen=True)
class Flag:
    """True or False, nothing else that happens to be truthy."""

    def accept(self, label: str, value: object) -> bool:
        return checks.flag(label, value, OptimizerError)


@dataclass(frozen=True)
class Text:
    """A string; the limit keeps a peer's patterns and names out of the way of memory and regular expressions."""

    longest: int = 1024
    optional: bool = False

    def accept(self, label: str, value: object) -> str | None:
        if value is None and self.optional:
            return None
        return checks.text(label, value, self.longest, OptimizerError)


@dataclass(frozen=True)
class Choice:
    """One of several words."""

    words: tuple[str, ...]

    def accept(self, label: str, value: object) -> str:
        return checks.one_of(label, value, self.words, OptimizerError)


@dataclass(frozen=True)
class Names:
    """Some names, each a string."""

    most: int = 1_000_000
    optional: bool = False

    def accept(self, label: str, value: object) -> tuple[str, ...] | None:
        if value is None and self.optional:
            return None
        try:
            names: tuple[Any, ...] = () if isinstance(value, str | bytes) else tuple(value)  # type: ignore[arg-type]
        except TypeError:
            names = ()
        if not 0 < len(names) <= self.most or not all(isinstance(name, str) and name for name in names):
            raise OptimizerError(f"{label} must be names, as in names=['embedding'], not {checks.shown(value)}")
        return names


@dataclass(frozen=True)
class Hyper:
    """Hyperparameters by name, each a finite number, or a flag where those may be there."""

    flags: bool = True

    def accept(self, label: str, value: object) -> dict[str, float | bool]:
        if not isinstance(value, Mapping) or len(value) > MOST_OPTIONS:
            raise OptimizerError(f"{label}: hyperparameters must be a mapping of at most {MOST_OPTIONS} entries")
        plain: dict[str, float | bool] = {}
        for key, entry in value.items():
            name = f"{label}: {Text(longest=100).accept('name of an option', key)}"
            if self.flags and isinstance(entry, bool):
                plain[key] = entry
            else:
                finite = Number().accept(name, entry)
                plain[key] = int(entry) if isinstance(entry, Integral) else finite
        return plain


def option(kind: Option, default: Any = MISSING) -> Any:
    """Return a dataclass field whose value must be what `kind` says."""
    return field(default=default, metadata={"option": kind})


def number(
    *,
    at_least: float = -LARGEST,
    above: float | None = None,
    at_most: float = LARGEST,
    below: float | None = None,
    default: Any = MISSING,
) -> Any:
    """Return a dataclass field for a number of that range, as in ``b1: float = number(at_least=0.0, below=1.0)``."""
    return option(Number(at_least=at_least, above=above, at_most=at_most, below=below), default)


def flag(*, default: Any = MISSING) -> Any:
    """Return a dataclass field for a bool."""
    return option(Flag(), default)


def check_fields(
    owner: str, declared: tuple[Field[Any], ...], values: Mapping[Any, object], *, partial: bool = False
) -> dict[str, Any]:
    """Return `values` in plain form, checked against the fields of a dataclass.

    Parameters
    ----------
    owner : str
        Whose options they are, for the error's text.
    declared : tuple of Field
        The fields; one without a declared option takes any finite number.
    values : mapping
        From a script or a peer; nothing about it is trusted.
    partial : bool
        Whether options without a default may be left out, too.

    Raises
    ------
    OptimizerError
        An option is unknown, missing, or outside its range.
    """
    known = {f.name: f for f in declared}
    unknown = [key for key in values if not isinstance(key, str) or key not in known]
    if unknown:
        wrong = unknown[0]
        hint = checks.meant(wrong[:100], known) if isinstance(wrong, str) else ""
        hint = hint or f"its options are {', '.join(sorted(known)) or 'none'}"
        raise OptimizerError(f"{owner} has no option {reprlib.repr(wrong)}; {hint}")
    missing = [n for n, f in known.items() if n not in values and f.default is MISSING and f.default_factory is MISSING]
    if missing and not partial:
        raise OptimizerError(f"{owner} needs a value for {', '.join(missing)}")
    return {
        name: known[name].metadata.get("option", Number()).accept(f"{owner}: {name}", value)
        for name, value in values.items()
    }


def fields_of(cls: Any, *, without: tuple[str, ...] = ()) -> tuple[Field[Any], ...]:
    """Return the fields of a dataclass but those named."""
    return tuple(f for f in fields(cls) if f.name not in without)
