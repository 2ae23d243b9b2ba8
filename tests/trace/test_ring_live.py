"""What nodes have recorded becomes one trace on the coordinator's clock."""

from __future__ import annotations

import pytest

from zmqps.errors import ConfigurationError
from zmqps.trace.ring import Ring, assemble


def packed(boot: str, at_us: int, lost: bool = False) -> bytes:
    ring = Ring(1 << 10 if not lost else 100, {"title": "node", "boot": boot, "epoch_ns": 7_000})
    for number in range(2):
        ring.span("serve", "server", (at_us + number) * 1000, (at_us + number + 1) * 1000)
    ring.close()
    return ring.read(0, 1 << 20)


def node(number: int, role: str, **said: float) -> dict[str, object]:
    return {"who": f"{number:032x}", "role": role, "rank": 0, "name": "n", "host": "h", **said}


def test_another_hosts_times_are_shifted_by_what_its_surest_process_knows() -> None:
    nodes = [
        node(1, "coordinator", offset_s=0.0, error_s=0.0), node(2, "server", offset_s=2.0, error_s=0.1),
        node(3, "worker", offset_s=2.5, error_s=0.01), node(4, "observer", offset_s=-9.0, error_s=0.0, rank=4),
    ]  # fmt: skip
    boots = {1: "here", 2: "there", 3: "there", 4: "here"}
    trace = assemble(nodes, {f"{n:032x}": packed(boot, 1_000_000) for n, boot in boots.items()})
    begins = {process.label: process.spans[0].begin_us for process in trace.processes}
    assert begins == {"coordinator 0": 1e6, "server 0": 3.5e6, "worker 0": 3.5e6, "worker 4": 1e6}
    assert {clock.error_us for clock in trace.clocks.values()} == {1e4}
    assert (trace.epoch_us, trace.notes) == (7.0, [])


def test_what_is_not_in_it_is_said() -> None:
    nodes = [node(1, "coordinator"), node(2, "server"), node(3, "worker", offset_s=0.0, error_s=0.0)]
    data = {f"{1:032x}": packed("here", 1), f"{2:032x}": packed("there", 1, lost=True), f"{3:032x}": b"nonsense"}
    notes = " ".join(assemble(nodes, data).notes)
    assert "server 0 had no room for 1 older spans" in notes
    assert "server 0: its clock was not compared" in notes
    assert "worker 0: these bytes are not recorded spans" in notes


def test_where_nobody_recorded_anything_there_is_no_trace() -> None:
    with pytest.raises(ConfigurationError, match="no node has recorded"):
        assemble([node(1, "coordinator")], {})
