"""Keeps peers from causing a flood of log lines."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from zmqps.core.protocol.events import Action, Log
from zmqps.errors import counted

#: This many lines in `WINDOW_S` seconds show what is happening; more only fill the disk.
MOST_LINES = 20
WINDOW_S = 10.0
#: Of all origins together: one peer may have many origins.
MOST_IN_ALL = 512
#: When these are used up, this many more are for origins with few lines: no peer can silence all others.
MOST_OF_FEW = 128
FEW_LINES = 4
#: A line holds a few names, and the text of an error.
MAX_LINE_CHARS = 2000


class Throttle:
    """Passes the first ``most`` lines of each origin in a window, none twice in a row, and counts the rest.

    For a connection of an origin with several, half as many. ``what`` names in the plural what the lines are about.
    """

    def __init__(self, what: str = "refused requests", most: int = MOST_LINES) -> None:
        self._what = what
        self._most = most
        self._until = 0.0
        self._admitted = 0
        self._left_out = 0
        self._lines: dict[object, tuple[int, str]] = {}  # by origin: how many were let through, and the last one
        self._of_connections: Counter[tuple[object, bytes]] = Counter()

    def admit(self, text: str, now: float, origin: object = None, connection: bytes = b"") -> str | None:
        """Return the line to log, if any; the first of a window says how many were left out before."""
        left_out = self._begin(now) if now >= self._until else 0
        lines, last = self._lines.get(origin, (0, ""))
        text = text[:MAX_LINE_CHARS]
        most = MOST_IN_ALL + (MOST_OF_FEW if lines < FEW_LINES else 0)
        one = origin, connection
        half_used = bool(connection) and self._of_connections[one] >= self._most // 2
        if lines >= self._most or half_used or self._admitted >= most or text == last:
            self._left_out += 1
            return None
        self._lines[origin] = lines + 1, text
        self._admitted += 1
        if connection:
            self._of_connections[one] += 1
        similar = "similar line was" if left_out == 1 else "similar lines were"
        return f"{text} ({left_out} {similar} not logged)" if left_out else text

    def spare(self, actions: list[Action], now: float, origin: object = None, connection: bytes = b"") -> list[Action]:
        """Return the actions about an event without the excess log lines."""
        spared: list[Action] = []
        for action in actions:
            if not isinstance(action, Log):
                spared.append(action)
            elif (line := self.admit(action.text, now, origin, connection)) is not None:
                spared.append(replace(action, text=line))
        return spared

    def summary(self, now: float) -> str | None:
        """Return a line about what a past window has left out, unless that was logged already."""
        left_out = self._begin(now) if now >= self._until else 0
        were = "was" if left_out == 1 else "were"
        return f"{counted(left_out, 'line')} about {self._what} {were} not logged" if left_out else None

    def _begin(self, now: float) -> int:
        left_out, self._left_out = self._left_out, 0
        self._until, self._admitted = now + WINDOW_S, 0
        self._lines.clear()
        self._of_connections.clear()
        return left_out
