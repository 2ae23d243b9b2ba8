"""A checkpoint is written beside a plain file, and nothing is left of either."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from bench.__main__ import main


def test_a_checkpoint_is_compared_with_a_plain_file(tmp_path: Path) -> None:
    file, place = tmp_path / "result.json", tmp_path / "disk"
    flags = ["--model", "64KB", "--optimizer", "adam", "--steps", "2", "--directory", str(place), "--json", str(file)]
    result = CliRunner().invoke(main, ["checkpoint", *flags])
    assert result.exit_code == 0, result.output
    written = json.loads(file.read_text())
    assert written["of_a_plain_writer"] > 0
    assert written["restore_gb_s"] > 0
    assert list(place.iterdir()) == []
