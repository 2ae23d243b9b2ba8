"""The command: its tables, its results and its plots, of a cluster so small that it takes no time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.scale import command, costs
from tests.bench.scale.test_cluster import FREE

pytestmark = pytest.mark.processes


def test_it_tells_steps_the_coordinators_load_and_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "measure", lambda: FREE)
    monkeypatch.setattr(command, "WORKERS", (1, 3))
    monkeypatch.setattr(command, "SERVERS", (1, 2))
    monkeypatch.setattr(command, "SIX_TIMES", ((1, 1), (6, 6)))
    monkeypatch.setattr(command, "WAITING", (4, 25))
    result = CliRunner().invoke(main, ["scale", "--no-crowd", "--model", "64MB", "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "Li et al. 2014 (best there: τ = 8)" in result.output
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    steps = [(row["case"], row["workers"], row["servers"]) for row in rows if "coordinator_share" in row]
    assert steps == [(f"scale {mode}", n, k) for mode in ("async", "sync") for n in (1, 3) for k in (1, 2)]
    found = {row["case"]: row for row in rows}
    assert found["scale coordinator Arrive"]["cost_s"] > 0
    assert found["scale six times async"]["speed_up"] > 3
    assert [found[f"scale waiting τ={tau}"]["tau"] for tau in (0, 8, 16)] == [0, 8, 16]
    pictures = {path.name for path in tmp_path.iterdir() if path.suffix in (".png", ".svg")}
    assert {
        f"scale-{name}.{kind}" for name in ("steps", "coordinator", "waiting") for kind in ("png", "svg")
    } <= pictures
