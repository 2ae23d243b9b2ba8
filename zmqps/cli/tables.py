"""The status as tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from zmqps.trace.phases import Summary

Facts = Mapping[str, Any]

PIPE_WIDTH = 200


def new_console() -> Console:
    """Return a console for tables; into a file or pipe they are as wide as they need."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPE_WIDTH)


def status_view(status: Facts) -> RenderableType:
    """Return the whole status."""
    parts: list[RenderableType] = [_headline(status), *(Text(f"• {text}", "yellow") for text in status["waiting"])]
    if status["jobs"] or status["ended"]:
        parts.append(jobs_table(status["jobs"], status["ended"]))
    if status["members"] or status["gone"]:
        parts += [_nodes(status), _traffic(status)]
    for name, run in status["jobs"].items():
        if rows := run["job"].get("placement"):
            parts.append(placement_table(rows, f"placement of {name}"))
    return Group(*parts)


def jobs_table(jobs: Mapping[str, Facts], ended: Sequence[Facts]) -> Table:
    """Return a row for each job under way, and for the last of each name that has ended."""
    columns = "job", "state", "mode", "optimizer", ">parameters", ">bytes", ">workers", ">step", ">memory"
    table = _table("jobs", *columns)
    for name, run in jobs.items():
        job, servers = run["job"], run["servers"].values()
        memory = sum(server.get("arena_nbytes", 0) for server in servers)
        step = max((server.get("version", 0) for server in servers), default=0) if run["mode"] == "sync" else ""
        table.add_row(
            escape(name), escape(run["state"]), run["mode"], job.get("optimizer", {}).get("name", ""),
            str(job.get("parameters", "")), num_bytes(job.get("nbytes", 0)), str(run["workers"]), str(step),
            num_bytes(memory),
        )  # fmt: skip
    for entry in ended:
        if entry["job"] not in jobs:
            how = f"[dim]ended {_duration(entry['ago_s'])} ago: {escape(entry['how'])}[/dim]"
            table.add_row(escape(entry["job"]), how, *[""] * 7)
    return table


def placement_table(rows: Sequence[Facts], title: str = "placement") -> Table:
    """Return which parameters are where, a row a shard."""
    table = _table(title, "shard", ">bytes", ">share", ">slices", ">parameters", "first", "last")
    for row in rows:
        table.add_row(
            str(row["shard"]), num_bytes(row["nbytes"]), f"{100 * row['share']:.2f} %", str(row["slices"]),
            str(row["parameters"]), escape(row["first"]), escape(row["last"]),
        )  # fmt: skip
    return table


def phases_table(summary: Summary) -> Table:
    """Return what steps consisted of, a row a phase, in the order a message meets them."""
    title = f"{summary.steps} × {summary.operation}, the middle one {_milliseconds(summary.median_s)}"
    table = _table(title, "where", "phase", ">a step", ">in all, a step", ">median", ">p90", ">share")
    for phase in summary.phases:
        times = (_milliseconds(value) for value in (phase.total_s, phase.median_s, phase.p90_s))
        table.add_row(phase.role, phase.name, f"{phase.count:.4g}", *times, f"{phase.share:.0%}")
    return table


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms"


def _headline(status: Facts) -> Text:
    text = Text.assemble("cluster at ", (status["endpoint"], "bold"), ", ", (status["state"], "green"))
    text.append(f", up {_duration(status['uptime_s'])}")
    return text


def _nodes(status: Facts) -> Table:
    table = _table("nodes", "node", "job", "name", "host", ">pid", "endpoint", "device", "last sign of life")
    for member in status["members"]:
        table.add_row(*_who(member), f"{_duration(member['silent_s'])} ago")
    for member in status["gone"]:
        how = "[red]lost[/red]" if member["how"] == "lost" else member["how"]
        table.add_row(*_who(member), f"{_duration(member['last_seen_ago_s'])} ago, {how}")
    return table


def _who(member: Facts) -> list[str]:
    endpoint = member["endpoint"].partition(" ")[0]  # what follows are other ways, for those on the same host
    who = f"{member['role']} {member['rank']}", member["job"], member["name"], member["host"], str(member["pid"])
    return [escape(text) for text in (*who, endpoint, str(member["counters"].get("device", "")))]


def _traffic(status: Facts) -> Table:
    """Servers count what they received and sent, workers what they sent and received: both under the same heads."""
    columns = ">pushes", ">pulls", ">pushed", ">pulled", ">refused", ">memory", ">staleness"
    table = _table("traffic", "node", "job", *columns)
    for member in [*status["members"], *status["gone"]]:
        counters = member["counters"]
        cells = [f"{member['role']} {member['rank']}", escape(member["job"])]
        cells += [str(counters.get(key, 0)) for key in ("pushes", "pulls")]
        if member["role"] == "server":
            cells += [num_bytes(counters.get(key, 0)) for key in ("pushed_nbytes", "pulled_nbytes")]
            cells += [str(counters.get("refused", 0)), num_bytes(counters.get("arena_nbytes", 0)), ""]
        else:
            cells += [num_bytes(counters.get(key, 0)) for key in ("bytes_sent", "bytes_received")]
            cells += [str(counters.get("nonfinite", 0)), ""]
            cells.append(f"{counters.get('staleness_mean', 0):.2f}, max {counters.get('staleness_max', 0)}")
        table.add_row(*cells)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim", box=SIMPLE_HEAD)
    for number, column in enumerate(columns):
        justify: JustifyMethod = "right" if column.startswith(">") else "left"
        table.add_column(column.lstrip(">"), justify=justify, overflow="fold", no_wrap=number == 0)
    return table


def num_bytes(number: float) -> str:
    """Return a number of bytes in words: 512 B, 1.05 MB."""
    if number < 1000:
        return f"{number:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        number /= 1000
        if number < 999.5 or unit == "TB":
            break
    return f"{number:.3g} {unit}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
