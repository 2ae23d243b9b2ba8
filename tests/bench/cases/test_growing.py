"""A table that grows: that pushes and memory are measured, not what they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import main


@pytest.mark.processes
def test_the_longest_push_and_the_memory_of_rows_are_told(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    flags = ["--rows", "50_000", "--dim", "8", "--batch", "500", "--json", str(path)]
    result = CliRunner().invoke(main, ["growing", *flags])
    assert result.exit_code == 0, result.output
    row = json.loads(path.read_text())
    assert (row["case"], row["model"], row["steps"]) == ("growing", "50k×8 by 500", 100)
    assert row["longest_s"] >= row["p999_s"] >= row["median_s"] > 0
    assert row["table_to_raw"] > 1  # ids, stamps, a slot and the index come on top
    assert row["resident_to_raw"] > 1
