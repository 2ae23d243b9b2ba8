"""Jobs that are over: how each ended, and what those were answered who ended one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from zmqps.core.coordinator.journal import Plain
from zmqps.core.protocol.events import Peer
from zmqps.core.protocol.messages import EndJob, JobEnded
from zmqps.errors import JobError, listed

#: Of jobs that have ended, the status shows so many; older ones are forgotten.
MAX_ENDED = 256


class Ended(NamedTuple):
    """A job that is over."""

    how: str
    at: float
    epoch: int


class EndedJobs:
    """The last job of each name that has ended; the oldest are forgotten."""

    def __init__(self, changed: Callable[[str], None] = lambda name: None) -> None:
        self._changed = changed  # called with the name of one that is new, or forgotten
        self.by_name: OrderedDict[str, Ended] = OrderedDict()
        self._answers: OrderedDict[tuple[bytes, int, str], JobEnded] = OrderedDict()  # by nonce, to who ended one

    def add(self, name: str, how: str, epoch: int, now: float) -> None:
        self.by_name[name] = Ended(how, now, epoch)
        self.by_name.move_to_end(name)
        self._changed(name)
        while len(self.by_name) > MAX_ENDED:
            self._changed(self.by_name.popitem(last=False)[0])

    def dump(self, name: str) -> Plain:
        return list(self.by_name[name]) if name in self.by_name else None

    def restore(self, kept: dict[str, Plain], now: float) -> None:
        """Have those that were kept, by name; a clock that has begun anew since is behind what they say."""
        for name, (how, at, epoch) in sorted(kept.items(), key=lambda item: item[1][1]):
            self.by_name[name] = Ended(how, min(at, now), epoch)

    def how(self, name: str) -> str:
        """Return how the job of this name has ended; empty where there was none."""
        ended = self.by_name.get(name)
        return "" if ended is None else ended.how

    def describe(self, name: str, now: float) -> str:
        """Say that, how and when a job had ended; empty where there was none."""
        ended = self.by_name.get(name)
        return "" if ended is None else f"job {name!r} had ended {now - ended.at:.0f} s ago: {ended.how}"

    def answered(self, peer: Peer, message: EndJob) -> JobEnded | None:
        """Return what this request to end a job was answered before."""
        return self._answers.get((message.nonce or peer, message.request, message.job))

    def answer(self, peer: Peer, message: EndJob, text: str) -> JobEnded:
        """Return the answer to a request to end a job, remembered in case it is lost: asked again, it ends no other."""
        answer = self._answers[message.nonce or peer, message.request, message.job] = JobEnded(message.request, text)
        while len(self._answers) > MAX_ENDED:
            self._answers.popitem(last=False)
        return answer

    def status(self, now: float) -> list[dict[str, Any]]:
        """Return them for the status, the one that ended last at the end."""
        return [{"job": n, "how": how, "ago_s": round(now - at, 3)} for n, (how, at, _) in self.by_name.items()]


def unknown_job(name: str, running: Iterable[str]) -> JobError:
    """Return the error for a job that there is not; it says which there are."""
    names = listed(sorted(map(repr, running)), 8)
    return JobError(f"there is no job {name[:100]!r}; {f'running: {names}' if names else 'none is running'}")
