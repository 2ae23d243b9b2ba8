"""The status as tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from zmqps.doctor.rows import Row, Verdict
from zmqps.errors import CheckpointError, ago, counted, listed, num_bytes, printable, seconds
from zmqps.keys import Entry, moment
from zmqps.trace.phases import Summary
from zmqps.trace.pushes import STAGES, PushTrace

if TYPE_CHECKING:
    from zmqps.checkpoint import Checkpoint

Facts = Mapping[str, Any]

PIPE_WIDTH = 200
#: What servers count of each sparse table, before its name.
SPARSE_COUNTERS = "rows", "rows_refused", "rows_expired"
COLOURS = {Verdict.GOOD: "green", Verdict.WARNING: "yellow", Verdict.WRONG: "bold red"}


def new_console() -> Console:
    """Return a console for tables; into a file or pipe they are as wide as they need."""
    console = Console()
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(width=PIPE_WIDTH)


def status_view(status: Facts) -> RenderableType:
    """Return the whole status."""
    parts: list[RenderableType] = [_headline(status), *(Text(f"• {text}", "yellow") for text in status["waiting"])]
    parts += [Text(f"• job {name!r}: {run['lost']}", "red") for name, run in status["jobs"].items() if run.get("lost")]
    for name, run in status["jobs"].items():
        if run["state"] == "training" and run.get("idle"):
            parts.append(Text(f"• job {name!r}: no node waits for {run['idle']}", "dim"))
    parts += [Text(f"• not shown: {text}", "yellow") for text in status.get("left_out", ())]
    if status["jobs"] or status["ended"]:
        parts.append(jobs_table(status["jobs"], status["ended"]))
    if status["members"] or status["gone"]:
        parts += [_nodes(status), _traffic(status)]
    for name, run in status["jobs"].items():
        if rows := run["job"].get("placement"):
            parts.append(placement_table(rows, f"placement of {name}"))
        if (held := sparse_table(run["servers"], f"sparse tables of {name}")) is not None:
            parts.append(held)
    return Group(*parts)


def jobs_table(jobs: Mapping[str, Facts], ended: Sequence[Facts]) -> Table:
    """Return a row for each job under way, and for the last of each name that has ended."""
    columns = "job", "state", "mode", "optimizer", ">parameters", ">bytes", ">workers", ">step", ">memory"
    table = _table("jobs", *columns)
    for name, run in jobs.items():
        job, servers = run["job"], run["servers"].values()
        memory = sum(_number(server, "arena_nbytes") for server in servers)
        step = max((_number(server, "version") for server in servers), default=0) if run["mode"] == "sync" else ""
        _add(
            table, name, run["state"], run["mode"], job.get("optimizer", {}).get("name", ""),
            job.get("parameters", ""), num_bytes(job.get("nbytes", 0)), run["workers"], step, num_bytes(memory),
        )  # fmt: skip
    for entry in ended:
        if entry["job"] not in jobs:
            how = Text(f"ended {ago(entry['ago_s'])}: {entry['how']}", "dim")
            _add(table, entry["job"], how, *[""] * 7)
    return table


def placement_table(rows: Sequence[Facts], title: str = "placement") -> Table:
    """Return which parameters are where, a row a shard."""
    sparse = any("buckets" in row for row in rows)  # of sparse tables
    columns = "shard", ">bytes", ">share", ">slices", ">parameters", "first", "last"
    table = _table(title, *columns, *([">buckets"] if sparse else []))
    for row in rows:
        _add(
            table, row["shard"], num_bytes(row["nbytes"]), f"{100 * row['share']:.2f} %", row["slices"],
            row["parameters"], row["first"], row["last"], *([row.get("buckets", 0)] if sparse else []),
        )  # fmt: skip
    return table


def sparse_table(servers: Mapping[str, Facts], title: str) -> Table | None:
    """Return what the sparse tables of a job hold, a row a table and server; None: it has none."""
    table = _table(title, "table", "server", ">rows", ">bytes", ">refused", ">expired")
    for server, counters in servers.items():
        for name in [counter.partition(".")[2] for counter in counters if counter.startswith("rows.")]:
            rows, refused, expired = (f"{_number(counters, f'{of}.{name}'):,}" for of in SPARSE_COUNTERS)
            _add(table, name, server, rows, num_bytes(_number(counters, f"row_nbytes.{name}")), refused, expired)
    return table if table.row_count else None


def phases_table(summary: Summary) -> Table:
    """Return what steps consisted of, a row a phase, in the order a message meets them."""
    title = f"{summary.steps} × {summary.operation}, the middle one {_milliseconds(summary.median_s)}"
    table = _table(title, "where", "phase", ">times", ">total", ">median", ">p90", ">active")
    table.caption = Text(
        "Of one step: times and total count every message on every node; active is the part of the step during which "
        "the phase ran anywhere. Phases overlap, so these parts add up to more than 100%."
    )
    table.caption_justify = "left"
    for phase in summary.phases:
        times = (_milliseconds(value) for value in (phase.total_s, phase.median_s, phase.p90_s))
        _add(table, phase.role, phase.name, f"{phase.count:.4g}", *times, f"{phase.share:.0%}")
    return table


def push_table(push: PushTrace, number: int) -> Table:
    """Return what the stages of a push took, of the message that was answered last."""
    part, begin, took = push.longest, push.operation.begin_us, push.operation.end_us - push.operation.begin_us
    where = f" to {part.server.title}" if part.server is not None else ""
    messages = f"the last answered of {counted(len(push.messages), 'message')}{where}"
    title = f"push {number}: {push.operation.name} of {push.worker.title}, {_milliseconds(took / 1e6)}; {messages}"
    table = _table(title, "stage", "what", ">from", ">took")
    for name, start, stop in part.stages():
        what = STAGES[name]
        if name in ("server", "commit") and part.applied and (name == "commit") == (part.committed is not None):
            apply_us = sum(span.end_us - span.begin_us for span in part.applied)
            what += f"; kernels: {_milliseconds(apply_us / 1e6)}"
        if name == "submit" and part.nbytes:
            what += f"; {part.nbytes / 1e6:.3g} MB"
        _add(table, name, what, _milliseconds((start - begin) / 1e6), _milliseconds((stop - start) / 1e6))
    if push.seen is None:
        _add(table, "seen", "by no pull that was recorded", "", "")
    else:
        by = f"first by {push.seen.worker.title}, in its request {push.seen.label.partition('-')[2]}"
        _add(table, "seen", by, _milliseconds((push.seen.at_us - begin) / 1e6), "")
    return table


def doctor_table(rows: Sequence[Row]) -> Table:
    """Return what the doctor has found, a row a check, what is wrong in red."""
    table = _table("", "where", "check", "", "found", "what to do")
    for row in rows:
        _add(table, row.where, row.check, Text(row.verdict, COLOURS[row.verdict]), row.found, row.advice)
    return table


def health_table(found: Facts) -> Table:
    """Return how soon each node answered; those that did not come first, in red."""
    table = _table("health", "node", "job", "name", "host", ">there and back", ">loop late", "last sign of life")
    for node in found["nodes"]:
        answered = node["state"] == "answered"
        took = Text(_milliseconds(node["latency_s"])) if answered else Text(node["state"], "bold red")
        late = _milliseconds(node["lag_s"]) if answered else ""
        seen = "now" if answered else ago(node["seen_s"])
        _add(table, f"{node['role']} {node['rank']}", node["job"], node["name"], node["host"], took, late, seen)
    _add(table, "coordinator", "", "", "", "", _milliseconds(found.get("lag_s", 0.0)), "now")
    return table


def keys_table(entries: Sequence[Entry], now: float) -> Table:
    """Return the keys that nodes accept, and those revoked."""
    table = _table("keys", "name", "role", "key", "made", "opens")
    for entry in entries:
        refusal = entry.refusal(now)
        until = f"until {moment(entry.expires)}" if entry.expires else "until it is revoked"
        ended = f"no more: revoked {moment(entry.revoked)}" if entry.revoked else "no more: expired"
        _add(table, entry.name, entry.role, f"{entry.public[:8]}…", moment(entry.made), ended if refusal else until)
    return table


def checkpoints_table(found: Sequence[tuple[str, Checkpoint | CheckpointError]]) -> Table:
    """Return a row for each checkpoint of a job, good or not."""
    table = _table("checkpoints", "checkpoint", ">version", "saved", ">bytes", "state")
    for path, one in found:
        name = path.rpartition("/")[2]
        if isinstance(one, CheckpointError):
            _add(table, name, "", "", "", Text(printable(one.what), "red"))
        else:
            saved = moment(one.manifest.created_at)
            upon = f", builds upon {one.manifest.base[0]}" if one.manifest.base else ""
            _add(table, name, one.version, saved, num_bytes(one.manifest.nbytes), f"looks whole{upon}")
    return table


def checkpoint_table(one: Checkpoint) -> Table:
    """Return what a checkpoint is of."""
    manifest, table = one.manifest, _table("checkpoint", "", "")
    job, parameters = manifest.job, manifest.job.parameters
    values = sum(parameter.size for parameter in parameters)
    rows = {
        "path": one.path,
        "job": printable(manifest.job_name),
        "mode": job.mode,
        "version": f"{one.version}, {manifest.kind}",
        "saved": f"{moment(manifest.created_at)} by zmqps {printable(manifest.zmqps)}",
        "made by": str(manifest.owner) if manifest.owner else "no cluster",
        "parameters": f"{len(parameters):,}, {values:,} elements, {num_bytes(one.keyspace.nbytes)}",
        "optimizer": printable(str(job.optimizer.get("name"))),
        "slots": ", ".join(manifest.slots) or "none",
        "shards": f"{len(manifest.shards)}, {num_bytes(manifest.nbytes)} in {counted(len(manifest.files), 'file')}",
        "data sets": len(manifest.data),
        "builds upon": manifest.base[0] if manifest.base else "no other",
        "own state": printable(listed(sorted(manifest.state), 8)) or "none",
    }
    for what, value in rows.items():
        _add(table, what, value)
    return table


def _milliseconds(value: float) -> str:
    return f"{1e3 * value:.3f} ms"


def _headline(status: Facts) -> Text:
    text = Text.assemble("cluster at ", (status["endpoint"], "bold"), ", ", (status["state"], "green"))
    text.append(f", up {seconds(status['uptime_s'])}; coordinator: {status['host']}, pid {status['pid']}")
    return text


def _nodes(status: Facts) -> Table:
    table = _table("nodes", "node", "job", "name", "host", ">pid", "endpoint", "device", "last sign of life")
    for member in status["members"]:
        _add(table, *_who(member), ago(member["silent_s"]))
    for member in status["gone"]:
        how = member["how"], "red" if member["how"] == "lost" else ""
        _add(table, *_who(member), Text.assemble(f"{ago(member['last_seen_ago_s'])}, ", how))
    return table


def _who(member: Facts) -> list[str]:
    endpoint = member["endpoint"].partition(" ")[0]  # what follows are other ways, for those on the same host
    named = f"{member['role']} {member['rank']}", member["job"], member["name"], member["host"], str(member["pid"])
    return [*named, endpoint, str(member["counters"].get("device", ""))]


def _traffic(status: Facts) -> Table:
    """Servers count what they received and sent, workers what they sent and received: both under the same heads."""
    columns = ">pushes", ">pulls", ">pushed", ">pulled", ">refused", ">memory", ">staleness"
    table = _table("traffic", "node", "job", *columns)
    for member in [*status["members"], *status["gone"]]:
        counters = member["counters"]
        cells = [f"{member['role']} {member['rank']}", member["job"]]
        cells += [str(_number(counters, key)) for key in ("pushes", "pulls")]
        if member["role"] == "server":
            cells += [num_bytes(_number(counters, key)) for key in ("pushed_nbytes", "pulled_nbytes")]
            cells += [str(_number(counters, "refused")), num_bytes(_number(counters, "arena_nbytes")), ""]
        else:
            cells += [num_bytes(_number(counters, key)) for key in ("bytes_sent", "bytes_received")]
            cells += [str(_number(counters, "nonfinite")), ""]
            cells.append(f"{_number(counters, 'staleness_mean'):.2f}, max {_number(counters, 'staleness_max')}")
        _add(table, *cells)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=Text(title), title_justify="left", title_style="bold", header_style="dim", box=SIMPLE_HEAD)
    for number, column in enumerate(columns):
        justify: JustifyMethod = "right" if column.startswith(">") else "left"
        table.add_column(column.lstrip(">"), justify=justify, overflow="fold", no_wrap=number == 0)
    return table


def _add(table: Table, *cells: object) -> None:
    """Add a row. A cell is text as it is: what a node calls itself is not markup."""
    table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells))


def _number(counters: Facts, name: str) -> float:
    """Return what a node counts: 0 where it says something else than a number."""
    value = counters.get(name, 0)
    return value if isinstance(value, int | float) else 0
