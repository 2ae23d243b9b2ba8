"""The view for watchers of a cluster: figures over time, events, and the workers that a step waits for.

Its input is heartbeats and the coordinator's log. It takes bounded memory, and decides nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import isfinite
from typing import TYPE_CHECKING, Any

from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.watching.history import History, Key
from zmqps.core.protocol.events import Action, Log
from zmqps.core.protocol.figures import is_histogram
from zmqps.core.protocol.messages import Watch

if TYPE_CHECKING:
    from zmqps.core.coordinator.run import JobRun

#: Remembered events, and how much of the text of each.
MAX_EVENTS, MAX_EVENT_CHARS = 512, 300
#: The kind of the event of a starting job: earlier events of its name are of another job.
BEGAN = "began"
#: Two heartbeats closer together than this give no rate.
LEAST_S = 0.5
#: Points of all series in a view: about 20 ms to make and 1 MB to send.
MAX_POINTS = 20_000
#: The most awaited members to list.
MOST_AWAITED = 8
#: Of the workers of a job, those that others have waited for longest.
MOST_WAITED_FOR = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """An event of the cluster."""

    at: float
    kind: str
    level: str
    job: str  # empty: of none, or of all
    text: str


@dataclass(slots=True, kw_only=True)
class CounterSample:
    """A member's counts at a heartbeat, at this time by its own clock.

    Rates are by that clock only: the coordinator may have been stopped meanwhile.
    """

    at: float
    pushes: float
    pushes_per_second: float = 0.0
    sent: float
    received: float
    cpu: float
    steps: tuple[float, float]  # total seconds, and number
    staleness: tuple[float, float]


class Watching:
    """What the coordinator remembers for watchers."""

    def __init__(self) -> None:
        self.history = History()
        self.events: deque[Happened] = deque(maxlen=MAX_EVENTS)
        self.happened: Counter[str] = Counter()  # by kind

    def note(self, actions: Iterable[Action], now: float) -> None:
        """Remember logged events."""
        for action in actions:
            if type(action) is Log and action.kind:
                self.happened[action.kind] += 1
                text = action.text[:MAX_EVENT_CHARS]
                happened = Happened(at=now, kind=action.kind, level=action.level, job=action.job, text=text)
                self.events.append(happened)
                if action.kind == BEGAN:
                    self.history.forget(action.job)

    def heartbeat(self, member: MemberInfo, counters: Mapping[str, Any], run: JobRun | None, now: float) -> None:
        """Process a member's counts since its last heartbeat."""
        if "rss_nbytes" not in counters:
            return  # over a new connection there are none
        is_server = member.role == "server"
        sent, received = ("pulled_nbytes", "pushed_nbytes") if is_server else ("bytes_sent", "bytes_received")
        sample = CounterSample(
            at=_number(counters, "awake_seconds"),
            pushes=_number(counters, "pushes"),
            sent=_number(counters, sent),
            received=_number(counters, received),
            cpu=_number(counters, "cpu_seconds"),
            steps=_summed(counters, "step_seconds"),
            staleness=_summed(counters, "staleness"),
        )
        before: CounterSample | None = member.reported.sample
        if before is not None and sample.at - before.at < LEAST_S:
            return
        member.reported.sample = sample
        node, add = f"{member.role} {member.rank}", self.history.add
        add(Key(member.job, node, "rss_nbytes"), now, _number(counters, "rss_nbytes"))
        if before is None:
            return
        span = sample.at - before.at
        sample.pushes_per_second = max(0.0, sample.pushes - before.pushes) / span
        add(Key(member.job, node, "bytes_sent_per_second"), now, max(0.0, sample.sent - before.sent) / span)
        add(Key(member.job, node, "bytes_received_per_second"), now, max(0.0, sample.received - before.received) / span)
        add(Key(member.job, node, "cpu"), now, max(0.0, sample.cpu - before.cpu) / span)
        for name, new, old in (
            ("step_seconds", sample.steps, before.steps),
            ("staleness", sample.staleness, before.staleness),
        ):
            if (number := new[1] - old[1]) > 0:
                add(Key(member.job, node, name), now, (new[0] - old[0]) / number)
        if run is not None:
            self._count_steps(run, now)

    def _count_steps(self, run: JobRun, now: float) -> None:
        at, before = run.steps.delays.counted
        if now - at < 1.0:
            return
        steps = steps_of(run)
        run.steps.delays.counted = now, steps
        if at > float("-inf"):
            rate = max(0, steps - before) / (now - at) if run.steps.clock else _pushes_per_second(run)
            self.history.add(Key(run.name, "", "steps_per_second"), now, rate, steps)

    def view(self, asked: Watch, status: Mapping[str, Any], runs: Mapping[str, JobRun], now: float) -> dict[str, Any]:
        """Return the view of a cluster with this status, as plain data."""
        since = now - asked.span
        return {
            "now": round(now, 3),
            "status": status,
            "series": self.history.view(
                since, asked.points, every=asked.every, job=asked.job, node=asked.node, most=MAX_POINTS
            ),
            "series_given_up": self.history.num_given_up,
            "events": [
                {"t": round(e.at, 3), "kind": e.kind, "level": e.level, "job": e.job, "text": e.text}
                for e in self.events
                if e.at >= since
            ],
            "happened": dict(self.happened),
            "waits": list(step_waits(runs, now)),
            "awaited_s": {name: awaited for name, run in runs.items() if (awaited := waited_for(run))},
            "slowest": {
                name: slowest for name, run in runs.items() if (slowest := run.steps.delays.slowest(run.members))
            },
        }

    def validate(self) -> None:
        self.history.validate()
        assert len(self.events) <= MAX_EVENTS


