"""The demo of sparse tables, as `make demo-sparse` runs it but smaller."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.test_recommend import ROOT, write_ratings
from tests.pace import allow

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150)]


def test_both_models_are_trained_and_reported(tmp_path: Path) -> None:
    data, output = write_ratings(tmp_path / "ratings.inter"), tmp_path / "out"
    command = [sys.executable, str(ROOT / "examples" / "demo_sparse.py"), "--servers=2", "--workers=2"]
    command += [f"--data={data}", f"--output={output}", "--examples=20000", "--passes=3"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = subprocess.run(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=allow(140)
    )
    assert done.returncode == 0, done.stdout
    movies, clicks = json.loads((output / "summary.json").read_text())
    for found, rows in ((movies, 100), (clicks, 20_000)):
        assert [one["mode"] for one in found["clusters"]] == ["async", "sync"]
        for one in found["clusters"]:
            assert one["lost"] == []
            assert one["rows"] >= rows
            assert abs(one["measured"] - found["alone"]["measured"]) < 0.1
            folder = output / f"{one['model']}-{one['mode']}"
            assert {"loss.png", "staleness.png", "worker-0.json"} <= {path.name for path in folder.iterdir()}
    assert "MovieLens" not in done.stdout  # its data was not used
