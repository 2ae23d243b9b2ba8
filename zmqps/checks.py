"""Checks of options: a whole number, a number, a name, one of a few. One function per kind, one form of error.

Each returns the value in its plain form, or raises an error that names the option, says what is allowed,
and what was given. The value may come from a script or a peer; nothing about it is trusted.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import wraps
from numbers import Integral, Real
from typing import Any, NoReturn, ParamSpec, TypeVar

from .errors import ConfigurationError, PSError

Refusal = type[PSError]
P = ParamSpec("P")
R = TypeVar("R")

#: Whole numbers beyond this are a limit of the wire format, far beyond any real value.
LARGEST_SAID = 1 << 53
#: Names have fewer characters; to compare a peer's text of megabytes with them takes seconds.
LONGEST_MEANT = 100
#: What other libraries, or equations, call an option -> what it is called here, wherever there is one of that name.
ALIASES = {
    "lr": "learning_rate",
    "eta": "learning_rate",
    "step_size": "learning_rate",
    "beta1": "b1",
    "beta_1": "b1",
    "beta2": "b2",
    "beta_2": "b2",
    "betas": "b1",
    "epsilon": "eps",
    "wd": "weight_decay",
    "l2": "weight_decay",
    "max_norm": "clip_norm",
    "clipnorm": "clip_norm",
    "global_clipnorm": "clip_norm",
    "clipvalue": "clip_value",
    "max_grad_norm": "clip_norm",
    "batch_size": "examples",
    "weight": "examples",
    "num_steps": "until",
    "num_workers": "workers",
    "nprocs": "workers",
    "num_servers": "servers",
    "world_size": "workers",
    "coordinator": "address",
    "endpoint": "address",
    "replicas_to_aggregate": "aggregate",
    "consistency": "mode",
    "sync": "mode",
    "secret": "job_secret",
    "codec": "push_codec",
    "compression": "push_codec",
    "dimension": "dim",
    "embedding_dim": "dim",
    "output_dim": "dim",
    "stragglers": "on_straggler",
    "num_aggregate": "aggregate",
    "secure": "security",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float32": "raw",
    "none": "raw",
}
#: What is an option of a group -> how that is passed, wherever there is an option for the group.
GROUPED = {
    option: group
    for group, options in {
        "steps=zmqps.Steps": "aggregate on_straggler mean retain deterministic",
        "gradients=zmqps.Gradients": "nonfinite treatment",
        "security=zmqps.Security": "keys token job_secret",
        "servers=zmqps.Servers": "device memory kernels apply_threads io_threads ports servers_per_gpu",
        "saving=zmqps.Saving": "checkpoint restore every at_end full_every keep via restore_values_only restore_names",
        "limits=zmqps.Limits": "heartbeat_interval heartbeat_timeout lease idle_timeout fallback_timeout slice_size",
        "watching=zmqps.Watching": "page page_token values",
        "placement=zmqps.ray.Placement": "strategy server_resources worker_resources restart_servers restart_workers "
        "port",
    }.items()
    for option in options.split()
}


def options(error: Refusal = ConfigurationError, owner: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function that is called with an option it does not have raise ``error``, which says what may be meant.

    So it does with more values than it takes by position.

    ``owner``: what the function is called in errors, if not by its name.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        code = function.__code__
        known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        there, most = frozenset(known), code.co_argcount

        def called() -> str:
            return owner or checked.__qualname__.removesuffix(".__init__")

        def check(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            if not kwargs.keys() <= there:
                wrong = next(name for name in kwargs if name not in there)
                raise error(f"{called()}() {no_option(wrong, [name for name in known if name != 'self'])}")
            if len(args) > most:
                first, others = ([n for n in names if n != "self"] for names in (known[:most], known[most:]))
                raise error(
                    f"{called()}() takes {' and '.join(first) or 'nothing'} by position, and these by name: "
                    f"{', '.join(others) or 'none'}"
                )

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            check(args, kwargs)
            return function(*args, **kwargs)

        vars(checked)["check"] = check  # for what calls it later
        return checked

    return decorate


def options_of(owner: str, error: Refusal = ConfigurationError) -> Callable[[type[R]], type[R]]:
    """Let the constructor of a class do as `options`."""

    def decorate(cls: type[R]) -> type[R]:
        setattr(cls, "__init__", options(error, owner)(cls.__init__))  # noqa: B010  (mypy takes no other way)
        return cls

    return decorate


def no_option(wrong: str, known: Iterable[str]) -> str:
    """Say that there is no option of that name, and which one is meant, or which there are."""
    known = list(known)
    hint = meant(wrong, known) or f"its options are {', '.join(known)}"
    return f"has no option {shown(wrong)}; {hint}"


def meant(wrong: str, known: Iterable[str]) -> str:
    """Ask whether one of those that there are is meant, or one of a group of them; empty: none is near."""
    known = list(known)
    if len(wrong) > LONGEST_MEANT:
        return ""
    grouped = {name: group for name, group in GROUPED.items() if group.partition("=")[0] in known and name not in known}
    alias = ALIASES.get(wrong.lower(), wrong.lower())
    there = [*known, *grouped]
    near = [alias] if alias in there else get_close_matches(wrong.lower(), there, n=1, cutoff=0.6)
    if near and near[0] in grouped:
        return f"pass {grouped[near[0]]}({near[0]}=…)"
    return f"did you mean {near[0]!r}?" if near else ""


def no_attribute(owner: str, name: str, elsewhere: Mapping[str, str]) -> str:
    """Say that something has no attribute of that name, and what is called so elsewhere."""
    there = elsewhere.get(name, "")
    return f"{owner} has no attribute {name!r}{f'; use {there}' if there else ''}"


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
    near = meant(value, choices) if isinstance(value, str) else ""
    raise error(f"{label} must be one of {', '.join(choices)}, not {shown(value)}{f'; {near}' if near else ''}")


def mapping(label: str, value: object, contents: str) -> Mapping[Any, Any]:
    """Return a mapping; what is in it is still to be checked."""
    if type(value) is dict or isinstance(value, Mapping):  # as nearly all; to ask an abstract class takes four calls
        return value
    raise ConfigurationError(f"{label} must be a mapping of {contents}, not {type(value).__name__}")


def group(label: str, value: Any, kind: type[R], home: str = "zmqps") -> R:
    """Return a group of options; None: one with the defaults."""
    if value is None:
        return kind()
    if isinstance(value, kind):
        return value
    first = next(iter(kind.__dataclass_fields__))  # type: ignore[attr-defined]
    name = f"{home}.{kind.__name__}"
    raise ConfigurationError(f"{label} comes from {name}, as {label}={name}({first}=…); got {shown(value)}")


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
    if isinstance(at_most, int) and at_most >= LARGEST_SAID:
        at_most = None
    if isinstance(at_least, int) and isinstance(at_most, int):
        return f" from {at_least} to {at_most}"
    bounds = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    texts = [f"{word} {bound:g}" for word, bound in bounds.items() if bound is not None]
    return f" {' and '.join(texts)}" if texts else ""
