"""The suite: what fails does not take the rest along, and what was done need not be done again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from bench import suite, tables
from bench.__main__ import main
from bench.plots import write_plots
from bench.results import Row, environment, read_rows


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
    words = (tmp_path / "times.svg").read_text()
    assert "<!-- How long a step takes, beside the limit -->" in words
    assert f"<!-- {tables.machine_text(environment()['machine'])} -->" in words
    assert write_plots([], tmp_path) == []


def test_while_it_runs_it_says_how_long_the_rest_takes(tmp_path: Path, ran: list[str]) -> None:
    lines = [line for line in run_suite(tmp_path).output.splitlines() if " left" in line]
    assert [line.partition(",")[0] for line in lines] == ["1/3 push 1KB", "2/3 latency 1KB", "3/3 pull 1KB"]
    assert all(re.search(r", about \d+ (s|min) left$", line) for line in lines), lines


def test_the_time_left_follows_the_pace_of_what_was_done() -> None:
    jobs = [suite.Job(title, lambda: Row(case="push"), seconds) for title, seconds in (("a", 60.0), ("b", 240.0))]
    assert suite.time_left(jobs, 0, 0.0) == "about 5 min left"
    assert suite.time_left(jobs, 1, 60.0) == "about 4 min left"
    assert suite.time_left(jobs, 1, 180.0) == "about 10 min left"
    assert suite.time_left(jobs[:1], 0, 0.0) == "about 60 s left"


def test_each_short_case_says_how_long_it_takes(tmp_path: Path) -> None:
    assert {job.title.partition(" ")[0] for job in suite.short(tmp_path)} <= set(suite.SECONDS)


def test_the_key_figures_come_first_and_each_column_has_a_name_of_its_own_and_is_explained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "console", Console(width=132, color_system=None))
    row = Row(case="push_pull", model="resnet50", servers=1, workers=1, transport="tcp", median_s=0.1, limit_s=0.05,
        goodput_gb_s=2.0, ratio_to_limit=2.0, ratio_low=1.9, ratio_high=2.1, bound_s=0.02)  # fmt: skip
    machine = {"cpu": "A Processor", "cores": 2, "memory_gb": 25.3, "copy_ms": 11.4}
    tables.print_key_figures([Row(case="core"), row], machine)
    tables.print_rows([Row(case="core"), row])
    said = capsys.readouterr().out
    assert said.splitlines()[0] == "Key figures on A Processor, 2 cores, 25.3 GB, a core copies 102 MB in 11.4 ms"
    assert "2.00 times as long" in said
    heads = next(line for line in said.splitlines() if "p90" in line)
    names = heads.replace("case, servers×workers", "case").split()
    assert len(set(names)) == len(names)
    for name in ("limit", "×limit", "bound", "×bound", "GB/s", "quartiles"):
        assert f"{name}:" in said or name in tables.LEGEND
    with pytest.raises(ValueError, match="one name"):
        tables.new_table("case", "ratio", "ratio")


def test_titles_can_be_listed_without_running_anything(tmp_path: Path, ran: list[str]) -> None:
    assert run_suite(tmp_path, "--list", "--only", "pu").output.split("\n") == ["push 1KB", "pull 1KB", ""]
    assert ran == []
