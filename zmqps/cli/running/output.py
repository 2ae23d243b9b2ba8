"""What the processes of a cluster say: into one file each, and onto the terminal, coloured by node.

The standard streams of a command are open, and take every character that is written to them.
"""

from __future__ import annotations

import codecs
import contextlib
import logging
import os
import queue
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from typing import TYPE_CHECKING, Any, TextIO

from zmqps.errors import Fact, PSError, counted
from zmqps.folder import Folder
from zmqps.logs.lines import NAME_WIDTH, Entry, Levels, Parts, read_entry

if TYPE_CHECKING:
    from rich.text import Text

COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow", "bright_blue")
#: Lines the terminal may lag behind before some are left out there; the files have them all.
MAX_BACKLOG = 10_000
#: A larger log continues in a new file, and this many older ones are kept: days of what a script prints for every step,
#: and no more than 256 MiB a process.
MAX_LOG_NBYTES = 64 << 20
OLDER_LOGS = 3
#: Colours of what wants to be seen.
LEVEL_COLOURS = {"warning": "yellow", "error": "bright_red", "critical": "bright_red"}


#: Begins the line again on a terminal.
ANEW = "\r\x1b[K"


class Painter:
    """Prints log entries; on a terminal without the date and in one colour a node.

    Parameters
    ----------
    stream
        Where to.
    width
        How much room the names of nodes take.
    """

    def __init__(self, stream: TextIO, width: int = NAME_WIDTH) -> None:
        from rich.console import Console

        make_legible(stream)
        self._stream = stream
        self._width = width
        self._state = ""  # shown below the lines, on a terminal only
        self._console = Console(file=stream, highlight=False, soft_wrap=True) if stream.isatty() else None
        self._colours: dict[str, str] = {}

    def print(self, said: Entry | str) -> None:
        """Print an entry, or a remark about the log."""
        if self._console is None:
            print(said if isinstance(said, str) else said.text(width=self._width), file=self._stream, flush=True)
            return
        lines = (
            [self._styled(parts) for parts in said.parts(width=self._width, with_date=False)]
            if isinstance(said, Entry)
            else [said]
        )
        if self._state:
            self._stream.write(ANEW)
        for line in lines:
            self._console.print(line)
        self.progress(self._state)

    def _styled(self, parts: Parts) -> Text:
        from rich.text import Text

        colour = self._colours.setdefault(parts.prefix, COLOURS[len(self._colours) % len(COLOURS)])
        text = Text.assemble((parts.prefix, colour), f" {parts.time} ")
        if parts.level:
            text.append(parts.level, LEVEL_COLOURS.get(parts.level, "")).append(": ")
        return text.append_text(Text.from_ansi(parts.message)).append(parts.about, "dim")

    def progress(self, state: str) -> None:
        """Show below the lines how far something has come; nothing, if it is done."""
        if self._console is not None and (state or self._state):
            self._state = state
            self._stream.write(ANEW + state)
            self._stream.flush()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far something has come."""

    state: str


class Terminal:
    """Shows lines, on a separate thread: a paused terminal (Ctrl-S) must not stop the cluster.

    Parameters
    ----------
    stream
        Where to; coloured if it is a terminal.
    width
        How much room the names of nodes take.
    """

    def __init__(self, stream: TextIO, width: int = NAME_WIDTH) -> None:
        self._painter = Painter(stream, width)
        self._lines: queue.Queue[Entry | Progress | None] = queue.Queue(MAX_BACKLOG)
        self._left_out = 0
        self._thread = threading.Thread(target=self._main, name="zmqps-terminal", daemon=True)
        self._thread.start()

    def show(self, entry: Entry) -> None:
        """Show an entry, unless too many wait already."""
        try:
            self._lines.put_nowait(entry)
        except queue.Full:
            self._left_out += 1

    def progress(self, state: str) -> None:
        """Show how far something has come, in a separate line below the others; nothing, if it is done."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(Progress(state))

    def close(self, timeout: float = 1.0) -> None:
        """Show what is waiting, if that takes no longer than ``timeout``."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=timeout)
            self._thread.join(timeout)

    def _main(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal was closed: the files are still written
            while (line := self._lines.get()) is not None:
                if isinstance(line, Progress):
                    self._painter.progress(line.state)
                    continue
                left_out, self._left_out = self._left_out, 0
                if left_out:
                    self._painter.print(f"({counted(left_out, 'line')} left out here; the log files have all)")
                self._painter.print(line)


class _Rotated(RotatingFileHandler):
    """A file in a folder held open, which begins empty, and is rotated when it is large.

    The path leads through the folder's descriptor: nothing is renamed where another directory has taken its place.
    """

    def __init__(self, folder: Folder, name: str, most_nbytes: int) -> None:
        for old in (name, *(f"{name}.{number}" for number in range(1, OLDER_LOGS + 1))):  # of a life before
            folder.remove(old)
        self._folder = folder
        self._name_there = name
        super().__init__(f"/proc/self/fd/{folder.fd}/{name}", maxBytes=most_nbytes, backupCount=OLDER_LOGS)

    def _open(self) -> TextIOWrapper:
        fd = self._folder.open(self._name_there, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return open(fd, "a", encoding="ascii")

    def doRollover(self) -> None:
        """Continue in a new file; one that cannot be put aside continues to grow."""
        try:
            super().doRollover()
        except OSError:
            self.stream = self._open()

    def handleError(self, record: logging.LogRecord) -> None:
        """Continue: a full disk must not end the training."""


class LogFile:
    """The log of one process: a file of JSON lines, of which older ones are kept as ``NAME.1``, ``NAME.2``, and so on.

    Parameters
    ----------
    node
        Its name.
    folder
        The path of the file.
    name
        Its name.
    terminal
        Shows the lines as well.
    most_nbytes
        How large a file may become; `OLDER_LOGS` older ones are kept.
    """

    def __init__(
        self, node: str, folder: Folder, name: str, terminal: Terminal | None, *, most_nbytes: int = MAX_LOG_NBYTES
    ) -> None:
        self.node = node
        self.path = folder.path / name
        self._file = _Rotated(folder, name, most_nbytes)
        self._terminal = terminal
        self._levels = Levels()

    def say(self, level: str, message: str, *, shown: bool = True, error: str = "") -> None:
        """Write an entry, to be ``shown`` on the terminal as well or not; ``error`` is the number of an error."""
        fields: dict[str, Fact] = {"error": error} if error else {}
        entry = Entry(at=datetime.now().astimezone(), level=level, node=self.node, message=message, fields=fields)
        self._write(entry, shown)

    def note(self, error: Exception) -> None:
        """Write an error whose handler shows it."""
        text, known = "".join(traceback.format_exception(error)), ""
        if isinstance(error, PSError):
            text, known = str(error), error.number
        self.say("error", text, shown=False, error=known)

    def take(self, lines: Sequence[str]) -> None:
        """Write what a process said: a node's entries as they are, anything else as an entry."""
        for line in lines:
            entry = read_entry(line)
            if entry is not None and entry.node == self.node:
                self._write(entry, True)
            else:
                self.say(self._levels.of(line), line)

    def _write(self, entry: Entry, shown: bool) -> None:
        self._file.emit(logging.makeLogRecord({"msg": entry.line()}))
        if self._terminal is not None and shown:
            self._terminal.show(entry)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