def steps_of(run: JobRun) -> int:
    """Return a job's progress: its clock or, without one, the pushes of its workers."""
    return run.steps.clock or sum(worker.reported.num_pushes for worker in run.workers)


def _pushes_per_second(run: JobRun) -> float:
    """Return the pushes of all its workers, of each as counted between its last heartbeats."""
    samples: Iterable[CounterSample | None] = (worker.reported.sample for worker in run.workers)
    return sum(sample.pushes_per_second for sample in samples if sample is not None)


def waited_for(run: JobRun) -> dict[str, float]:
    """Return the total time that others have waited for a worker alone, by its name; the longest awaited ones."""
    longest = nlargest(MOST_WAITED_FOR, run.workers, key=lambda worker: worker.reported.awaited_s)
    awaited = {f"{worker.role} {worker.rank}": round(worker.reported.awaited_s, 3) for worker in longest}
    return {name: seconds for name, seconds in awaited.items() if seconds}


def step_waits(runs: Mapping[str, JobRun], now: float) -> Iterator[dict[str, Any]]:
    """Yield the workers that the open steps of jobs wait for, with a text."""
    for name, run in runs.items():
        since_s, awaited = run.steps.awaited(now)
        for member in awaited[:MOST_AWAITED]:
            node, host, seen_s = f"{member.role} {member.rank}", member.hello.host, now - member.seen_at
            doing = member.reported.doing
            text = f"step {run.steps.clock} waits {since_s:.1f} s for {node} on {host}: "
            text += f"last sign of life {seen_s:.1f} s ago{f', {doing}' if doing else ''}"
            facts = {"since_s": round(since_s, 3), "seen_s": round(seen_s, 3), "doing": doing, "text": text}
            yield {"job": name, "step": run.steps.clock, "node": node, "host": host, **facts}


def _number(counters: Mapping[str, Any], name: str) -> float:
    value = counters.get(name, 0)
    return float(value) if type(value) in (int, float) and isfinite(value) else 0.0


def _summed(counters: Mapping[str, Any], name: str) -> tuple[float, float]:
    """Return the sum of a histogram and its count."""
    value: Sequence[float] | None = counters.get(name)
    if value is None or not is_histogram(name, value):
        return 0.0, 0.0
    return float(value[0]), float(sum(value[1:]))
