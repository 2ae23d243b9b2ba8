"""Hosts with several workers on wires of 1 Gbit/s: with one push a host a quarter of the bytes, and the same values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.cases.combine import bits_per_s
from tests.lan.ability import missing


def test_a_rate_is_read_as_tc_reads_it() -> None:
    assert bits_per_s("1gbit") == 1e9
    assert bits_per_s("100mbit") == 1e8


@pytest.mark.lan("limit")
@pytest.mark.timeout(240)
def test_two_hosts_of_four_workers_move_at_most_27_of_100_bytes(tmp_path: Path) -> None:
    if reason := missing("limit"):
        pytest.skip(reason)
    path = tmp_path / "result.json"
    result = CliRunner().invoke(main, ["combine", "--model", "4MB", "--steps", "3", "--json", str(path)])
    assert result.exit_code == 0, result.output  # the case itself compares the values
    written = json.loads(path.read_text())
    assert (written["hosts"], written["workers_each"]) == (2, 4)
    assert written["ratio_of_bytes"] <= 0.27
    assert written["median_s"] < written["limit_s"]