# --- the standard streams -----------------------------------------------------------------------

#: How an encoding error is dealt with: what a terminal lacks has a form that it has.
LEGIBLE = "zmqps.legible"
#: The characters of tables, bars and sentences, in ASCII. Accents and the like become question marks.
FORMS = str.maketrans(
    {
        "…": "...", "·": ".", "•": "*", "µ": "u", "×": "x", "−": "-", "–": "-", "—": "-", "±": "+-", "→": "->",
        "⇄": "<->", "─": "-", "━": "-", "│": "|", "┃": "|", **dict.fromkeys("├└┌┐┘┤┬┴┼╭╮╯╰╞╡╪", "+"),
        **dict.fromkeys("█▇▆▅", "#"), **dict.fromkeys("▄▃", "="), "▂": "-", "▁": "_", "✓": "v", "✗": "x",
    }
)  # fmt: skip


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(FORMS)
    return text.encode("ascii", "replace").decode(), error.end


codecs.register_error(LEGIBLE, _in_ascii)


def make_legible(stream: Any) -> None:
    """Let a text stream take every character, if its encoding lacks some."""
    if hasattr(stream, "reconfigure"):  # a substitute, as in tests, takes any text
        stream.reconfigure(errors=LEGIBLE)


def open_streams() -> None:
    """Open the standard streams that the parent has closed, on nothing, and make what is written legible.

    A file or socket that is opened later would have the number of a closed one, and get what children print.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))
    make_legible(sys.stdout)
    make_legible(sys.stderr)
