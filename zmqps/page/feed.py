"""What the page is fed with: views of the coordinator, asked for once a second at most, however many look at them."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from zmqps.core.protocol.figures import BOUNDS
from zmqps.core.protocol.messages import Watch
from zmqps.errors import DeadlineError
from zmqps.net.loops import ask_loop

#: Seconds that one may look back -> seconds that a point covers, of a tier of the coordinator's history.
SPANS = {300: 1.0, 3600: 10.0, 86400: 120.0, 604800: 1800.0}
#: No tier has more points.
POINTS = 720
#: Points of all series, which makes 1 MB; where there are more series, each point covers more time.
MOST_POINTS = 20_000
#: Digits of a number in a series: more than a plot has pixels, and half the bytes.
DIGITS = 6
#: A member that is slow to tell, or a coordinator to answer, comes so late at most.
LATE_S = 5.0

Key = tuple[str, str, str, str]


class Kept:
    """All series over one of the spans, as JSON.

    Parameters
    ----------
    span
        One of `SPANS`.
    """

    def __init__(self, span: int) -> None:
        self.span = span
        self.every = SPANS[span]
        self._series: dict[Key, tuple[str, deque[tuple[float, str]]]] = {}  # its description, and its points
        self._asked_at = float("-inf")  # by the clock of the caller
        self._began = 0  # jobs: what their names had before is of others

    def question(self, now: float) -> Watch:
        """Return what to ask the coordinator: all at first, then what may be new since the last answer."""
        since = now - self._asked_at + 2 * self.every + LATE_S
        self._asked_at = now
        return Watch(0, min(float(self.span), since), POINTS, self.every, "", "")

    def forget(self) -> None:
        """Ask for all next time: an answer has not come."""
        self._asked_at = float("-inf")

    def take(self, asked: Watch, now: float, began: int, series: Sequence[Mapping[str, Any]]) -> None:
        """Put an answer to what there is; ``now`` is the coordinator's time, ``began`` how many jobs have begun."""
        if began != self._began:
            self._began = began
            if asked.span < self.span:
                return self.forget()
        oldest = now - self.span
        before, self._series = self._series, {}
        for one in series:
            key = (one["job"], one["node"], one["name"], one["kind"])
            points = before[key][1] if key in before else deque[tuple[float, str]]()
            while points and one["points"] and points[-1][0] >= one["points"][0][0]:  # sent again
                points.pop()
            points.extend((point[0], encoded(point)) for point in one["points"])
            while points and points[0][0] < oldest:
                points.popleft()
            head = {name: one[name] for name in ("job", "node", "name", "kind", "every")}
            self._series[key] = json.dumps(head)[:-1], points
        coarser = [every for every in SPANS.values() if len(self._series) * self.span <= MOST_POINTS * every]
        every = max(SPANS[self.span], min(coarser, default=max(SPANS.values())))
        if every != self.every:  # there are more series than there were, or fewer
            self.every = every
            self._series.clear()
            self.forget()

    @property
    def is_whole(self) -> bool:
        """Whether there is anything to show; if not, all has to be asked for."""
        return self._asked_at != float("-inf")

    def texts(self) -> list[str]:
        """Return the series as JSON."""
        return [
            f'{head}, "points": [{", ".join([text for _, text in points])}]}}' for head, points in self._series.values()
        ]


def encoded(point: Sequence[float | None]) -> str:
    """Return a point as JSON, with fewer digits; its time and its step stay as they are."""
    at, *values, step = point
    return json.dumps([at, *(None if value is None else float(f"{value:.{DIGITS}g}") for value in values), step])


#: Of what has happened, the last.
MOST_EVENTS = 200
#: Of a cluster with more nodes the page shows only this many: a longer table is not read to its end.
MOST_MEMBERS = 256
#: How many jobs, and of each how many shards.
MOST_JOBS, MOST_SHARDS = 64, 256

_CLUSTER = ("state", "endpoint", "host", "uptime_s", "servers")
_JOB = ("state", "mode", "workers", "lost", "idle")
_STEPS = ("step", "arrived", "aggregate", "dropped", "waiting", "since_s")
_SPEC = ("parameters", "nbytes", "staleness")
_SHARD = ("shard", "nbytes", "share", "parameters", "first", "last", "buckets")
_MEMBER = ("role", "rank", "name", "host", "pid", "job", "silent_s")
_COUNTERS = ("doing", "pushes", "clock", "version", "arena_nbytes", "device", *BOUNDS)
_GONE = ("role", "rank", "name", "host", "job", "how", "ago_s")
_CHECKPOINT = ("version", "ago_s", "seconds")


def seen(view: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page shows of a view besides the series, sharing nothing with what the coordinator changes."""
    status = view["status"]
    jobs = dict(list(status["jobs"].items())[:MOST_JOBS])
    left_out = [str(text) for text in status["left_out"]]
    for what, number, most in (
        ("jobs", len(status["jobs"]), MOST_JOBS),
        ("nodes", len(status["members"]), MOST_MEMBERS),
    ):
        left_out += [f"{number - most} of {number} {what}"] if number > most else []
    return {
        "now": view["now"],
        **_some(status, _CLUSTER),
        "waiting": [str(text) for text in status["waiting"]],
        "left_out": left_out,
        "jobs": {name: _job(run) for name, run in jobs.items()},
        "ended": [_some(entry, ("job", "how", "ago_s")) for entry in status["ended"][:MOST_JOBS]],
        "members": [_member(member) for member in status["members"][:MOST_MEMBERS]],
        "gone": [_some(member, _GONE) for member in status["gone"][:MOST_MEMBERS]],
        "waits": [dict(wait) for wait in view["waits"]],
        "awaited_s": {name: dict(awaited) for name, awaited in view["awaited_s"].items()},
        "slowest": {name: dict(slowest) for name, slowest in view["slowest"].items()},
        "events": [dict(event) for event in view["events"][-MOST_EVENTS:]],
        "bounds": {name: list(bounds) for name, bounds in BOUNDS.items()},
    }


def _job(run: Mapping[str, Any]) -> dict[str, Any]:
    spec = run["job"]
    placement = spec.get("placement", ())
    return {
        **_some(run, _JOB),
        "waiting": [str(text) for text in run["waiting"]],
        "steps": _some(run["steps"], _STEPS),
        **_some(spec, _SPEC),
        "optimizer": str(spec.get("optimizer", {}).get("name", "")),
        "placement": [_some(row, _SHARD) for row in placement[:MOST_SHARDS]],
        "num_shards": len(placement),
        "copies": [dict(copy) for copy in run["copies"][: 3 * MOST_SHARDS]],
        "checkpoint": _some(run["checkpoint"].get("last", {}), _CHECKPOINT),
        "checkpoint_failed": str(run["checkpoint"].get("failed", "")),
    }


def _member(member: Mapping[str, Any]) -> dict[str, Any]:
    return {**_some(member, _MEMBER), "counters": _some(member["counters"], _COUNTERS)}


def _some(facts: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: facts[name] for name in names if name in facts}


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
