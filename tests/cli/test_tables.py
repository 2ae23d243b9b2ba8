"""Tables of the status: text of others is shown as it is, and what is no number as 0."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.core.machines import Coordinator, hello, job
from zmqps.cli.tables import status_view
from zmqps.core.coordinator.watching import status
from zmqps.core.node.inquiry import Inquiry
from zmqps.core.protocol.events import COORDINATOR, Received
from zmqps.core.protocol.messages import Heartbeat, Init, Leave, Status

NASTY = "a\n[red]b[/red]\x1b[2J\u202e[/]"
ODD = {
    "pushes": NASTY, "pulls": "x", "bytes_sent": "x", "bytes_received": None, "nonfinite": "x", "device": NASTY,
    "staleness_mean": "x", "staleness_max": [1], "pushed_nbytes": "x", "arena_nbytes": "x", "refused": "x",
    "version": "x", "jobs": {"1": {"arena_nbytes": "x", "version": NASTY}},
}  # fmt: skip


def shown(coordinator: Coordinator) -> str:
    """Return what `zmqps status` shows."""
    inquiry = Inquiry("tcp://here:1")
    inquiry.start(0.0)
    inquiry.handle(Received(COORDINATOR, Status(1, coordinator.machine.status(1.0))), 0.0)
    assert inquiry.status is not None
    stream = io.StringIO()
    Console(file=stream, force_terminal=True, no_color=True, width=300).print(status_view(inquiry.status))
    return stream.getvalue()


def test_what_a_node_calls_itself_is_no_markup_and_its_counters_break_nothing() -> None:
    coordinator = Coordinator(servers=1)
    coordinator.join("s0", "w0", "w1")
    coordinator.init("w0", job(NASTY, mode="sync"))
    coordinator.ready("s0")
    for name in ("s0", "w0", "w1"):
        coordinator.take(name, Heartbeat(ODD))
    coordinator.take("w1", Leave("closed"))
    text = shown(coordinator)
    assert r"a\n[red]b[/red]\x1b[2J\u202e[/]" in text
    assert "\x1b[2J" not in text
    assert "\u202e" not in text
    assert "0.00, max 0" in text
    coordinator.take("w0", Init(2, job(NASTY, mode="sync").to_wire()))
    assert "0 B" in shown(coordinator)


def test_who_takes_no_part_in_a_job_is_said() -> None:
    coordinator = Coordinator(workers=1)
    coordinator.train("s0", "w0", "w1")
    coordinator.join("w2")
    idle = "no node waits for spare worker 1 (w1, host, pid 7), worker 2 (w2, host, pid 7)"
    assert f"• job 'default': {idle}" in shown(coordinator)
    coordinator.take("w1", Leave("closed"))
    coordinator.take("w2", Leave("closed"))
    assert "no node waits" not in shown(coordinator)


def test_what_a_status_leaves_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "MAX_LISTED", 4)
    coordinator = Coordinator()
    for number in range(10):
        coordinator.machine.handle(Received(b"@%d" % number, hello("observer", f"o{number}")), 0.0)
    assert "• not shown: 6 of 10 members" in shown(coordinator)
