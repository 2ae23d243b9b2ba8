"""Which columns fit into a terminal, and their content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from zmqps.errors import ago, num_bytes, seconds
from zmqps.top.model import JobRow, NodeRow, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table.

    Parameters
    ----------
    title
        Its head.
    width
        In characters, with a space to the next one.
    text
        Its content.
    rank
        Those with the highest are left out first where there is no room; 0: never.
    right
        Whether it is flush right, as numbers are.
    style
        How it looks, of a row.
    """

    title: str
    width: int
    text: Callable[[Any], str]
    rank: int = 0
    right: bool = False
    style: Callable[[Any], str] = lambda row: ""


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """Return the columns that fit, in their order; the last one gets what is left where it is text."""
    chosen = list(columns)
    while sum(column.width for column in chosen) > width and any(column.rank for column in chosen):
        chosen.remove(max(chosen, key=lambda column: column.rank))
    return chosen


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def _seen(node: NodeRow) -> str:
    return "now" if node.seen_s is not None and node.seen_s < 0.95 else ago(node.seen_s).removesuffix(" ago")


def _step(node: NodeRow) -> str:
    return f"slow: {seconds(node.step_s)}" if node.is_slow else seconds(node.step_s)


def _alarm(node: NodeRow) -> str:
    return "bold red" if node.is_silent else "bold yellow" if node.is_slow else ""


def node_columns(width: int, nodes: Sequence[NodeRow]) -> list[Column]:
    """Return the columns of the table of nodes."""
    several = len({node.job for node in nodes if node.job}) > 1
    longest = min(14, max([4, *(len(node.host) for node in nodes)]))
    step_width = 1 + max([12, *(len(_step(node)) for node in nodes)])
    seen_width = 1 + max([7, *(len(_seen(node)) for node in nodes)])
    columns = [
        Column(title="node", width=12, text=lambda node: node.title, style=_alarm),
        *([Column(title="job", width=9, text=lambda node: node.job[:8], rank=4)] if several else []),
        Column(title="host", width=longest + 1, text=lambda node: node.host[:longest], rank=6),
        Column(title="cpu", width=6, text=lambda node: _percent(node.cpu), right=True, rank=2),
        Column(title="memory", width=8, text=lambda node: num_bytes(node.rss), right=True, rank=3),
        Column(title="out/s", width=8, text=lambda node: num_bytes(node.sent), right=True, rank=5),
        Column(title="in/s", width=8, text=lambda node: num_bytes(node.received), right=True, rank=5),
        Column(title="step", width=step_width, text=_step, right=True, style=_alarm),
        Column(title="stale", width=6, text=lambda node: number(node.staleness)[:5], right=True, rank=7),
        Column(title="seen", width=seen_width, text=_seen, right=True, style=_alarm),
    ]
    chosen = fitting(columns, width)
    if (left := width - sum(column.width for column in chosen)) > 10:
        chosen.append(Column(title="  doing", width=left, text=lambda node: f"  {node.doing}"))
    return chosen


def job_columns(width: int, jobs: Sequence[JobRow]) -> list[Column]:
    """Return the columns of the table of jobs; what is left of the width is for the sparkline."""
    longest = min(16, max([len(job.name) for job in jobs], default=3))
    labels = min(14, max([len(job.label) for job in jobs], default=0))
    columns = [
        Column(title="job", width=max(4, longest + 1), text=lambda job: job.name[:longest]),
        Column(title="state", width=13, text=lambda job: job.state[:12], rank=3, style=_state),
        Column(title="mode", width=7, text=lambda job: job.mode, rank=4),
        Column(title="step", width=9, text=lambda job: number_of_steps(job.step), right=True, rank=1),
        Column(title="steps/s", width=9, text=lambda job: number(job.rate), right=True, rank=1),
    ]
    if labels:
        columns.append(Column(title="", width=labels + 2, text=lambda job: f"  {job.label[:labels]}", rank=2))
        columns.append(Column(title="", width=9, text=lambda job: number(job.last)[:8], right=True))
    chosen = fitting(columns, width)
    if labels and (left := width - sum(column.width for column in chosen) - 1) >= 4:
        chosen.append(
            Column(title="", width=left + 1, text=lambda job: f" {job.spark(left)}", style=lambda job: "cyan")
        )
    return chosen


def number_of_steps(step: int | None) -> str:
    """Return the step, or how many pushes there were."""
    return "" if step is None else f"{step:,}" if step < 10**7 else number(step)


def _state(job: JobRow) -> str:
    return "green" if job.state == "training" else "yellow"
