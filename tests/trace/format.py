"""What Perfetto and chrome://tracing demand of a file in the Trace Event Format, and what they make nonsense of."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

#: Phase -> what an event of it needs besides ``name``, ``ph`` and ``pid``.
NEEDS = {
    "M": {"args"}, "X": {"cat", "ts", "dur", "tid"}, "b": {"cat", "ts", "id", "tid"}, "e": {"cat", "ts", "id", "tid"},
    "s": {"cat", "ts", "id", "tid"}, "t": {"cat", "ts", "id", "tid"}, "f": {"cat", "ts", "id", "tid", "bp"},
}  # fmt: skip


def violations(path: Path) -> list[str]:
    """Return what is wrong with a file, in words."""
    whole = json.loads(path.read_text())
    events = whole["traceEvents"]
    found = [f"{event}: {what}" for event in events if (what := _wrong(event))]
    return found or [*_unpaired(events), *_not_nested(events), *_loose_arrows(events)]


def _wrong(event: dict[str, Any]) -> str:
    needs = NEEDS.get(event.get("ph", ""))
    if needs is None:
        return "no such phase"
    if missing := (needs | {"name", "pid"}) - event.keys():
        return f"lacks {missing}"
    numbers = [event[name] for name in ("ts", "dur") if name in event]
    if not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):
        return "its times are no numbers"
    if event.get("dur", 0) < 0:
        return "ends before it begins"
    whole = [event[name] for name in ("pid", "tid") if name in event]
    return "" if all(type(number) is int for number in whole) else "its place is no number"


def _unpaired(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Each wait begins once and ends once, later; each arrow begins once and ends once."""
    by_id: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in "bestf":
            by_id[event["pid"] if event["ph"] in "be" else "", event["cat"], event["id"]].append(event)
    for key, some in by_id.items():
        some.sort(key=lambda event: event["ts"])
        kinds = "".join(event["ph"] for event in some)
        if sorted(kinds.replace("t", "")) not in (["b", "e"], ["f", "s"]):
            yield f"{key} has {kinds}"
        if len({event["name"] for event in some}) > 1:
            yield f"{key} has several names"


def _not_nested(events: Sequence[dict[str, Any]], slack_us: float = 1e-3) -> Iterator[str]:
    """What runs in one thread lies within each other or one after the other."""
    threads: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    for thread, some in threads.items():
        open_: list[float] = []
        for event in sorted(some, key=lambda event: (event["ts"], -event["dur"])):
            begin, end = event["ts"], event["ts"] + event["dur"]
            while open_ and open_[-1] <= begin + slack_us:
                open_.pop()
            if open_ and end > open_[-1] + slack_us:
                yield f"{thread}: {event['name']} at {begin} lasts longer than what it is within"
            open_.append(end)


def _loose_arrows(events: Sequence[dict[str, Any]], slack_us: float = 1e-3) -> Iterator[str]:
    """An arrow begins and ends within something that its thread does, else it is not drawn."""
    threads: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for event in events:
        if event["ph"] in "stf":
            at, spans = event["ts"], threads[event["pid"], event["tid"]]
            if not any(begin - slack_us <= at <= end + slack_us for begin, end in spans):
                yield f"an arrow {event['name']} ({event['ph']}) at {at} leads to nothing"
