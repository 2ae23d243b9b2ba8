"""The memory benchmark: that it counts what nodes hold for a model, and nothing that the benchmark itself keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import main

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("operation", "model", "held"),
    [("push_pull", "256MB", 2), ("layers", "8x32MB", 1)],  # of a worker: gradients and values; values alone
)
def test_a_server_has_its_shard_and_a_worker_what_it_was_given(
    tmp_path: Path, operation: str, model: str, held: int
) -> None:
    path = tmp_path / "result.json"
    flags = ["--model", model, "--operation", operation, "--steps", "1", "--json", str(path)]
    result = CliRunner().invoke(main, ["memory", *flags])
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert 1.0 <= written["server_shards"] < 1.5
    assert held <= written["worker_models"] < held + 0.6
