"""Polls the view, and goes on polling without an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from zmqps.errors import DeadlineError, PSError

#: From one view to the next, and how long an answer may take.
EVERY_S, TIMEOUT_S = 1.0, 3.0


class Source:
    """The newest view of a cluster.

    Parameters
    ----------
    ask
        Returns a view, or raises why there is none; called in a thread.
    clock
        Seconds, monotonic.

    Attributes
    ----------
    view
        The newest one; empty before the first.
    """

    def __init__(self, ask: Callable[[], Mapping[str, Any]], clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self.view: Mapping[str, Any] = {}
        self._seen_at = clock()
        self._error: PSError | None = None

    async def update(self) -> bool:
        """Ask once; return whether there was an answer."""
        try:
            view = await asyncio.to_thread(self._ask)
        except PSError as error:
            self._error = error
            return False
        self.view, self._error, self._seen_at = view, None, self._clock()
        return True

    @property
    def trouble(self) -> str:
        """Why what is shown is old, in words; empty while it is not."""
        if self._error is None:
            return ""
        silent = self._clock() - self._seen_at
        if isinstance(self._error, DeadlineError):
            shown = "; this is what it said last" if self.view else ""
            return f"the coordinator has not answered for {silent:.0f} s{shown}"
        return str(self._error)
