"""What an option may be: a whole number, a number, a name, one of a few. One function a kind, one form of error.

Each returns the value in its plain form, or raises an error that names the option, says what is allowed,
and what was given. The value may come from a script or a peer; nothing about it is trusted.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, NoReturn

from .errors import ConfigurationError, PSError

Refusal = type[PSError]


def number(
    label: str,
    value: object,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    whole: bool = False,
    optional: bool = False,
    error: Refusal = ConfigurationError,
) -> Any:
    """Return a finite number, numpy's included, as a float, or where it must be whole as an int.

    Parameters
    ----------
    label
        Name used in errors.
    value
        What was given.
    at_least, above, at_most, below
        Its range; the first and the third include the bound.
    whole
        Only integers: no fraction, and no type that could have one.
    optional
        None is allowed, too.
    error
        What to raise.
    """
    if value is None and optional:
        return None
    kind = Integral if whole else Real
    if isinstance(value, kind) and not isinstance(value, bool):
        try:
            plain = int(value) if isinstance(value, Integral) and whole else float(value)
            if (
                (whole or math.isfinite(plain))
                and (at_least is None or plain >= at_least)
                and (above is None or plain > above)
                and (at_most is None or plain <= at_most)
                and (below is None or plain < below)
            ):
                return plain
        except OverflowError:  # an int beyond float64
            pass
    allowed = "a whole number" if whole else "a finite number"
    refuse(label, f"{allowed}{_range(at_least, above, at_most, below)}{' or None' * optional}", value, error)


def whole(
    label: str,
    value: object,
    at_least: int | None = None,
    at_most: int | None = None,
    *,
    optional: bool = False,
    error: Refusal = ConfigurationError,
) -> Any:
    """Return a whole number of a range, as `number` does."""
    if type(value) is int and (at_least is None or value >= at_least) and (at_most is None or value <= at_most):
        return value  # nearly always, and in every push
    return number(label, value, at_least=at_least, at_most=at_most, whole=True, optional=optional, error=error)


def seconds(label: str, value: object) -> float:
    """Return a timeout: above 0, and maybe infinite."""
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            plain = float(value)
            if plain > 0:
                return plain
        except OverflowError:  # an int beyond float64
            pass
    refuse(label, "a number of seconds above 0", value)


def flag(label: str, value: object, error: Refusal = ConfigurationError) -> bool:
    """Return True or False, nothing else that happens to be truthy."""
    if isinstance(value, bool):
        return value
    refuse(label, "True or False", value, error)


def text(label: str, value: object, longest: int, error: Refusal = ConfigurationError) -> str:
    """Return a string that is not empty; the limit protects memory and regular expressions from a peer's."""
    if isinstance(value, str) and 0 < len(value) <= longest:
        return value
    refuse(label, f"a string of 1 to {longest} characters", value, error)


def name(label: str, value: object, longest: int = 200) -> str:
    """Return a name that can be sent, shown and logged."""
    if isinstance(value, str) and 0 < len(value) <= longest and value.isprintable():
        return value
    refuse(label, f"a printable string of 1 to {longest} characters", value)


def one_of(label: str, value: object, choices: Iterable[str], error: Refusal = ConfigurationError) -> str:
    """Return one of a few words."""
    choices = tuple(choices)
    if isinstance(value, str) and value in choices:
        return value
    refuse(label, f"one of {', '.join(choices)}", value, error)


def mapping(label: str, value: object, contents: str) -> Mapping[Any, Any]:
    """Return a mapping; what is in it is still to be checked."""
    if type(value) is dict or isinstance(value, Mapping):  # as nearly all; to ask an abstract class takes four calls
        return value
    raise ConfigurationError(f"{label} must be a mapping of {contents}, not {type(value).__name__}")


def function(label: str, value: Any) -> Any:
    """Return something that can be called."""
    if callable(value):
        return value
    refuse(label, "something to call", value)


def plain(label: str, value: Mapping[str, Any], longest: int = 48 << 10, deepest: int = 6) -> dict[str, Any]:
    """Return a mapping of plain data, which can be sent and kept as JSON: texts, numbers, lists and maps of them."""
    found = {key: _plain(label, item, deepest) for key, item in mapping(label, value, "plain data").items()}
    if any(not isinstance(key, str) for key in found):
        refuse(f"a key of {label}", "a string", next(key for key in found if not isinstance(key, str)))
    nbytes = len(json.dumps(found))
    if nbytes > longest:
        raise ConfigurationError(f"{label} has {nbytes} bytes as JSON; it may have {longest}")
    return found


def _plain(label: str, value: object, deepest: int) -> Any:
    if deepest and isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(label, item, deepest - 1) for key, item in value.items()}
    if deepest and isinstance(value, list | tuple):
        return [_plain(label, item, deepest - 1) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral) and -(1 << 63) <= int(value) < 1 << 63:
        return int(value)
    if isinstance(value, Real) and not isinstance(value, Integral) and math.isfinite(value):
        return float(value)
    refuse(f"what is in {label}", "a text, a finite number, True, False, None, or lists and maps of these", value)


def refuse(label: str, allowed: str, value: object, error: Refusal = ConfigurationError) -> NoReturn:
    """Raise the error that says what is allowed and what was given."""
    raise error(f"{label} must be {allowed}, not {shown(value)}")


def shown(value: object) -> str:
    """Return the start of how a value is written, whatever it is."""
    try:
        return reprlib.repr(value)
    except Exception:
        # Python writes no int of more than 4300 digits, and what an object's own `__repr__` raises is its own
        return "one of thousands of digits" if isinstance(value, int) else f"an object of {type(value).__name__}"


def _range(at_least: float | None, above: float | None, at_most: float | None, below: float | None) -> str:
    if isinstance(at_least, int) and isinstance(at_most, int):
        return f" from {at_least} to {at_most}"
    bounds = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    texts = [f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None]
    return f" {' and '.join(texts)}" if texts else ""
