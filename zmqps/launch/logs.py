"""How nodes log: a line that begins with the node's name, or one JSON object a line.

What is logged may hold what a peer has said: it is printed as `zmqps.errors.printable` has it.

::

    server-0    | 2025-11-21 01:04:05.123 joined as server 0 at tcp://127.0.0.1:5570
    {"time": "2025-11-21T01:04:05.123+01:00", "level": "info", "node": "server-0", "message": "…"}
"""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import datetime
from typing import TextIO

from zmqps.errors import printable

LEVELS = ("debug", "info", "warning", "error")
#: Names are padded to this, the length of the longest usual one, so that the lines are aligned.
NAME_WIDTH = len("coordinator")
DATE_WIDTH = len("2025-11-21 ")

#: A longer line is broken: a worker that never ends one must not fill the memory.
MAX_LINE_NBYTES = 64 << 10

_LINE = re.compile(r"(\S+) *\| (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) ")


def write_line(node: str, level: str, message: str, at: datetime, *, as_json: bool) -> str:
    """Return a log entry; of a message of several lines each gets its prefix."""
    if as_json:
        entry = {"time": at.isoformat(timespec="milliseconds"), "level": level, "node": node, "message": message}
        return json.dumps(entry, ensure_ascii=False)
    prefix = f"{node:<{NAME_WIDTH}} | {at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} "
    mark = "" if level in ("info", "debug") else f"{level}: "
    return "\n".join(f"{prefix}{mark}{line}" for line in message.split("\n"))


def read_line(line: str) -> tuple[str, str] | None:
    """Return node and time of a log line, such that times sort; None if it is not one of ours."""
    if line.startswith("{"):
        try:
            entry = json.loads(line)
            return str(entry["node"]), str(entry["time"])
        except (ValueError, KeyError, TypeError):
            return None
    match = _LINE.match(line)
    return (match[1], match[2]) if match else None


def read_message(line: str) -> str:
    """Return the message of a log line; the line itself if it is not one of ours."""
    if read_line(line) is None:
        return line
    return str(json.loads(line)["message"]) if line.startswith("{") else _LINE.sub("", line, count=1)


def without_date(line: str) -> str:
    """Return a text line with the time only, for a person who looks on."""
    match = _LINE.match(line)
    return line[: match.start(2)] + line[match.start(2) + DATE_WIDTH :] if match else line


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


class NodeFormatter(logging.Formatter):
    """Formats the records of one node.

    Parameters
    ----------
    node
        Its name.
    as_json
        One JSON object a line.
    with_date
        Whether text lines hold the date as well.
    """

    def __init__(self, node: str, *, as_json: bool = False, with_date: bool = True) -> None:
        super().__init__()
        self._node = node
        self._as_json = as_json
        self._with_date = with_date

    def format(self, record: logging.LogRecord) -> str:
        """Return the line (or lines: an exception's traceback) of a record."""
        message = printable(record.getMessage())  # some of it may be of a peer, which begins no line here
        if record.exc_info:
            traceback = self.formatException(record.exc_info)
            message = "\n".join([message, *map(printable, traceback.split("\n"))])
        at = datetime.fromtimestamp(record.created).astimezone()
        text = write_line(self._node, record.levelname.lower(), message, at, as_json=self._as_json)
        if self._with_date or self._as_json:
            return text
        return "\n".join(map(without_date, text.split("\n")))


def set_up_logging(node: str, *, level: str = "info", as_json: bool = False, stream: TextIO | None = None) -> None:
    """Send this process's log to a stream, by default standard error."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(NodeFormatter(node, as_json=as_json, with_date=not stream.isatty()))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("numba").setLevel(max(logging.INFO, logging.getLogger().level))  # it would write how it compiles
    logging.raiseExceptions = False  # whoever read the log may be gone before the node is
