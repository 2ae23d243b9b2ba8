"""From a codec's text in a message header to the codec, strictly: the text's source is not trusted.

A codec is built in, or an installed package declares it as an entry point. A name from a peer imports nothing else.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import Field, fields
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from typing import Any

from ..errors import CodecError, ConfigurationError, ProtocolError, joined
from .base import Codec

#: A package that brings a codec declares ``[project.entry-points."zmqps.codecs"]  name = "module:Class"``.
ENTRY_POINT_GROUP = "zmqps.codecs"

#: Those that come with zmqps, by name; the package's ``__init__`` has the list.
CODECS: dict[str, type[Codec]] = {}

#: Longer than the text of any codec.
MAX_SPEC_CHARS = 64

#: What a codec's name is made of.
LETTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_")

#: What `repr` makes numbers of; Python alone would also take spaces, underscores, other alphabets' digits, NaN.
DIGITS = {int: frozenset("0123456789"), float: frozenset("0123456789.e-")}


def builtin(*functions: Callable[[], Codec]) -> dict[str, type[Codec]]:
    """Take up our own codecs, by the functions that make them, and return the table of them."""
    CODECS.update({codec.name: type(codec) for codec in (make() for make in functions)})
    return CODECS


@cache  # reading it goes through all that is installed, and any message may ask
def installed() -> dict[str, EntryPoint]:
    """Return the codecs of other packages by name, as found at the first call."""
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name not in CODECS}


def is_name(text: str) -> bool:
    """Tell whether a codec may have that name."""
    return bool(text) and LETTERS.issuperset(text)


def codec_class(name: str) -> type[Codec]:
    """Return the codec of that name.

    Raises
    ------
    CodecError
        No codec has that name here, or the package that declares it cannot be used.
    """
    if name in CODECS:
        return CODECS[name]
    if name not in installed():
        raise CodecError(
            f"no codec {reprlib.repr(name)} here; known are {', '.join([*CODECS, *sorted(installed())])}. A codec of "
            f"your own is in a package with an entry point in group {ENTRY_POINT_GROUP!r}: install that package on "
            "every worker and server, and start them again"
        )
    found = _loaded(name)
    if isinstance(found, CodecError):
        raise found.again()
    return found


@cache  # a module that fails to be imported is not tried at each message; `installed` bounds the names
def _loaded(name: str) -> type[Codec] | CodecError:
    point = installed()[name]
    where = f"entry point {name!r} of group {ENTRY_POINT_GROUP!r}"
    try:
        found = point.load()
    except Exception as error:  # importing another package can fail in any way
        failed = CodecError(
            f"{where} is {point.value!r}, which cannot be loaded ({type(error).__name__}: {error}); repair or remove "
            "its package on this node"
        )
        failed.__cause__ = error
        return failed
    if not (isinstance(found, type) and issubclass(found, Codec)) or isabstract(found):
        return CodecError(f"{where} is {reprlib.repr(found)}; let it name a complete subclass of zmqps.codecs.Codec")
    if getattr(found, "name", None) != name or not is_name(name):
        return CodecError(
            f"{where} is a codec named {getattr(found, 'name', None)!r}; give both the same name, of lower-case "
            "letters, digits and _, as it travels by that"
        )
    return found


def for_values() -> str:
    """Return in words which of our codecs values may travel in: those that leave nothing out for later."""
    names = [name for name, cls in CODECS.items() if not cls.error_feedback]
    return joined(names, len(names), "or")


@lru_cache(maxsize=64)  # a job uses a few; the limit is for a server that lives through many
def parse(text: str) -> Codec:
    """Return the codec that a text names, such as ``"int8:block=1024"``.

    After the name and a colon come options separated by commas: ``name=number``, or the name alone of
    one to switch on. Options left out have their defaults, so ``parse(codec.spec) == codec``.

    Raises
    ------
    CodecError
        There is no such codec here.
    ProtocolError
        There is no such option, an option comes twice, or its value is out of range.
    """
    if len(text) > MAX_SPEC_CHARS:
        raise ProtocolError(f"the text of a codec has at most {MAX_SPEC_CHARS} characters, not {len(text)}")
    name, colon, rest = text.partition(":")
    cls = codec_class(name)
    known = {option.name: option for option in fields(cls)}
    values: dict[str, Any] = {}
    for item in rest.split(",") if colon else ():
        key, equals, value = item.partition("=")
        if key not in known or key in values:
            why = "comes twice" if key in values else f"is not one of {', '.join(known) or 'none'}"
            raise ProtocolError(f"codec {name!r}: option {reprlib.repr(key)} {why}")
        values[key] = _value(name, known[key], value if equals else None)
    try:
        return cls(**values)
    except ConfigurationError as error:
        raise ProtocolError(str(error)) from None


def _value(name: str, option: Field[Any], text: str | None) -> Any:
    if "range" not in option.metadata:
        if text is None:
            return True
        raise ProtocolError(f"codec {name!r}: {option.name} takes no value")
    kind = option.metadata["range"].kind
    try:
        if text and DIGITS[kind].issuperset(text):
            return kind(text)
    except ValueError:
        pass
    raise ProtocolError(f"codec {name!r}: {reprlib.repr(text)} is not a valid {kind.__name__} for {option.name}")
