"""The synchronous step's benchmark: that it runs, that its values are right, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import main

pytestmark = pytest.mark.processes


def test_it_writes_what_the_barrier_adds_beside_the_fields_of_a_transfer(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    flags = ["--model", "4KB", "--workers", "2", "--steps", "1", "--json", str(path)]
    result = CliRunner().invoke(main, ["sync_step", *flags])
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert (written["case"], written["model"], written["servers"], written["workers"]) == ("sync_step", "4KB", 1, 2)
    assert written["ratio_to_limit"] == pytest.approx(written["median_s"] / written["limit_s"])
    assert written["barrier_s"] < written["barrier_p90_s"] < 1.0
    assert {"bound_s", "gloo_s", "ratio_to_gloo", "machine", "versions", "commit"} <= set(written)


@pytest.mark.slow
def test_gradients_may_lie_where_servers_see_them(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    flags = ["--model", "256KB", "--workers", "2", "--transport", "shm", "--steps", "1", "--in-place"]
    result = CliRunner().invoke(main, ["sync_step", *flags, "--json", str(path)])
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert (written["case"], written["checked"]) == ("sync_step in place", True)
