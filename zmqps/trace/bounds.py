"""What bounds a step: each moment of it is given to one thing, and the one that takes most is named, with its bound.

A step of a worker goes from one call to the next of the same kind. A moment of it belongs to the first of these that
is under way for one of its messages: kernels, checks and codecs, the wire, waiting for others. What is left of a call
are the library's own turns; what is left of a step, outside of calls, is the training script's: compute.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from zmqps.errors import num_bytes, seconds
from zmqps.trace.merge import Process, Trace
from zmqps.trace.phases import OPERATIONS, Interval, Intervals, difference, intersection, length, union
from zmqps.trace.pushes import PUSHING, Message, followed

#: What may take a step's time, the first ones first.
KINDS = ("apply", "check", "codec", "wire", "wait", "own")
#: What the coordinator says when a worker that has waited for others may continue.
TELLING = ("Proceed", "Released", "Committed")
#: Below this a step's messages take the time that they take, whatever is in them: 0.1 ms at a gigabyte a second.
FEW_NBYTES = 100_000
#: Of what a worker waits for, so much is one other worker's doing: then it is the straggler.
STRAGGLER = 0.6


@dataclass(slots=True, kw_only=True)
class WorkerSteps:
    """The steps of one worker: how many, how long the mean one, and of that what each thing took, in microseconds.

    ``waited_for`` has the time by whose push came last; ``fastest`` has of each thing, by the bytes it is done to, the
    microseconds a byte of the step in which that was least.
    """

    worker: Process
    num_steps: int
    step_us: float
    took_us: dict[str, float]
    nbytes: float
    fastest: dict[str, float]
    waited_for: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What bounds the steps of a trace.

    Attributes
    ----------
    kind
        ``compute``, ``check``, ``codec``, ``wire``, ``apply``, ``barrier``, ``straggler`` or ``own``.
    step_s, took_s, bound_s
        The mean step, what that takes of it, and how short that could be.
    nbytes
        What a step moves, both ways.
    worker
        The worker of these steps: the median one by its waits, or the straggler.
    text
        All that in a sentence.
    """

    kind: str
    step_s: float
    took_s: float
    bound_s: float
    nbytes: float
    worker: str
    text: str


