"""What was lost each time that shards went back to a checkpoint: steps, or pushes that had been acknowledged.

Steps the coordinator counts itself; of pushes each worker says how many of its own are gone.
"""

from __future__ import annotations

from typing import Any

from zmqps.core.coordinator.journal import Plain
from zmqps.core.coordinator.placement.views import ViewChange
from zmqps.core.protocol.events import Action, Log
from zmqps.errors import counted


class Rewinds:
    """How often shards of one job went back, and what was lost the last time.

    Parameters
    ----------
    name
        The job's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.times = 0
        self._last: dict[str, Any] = {}

    def close(self, change: ViewChange, now: float) -> list[Action]:
        """Say what was lost: all members have said it."""
        self._last = {
            "shards": list(change.shards),
            "path": change.restored["path"],
            "version": change.restored["version"],
            "lost": change.lost,
            "unit": "steps" if change.whole else "pushes",
            "exact": change.whole or not change.num_gone,
            "seconds": round(now - change.begun_at, 3),
            "at": now,
        }
        if change.whole:
            return []
        what = "1 push" if change.lost == 1 else f"{change.lost} pushes"
        where = f"shard{'s' * (len(change.shards) > 1)} {', '.join(map(str, change.shards))}"
        least = f", and what {counted(change.num_gone, 'worker')} pushed that left since" if change.num_gone else ""
        text = (
            f"job {self._name!r}: {what} that had been acknowledged after the checkpoint are gone from {where}{least}"
        )
        return [Log("warning", text, job=self._name)]

    def dump(self) -> Plain:
        """Return what is kept of it."""
        return [self.times, {**self._last, "at": 0.0} if self._last else {}]

    def restore(self, kept: Plain, now: float) -> None:
        """Go on with what was kept."""
        self.times, self._last = kept
        if self._last:
            self._last["at"] = now

    def status(self, now: float) -> dict[str, Any]:
        """Return the state for the status."""
        if not self._last:
            return {"times": self.times}
        last = {name: value for name, value in self._last.items() if name != "at"}
        return {"times": self.times, "last": {**last, "ago_s": round(now - self._last["at"], 3)}}
