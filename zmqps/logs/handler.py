"""How a process logs: the handlers of nodes and of workers under our supervisors; facts that repeat are counted.

zmqps leaves the root logger of a user's process alone, and its own loggers as well: the script decides how to log. Only
where a supervisor has started the worker, and the script sets up no logging, warnings become lines that the supervisor
reads back with their level, instead of the bare texts that Python writes then.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TextIO, TypeVar

from zmqps.errors import Fact, PSError, printable
from zmqps.logs.lines import ABOUT, RESERVED, Entry

#: Within this many seconds after a fact was logged first,
WINDOW_S = 10.0
#: … it is logged this often, which lets through the reports of waiting nodes every 5 s. The rest is counted.
BURST = 3
#: This many facts are remembered at a time; beyond that the oldest is dropped, and may be logged again.
MOST_FACTS = 1024

#: What changes from one time to the next of the same fact: how long, how much.
_QUANTITY = re.compile(r"\d[\d,.]*(?= ?(?:s|ms|min|h|%|B|kB|MB|GB|TB|KiB|MiB|GiB|bytes)\b)")

T = TypeVar("T")


def fact_of(message: str) -> str:
    """Return a message without how long and how much; what is left says which fact it is."""
    return _QUANTITY.sub("#", message)


@dataclass(slots=True)
class _Window(Generic[T]):
    until: float
    said: int
    held: int
    last: T


class Repeats(Generic[T]):
    """Decides what is said. Time is an argument.

    Parameters
    ----------
    window, burst, most
        As the constants of this module have it.
    """

    def __init__(self, window: float = WINDOW_S, burst: int = BURST, most: int = MOST_FACTS) -> None:
        self.window = window
        self._burst = burst
        self._most = most
        self._windows: OrderedDict[Hashable, _Window[T]] = OrderedDict()  # the oldest first
        self._made_way: list[tuple[T, int]] = []  # until `over` tells of them: at most one a call of `admit`

    @property
    def holds(self) -> bool:
        """Whether repeats are held back that were not reported."""
        return bool(self._made_way) or any(window.held for window in self._windows.values())

    def admit(self, fact: Hashable, record: T, now: float) -> bool:
        """Return whether to say it; if not it is counted. To be called after `over`, with the same time."""
        window = self._windows.get(fact)
        if window is None:
            if len(self._windows) >= self._most:
                _, oldest = self._windows.popitem(last=False)
                if oldest.held:
                    self._made_way.append((oldest.last, oldest.held))
            self._windows[fact] = _Window(now + self.window, 1, 0, record)
            return True
        if window.said < self._burst:
            window.said += 1
            return True
        window.held += 1
        window.last = record
        return False

    def over(self, now: float | None) -> list[tuple[T, int]]:
        """Return what was held back in windows that are over, or in all if ``now`` is None: the last one, how many."""
        told, self._made_way = self._made_way, []
        while self._windows:
            fact, window = next(iter(self._windows.items()))
            if now is not None and window.until > now:
                break
            del self._windows[fact]
            if window.held:
                told.append((window.last, window.held))
        return told


#: What a supervisor calls the worker that it starts.
VARIABLE = "ZMQPS_LOG_NODE"


def fields_of(record: logging.LogRecord) -> dict[str, Fact]:
    """Return what a record is about: what it has through ``extra``, of which a mapping ``facts`` has more."""
    fields: dict[str, Fact] = {name: value for name in ABOUT if (value := getattr(record, name, None))}
    if record.exc_info and isinstance(error := record.exc_info[1], PSError):
        fields.setdefault("error", error.number)
    facts = getattr(record, "facts", None)
    if isinstance(facts, Mapping):
        fields |= {name: value for name, value in facts.items() if name not in RESERVED}
    return fields


class NodeFormatter(logging.Formatter):
    """Formats the records of one node.

    Parameters
    ----------
    node
        Its name.
    as_text
        As people read it on a terminal, not as one JSON object a line.
    """

    def __init__(self, node: str, *, as_text: bool = False) -> None:
        super().__init__()
        self._node = node
        self._as_text = as_text

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record; as text, an exception's traceback takes more lines."""
        message = printable(record.getMessage())  # some of it may be of a peer, which begins no line here
        if record.exc_info:
            traceback = self.formatException(record.exc_info)
            message = "\n".join([message, *map(printable, traceback.split("\n"))])
        at, level = datetime.fromtimestamp(record.created).astimezone(), record.levelname.lower()
        entry = Entry(at=at, level=level, node=self._node, message=message, fields=fields_of(record))
        return entry.text(with_date=False) if self._as_text else entry.line()


