"""The case that lets many workers of one process use one server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import main


@pytest.mark.processes
def test_a_growing_crowd_trains_and_says_what_an_operation_costs_the_server(tmp_path: Path) -> None:
    path = tmp_path / "crowd.json"
    flags = ["--model", "4KB", "--workers", "3", "--workers", "1", "--operations", "7", "--turns", "2"]
    result = CliRunner().invoke(main, ["crowd", *flags, "--json", str(path)])
    assert result.exit_code == 0, result.output  # it has compared the values
    rows = json.loads(path.read_text())["rows"]
    assert [(row["workers"], row["steps"]) for row in rows] == [(1, 2 * 7), (3, 2 * 3 * 2)]
    for row in rows:
        assert row["per_s"] > 0
        assert row["pipelined_per_s"] > 0
        assert 0 <= row["server_sockets_cpu_s"] <= row["server_cpu_s"]
