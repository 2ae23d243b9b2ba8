"""The series that browsers look at, kept by the page, which asks the coordinator only for what is new."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from zmqps.core.protocol.messages import Watch

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
