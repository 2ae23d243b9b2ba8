"""A cluster that is watched in every other turn trains on in all of them, and whoever watches sees something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.cases.watching import recording

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("arguments", "case"), [([], "watching"), (["--on", "log"], "watching log"), (["--nothing"], "watching nothing")]
)
def test_it_trains_in_all_turns_and_is_watched_as_it_is_said(tmp_path: Path, arguments: list[str], case: str) -> None:
    path = tmp_path / "result.json"
    sizes = ["--model", "4KB", "--workers", "2", "--steps", "2", "--block", "0.1", "--json", str(path)]
    result = CliRunner().invoke(main, ["watching", *sizes, *arguments])
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert (written["case"], written["steps"], written["checked"]) == (case, 2, True)
    assert (written["scrape_nbytes"] > 10_000) == (not arguments), "nobody asks where nobody answers"
    assert written["ratio_of_neighbours"] > 0


def test_a_step_of_one_slice_has_two_messages() -> None:
    assert recording()["messages_of_a_step"] == 2
