"""A log entry: its fields, its JSON line, the text that people read, what a script's output means, and a filter.

Nodes, workers and supervisors write one JSON object a line. A terminal, and ``zmqps logs``, show it as text:

::

    {"time": "2025-11-21T01:04:09.871+00:00", "level": "warning", "node": "coordinator", "job": "digits", …}
    coordinator | 2025-11-21 01:04:09.871 warning: lost worker 2 (worker-2): … [job=digits error=Z006]
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from zmqps.errors import ConfigurationError, Fact, printable

#: By which levels are compared; ``critical`` is what others may say.
RANKS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
#: Names are padded to this, the length of the longest usual one, so that the lines are aligned.
NAME_WIDTH = len("coordinator")

#: A longer line of output is broken: a worker that never ends one must not fill the memory.
MAX_LINE_NBYTES = 64 << 10
#: What an entry of such a line may take: JSON writes a byte in six at most, and a chunk may follow a line's end.
MAX_ENTRY_NBYTES = 1 << 20

#: What every entry has; no other field has such a name.
RESERVED = ("time", "level", "node", "message")
#: What an entry may be about, besides its own facts: the job, the other node, and the number of an error.
ABOUT = ("job", "peer", "error")

#: What colours a line; a training script may.
_COLOURS = re.compile(r"(\x1b\[[0-9;]{0,32}m|\t)")


class Parts(NamedTuple):
    """A line of text, in the pieces that a terminal colours.

    Parameters
    ----------
    prefix
        The node's name, padded, and a bar.
    time
        When.
    level
        Empty for ``info``.
    message
        One line of it.
    about
        The fields that the message does not name, in brackets.
    """

    prefix: str
    time: str
    level: str
    message: str
    about: str

    def __str__(self) -> str:
        level = f"{self.level}: " if self.level else ""
        return f"{self.prefix} {self.time} {level}{self.message}{self.about}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One fact of a log.

    Parameters
    ----------
    at
        When, with its time zone.
    level
        debug, info, warning, error or critical.
    node
        The node that logs it, such as ``server-0``.
    message
        What is said.
    fields
        What it is about: those of `ABOUT`, and others.
    """

    at: datetime
    level: str
    node: str
    message: str
    fields: Mapping[str, Fact] = field(default_factory=dict)

    def line(self) -> str:
        """Return the entry as it is written: one line of ASCII, which moves nothing on a terminal."""
        known = {name: value for name, value in self.fields.items() if value not in (None, "") and name not in RESERVED}
        time = self.at.isoformat(timespec="milliseconds")
        return json.dumps({"time": time, "level": self.level, "node": self.node, **known, "message": self.message})

    def parts(self, *, width: int = NAME_WIDTH, with_date: bool = True) -> list[Parts]:
        """Return the lines that people read, in pieces; of a message of several lines each has its prefix.

        Parameters
        ----------
        width
            How much room the node's name takes.
        with_date
            Whether a line has the date before the time.
        """
        local = self.at.astimezone()
        date = f"{local:%Y-%m-%d} " if with_date else ""
        time = f"{date}{local:%H:%M:%S}.{local.microsecond // 1000:03d}"
        level = "" if self.level == "info" else self.level
        about = " ".join(f"{name}={value}" for name, value in self.fields.items() if str(value) not in self.message)
        suffix = f" [{printable(about)}]" if about else ""
        prefix = f"{printable(self.node):<{width}} |"
        first, *others = map(legible, self.message.split("\n"))
        return [Parts(prefix, time, level, first, suffix), *(Parts(prefix, time, level, line, "") for line in others)]

    def text(self, *, width: int = NAME_WIDTH, with_date: bool = True) -> str:
        """Return the lines that people read."""
        return "\n".join(map(str, self.parts(width=width, with_date=with_date)))


def legible(line: str) -> str:
    """Return what a process has said as it may be shown: with its colours, but without anything else that moves."""
    if line.isprintable():
        return line
    return "".join(part if number % 2 else printable(part) for number, part in enumerate(_COLOURS.split(line)))


