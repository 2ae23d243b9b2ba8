"""A checkpoint of what has changed is measured beside a whole one, and nothing is left of either."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import main


@pytest.mark.processes
def test_what_has_changed_is_compared_with_all(tmp_path: Path) -> None:
    file, place = tmp_path / "result.json", tmp_path / "disk"
    place.mkdir()
    flags = ["--model", "resnet50", "--turns", "1", "--directory", str(place), "--json", str(file)]
    result = CliRunner().invoke(main, ["changes", *flags])
    assert result.exit_code == 0, result.output
    written = json.loads(file.read_text())
    assert 0 < written["changed_mb"] < 0.5 * written["whole_mb"]
    assert list(place.iterdir()) == []
