"""Who keeps the others waiting: by how much the last worker of each step came after the one before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from zmqps.core.coordinator.members.membership import MemberInfo

#: The steps that are looked back at.
STEPS = 8
#: Somebody is slow who came last to so many steps in a row, and so much of a step later than the one before it.
IN_A_ROW, SHARE = 3, 0.2


class Delays:
    """When workers arrived at the steps of one job; an arrival costs the same however many there are."""

    def __init__(self) -> None:
        self._arrived: set[bytes] = set()  # at the open step
        self._last: tuple[MemberInfo, float] | None = None  # who has arrived last at the open step, and when
        self._delay_s = 0.0  # by how much it came after the one before it
        self._closed_at: float | None = None
        # who, its delay, the step's length, which nobody knows of the first
        self._recent: deque[tuple[MemberInfo, float, float | None]] = deque(maxlen=STEPS)

    def arrived(self, member: MemberInfo, now: float) -> None:
        """A worker has arrived, perhaps once more."""
        if member.incarnation in self._arrived:
            return
        self._arrived.add(member.incarnation)
        if self._last is not None:
            self._delay_s = now - self._last[1]
            member.reported.awaited_s += self._delay_s
        self._last = member, now

    def closed(self, now: float) -> None:
        """The step is over."""
        if self._last is not None:
            length = None if self._closed_at is None else now - self._closed_at
            self._recent.append((self._last[0], self._delay_s, length))
        self._arrived.clear()
        self._last, self._delay_s, self._closed_at = None, 0.0, now

    def slowest(self, members: Mapping[bytes, MemberInfo]) -> Mapping[str, Any]:
        """Return who of the live members has come last to the last steps, and by how much; empty: nobody stands out."""
        last = list(self._recent)[-IN_A_ROW:]
        if len(last) < IN_A_ROW or any(member is not last[0][0] for member, _, _ in last):
            return {}
        member, in_a_row = last[0][0], 0
        if members.get(member.incarnation) is not member:
            return {}  # it has gone since
        delay_s, length = mean([delay for _, delay, _ in last]), mean([s for *_, s in last if s is not None])
        if not length or delay_s < SHARE * length:
            return {}
        for other, *_ in reversed(self._recent):
            if other is not member:
                break
            in_a_row += 1
        return {
            "node": f"{member.role} {member.rank}",
            "host": member.hello.host,
            "delay_s": round(delay_s, 3),
            "step_s": round(length, 3),
            "text": f"{member.title} came last to the last {in_a_row} steps, {delay_s:.2g} s after the others; "
            f"a step takes {length:.2g} s",
        }


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)
