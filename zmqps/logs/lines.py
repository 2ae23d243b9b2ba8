"""A log entry: its fields, the JSON line in which it is written, and the text that people read.

Nodes, workers and supervisors write one JSON object a line. A terminal, and ``zmqps logs``, show it as text:

::

    {"time": "2025-11-21T01:04:09.871+00:00", "level": "warning", "node": "coordinator", "job": "digits", …}
    coordinator | 2025-11-21 01:04:09.871 warning: lost worker 2 (worker-2): … [job=digits error=Z006]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from zmqps.errors import Fact, printable

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
    """Return what a log line says; None if it is no entry."""
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
    """Return the message of a log line; the line itself if it is no entry."""
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
