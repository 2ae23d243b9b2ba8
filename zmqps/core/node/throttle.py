"""Keeps a flood of bad requests from becoming a flood of log lines."""

from __future__ import annotations

#: So many lines in `WINDOW_S` seconds tell what is going on; more only fill the disk.
MOST_LINES = 20
WINDOW_S = 10.0


class Throttle:
    """Lets the first lines of each window through and counts the rest."""

    def __init__(self) -> None:
        self._until = 0.0
        self._lines = 0

    def admit(self, text: str, now: float) -> str | None:
        """Return the line to log, if any; the first of a window says how many were left out before."""
        left_out = 0
        if now >= self._until:
            left_out = max(0, self._lines - MOST_LINES)
            self._until, self._lines = now + WINDOW_S, 0
        self._lines += 1
        if self._lines > MOST_LINES:
            return None
        return f"{text} ({left_out} similar lines were not logged)" if left_out else text
