"""The suite: what fails does not take the rest along, and what was done need not be done again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bench import suite
from bench.__main__ import main
from bench.plots import write_plots
from bench.results import Row, read_rows


def fake_job(case: str, ran: list[str]) -> suite.Job:
    def run() -> Row:
        ran.append(case)
        if case == "latency":
            raise RuntimeError("[on purpose]")
        return Row(case=case, model="1KB", median_s=0.1, steps=1)

    return suite.Job(Row(case=case, model="1KB").title, run)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A suite of three cases, of which the second fails; return what was run."""
    done: list[str] = []
    monkeypatch.setattr(suite, "short", lambda output: [fake_job(c, done) for c in ("push", "latency", "pull")])
    return done


def run_suite(output: Path, *flags: str) -> Result:
    return CliRunner().invoke(main, ["suite", "--no-plots", "--output", str(output), *flags])


def test_a_case_that_fails_does_not_lose_the_others(tmp_path: Path, ran: list[str]) -> None:
    result = run_suite(tmp_path)
    assert result.exit_code == 1
    assert "latency 1KB failed: [on purpose]" in result.output
    assert "1 of 3 cases failed" in result.output
    rows, _ = read_rows(tmp_path / "results.json")
    assert [row.case for row in rows] == ["push", "pull"]
    assert ran == ["push", "latency", "pull"]


def test_a_resumed_suite_does_what_is_missing(tmp_path: Path, ran: list[str]) -> None:
    run_suite(tmp_path, "--only", "push")
    run_suite(tmp_path, "--resume")
    assert ran == ["push", "latency", "pull"]
    assert [row.case for row in read_rows(tmp_path / "results.json")[0]] == ["push", "pull"]


def test_results_of_another_commit_are_not_continued(tmp_path: Path, ran: list[str]) -> None:
    run_suite(tmp_path)
    path = tmp_path / "results.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"commit": "0123"}))
    result = run_suite(tmp_path, "--resume")
    assert result.exit_code == 1
    assert "of commit 0123" in result.output
    assert "without --resume" in result.output
    assert len(ran) == 3


@pytest.mark.processes  # not that it has any: matplotlib takes seconds
def test_phases_and_times_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    phase = {"role": "worker", "name": "send", "share": 0.5}
    rows = [
        Row(case="push", model="1KB", median_s=0.1, limit_s=0.05, goodput_gb_s=1.0, ratio_to_limit=2.0,
            extra={"model_nbytes": 1024}),
        Row(case="phases", model="1KB", extra={"phases": {"phases": [phase]}}),
    ]  # fmt: skip
    drawn = {path.name for path in write_plots(rows, tmp_path)}
    assert drawn == {f"{name}.{kind}" for name in ("times", "goodput", "phases") for kind in ("png", "svg")}
    assert write_plots([], tmp_path) == []


def test_titles_can_be_listed_without_running_anything(tmp_path: Path, ran: list[str]) -> None:
    assert run_suite(tmp_path, "--list", "--only", "pu").output.split("\n") == ["push 1KB", "pull 1KB", ""]
    assert ran == []
