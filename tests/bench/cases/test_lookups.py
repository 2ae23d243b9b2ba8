"""What a row costs in tables of any size: that it is measured, not what it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.cases import lookups


@pytest.mark.processes
def test_each_size_has_a_row_and_a_place_in_the_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "SMALLEST", 1000)
    flags = ["--rows", "100000", "--dim", "4", "--batch", "256", "--steps", "1", "--output", str(tmp_path)]
    result = CliRunner().invoke(main, ["lookups", *flags])
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["table_rows"] for row in rows] == [1000, 10_000, 100_000]
    assert [row["model"] for row in rows] == ["1k×4", "10k×4", "100k×4"]
    for row in rows:
        assert row["read_ns"] == pytest.approx(1e9 * row["median_s"] / 256)
        assert all(row[f"{name}_best_ns"] > 0 for name in lookups.WORK)
    assert {path.name for path in tmp_path.glob("*.svg")} == {"lookups.svg"}
