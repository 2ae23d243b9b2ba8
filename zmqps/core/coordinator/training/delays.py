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
        self.since: float | None = None  # when the first of those who wait now arrived
        self.last: tuple[MemberInfo, float] | None = None  # who has arrived last at the open step, and when
        self.counted = float("-inf"), 0  # when steps were counted last for those who watch, and how many there were
        self._arrived: set[bytes] = set()  # at the open step
        self._delay_s = 0.0  # by how much it came after the one before it
        self._closed: tuple[int, float] | None = None  # the step that was closed last, and when
        # who, its delay, the step's length, which nobody knows of the first
        self._recent: deque[tuple[MemberInfo, float, float | None]] = deque(maxlen=STEPS)

    def arrived(self, member: MemberInfo, now: float) -> None:
        """A worker has arrived, perhaps once more."""
        if member.incarnation in self._arrived:
            return
        self._arrived.add(member.incarnation)
        if self.last is not None:
            self._delay_s = now - self.last[1]
            member.reported.awaited_s += self._delay_s
        self.last = member, now

    def closed(self, step: int, now: float) -> None:
        """A step is over, at which several have arrived."""
        if self.last is not None:
            length = now - self._closed[1] if self._closed is not None and self._closed[0] == step - 1 else None
            self._recent.append((self.last[0], self._delay_s, length))
        self._arrived.clear()
        self.last, self._delay_s, self._closed = None, 0.0, (step, now)

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
    return sum(values) / len(values)
