"""What a view of a cluster amounts to: rows, sparklines and sentences, without a terminal.

A view is what the coordinator answers: plain data that may lack anything, for it may be older or newer than this, or
have left something out. What is not known is empty here, never wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isfinite
from statistics import median
from typing import Any

from zmqps.errors import ago, counted, listed, seconds

#: From the least to the most.
BLOCKS = "▁▂▃▄▅▆▇█"
#: A sentence names this many nodes.
MOST_NAMED = 6
#: What a column has room for; of a longer one the exponent would be cut.
MAX_NUMBER_CHARS = 8


def number(value: float | None) -> str:
    """Return a number in few characters; nothing where it is not known."""
    if value is None:
        return ""
    text = f"{value:.4g}"
    return text if len(text) <= MAX_NUMBER_CHARS else f"{value:.2g}"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """Return the last values as one character each, or the means of stretches where there are more than fit."""
    known = [value for value in values if value is not None and isfinite(value)]
    if not known or width < 1:
        return ""
    if len(known) > width:
        cuts = [len(known) * i // width for i in range(width + 1)]
        known = [sum(known[a:b]) / (b - a) for a, b in pairwise(cuts)]
    least, most = min(known), max(known)
    span = most - least
    if span <= 0:
        return BLOCKS[0] * len(known)
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int((value - least) / span * len(BLOCKS)))] for value in known)


def health_sentence(found: Mapping[str, Any]) -> str:
    """Return in a sentence how the nodes are that were examined."""
    nodes = found["nodes"]
    silent = [f"{node['role']} {node['rank']} on {node['host']}" for node in nodes if node["state"] == "silent"]
    answered = [node for node in nodes if node["state"] == "answered"]
    if not nodes:
        return "only the coordinator is there"
    left_out = found.get("left_out", 0)
    all_ = f"all {counted(len(answered) + left_out, 'node')} answer" if len(answered) != 1 else "the one node answers"
    if silent:
        others = "; the others do" if answered else ""
        return f"{listed(silent, MOST_NAMED)} {'does' if len(silent) == 1 else 'do'} not answer{others}"
    slowest = max(answered, key=lambda node: node["latency_s"], default=None)
    if slowest is None:
        return "no node is left"
    return f"{all_}, the slowest in {seconds(slowest['latency_s'])} ({slowest['role']} {slowest['rank']})"


#: A worker whose steps take this many times the median of the others is called slow.
SLOW = 1.5
#: A longer wait is shown in red; steps wait for a moment all the time.
LONG_WAIT_S = 3.0
#: A node that has not been heard for so long is called silent; heartbeats come every second unless told otherwise.
SILENT_S = 3.0

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A member, as far as it is known."""

    title: str  # worker 2
    job: str
    name: str
    host: str
    pid: int
    seen_s: float | None
    cpu: float | None = None  # share of one core
    rss: float | None = None
    sent: float | None = None  # bytes a second
    received: float | None = None
    step_s: float | None = None
    staleness: float | None = None
    slow_by: float | None = None  # its steps over the median of the others; None: they take no longer
    is_slow: bool = False  # that, or it comes last to step after step
    doing: str = ""
    counters: Facts = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What tells it from all others."""
        return f"{self.job}/{self.title}"

    @property
    def node(self) -> str:
        """How `zmqps stack` finds it, whatever others call themselves."""
        return f"{self.job}/{self.title}" if self.job else self.title

    @property
    def log(self) -> str:
        """How its log is called; that of a worker it says itself, for its rank is not its number on its host."""
        return str(self.counters.get("log") or self.name)

    @property
    def is_silent(self) -> bool:
        """Whether it has not been heard for long."""
        return self.seen_s is not None and self.seen_s > SILENT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job under way."""

    name: str
    state: str
    mode: str
    workers: int | None
    step: int | None
    rate: float | None  # steps a second
    label: str  # of the value that is drawn; empty: nothing is logged
    last: float | None
    points: tuple[float, ...]

    def spark(self, width: int) -> str:
        """Return the value as it went."""
        return sparkline(self.points, width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """All that is shown of one view."""

    endpoint: str
    state: str
    headline: str
    waits: tuple[tuple[str, bool], ...]  # sentences, and whether they are alarming
    slow: tuple[str, ...]  # sentences about workers that keep others waiting
    jobs: tuple[JobRow, ...]
    nodes: tuple[NodeRow, ...]
    values: tuple[str, ...]  # what is logged, by name

    def of_job(self, job: str) -> tuple[NodeRow, ...]:
        """Return the nodes of a job, and those of all; of every job where it is empty."""
        return tuple(node for node in self.nodes if not job or node.job in ("", job))


def read(view: Facts, value: str = "") -> Model:
    """Return what a view amounts to.

    Parameters
    ----------
    view
        As `zmqps.nodes.inquiry.ask_view` returns it.
    value
        Which of the logged values is drawn; where there is no such one, the loss, or else the first.
    """
    status = _map(view.get("status"))
    series = _Series(view)
    jobs = tuple(_job(name, _map(run), series, value) for name, run in _map(status.get("jobs")).items())
    waits = [_map(wait) for wait in _list(view.get("waits"))]
    doing = {(str(wait.get("job", "")), str(wait.get("node", ""))): str(wait.get("doing", "")) for wait in waits}
    nodes = _with_slow(view, [_node(_map(member), series, doing) for member in _list(status.get("members"))])
    order = {"server": 1, "worker": 0}
    nodes.sort(key=lambda node: (order.get(node.title.partition(" ")[0], 2), node.job, _rank(node.title)))
    sentences = [(str(wait.get("text", "")), (_float(wait.get("since_s")) or 0.0) > LONG_WAIT_S) for wait in waits]
    said = tuple(f"job {str(wait.get('job', ''))!r}: step waits for" for wait in waits)  # which is said above
    texts = [str(text) for text in _list(status.get("waiting"))]
    sentences += [(text, True) for text in texts if not (said and text.startswith(said))]
    sentences += [(f"job {name!r}: {run['lost']}", True) for name, run in _map(status.get("jobs")).items()
                  if _map(run).get("lost")]  # fmt: skip
    return Model(
        endpoint=str(status.get("endpoint", "")),
        state=str(status.get("state", "")),
        headline=_headline(status),
        waits=tuple((text, alarming) for text, alarming in sentences if text),
        slow=tuple(_slow(view, nodes)),
        jobs=jobs,
        nodes=tuple(nodes),
        values=tuple(series.values),
    )


class _Series:
    """The series of a view, to be found by whose they are."""

    def __init__(self, view: Facts) -> None:
        self.figures: dict[tuple[str, str, str], Facts] = {}
        self.logged: dict[tuple[str, str], list[Facts]] = {}  # by job and name: of each node that logs it
        self.values: dict[str, None] = {}
        for one in map(_map, _list(view.get("series"))):
            job, node, name = (str(one.get(key, "")) for key in ("job", "node", "name"))
            if one.get("kind") == "value":
                self.logged.setdefault((job, name), []).append(one)
                self.values[name] = None
            else:
                self.figures[job, node, name] = one

    def last(self, job: str, node: str, name: str) -> float | None:
        """Return the newest value of a figure."""
        points = _points(self.figures.get((job, node, name), {}))
        return points[-1] if points else None

    def value(self, job: str, wanted: str) -> tuple[str, tuple[float, ...], float | None]:
        """Return what of the logged values of a job is drawn: its name, its course, and the newest of it."""
        names = [name for of, name in self.logged if of == job]
        loss = next((name for name in names if "loss" in name.lower()), "")
        name = wanted if wanted in names else loss or next(iter(names), "")
        if not name:
            return "", (), None
        # of several workers the one that has logged last
        newest = max(self.logged[job, name], key=_newest_at)
        points = _points(newest)
        last = _float(newest.get("last"))
        return name, points, last if last is not None else points[-1] if points else None


def _job(name: str, run: Facts, series: _Series, value: str) -> JobRow:
    servers = [_map(server) for server in _map(run.get("servers")).values()]
    steps = [step for server in servers if (step := _float(server.get("version"))) is not None]
    rate = series.figures.get((name, "", "steps_per_second"), {})
    step = _float(rate.get("step"))
    label, points, last = series.value(name, value)
    return JobRow(
        name=name, state=str(run.get("state", "")), mode=str(run.get("mode", "")), workers=_whole(run.get("workers")),
        step=_whole(step if step is not None else max(steps, default=None)),
        rate=series.last(name, "", "steps_per_second"), label=label, last=last, points=points,
    )  # fmt: skip


def _node(member: Facts, series: _Series, doing: Mapping[tuple[str, str], str]) -> NodeRow:
    title, job = f"{member.get('role', '?')} {member.get('rank', '?')}", str(member.get("job", ""))
    counters = _map(member.get("counters"))

    def figure(name: str) -> float | None:
        return series.last(job, title, name)

    rss = figure("rss_nbytes")
    return NodeRow(
        title=title, job=job, name=str(member.get("name", "")), host=str(member.get("host", "")),
        pid=_whole(member.get("pid")) or 0, seen_s=_float(member.get("silent_s")), cpu=figure("cpu"),
        rss=rss if rss is not None else _float(counters.get("rss_nbytes")), sent=figure("bytes_sent_per_second"),
        received=figure("bytes_received_per_second"), step_s=figure("step_seconds"),
        staleness=figure("staleness") if figure("staleness") is not None else _float(counters.get("staleness_mean")),
        doing=doing.get((job, title), "") or str(counters.get("doing", "")), counters=counters,
    )  # fmt: skip


def _with_slow(view: Facts, nodes: Sequence[NodeRow]) -> list[NodeRow]:
    """Note which workers take far longer for a step than the others of their job, or come last to each."""
    last = _last(view)
    found: list[NodeRow] = []
    for node in nodes:
        others = [o.step_s for o in nodes if o.job == node.job and o is not node and o.step_s and "worker" in o.title]
        typical = median(others) if others else 0.0
        ratio = node.step_s / typical if node.step_s and typical > 0 and node.title.startswith("worker") else 0.0
        slow_by = ratio if ratio >= SLOW else None
        found.append(replace(node, slow_by=slow_by, is_slow=slow_by is not None or (node.job, node.title) in last))
    return found


def _last(view: Facts) -> set[tuple[str, str]]:
    """Return the workers that arrive last in step after step, by job and title, as the coordinator sees it."""
    return {(job, str(_map(one).get("node"))) for job, one in _map(view.get("slowest")).items() if _map(one)}


def _slow(view: Facts, nodes: Sequence[NodeRow]) -> list[str]:
    """Return sentences: the stragglers that the coordinator reports, and the workers with longer steps."""
    found = [str(text) for one in _map(view.get("slowest")).values() if (text := _map(one).get("text"))]
    named = _last(view)
    for node in sorted(nodes, key=lambda node: -(node.slow_by or 0.0)):
        if node.slow_by is not None and (node.job, node.title) not in named:
            took = f"{seconds(node.step_s)} a step, {node.slow_by:.1f} × the median of the others"
            found.append(f"{node.title} on {node.host} is slow: {took}")
    return found


def _headline(status: Facts) -> str:
    if not status:
        return ""
    members = [str(_map(member).get("role")) for member in _list(status.get("members"))]
    there = [counted(members.count(role), role) for role in ("server", "worker", "observer") if role in members]
    up = _float(status.get("uptime_s"))
    parts = [str(status.get("state", "")), f"up {seconds(up)}" if up is not None else "", *there]
    return " · ".join(part for part in parts if part)


def details(node: NodeRow) -> list[str]:
    """Return all that is known of a node, a line each."""
    lines = [
        f"{node.title}{f' of job {node.job!r}' if node.job else ''}: {node.name}",
        f"host {node.host}, pid {node.pid}, last sign of life {ago(node.seen_s)}",
    ]
    if node.slow_by is not None:
        lines.append(f"its steps take {node.slow_by:.1f} × the median of the others")
    if node.doing:
        lines.append(f"doing: {node.doing}")
    lines.append("")
    plain = {name: value for name, value in node.counters.items() if not isinstance(value, list | dict)}
    width = max(map(len, plain), default=0)
    lines += [f"{name:<{width}}  {number(value) if _float(value) is not None else value}"
              for name, value in sorted(plain.items())]  # fmt: skip
    return lines


# --- plain data that may be anything -----------------------------------------------------------


def _points(one: Facts) -> tuple[float, ...]:
    """Return the means of a series' points."""
    means = [
        _float(point[1]) for point in _list(one.get("points")) if isinstance(point, list | tuple) and len(point) > 1
    ]
    return tuple(mean for mean in means if mean is not None)


def _newest_at(one: Facts) -> float:
    """Return when the newest point of a series was."""
    last = _list(one.get("points"))[-1:]
    return (_float(last[0][0]) if last and _list(last[0]) else None) or 0.0


def _map(value: object) -> Facts:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _float(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and isfinite(value) else None  # type: ignore[arg-type]


def _whole(value: object) -> int | None:
    found = _float(value)
    return None if found is None else int(found)


def _rank(title: str) -> int:
    rank = title.rpartition(" ")[2]
    return int(rank) if rank.isdigit() else -1
