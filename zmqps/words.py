"""Numbers, durations, names and text from other nodes, in the form that errors, logs, tables and the page show.

``words.js`` of the page says `seconds`, `ago` and `num_bytes` with the same words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

#: Durations in two units: how many of the larger one at most; how many smaller ones make one; how long these are.
PARTS = ((60, 60, "min", 1, "s"), (24, 60, "h", 60, "min"), (1000, 24, "d", 3600, "h"))


def listed(names: Sequence[str], most: int, number: int | None = None) -> str:
    """Return names as errors show them: `most` of them, and how many more there are of all their ``number``."""
    named = names[:most]
    more = (len(names) if number is None else number) - len(named)
    return ", ".join(named) + (f" and {more} more" if named and more else "")


def joined(names: Iterable[str], most: int = 5, last: str = "and") -> str:
    """Return names in a sentence: ``a``, ``a and b``, ``a, b and 7 more``; ``last`` joins the last one."""
    names = list(names)
    if len(names) > most:
        return listed(names, most)
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), names[-1] if names else "")))


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


def seconds(value: float | None) -> str:
    """Return a duration: 12 µs, 3.4 ms, 1.23 s, 1 min 5 s, 2 h 5 min, 3 d 2 h; nothing where it is not known."""
    if value is None or not isfinite(value):
        return ""
    if value < 0:
        return f"-{seconds(-value)}"
    if value == 0:
        return "0 s"
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if value * factor < 999.5:
            return f"{value * factor:.3g} {unit}"
    if value < 59.95:
        return f"{value:.3g} s"
    for most, count, unit, part_s, part in PARTS:
        whole, rest = divmod(round(value / part_s), count)
        if whole < most:
            return f"{whole} {unit} {rest} {part}" if rest else f"{whole} {unit}"
    return "over 999 d"


def ago(value: float | None) -> str:
    """Return how long ago something was; a tenth of a second is precise enough to read."""
    if value is None or not isfinite(value):
        return ""
    return f"{value:.1f} s ago" if abs(value) < 9.95 else f"{seconds(round(value))} ago"


def num_bytes(number: float | None) -> str:
    """Return a number of bytes in words: 512 B, 1.05 MB; nothing where it is not known."""
    if number is None or not isfinite(number):
        return ""
    if number < 999.5:
        return f"{number:.0f} B"
    for unit in ("kB", "MB", "GB", "TB", "PB", "EB"):
        number /= 1000
        if number < 999.5 or unit == "EB":
            break
    return f"{number:.3g} {unit}"


def is_short(value: Any, most: int) -> bool:
    """Whether plain data have at most that many parts and characters; reads no more of them."""
    left, to_do = most, [value]
    while to_do and left >= 0:
        one = to_do.pop()
        left -= 1 + (len(one) if isinstance(one, str | list | dict) else 0)
        if left >= 0 and isinstance(one, list | dict):
            to_do += [*one.keys(), *one.values()] if isinstance(one, dict) else one
    return left >= 0
