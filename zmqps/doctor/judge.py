"""All that is looked at, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from zmqps.doctor import bound, code, keyfiles, network, resources, running, versions, wires
from zmqps.doctor.facts import Findings
from zmqps.doctor.rows import Row, Verdict

CHECKS: tuple[Callable[[Findings], Iterator[Row]], ...] = (
    versions.judge,
    resources.judge,
    code.judge,
    network.judge,
    wires.judge,
    bound.judge,
    keyfiles.judge,
    running.judge,
)


def judge(findings: Findings) -> list[Row]:
    """Return the rows of all checks."""
    return [row for check in CHECKS for row in check(findings)]


def is_wrong(rows: Sequence[Row]) -> bool:
    """Whether a run would fail."""
    return any(row.verdict == Verdict.WRONG for row in rows)
