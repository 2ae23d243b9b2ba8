"""What values an option takes: each kind checks a value of Python, and returns it in its plain form."""

from __future__ import annotations

import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zmqps import checks

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
MAX_TEXT_CHARS = 4096


class Kind:
    """What an option takes."""

    #: Whether the option may be given several times.
    several = False

    def check(self, label: str, value: Any) -> Any:
        """Return a value in its plain form; raise `ConfigurationError`, which names the option, for any other."""
        raise NotImplementedError

    def placed(self, value: Any) -> Any:
        """Return what means the same in every directory."""
        return value


@dataclass(frozen=True, slots=True)
class Whole(Kind):
    """A whole number of a range."""

    at_least: int | None = None
    at_most: int | None = None

    def check(self, label: str, value: Any) -> int:
        """Return it as an int."""
        plain: int = checks.whole(label, value, self.at_least, self.at_most)
        return plain


@dataclass(frozen=True, slots=True)
class Seconds(Kind):
    """A finite number of seconds."""

    at_least: float | None = None
    above: float | None = None

    def check(self, label: str, value: Any) -> float:
        """Return it as a float."""
        plain: float = checks.number(label, value, at_least=self.at_least, above=self.above)
        return plain


@dataclass(frozen=True, slots=True)
class Size(Kind):
    """A number of bytes: 1048576, 512KiB, 1MiB, 8GB."""

    at_least: int = 1
    at_most: int | None = None

    def check(self, label: str, value: Any) -> int:
        """Return the number of bytes, also of a text."""
        plain: int = checks.whole(label, nbytes_of(value), self.at_least, self.at_most)
        return plain


@dataclass(frozen=True, slots=True)
class Choice(Kind):
    """One of a few words."""

    words: tuple[str, ...]

    def check(self, label: str, value: Any) -> str:
        """Return the word."""
        return checks.one_of(label, value, self.words)


@dataclass(frozen=True, slots=True)
class Switch(Kind):
    """True or False."""

    def check(self, label: str, value: Any) -> bool:
        """Return it."""
        return checks.flag(label, value)


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """A text, which may be empty."""

    longest: int = MAX_TEXT_CHARS

    def check(self, label: str, value: Any) -> str:
        """Return it."""
        return checks.text(label, value, self.longest) if not isinstance(value, str) or value else ""


@dataclass(frozen=True, slots=True)
class File(Kind):
    """A file or, with ``is_directory``, a directory of this host; with ``exists``, the command line looks for it."""

    is_directory: bool = False
    exists: bool = False

    def check(self, label: str, value: Any) -> Path:
        """Return it as a path."""
        return Path(_path(label, value))

    def placed(self, value: Any) -> Any:
        """Return it as an absolute path."""
        return value.absolute()


@dataclass(frozen=True, slots=True)
class Where(Kind):
    """A directory, or an address such as ``s3://bucket/runs``."""

    def check(self, label: str, value: Any) -> str:
        """Return it as a text."""
        return checks.text(label, _path(label, value), MAX_TEXT_CHARS)

    def placed(self, value: Any) -> Any:
        """Return a path that means the same everywhere; an address stays as it is."""
        return _absolute(value)


@dataclass(frozen=True, slots=True)
class Cadence(Kind):
    """An interval in time or in steps: ``5min``, ``90s``, ``2h`` or ``500steps``; empty: none."""

    def check(self, label: str, value: Any) -> str:
        """Return the text."""
        cadence(label, value)
        return str(value)


@dataclass(frozen=True, slots=True)
class Sinks(Kind):
    """Where values that scripts log are written, as `zmqps.sinks` names the places."""

    several = True

    def check(self, label: str, value: Any) -> tuple[str, ...]:
        """Return the texts."""
        if isinstance(value, str) or not isinstance(value, list | tuple) or not all(isinstance(t, str) for t in value):
            checks.refuse(label, "a sequence of texts", value)
        return tuple(value)

    def placed(self, value: Any) -> Any:
        """Return them with absolute paths."""
        return tuple(map(_placed, value))


@dataclass(frozen=True, slots=True)
class Names(Kind):
    """A name for each name: a mapping, or texts ``NAME=NAME THERE``."""

    several = True
    longest: int = 1024

    def check(self, label: str, value: Any) -> dict[str, str]:
        """Return the mapping."""
        if isinstance(value, list | tuple):
            value = dict(_pair(label, entry) for entry in value)
        names = checks.mapping(label, value, "names")
        for name in (*names, *names.values()):
            checks.text(f"a name in {label}", name, self.longest)
        return dict(names)


def cadence(label: str, every: Any) -> tuple[float | None, int | None]:
    """Return every how many seconds, or steps, a text says; neither for an empty one.

    Raises
    ------
    ConfigurationError
        It says neither.
    """
    if isinstance(every, str) and not every:
        return None, None
    text = checks.text(label, every, MAX_TEXT_CHARS)
    found = re.fullmatch(r"(\d+(?:\.\d+)?) *([a-z]+)", text.strip().lower())
    if found is not None and found[2] in ("step", "steps") and found[1].isdigit() and int(found[1]):
        return None, int(found[1])
    seconds = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}
    if found is not None and found[2] in seconds and 0 < float(found[1]) < math.inf:
        return float(found[1]) * seconds[found[2]], None
    checks.refuse(label, "an interval such as 5min, 90s, 2h or 500steps", every)


def nbytes_of(value: Any) -> Any:
    """Return the number of bytes that a text such as 512KiB says; anything else, and any other text, as it is."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([a-z]*)", value.strip().lower())
    if match is None or match[2] not in UNITS:
        return value
    return int(float(match[1]) * UNITS[match[2]])


def size_text(nbytes: int) -> str:
    """Return a number of bytes as `nbytes_of` reads it, in the largest unit that divides it."""
    units = ("GiB", "GB", "MiB", "MB", "KiB", "kB")
    unit = next((unit for unit in units if nbytes and nbytes % UNITS[unit.lower()] == 0), "")
    return f"{nbytes // UNITS[unit.lower()]}{unit}"


def _path(label: str, value: Any) -> str:
    if not isinstance(value, str | os.PathLike) or not isinstance(path := os.fspath(value), str) or "\0" in path:
        checks.refuse(label, "a path or None", value)
    return path


def _pair(label: str, entry: Any) -> tuple[str, str]:
    name, equals, there = entry.partition("=") if isinstance(entry, str) else ("", "", "")
    if not (name and equals and there):
        checks.refuse(label, "NAME=NAME THERE", entry)
    return name, there


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())


def _placed(text: str) -> str:
    kind, _, place = text.partition(":")
    return f"{kind}:{_absolute(place)}" if kind in ("jsonl", "tensorboard") and place else text
