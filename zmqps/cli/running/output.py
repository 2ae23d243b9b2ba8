"""What the processes of a cluster say: into one file each, and onto the terminal, coloured by node."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import queue
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import IO, TextIO

from zmqps.cli.running.streams import make_legible
from zmqps.errors import PSError, counted, printable
from zmqps.folder import Folder
from zmqps.logs.lines import (
    MAX_LINE_NBYTES,
    NAME_WIDTH,
    Lines,
    aligned,
    read_entry,
    read_line,
    split_fields,
    without_date,
    without_known,
    write_line,
)

COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_yellow", "bright_blue")
#: Lines the terminal may lag behind before some are left out there; the files have them all.
MAX_BACKLOG = 10_000
#: A larger log goes on in a new file, and so many older ones are kept: days of what a script prints for every step, and
#: no more than 256 MiB a process.
MAX_LOG_NBYTES = 64 << 20
OLDER_LOGS = 3
#: Colours of what wants to be seen.
LEVEL_COLOURS = {"warning": "yellow", "error": "bright_red", "critical": "bright_red"}


#: What colours a line; a training script may.
_COLOURS = re.compile(r"(\x1b\[[0-9;]{0,32}m|\t)")


def in_one_line(line: str) -> str:
    """Return what a process has said as it may be shown: with its colours, but without anything else that moves."""
    if line.isprintable():
        return line
    return "".join(part if number % 2 else printable(part) for number, part in enumerate(_COLOURS.split(line)))


#: Returns to the start of a terminal's line, and clears it.
ANEW = "\r\x1b[K"


class Painter:
    """Prints log lines; on a terminal without the date and in one colour a node.

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

    def print(self, line: str) -> None:
        """Print a line."""
        line = aligned(line, self._width)
        if self._console is None:
            print(line, file=self._stream, flush=True)
            return
        from rich.text import Text

        entry = read_entry(line)
        line = without_date(without_known(line))
        text = Text.from_ansi(line)
        if entry is not None and not line.startswith("{"):
            colour = self._colours.setdefault(entry.node, COLOURS[len(self._colours) % len(COLOURS)])
            text.stylize(colour, 0, max(self._width, len(entry.node)) + 2)
            if suffix := split_fields(text.plain)[1]:
                text.stylize("dim", len(text.plain) - len(suffix))
            if level := LEVEL_COLOURS.get(entry.level):
                begin = text.plain.find(f"{entry.level}: ")
                text.stylize(level, begin, begin + len(entry.level))
        if self._state:
            self._stream.write(ANEW)
        self._console.print(text)
        self.progress(self._state)

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
    """Shows lines, on a thread of its own: a paused terminal (Ctrl-S) must not stop the cluster.

    Parameters
    ----------
    stream
        Where to; coloured if it is a terminal.
    width
        How much room the names of nodes take.
    """

    def __init__(self, stream: TextIO, width: int = NAME_WIDTH) -> None:
        self._painter = Painter(stream, width)
        self._lines: queue.Queue[str | Progress | None] = queue.Queue(MAX_BACKLOG)
        self._left_out = 0
        self._thread = threading.Thread(target=self._main, name="zmqps-terminal", daemon=True)
        self._thread.start()

    def show(self, line: str) -> None:
        """Show a log line, unless too many wait already."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._left_out += 1

    def progress(self, state: str) -> None:
        """Show how far something has come, in a line of its own below the others; nothing, if it is done."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(Progress(state))

    def close(self, timeout: float = 1.0) -> None:
        """Show what is waiting, if that takes no longer than ``timeout``."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=timeout)
            self._thread.join(timeout)

    def _main(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone: the files go on
            while (line := self._lines.get()) is not None:
                if isinstance(line, Progress):
                    self._painter.progress(line.state)
                    continue
                left_out, self._left_out = self._left_out, 0
                if left_out:
                    self._painter.print(f"({counted(left_out, 'line')} left out here; the log files have all)")
                self._painter.print(line)


class LogFile:
    """The log of one process.

    Parameters
    ----------
    node
        Its name.
    folder
        Its directory; an existing file is emptied.
    name
        Its name.
    terminal
        Shows the lines as well.
    as_json
        How lines are written.
    most_nbytes
        How large a file may become; `OLDER_LOGS` older ones are kept as ``NAME.1``, ``NAME.2``, and so on.
    """

    def __init__(
        self,
        node: str,
        folder: Folder,
        name: str,
        terminal: Terminal | None,
        *,
        as_json: bool,
        most_nbytes: int = MAX_LOG_NBYTES,
    ) -> None:
        self.node = node
        self.path = folder.path / name
        self._folder = folder
        self._name = name
        self._most_nbytes = most_nbytes
        self._nbytes = 0
        self._file = self._begin()
        self._terminal = terminal
        self._as_json = as_json

    def say(self, level: str, message: str, *, shown: bool = True, error: str = "") -> None:
        """Write an entry, to be ``shown`` on the terminal as well or not; ``error`` is the number of an error."""
        now, about = datetime.now().astimezone(), {"error": error}
        lines = write_line(self.node, level, message, now, as_json=self._as_json, fields=about).split("\n")
        self._write(lines, shown)

    def take(self, lines: Sequence[str]) -> None:
        """Write what a process said: a node's entries as they are, anything else as an entry."""
        for line in lines:
            said = read_line(line)
            line = in_one_line(line)
            if said is None or said[0] != self.node:
                self.say("info", line)
            elif line.startswith("{") != self._as_json and (entry := read_entry(line)) is not None:
                self._write(entry.line(as_json=self._as_json).split("\n"), True)  # a worker does not know
            else:
                self._write([line], True)

    def _begin(self) -> IO[bytes]:
        for number in range(1, OLDER_LOGS + 1):
            self._folder.remove(f"{self._name}.{number}")  # of a life before
        return self._folder.begin(self._name)

    def _rotate(self) -> None:
        """Go on in a new file."""
        names = [self._name, *(f"{self._name}.{number}" for number in range(1, OLDER_LOGS + 1))]
        for newer, older in reversed([*itertools.pairwise(names)]):
            with contextlib.suppress(FileNotFoundError):
                self._folder.rename(newer, older)
        before, self._file = self._file, self._folder.begin(self._name)
        before.close()

    def _write(self, lines: Sequence[str], shown: bool) -> None:
        data = "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")
        if self._nbytes and self._nbytes + len(data) > self._most_nbytes:
            self._nbytes = 0
            with contextlib.suppress(OSError, PSError):  # what cannot be put aside grows on
                self._rotate()
        with contextlib.suppress(OSError):  # a full disk must not end the training
            self._file.write(data)
            self._nbytes += len(data)
        if self._terminal is not None and shown:
            for line in lines:
                self._terminal.show(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Pump:
    """Moves the output of a process from its pipe into its log, line by line; another process may follow there."""

    def __init__(self, pipe: IO[bytes], log: LogFile) -> None:
        self.log = log
        self.ended = asyncio.Event()
        self._pipe = pipe
        self._lines = Lines()
        os.set_blocking(pipe.fileno(), False)
        asyncio.get_running_loop().add_reader(pipe.fileno(), self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), MAX_LINE_NBYTES)
        except BlockingIOError:
            return
        self.log.take(self._lines.take(data))
        if not data:
            self.close()

    def close(self) -> None:
        """Stop, even if a stray process still holds the other end."""
        if not self.ended.is_set():
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._pipe.close()
            self.ended.set()