def read_entry(line: str) -> Entry | None:
    """Return what a log line says; None if it is not an entry."""
    if not line.startswith("{"):
        return None
    try:
        plain: dict[str, Any] = json.loads(line)
        at = datetime.fromisoformat(plain["time"]).astimezone()
        level, node, message = str(plain["level"]).lower(), str(plain["node"]), str(plain["message"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    fields = {
        name: value
        for name, value in plain.items()
        if name not in RESERVED and isinstance(value, str | int | float | bool)
    }
    return Entry(at=at, level=level if level in RANKS else "info", node=node, message=message, fields=fields)


def read_message(line: str) -> str:
    """Return the message of a log line; the line itself if it is not an entry."""
    entry = read_entry(line)
    return line if entry is None else entry.message


def last_messages(lines: Iterable[str], most: int) -> str:
    """Return the last lines of messages of a log, indented."""
    messages = [legible(part) for line in lines for part in read_message(line).split("\n")]
    return "\n".join(f"  {part}" for part in messages[-most:]) or "  (it said nothing)"


class Lines:
    """Cuts what a process says into lines; of a progress bar, which returns to their start, the last state.

    Parameters
    ----------
    most_nbytes
        A longer line is broken.
    """

    def __init__(self, most_nbytes: int = MAX_LINE_NBYTES) -> None:
        self._rest = b""
        self._most_nbytes = most_nbytes

    def take(self, data: bytes) -> list[str]:
        """Return the lines that are whole now; nothing more said is the end."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (not data or len(self._rest) > self._most_nbytes):
            lines.append(self._rest)
            self._rest = b""
        return [line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in lines]


#: What a script's own lines look like when they are not plain output: Python's logging, warnings and crashes.
_FOREIGN = (
    (re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL):"), ""),
    (re.compile(r"\S+:\d+: \w*Warning: "), "warning"),
    (re.compile(r"Fatal Python error: "), "critical"),
)
_TRACEBACK = "Traceback (most recent call last):"
#: Its prefix in an exception group.
_FRAME = " +|"
#: The beginning of the note of a zmqps error, which follows its traceback.
_NOTE = "zmqps explain "

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|[smhdw])")


class Levels:
    """Tells the level of each line that a script prints.

    It is ``info``, unless it looks like a traceback, a crash, a warning or a line of Python's `logging`.
    """

    def __init__(self) -> None:
        self._in_traceback = False
        self._after_traceback = False

    def of(self, message: str) -> str:
        """Return the level of the next line."""
        if message.lstrip(_FRAME).endswith(_TRACEBACK):
            self._in_traceback = True
            return "error"
        if self._in_traceback:
            self._in_traceback = not message or message.startswith(" ")
            self._after_traceback = not self._in_traceback
            return "error"
        after, self._after_traceback = self._after_traceback, False
        if after and message.startswith(_NOTE):
            return "error"
        for form, level in _FOREIGN:
            if match := form.match(message):
                return level or match[1].lower()
        return "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which entries are shown.

    Parameters
    ----------
    since
        None before this time; None: all.
    level
        None below this level.
    job
        Only those that are about this job.
    """

    since: datetime | None = None
    level: str = "debug"
    job: str | None = None

    def has(self, entry: Entry) -> bool:
        """Return whether it is wanted."""
        return (
            (self.since is None or entry.at >= self.since)
            and RANKS[entry.level] >= RANKS[self.level]
            and (self.job is None or entry.fields.get("job") == self.job)
        )


def parse_since(text: str, now: datetime) -> datetime:
    """Return the time that is meant by how long ago it is, by a date and time, or by a time of day.

    Parameters
    ----------
    text
        ``90s``, ``5m``, ``1h30m``, ``2d``; ``2025-11-21T01:24`` (of this host, unless an offset is there);
        ``2025-11-21``; ``01:24``, the last time that it was that late.
    now
        With a time zone.

    Raises
    ------
    ConfigurationError
        It is none of these.
    """
    text = text.strip()
    if text and not _DURATION.sub("", text):
        try:
            return now - timedelta(seconds=sum(float(n) * _SECONDS[unit] for n, unit in _DURATION.findall(text)))
        except OverflowError:
            return datetime.min.replace(tzinfo=UTC)
    try:
        if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text):
            at = datetime.fromisoformat(f"{now:%Y-%m-%d}T{text}").astimezone(now.tzinfo)
            return at if at <= now else at - timedelta(days=1)
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"{text!r} is not a time: give how long ago (90s, 5m, 1h30m, 2d), a date and time (2025-11-21T01:24), or "
            "a time of day (01:24)"
        ) from None


def chosen(names: Collection[str], wanted: Collection[str]) -> tuple[list[str], list[str]]:
    """Return which logs are meant, and which wishes mean none.

    A wish is a log's name, that without its host (``server-0`` for ``server-0@host-b``), what the status calls the node
    (``server 0``), or a role: ``worker``.
    """

    def meant(name: str) -> set[str]:
        node = name.partition("@")[0]
        role, dash, number = node.rpartition("-")
        return {name, node, *([role, f"{role} {number}"] if dash and number.isdecimal() else [])}

    unknown = [wish for wish in wanted if not any(wish in meant(name) for name in names)]
    return [name for name in sorted(names) if not wanted or not meant(name).isdisjoint(wanted)], unknown
