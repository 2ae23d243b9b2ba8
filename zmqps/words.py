"""Numbers, names and text from other nodes, in the form that errors, logs and tables show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def listed(names: Sequence[str], most: int, number: int | None = None) -> str:
    """Return names as errors show them: `most` of them, and how many more there are of all their ``number``."""
    named = names[:most]
    more = (len(names) if number is None else number) - len(named)
    return ", ".join(named) + (f" and {more} more" if named and more else "")


def counted(number: int, noun: str) -> str:
    """Return a number of something in words: ``1 worker``, ``2 workers``, ``3 losses``."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def printable(text: str) -> str:
    """Return a text of a peer as it may be logged, shown and raised: in one line, and of printable characters.

    Control characters, line ends, what changes the direction of writing and the like become the escapes that
    Python writes for them.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def presented(value: Any) -> Any:
    """Return a status whose texts, many of which others have chosen, can be shown."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(name): presented(item) for name, item in value.items()}
    return [presented(item) for item in value] if isinstance(value, list) else value


def num_bytes(number: float) -> str:
    """Return a number of bytes in words: 512 B, 1.05 MB."""
    if number < 1000:
        return f"{number:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        number /= 1000
        if number < 999.5 or unit == "TB":
            break
    return f"{number:.3g} {unit}"


def is_short(value: Any, most: int) -> bool:
    """Whether plain data have so many parts and characters at most; looks at no more of them."""
    left, to_do = most, [value]
    while to_do and left >= 0:
        one = to_do.pop()
        left -= 1 + (len(one) if isinstance(one, str | list | dict) else 0)
        if left >= 0 and isinstance(one, list | dict):
            to_do += [*one.keys(), *one.values()] if isinstance(one, dict) else one
    return left >= 0
