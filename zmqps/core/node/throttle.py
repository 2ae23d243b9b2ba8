"""Keeps what peers do from becoming a flood of log lines."""

from __future__ import annotations

from zmqps.core.protocol.events import Action, Log
from zmqps.errors import counted

#: So many lines in `WINDOW_S` seconds tell what is going on; more only fill the disk.
MOST_LINES = 20
WINDOW_S = 10.0
#: Of all origins together: whoever can have one can have many.
MOST_IN_ALL = 512
#: A line holds a few names, and the text of an error.
MAX_LINE_CHARS = 2000


class Throttle:
    """Lets the first lines of each origin in a window through and counts the rest.

    Parameters
    ----------
    what
        What the lines are about, in the plural.
    most
        How many lines of an origin are let through in a window.
    """

    def __init__(self, what: str = "refused requests", most: int = MOST_LINES) -> None:
        self._what = what
        self._most = most
        self._until = 0.0
        self._admitted = 0
        self._left_out = 0
        self._lines: dict[object, int] = {}  # by origin, of those of which a line was let through

    def admit(self, text: str, now: float, origin: object = None) -> str | None:
        """Return the line to log, if any; the first of a window says how many were left out before."""
        left_out = self._begin(now) if now >= self._until else 0
        lines = self._lines.get(origin, 0)
        if lines >= self._most or self._admitted >= MOST_IN_ALL:
            self._left_out += 1
            return None
        self._lines[origin] = lines + 1
        self._admitted += 1
        text = text[:MAX_LINE_CHARS]
        return f"{text} ({left_out} similar lines were not logged)" if left_out else text

    def spare(self, actions: list[Action], now: float, origin: object = None) -> list[Action]:
        """Return what a node does about an event without the log lines that are too many."""
        spared: list[Action] = []
        for action in actions:
            if not isinstance(action, Log):
                spared.append(action)
            elif (line := self.admit(action.text, now, origin)) is not None:
                spared.append(Log(action.level, line))
        return spared

    def summary(self, now: float) -> str | None:
        """Return a line that says what a window that is over has left out, unless one has said so already."""
        left_out = self._begin(now) if now >= self._until else 0
        were = "was" if left_out == 1 else "were"
        return f"{counted(left_out, 'line')} about {self._what} {were} not logged" if left_out else None

    def _begin(self, now: float) -> int:
        left_out, self._left_out = self._left_out, 0
        self._until, self._admitted = now + WINDOW_S, 0
        self._lines.clear()
        return left_out
