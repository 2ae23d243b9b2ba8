"""What the page is fed with: views of the coordinator, asked for once a second at most, however many look at them."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from zmqps.core.protocol.messages import Watch
from zmqps.errors import DeadlineError
from zmqps.net.loops import ask_loop
from zmqps.page.kept import SPANS, Kept
from zmqps.page.seen import MOST_EVENTS, seen

#: The coordinator is asked so seldom, which takes it a fiftieth of its time at most.
LEAST_S = 1.0
#: A coordinator that is busy for longer does not answer.
ANSWER_S = 5.0
#: No member has this name: of its series there are none.
NOBODY = "-"
WEEK_S = 604800.0
#: After so long the whole history is requested, so that a request for a span gets at least that span.
QUIET_S = 0.8 * min(SPANS)

Ask = Callable[[Watch], "Future[dict[str, Any]]"]


def asking(loop: asyncio.AbstractEventLoop, view: Callable[[Watch, float], Mapping[str, Any]]) -> Ask:
    """Return what asks the coordinator of another thread's loop: ``view(asked, now)``."""

    def ask(asked: Watch) -> Future[dict[str, Any]]:
        def answer() -> dict[str, Any]:
            viewed = view(asked, loop.time())
            began = viewed["happened"].get("began", 0)
            return {"live": seen(viewed), "began": began, "series": viewed["series"]}

        return ask_loop(loop, answer)

    return ask


@dataclass(frozen=True, slots=True)
class Told:
    """An answer to browsers: JSON as it is, and packed."""

    plain: bytes
    packed: bytes

    @classmethod
    def of(cls, *parts: str) -> Told:
        """Pack some JSON."""
        plain = "".join(parts).encode()
        return cls(plain, gzip.compress(plain, 3, mtime=0))


class Feed:
    """Keeps the last view of each span; call it in one loop.

    Parameters
    ----------
    ask
        Asks the coordinator, see `asking`.
    clock, sleep
        The time in seconds, and what waits for that many.
    """

    def __init__(
        self,
        ask: Ask,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._sleep = sleep
        self._turn = asyncio.Lock()  # in the order of the waiting requests, so no span is forgotten
        self._due = 0.0
        self._told: dict[int, tuple[float, Told]] = {}  # by span; 0: without series
        self._kept = {span: Kept(span) for span in SPANS}
        self._events: list[Mapping[str, Any]] = []
        self._heard_at = float("-inf")

    async def get(self, span: int) -> Told:
        """Return the view of a span of `SPANS`; of 0: the present, without series.

        Raises
        ------
        DeadlineError
            The coordinator does not answer.
        """
        if (told := self._fresh(span)) is not None:
            return told
        async with self._turn:
            if (told := self._fresh(span)) is not None:
                return told
            await self._sleep(max(0.0, self._due - self._clock()))
            self._due = self._clock() + LEAST_S
            await self._renew(span)
            return self._told[span][1]

    def _fresh(self, span: int) -> Told | None:
        at, told = self._told.get(span, (float("-inf"), None))
        lasts = max(LEAST_S, SPANS.get(span, 0.0) / 2)
        return told if self._clock() - at < lasts else None

    async def _renew(self, span: int) -> None:
        kept = self._kept.get(span)
        if kept is None or self._clock() - self._heard_at > QUIET_S:
            self._now(await self._answer(Watch(0, WEEK_S, 1, 0.0, "", NOBODY)))
        if kept is None:
            return
        for _ in range(2):  # once more where what there is has to be asked for as a whole
            asked = kept.question(self._clock())
            try:
                found = await self._answer(asked)
            except BaseException:
                kept.forget()
                raise
            at, live = self._now(found)
            kept.take(asked, found["live"]["now"], found["began"], found["series"])
            if kept.is_whole:
                break
        self._told[span] = at, Told.of('{"live":', live, ',"series":[', ",".join(kept.texts()), "]}")

    def _now(self, found: Mapping[str, Any]) -> tuple[float, str]:
        """Take what is there now, and what has happened lately to what had happened before."""
        at, new = self._clock(), found["live"]["events"]
        before = [event for event in self._events if not new or event["t"] < new[0]["t"]]
        self._events, self._heard_at = [*before, *new][-MOST_EVENTS:], at
        live = json.dumps({**found["live"], "events": self._events})
        self._told[0] = at, Told.of('{"live":', live, "}")
        return at, live

    async def _answer(self, asked: Watch) -> dict[str, Any]:
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._ask(asked)), ANSWER_S)
        except TimeoutError:
            raise DeadlineError(operation="the page", seconds=ANSWER_S, waiting_for="the coordinator") from None
