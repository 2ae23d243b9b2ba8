"""Figures and logged values over time: the last minutes in full, the last days in coarser and coarser steps.

Each series has a few tiers; one keeps points for a fixed number of time spans. A point summarizes all values of its
span: their number, the sum, the least, the most, and the last step. Values older than a tier are dropped, so a series
never takes more than `SERIES_NBYTES`, and there are at most `MAX_SERIES`.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

Kind = Literal["value", "figure"]

#: Seconds of a point, and how many points are kept: five minutes, an hour, a day, a week.
TIERS = ((1.0, 300), (10.0, 360), (120.0, 720), (1800.0, 336))
#: Time, number, their sum, the least, the most, the last step.
FIELDS = 6
SERIES_NBYTES = sum(number for _, number in TIERS) * FIELDS * 8
#: 40 MiB at most, after a week.
MAX_SERIES = 512
NO_STEP = -1.0


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a series: a job's, or (``node``) one of its members'."""

    job: str
    node: str
    name: str
    kind: Kind = "figure"


class _Tier:
    """Points, the newest of which is still open, in one ring of numbers."""

    __slots__ = ("_first", "_points", "every", "most")

    def __init__(self, every: float, most: int) -> None:
        self.every, self.most = every, most
        self._points = array("d")
        self._first = 0  # the oldest point, once the ring is full

    def __len__(self) -> int:
        return len(self._points) // FIELDS

    def add(self, at: float, value: float, step: float) -> None:
        """Add a value to the point of its time."""
        points, number = self._points, len(self)
        if number:
            newest = (self._first - FIELDS) % len(points) if number == self.most else len(points) - FIELDS
            if at // self.every <= points[newest] // self.every:  # also if it comes late
                points[newest + 1] += 1
                points[newest + 2] += value
                points[newest + 3] = min(points[newest + 3], value)
                points[newest + 4] = max(points[newest + 4], value)
                points[newest + 5] = max(points[newest + 5], step)
                return
        point = array("d", (at, 1.0, value, value, value, step))
        if number < self.most:
            points.extend(point)
            return
        points[self._first : self._first + FIELDS] = point
        self._first = (self._first + FIELDS) % len(points)

    def times(self) -> list[float]:
        """Return the times of all points, the oldest first."""
        return [*self._points[self._first :: FIELDS], *self._points[: self._first : FIELDS]]

    def since(self, at: float, most: int) -> Iterator[list[float | None]]:
        """Yield the points from a time on, at most the last ones of a number: time, mean, least, most, step."""
        points, size = self._points, len(self._points)
        back = 0
        while back < min(size, most * FIELDS) and points[(self._first - back - FIELDS) % size] >= at:
            back += FIELDS
        for offset in range(size - back, size, FIELDS):
            start = (self._first + offset) % size
            t, number, total, least, greatest, step = points[start : start + FIELDS]
            yield [round(t, 3), total / number, least, greatest, None if step == NO_STEP else int(step)]

    @property
    def nbytes(self) -> int:
        return len(self._points) * 8


class Series:
    """One figure over time."""

    __slots__ = ("last", "last_at", "num_nonfinite", "step", "tiers")

    def __init__(self) -> None:
        self.tiers = [_Tier(every, most) for every, most in TIERS]
        self.last = 0.0
        self.last_at = 0.0
        self.step: int | None = None
        self.num_nonfinite = 0  # NaN and infinity are only counted; they would spoil the sums

    def add(self, at: float, value: float, step: int | None = None) -> None:
        self.last, self.last_at = value, at
        self.step = step if step is not None else self.step
        if not isfinite(value):
            self.num_nonfinite += 1
            return
        number = NO_STEP if step is None else float(step)
        for tier in self.tiers:
            tier.add(at, value, number)

    def points(self, since: float, most: int, every: float = 0.0) -> tuple[float, list[list[float | None]]]:
        """Return points from a time on, at most a number, and how many seconds each summarizes.

        Of the finest tier that reaches back far enough with that few; or of the one with points of ``every`` seconds,
        if it is given.
        """
        chosen = self.tiers[-1]
        for tier in self.tiers:
            reaches = len(tier) < tier.most or tier._points[tier._first] <= since
            if tier.every == every or (not every and reaches and (self.last_at - since) / tier.every <= most):
                chosen = tier
                break
        return chosen.every, list(chosen.since(since, most))

    @property
    def nbytes(self) -> int:
        return sum(tier.nbytes for tier in self.tiers)


class History:
    """All series of a cluster, in the order of their last additions."""

    def __init__(self) -> None:
        self.series: OrderedDict[Key, Series] = OrderedDict()
        self.num_given_up = 0  # dropped for newer ones

    def add(self, key: Key, at: float, value: float, step: int | None = None) -> None:
        """Add a value; if there are too many series, the one with the oldest addition is dropped."""
        series = self.series.get(key)
        if series is None:
            if len(self.series) >= MAX_SERIES:
                self.series.popitem(last=False)
                self.num_given_up += 1
            series = self.series[key] = Series()
        else:
            self.series.move_to_end(key)
        series.add(at, value, step)

    def note(self, job: str, node: str, name: str, at: float, step: int | None, value: float) -> None:
        """Add the values that a training script has logged."""
        self.add(Key(job, node, name, "value"), at, value, step)

    def forget(self, job: str) -> None:
        """A job of this name begins again: the existing series are of the one before."""
        for key in [key for key in self.series if key.job == job]:
            del self.series[key]

    @property
    def nbytes(self) -> int:
        return sum(series.nbytes for series in self.series.values())

    def select(self, job: str = "", node: str = "") -> Iterator[tuple[Key, Series]]:
        """Yield series: of a job and those of nodes without one; of only one node."""
        for key, series in sorted(self.series.items(), key=lambda item: (item[0].job, item[0].node, item[0].name)):
            if (not job or key.job in ("", job)) and (not node or key.node == node):
                yield key, series

    def view(
        self, since: float, points: int, *, every: float = 0.0, job: str = "", node: str = "", most: int = 1 << 30
    ) -> list[dict[str, Any]]:
        """Return series as plain data, of `Series.points`; ``most``: points of all of them."""
        chosen = list(self.select(job, node))
        share = max(1, min(points, most // max(1, len(chosen))))
        shown = []
        for key, series in chosen:
            stands_for, told = series.points(since, share, every)
            shown.append(
                {
                    "job": key.job, "node": key.node, "name": key.name, "kind": key.kind, "step": series.step,
                    "last": series.last if isfinite(series.last) else str(series.last), "every": stands_for,
                    "nonfinite": series.num_nonfinite, "points": told,
                }
            )  # fmt: skip
        return shown

    def validate(self) -> None:
        assert len(self.series) <= MAX_SERIES
        for series in self.series.values():
            assert series.nbytes <= SERIES_NBYTES
            for tier in series.tiers:
                times = tier.times()
                assert times == sorted(times)
