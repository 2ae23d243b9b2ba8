"""What a log line looks like: one fact, with the node that says it, the time, and what it is about.

A line is for people first, so that ``less`` and ``grep`` will do; and it can be read back, so that ``zmqps logs`` can
choose. The fields of a record are in brackets at its end. Or a line is one JSON object, with the same names.

::

    server-0    | 2025-11-21 01:04:05.123 joined as server 0 at tcp://127.0.0.1:5570
    coordinator | 2025-11-21 01:04:09.871 warning: lost worker 2 (worker-2): … [job=digits peer=worker-2 error=Z006]
    {"time": "2025-11-21T01:04:05.123+01:00", "level": "info", "node": "server-0", "message": "…"}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from zmqps.errors import Fact, printable

LEVELS = ("debug", "info", "warning", "error")
#: By which levels are compared; ``critical`` is what others may say.
RANKS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
#: Names are padded to this, the length of the longest usual one, so that the lines are aligned.
NAME_WIDTH = len("coordinator")
DATE_WIDTH = len("2025-11-21 ")

#: A longer line is broken: a worker that never ends one must not fill the memory.
MAX_LINE_NBYTES = 64 << 10

#: What every entry has; no field has such a name.
RESERVED = ("time", "level", "node", "message")

_LINE = re.compile(r"(\S+) *\| (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) ")
_MARK = re.compile(r"(debug|warning|error|critical): ")
_NAME = r"[a-z][a-z0-9_]*"
_BARE = r'[^\s"\[\]=]+'
_FIELD = rf'({_NAME})=("(?:[^"\\]|\\.)*"|{_BARE})'
_FIELDS = re.compile(rf"\[(?:{_FIELD}(?: {_FIELD})*)?\]")
_ONE_FIELD = re.compile(_FIELD)


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
        What it is about: ``job``, ``peer``, ``error`` (the number of an error) and others.
    """

    at: datetime
    level: str
    node: str
    message: str
    fields: Mapping[str, Fact] = field(default_factory=dict)

    def plain(self) -> dict[str, Fact]:
        """Return the entry as one flat object, in the order in which it is written."""
        fields = {name: value for name, value in self.fields.items() if name not in RESERVED}
        time = self.at.isoformat(timespec="milliseconds")
        return {"time": time, "level": self.level, "node": self.node, **fields, "message": self.message}

    def line(self, *, as_json: bool) -> str:
        """Return the entry as it is written; of a message of several lines each gets its prefix."""
        return write_line(self.node, self.level, self.message, self.at, as_json=as_json, fields=self.fields)


def write_line(
    node: str, level: str, message: str, at: datetime, *, as_json: bool, fields: Mapping[str, Fact] | None = None
) -> str:
    """Return a log entry; of a message of several lines each gets its prefix, and the fields."""
    known = {name: value for name, value in (fields or {}).items() if value is not None and value != ""}
    if as_json:
        entry = Entry(at=at, level=level, node=node, message=message, fields=known)
        return json.dumps(entry.plain(), ensure_ascii=False)
    prefix = f"{node:<{NAME_WIDTH}} | {at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} "
    mark = "" if level == "info" else f"{level}: "
    suffix = _bracketed(known) if known else ""
    return "\n".join(f"{prefix}{mark}{line}{suffix or _guard(line)}" for line in message.split("\n"))


def _bracketed(fields: Mapping[str, Fact]) -> str:
    shown = (f"{name}={_value(value)}" for name, value in fields.items() if re.fullmatch(_NAME, name))
    return f" [{' '.join(shown)}]"


def _value(value: Fact) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    value = printable(value)
    if re.fullmatch(_BARE, value) and _unquoted(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False).replace("[", "\\u005b")  # so that the last one begins the fields


def _unquoted(text: str) -> Fact:
    """Return what a value without quotes means: a number, true, false, or the text itself."""
    if text[0] in "-0123456789tfnNI":  # what JSON may begin with
        try:
            plain = json.loads(text)
        except ValueError:
            return text
        return plain if isinstance(plain, bool | int | float) else text
    return text


def _guard(line: str) -> str:
    """Return what follows a message without fields, so that its own end is not read as such."""
    return " []" if line.endswith("]") and split_fields(f" {line}")[1] else ""


def split_fields(text: str) -> tuple[str, str]:
    """Return a text, and the fields in brackets at its end; empty if there are none."""
    begin = text.rfind(" [") if text.endswith("]") else -1
    if begin < 0 or _FIELDS.fullmatch(text, begin + 1) is None:
        return text, ""
    return text[:begin], text[begin:]


def read_fields(suffix: str) -> dict[str, Fact]:
    """Return the fields of what `split_fields` has split off."""
    fields: dict[str, Fact] = {}
    for name, value in _ONE_FIELD.findall(suffix):
        try:
            fields[name] = json.loads(value) if value.startswith('"') else _unquoted(value)
        except ValueError:
            fields[name] = value
    return fields


def read_line(line: str) -> tuple[str, str] | None:
    """Return node and time of a log line; None if it is not a node's."""
    if line.startswith("{"):
        entry = _read_json(line)
        return (entry.node, entry.at.isoformat()) if entry is not None else None
    match = _LINE.match(line)
    return (match[1], match[2]) if match else None


def read_entry(line: str) -> Entry | None:
    """Return what a log line says; None if it is not a node's. A text line's time is one of this host."""
    if line.startswith("{"):
        return _read_json(line)
    match = _LINE.match(line)
    if match is None:
        return None
    try:
        at = datetime.fromisoformat(match[2]).astimezone()
    except (ValueError, OverflowError):
        return None
    rest, suffix = split_fields(f" {line[match.end() :]}")
    mark = _MARK.match(rest, 1)
    level, message = (mark[1], rest[mark.end() :]) if mark else ("info", rest[1:])
    return Entry(at=at, level=level, node=match[1], message=message, fields=read_fields(suffix))


def _read_json(line: str) -> Entry | None:
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
    """Return the message of a log line; the line itself if it is not a node's."""
    if line.startswith("{"):
        entry = _read_json(line)
        return line if entry is None else entry.message
    match = _LINE.match(line)
    return split_fields(f" {line[match.end() :]}")[0][1:] if match else line


def without_date(line: str) -> str:
    """Return a text line with the time only, for a terminal."""
    match = _LINE.match(line)
    return line[: match.start(2)] + line[match.start(2) + DATE_WIDTH :] if match else line


def without_known(line: str) -> str:
    """Return a text line without the fields that its message already has, for a terminal."""
    match = _LINE.match(line)
    text, suffix = split_fields(line) if match else (line, "")
    if match is None or not suffix or len(text) < match.end():
        return line
    said = text[match.end() :]
    left = {name: value for name, value in read_fields(suffix).items() if str(value) not in said}
    return text + (_bracketed(left) if left else "")


def aligned(line: str, width: int) -> str:
    """Return a text line whose node's name takes so much room."""
    match = _LINE.match(line)
    return f"{match[1]:<{width}} | {line[match.start(2) :]}" if match else line


class Lines:
    """Cuts what a process says into lines; of a progress bar, which returns to their start, the last state."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> list[str]:
        """Return the lines that are whole now; nothing more said is the end."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (not data or len(self._rest) > MAX_LINE_NBYTES):
            lines.append(self._rest)
            self._rest = b""
        return [line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in lines]