def bound(trace: Trace) -> Bound | None:
    """Return what bounds a step; None where no worker has done two."""
    found = [steps for worker in trace.processes if (steps := _steps(worker, trace)) is not None]
    if not found:
        return None
    found.sort(key=lambda steps: steps.took_us["wait"] / steps.step_us)
    middle = found[len(found) // 2]
    return _said(middle, found)


def _said(steps: WorkerSteps, everybody: Sequence[WorkerSteps]) -> Bound:
    took = steps.took_us
    kind = max(took, key=lambda name: took[name])
    step, share = _time(steps.step_us), _time(took[kind])
    least = took[kind]
    who = steps.worker.title
    if kind == "compute":
        text = (
            f"A step of {step} is bound by compute: {share} of it are the training script's own; no step is shorter "
            f"than those {share} unless pushes and pulls overlap with it"
        )
    elif kind == "wait":
        return _waiting(steps, everybody)
    elif kind == "wire":
        least = steps.fastest.get(kind, took[kind])
        text = (
            f"A step of {step} is bound by the wire: {share} of it move {num_bytes(steps.nbytes)} at "
            f"{_rate(steps.nbytes, took[kind])}; the wire's bound is {_time(least)}, as in the quickest step seen"
        )
        if steps.nbytes < FEW_NBYTES:
            text += "; so few bytes take no time, but messages do: fewer, larger ones, or more to compute between them"
    elif kind == "own":
        text = (
            f"A step of {step} is bound by zmqps' own turns: {share} of it pass between messages, and no message is "
            "under way; fewer, larger calls make fewer of them"
        )
    else:
        least = steps.fastest.get(kind, took[kind])
        what = {
            "apply": ("apply", "update values on the servers", "more servers or apply threads share it"),
            "check": (
                "the check",
                "look for NaN and infinity in gradients",
                'init(gradients=zmqps.Gradients(nonfinite="allow")) leaves it out',
            ),
            "codec": ("the codec", "encode and decode arrays", "raw does without"),
        }[kind]
        text = (
            f"A step of {step} is bound by {what[0]}: {share} of it {what[1]}; its bound is {_time(least)}, as in the "
            f"quickest step seen, and {what[2]}"
        )
    return Bound(
        kind=kind, step_s=steps.step_us / 1e6, took_s=took[kind] / 1e6, bound_s=least / 1e6, nbytes=steps.nbytes,
        worker=who, text=text,
    )  # fmt: skip


def _waiting(steps: WorkerSteps, everybody: Sequence[WorkerSteps]) -> Bound:
    waited, step = steps.took_us["wait"], steps.step_us
    name, share = max(steps.waited_for.items(), key=lambda item: item[1], default=("", 0.0))
    total = sum(steps.waited_for.values())
    others = step - waited
    if name and share >= STRAGGLER * total:
        kind, who = "straggler", name
        text = (
            f"A step of {_time(step)} is bound by a straggler: it waits {_time(waited)} for others, "
            f"{share / total:.0%} of that for {name}; without waiting it would take {_time(others)}"
        )
    else:
        kind, who = "barrier", steps.worker.title
        slowest = max(one.step_us - one.took_us["wait"] for one in everybody)
        by_time = sorted(steps.waited_for.items(), key=lambda item: -item[1])
        last = ", ".join(f"{who} {part / total:.0%}" for who, part in by_time[:3])
        text = (
            f"A step of {_time(step)} is bound by the barrier: it waits {_time(waited)} for others"
            f"{f', not for one alone ({last})' if last else ''}; without waiting it would take {_time(others)}, the "
            f"slowest worker's {_time(slowest)}"
        )
    return Bound(
        kind=kind, step_s=step / 1e6, took_s=waited / 1e6, bound_s=others / 1e6, nbytes=steps.nbytes, worker=who,
        text=text,
    )  # fmt: skip


# --- where the time of one worker's steps goes --------------------------------------------------


def _steps(worker: Process, trace: Trace) -> WorkerSteps | None:
    """Return what a worker's steps consist of; None where it has done fewer than two."""
    calls = [span for span in worker.spans if span.role == "operation" and span.name in OPERATIONS]
    name = next((name for name in (*PUSHING[::-1], "pull") if sum(call.name == name for call in calls) > 1), None)
    if name is None:
        return None
    begins = sorted(call.begin_us for call in calls if call.name == name)
    windows = list(pairwise(begins))
    taken, waited_for, nbytes = _taken(worker, trace)
    within = union((call.begin_us, call.end_us) for call in calls)
    total = [(begins[0], begins[-1])]
    left = difference(within, union(chain.from_iterable(taken.values())))
    told = sorted(span.begin_us for span in worker.spans if span.facts.get("message") in TELLING)
    for start, stop in left:  # the coordinator has said that it may continue: what was before that was a wait as well
        at = bisect_left(told, start)
        if at < len(told) and told[at] <= stop:
            taken["wait"].append((start, told[at]))
    taken["wait"].sort()
    left = difference(left, taken["wait"])
    took = {kind: length(intersection(taken[kind], total)) / len(windows) for kind in KINDS if kind != "own"}
    took["own"] = length(intersection(left, total)) / len(windows)
    step_us = (begins[-1] - begins[0]) / len(windows)
    took["compute"] = max(0.0, step_us - sum(took.values()))
    per_step = {kind: _of_windows(taken[kind], windows) for kind in ("apply", "check", "codec", "wire")}
    moved = _bytes_of_windows(nbytes, windows)
    return WorkerSteps(
        worker=worker, num_steps=len(windows), step_us=step_us, took_us=took, nbytes=float(np.mean(moved)),
        fastest={kind: _least(times, moved) for kind, times in per_step.items()},
        waited_for={who: us / len(windows) for who, us in waited_for.items()},
    )  # fmt: skip


def _least(times: Sequence[float], moved: Sequence[float]) -> float:
    """Return what the mean step would take at the best pace that a step has had; what moves nothing has none."""
    paces = [time / nbytes for time, nbytes in zip(times, moved, strict=True) if nbytes > 0 and time > 0]
    return float(min(paces) * np.mean(moved)) if paces else float(np.mean(times))


def _of_windows(intervals: Intervals, windows: Sequence[Interval]) -> list[float]:
    """Return how much of each window, which follow on each other, some intervals cover."""
    ends = np.array([0.0, *np.cumsum([stop - start for start, stop in intervals])])
    starts = np.array([start for start, _ in intervals])

    def before(at: float) -> float:
        number = int(np.searchsorted(starts, at))
        covered = float(ends[number])
        return covered - max(0.0, intervals[number - 1][1] - at) if number else 0.0

    return [before(stop) - before(start) for start, stop in windows]


def _bytes_of_windows(nbytes: Sequence[tuple[float, int]], windows: Sequence[Interval]) -> list[float]:
    ordered = sorted(nbytes)
    times, sums = [at for at, _ in ordered], np.array([0, *np.cumsum([n for _, n in ordered])])
    return [float(sums[np.searchsorted(times, b)] - sums[np.searchsorted(times, a)]) for a, b in windows]


def _taken(worker: Process, trace: Trace) -> tuple[dict[str, Intervals], dict[str, float], list[tuple[float, int]]]:
    """Return when each thing was under way for a worker, one at a time; what it waited for; and when it moved bytes."""
    everything = followed(trace)
    prefix = _prefix(worker)
    own = [part for label, part in everything.items() if prefix is not None and label.startswith(f"{prefix}-")]
    raw: dict[str, list[Interval]] = defaultdict(list)
    nbytes: list[tuple[float, int]] = []
    for span in worker.spans:
        if span.name == "check":
            raw["check"].append((span.begin_us, span.end_us))
        elif span.name in ("encode", "decode"):
            raw["codec"].append((span.begin_us, span.end_us))
    arrivals = _arrivals(everything)
    busy = {id(process): _server_work(process) for process in trace.processes if process is not worker}
    waited_for: dict[str, float] = defaultdict(float)
    for part in own:
        _take_message(part, raw, busy)
        for sent in (part.sent, part.replied):
            if sent is not None:
                nbytes.append((sent.begin_us, sent.facts.get("nbytes", 0)))
        if part.served is not None and part.replied is not None and part.replied.begin_us > part.served.end_us:
            raw["wait"].append((part.served.end_us, part.replied.begin_us))
    taken: dict[str, Intervals] = {}
    before: Intervals = []
    for kind in KINDS[:-1]:
        taken[kind] = difference(union(raw[kind]), before)
        before = union([*before, *taken[kind]])
    for part in own:
        if part.served is not None and part.replied is not None:
            window = [(part.served.end_us, part.replied.begin_us)]
            last = _last_before(arrivals.get(id(part.server), []), part.served.end_us, part.replied.begin_us)
            if last is not None and not last.startswith(f"{prefix}-"):
                waited_for[last.partition("-")[0]] += length(intersection(taken["wait"], union(window)))
    titles = {prefix_: process.title for process in trace.processes if (prefix_ := _prefix(process)) is not None}
    named = {titles.get(who, f"worker {who}"): time for who, time in waited_for.items()}
    return taken, named, nbytes


def _take_message(part: Message, raw: Mapping[str, list[Interval]], busy: Mapping[int, dict[str, Intervals]]) -> None:
    """Note when what was under way for a message."""
    for span in part.applied:
        raw["apply"].append((span.begin_us, span.end_us))
    ways: list[Interval] = []
    for sent, came in ((part.sent, part.came), (part.replied, part.back)):
        if sent is not None and came is not None:
            ways.append((sent.begin_us, max(sent.end_us, came.begin_us)))
            ways.append((came.begin_us, came.end_us))
    for work in (part.served, part.landed):  # copies and headers: as much the way as what moves them
        if work is not None:
            ways.append((work.begin_us, work.end_us))
    raw["wire"] += ways
    there = union(ways[:1]) if part.sent is not None and part.came is not None else []
    for kind, times in busy.get(id(part.server), {}).items():  # the server works for others, or for this one
        raw[kind] += intersection(there, times)
        if part.served is not None:
            raw[kind] += intersection([(part.served.begin_us, part.served.end_us)], times)


def _server_work(process: Process) -> dict[str, Intervals]:
    """Return when a server works at what."""
    kinds = {"apply": ("apply",), "check": ("check",), "codec": ("encode", "decode")}
    spans: dict[str, list[Interval]] = defaultdict(list)
    for span in process.spans:
        for kind, names in kinds.items():
            if span.name in names:
                spans[kind].append((span.begin_us, span.end_us))
    return {kind: union(some) for kind, some in spans.items()}


def _arrivals(everything: Mapping[str, Message]) -> dict[int, list[tuple[float, str]]]:
    """Return when which push came to a server, by that server."""
    arrivals: dict[int, list[tuple[float, str]]] = defaultdict(list)
    for label, part in everything.items():
        if part.served is not None and "Push" in part.served.facts.get("message", ""):
            arrivals[id(part.server)].append((part.served.begin_us, label))
    for some in arrivals.values():
        some.sort()
    return arrivals


def _last_before(arrivals: Sequence[tuple[float, str]], begin: float, end: float) -> str | None:
    """Return the push that came last while a worker waited."""
    at = bisect_left(arrivals, (end, "")) - 1
    return arrivals[at][1] if at >= 0 and arrivals[at][0] >= begin else None


def _prefix(process: Process) -> str | None:
    """Return how the names of a worker's requests begin; None of another node."""
    for span in process.spans:
        if span.name == "queue" and (label := span.facts.get("request")) is not None:
            return str(label).partition("-")[0]
    return None


def _time(us: float) -> str:
    return seconds(us / 1e6)


def _rate(nbytes: float, us: float) -> str:
    return f"{num_bytes(nbytes / us * 1e6)}/s" if us else "any speed"
