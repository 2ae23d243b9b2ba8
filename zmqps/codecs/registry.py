"""From a codec's text in a message header to the codec, strictly: the text's source is not trusted."""

from __future__ import annotations

import reprlib
from dataclasses import Field, fields
from functools import lru_cache
from typing import Any

from ..errors import ConfigurationError, ProtocolError
from .base import Codec
from .bf16 import BF16
from .fp16 import FP16
from .int8 import Int8
from .onebit import OneBit
from .raw import Raw
from .topk import TopK
from .twobit import TwoBit

CODECS: dict[str, type[Codec]] = {cls.name: cls for cls in (Raw, BF16, FP16, Int8, TopK, OneBit, TwoBit)}

#: Longer than any text of ours.
MAX_SPEC_CHARS = 64

#: What `repr` makes numbers of; Python alone would also take spaces, underscores, other alphabets' digits, NaN.
DIGITS = {int: frozenset("0123456789"), float: frozenset("0123456789.e-")}


@lru_cache(maxsize=64)  # a job uses a few; the limit is for a server that lives through many
def parse(text: str) -> Codec:
    """Return the codec that a text names, such as ``"int8:block=1024"``.

    After the name and a colon come options separated by commas: ``name=number``, or the name alone of
    one to switch on. Options left out have their defaults, so ``parse(codec.spec) == codec``.

    Raises
    ------
    ProtocolError
        There is no such codec or option, an option comes twice, or its value is out of range.
    """
    if len(text) > MAX_SPEC_CHARS:
        raise ProtocolError(f"the text of a codec has at most {MAX_SPEC_CHARS} characters, not {len(text)}")
    name, colon, rest = text.partition(":")
    if name not in CODECS:
        raise ProtocolError(f"no codec {reprlib.repr(name)}; known here are {', '.join(CODECS)}")
    known = {option.name: option for option in fields(CODECS[name])}
    values: dict[str, Any] = {}
    for item in rest.split(",") if colon else ():
        key, equals, value = item.partition("=")
        if key not in known or key in values:
            why = "comes twice" if key in values else f"is not one of {', '.join(known) or 'none'}"
            raise ProtocolError(f"codec {name!r}: option {reprlib.repr(key)} {why}")
        values[key] = _value(name, known[key], value if equals else None)
    try:
        return CODECS[name](**values)
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