class NodeHandler(logging.StreamHandler[TextIO]):
    """Writes the records of one node; what repeats is held back and counted.

    When a window is over in which something was held back, one line says how often. A timer sees to that where nothing
    else is logged: there is one at a time, and none while nothing is held back.

    Parameters
    ----------
    stream
        Where to.
    formatter
        How.
    clock
        Seconds.
    timer
        Calls a function after that many seconds, on a separate thread.
    """

    def __init__(
        self,
        stream: TextIO,
        formatter: NodeFormatter,
        clock: Callable[[], float] = time.monotonic,
        timer: Callable[[float, Callable[[], None]], threading.Timer] = threading.Timer,
    ) -> None:
        super().__init__(stream)
        self.setFormatter(formatter)
        self._clock = clock
        self._new_timer = timer
        self._timer: threading.Timer | None = None
        self._repeats: Repeats[_Bare] = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it."""
        now = self._clock()
        self._say_what_repeated(now)
        said = _bare(record)
        about = (getattr(record, name, None) for name in ABOUT)
        if self._repeats.admit((record.name, record.levelno, *about, fact_of(said.msg)), said, now):
            super().emit(record)
        elif self._timer is None:
            self._arm()

    def close(self) -> None:
        """Say what was held back, and end."""
        with self._own_lock():
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._say_what_repeated(None)
        super().close()

    def _arm(self) -> None:
        self._timer = self._new_timer(self._repeats.window, self._window_is_over)
        self._timer.daemon = True
        self._timer.start()

    def _own_lock(self) -> Any:
        assert self.lock is not None
        return self.lock

    def _window_is_over(self) -> None:
        with self._own_lock():
            self._timer = None
            self._say_what_repeated(self._clock())
            if self._repeats.holds:  # in a window that began later
                self._arm()

    def _say_what_repeated(self, now: float | None) -> None:
        for last, count in self._repeats.over(now):
            last.facts = {**last.facts, "repeats": count}
            last.msg = f"… {count} more in {self._repeats.window:.0f} s: {last.msg}"
            super().emit(last)


class _Bare(logging.LogRecord):
    """What is kept of a record that may be held back: no arguments and no traceback, which hold much more."""

    msg: str
    facts: dict[str, Fact]


def _bare(record: logging.LogRecord) -> _Bare:
    try:
        message = record.getMessage()
    except Exception:  # the formatter meets it as well, and logging says so in its own way
        message = str(record.msg)
    bare = _Bare(record.name, record.levelno, record.pathname, record.lineno, message, None, None)
    bare.facts = fields_of(record)
    return bare


def set_up_logging(node: str, *, level: str = "info", stream: TextIO | None = None) -> None:
    """Send the log of this process, which is a node, to a stream, by default standard error.

    A terminal gets text, anything else JSON lines.
    """
    stream = stream or sys.stderr
    formatter = NodeFormatter(node, as_text=stream.isatty())
    logging.basicConfig(level=level.upper(), handlers=[NodeHandler(stream, formatter)], force=True)
    logging.getLogger("numba").setLevel(max(logging.INFO, logging.getLogger().level))  # it would write how it compiles
    logging.raiseExceptions = False  # the log's reader may end before the node does


class _Supervised(NodeHandler):
    """Writes what zmqps says in a worker to standard error, as long as the script does not say how to log."""

    def __init__(self, node: str) -> None:
        super().__init__(sys.stderr, NodeFormatter(node))

        self.addFilter(self._is_for_us)

    def _is_for_us(self, record: logging.LogRecord) -> bool:
        """Leave a record to the script's own handlers, if it has any."""
        ours = logging.getLogger("zmqps").handlers
        return not logging.getLogger().handlers and all(handler is self for handler in ours)


def under_a_supervisor(environ: Mapping[str, str]) -> None:
    """Let a worker's warnings reach the supervisor that has started it with their level; nothing without one."""
    node, ours = environ.get(VARIABLE), logging.getLogger("zmqps")
    if node and not any(isinstance(handler, _Supervised) for handler in ours.handlers):
        ours.addHandler(_Supervised(node))


class About(logging.LoggerAdapter[logging.Logger]):
    """A logger whose records are about something, such as a job; what a record itself says of it counts."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Return the message, and what it is about."""
        return msg, {**kwargs, "extra": {**(self.extra or {}), **(kwargs.get("extra") or {})}}
