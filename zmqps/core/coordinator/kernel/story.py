"""The story of a job: what has become of it lately, and why; the first thing to look at when something waits."""

from __future__ import annotations

from collections import deque
from typing import Any

from zmqps.core.protocol.events import Log

#: How much of a story is kept, …
MAX_ENTRIES = 16
MAX_CHARS = 300
#: … and how much of its last entry is added to a worker's wait.
MAX_LAST_CHARS = 200


class Story:
    """The last transitions of one job, each with its cause in words."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.new: list[str] = []  # of the event that is being handled
        self._entries: deque[tuple[float, str]] = deque(maxlen=MAX_ENTRIES)
        self._last = ""

    def log(self, level: str, text: str, kind: str = "", error: str = "") -> Log:
        """Tell what becomes of the job, and return what is logged of it."""
        self.tell(text)
        return Log(level, f"job {self.job!r}: {text}", kind, job=self.job, error=error)

    def tell(self, text: str, *, expected: bool = False) -> None:
        """Add what happened to the job; it is logged elsewhere. ``expected``: it explains no wait."""
        self.new.append(text[:MAX_CHARS])
        self._last = "" if expected else text[:MAX_LAST_CHARS]

    def settle(self, now: float) -> None:
        """The event is over."""
        self._entries.extend((now, text) for text in self.new)
        self.new.clear()

    def status(self, now: float) -> list[dict[str, Any]]:
        """Return it for the status, what came last at the end."""
        return [{"ago_s": round(now - at, 3), "text": text} for at, text in self._entries]

    def explain(self, text: str) -> str:
        """Return what a member waits for with the last entry of the story, which may be the reason."""
        return f"{text}; before that: {self._last}" if self._last else text
