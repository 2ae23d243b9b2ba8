"""Two result files side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.compare import changes
from bench.results import Row, read_rows, write_row, write_rows
from tests.tables import for_each

ROW = Row(
    case="push_pull",
    model="resnet50",
    servers=1,
    workers=1,
    transport="tcp",
    optimizer="sgd",
    codec="raw",
    median_s=0.2,
    p90_s=0.21,
    min_s=0.19,
    steps=20,
    goodput_gb_s=1.0,
    limit_s=0.1,
    ratio_to_limit=2.0,
    ratio_low=1.9,
    ratio_high=2.1,
    bound_s=0.1,
    extra={"cpu_s": 0.3},
)


@for_each("ratio, verdict", [(1.0, "faster"), (2.05, "same"), (4.0, "slower")])
def test_a_change_of_the_ratio_counts_when_it_exceeds_the_noise(ratio: float, verdict: str) -> None:
    new = replace(ROW, ratio_to_limit=ratio, ratio_low=0.95 * ratio, ratio_high=1.05 * ratio)
    [change] = changes([ROW], [new])
    assert change.verdict == verdict
    assert change.change == pytest.approx(ratio / 2.0 - 1)


def test_a_slower_machine_is_no_slower_program() -> None:
    slow = replace(ROW, median_s=2.0, p90_s=2.1, min_s=1.9, limit_s=1.0)
    assert changes([ROW], [slow])[0].verdict == "same"


def test_without_a_limit_times_are_compared_and_their_spread_is_the_noise() -> None:
    old = replace(ROW, limit_s=None, ratio_to_limit=None, ratio_low=None, ratio_high=None)
    [change] = changes([old], [replace(old, median_s=0.1, p90_s=0.11, min_s=0.09)])
    assert (change.change, change.verdict) == (pytest.approx(-0.5), "faster")
    assert change.noise == pytest.approx(((0.02 / 2 / 0.2) ** 2 + (0.02 / 2 / 0.1) ** 2) ** 0.5)


def test_only_cases_in_both_files_are_compared() -> None:
    assert changes([ROW], [replace(ROW, optimizer="adam")]) == []


def test_rows_survive_a_file(tmp_path: Path) -> None:
    write_rows(tmp_path / "suite.json", [ROW, replace(ROW, case="pull")])
    rows, environment = read_rows(tmp_path / "suite.json")
    assert rows == [ROW, replace(ROW, case="pull")]
    assert set(environment) == {"machine", "versions", "commit"}
    assert all(environment.values())
    assert environment["machine"]["copy_ms"] > 0


def test_the_file_of_one_case_compares_with_that_of_a_suite(tmp_path: Path) -> None:
    write_row(tmp_path / "one.json", ROW)
    write_rows(tmp_path / "suite.json", [ROW])
    result = CliRunner().invoke(main, ["compare", str(tmp_path / "suite.json"), str(tmp_path / "one.json")])
    assert result.exit_code == 0, result.output
    assert "push_pull resnet50 1×1 tcp sgd" in result.output
    assert "same" in result.output


def test_files_without_a_common_case_are_an_error(tmp_path: Path) -> None:
    write_row(tmp_path / "a.json", ROW)
    write_row(tmp_path / "b.json", replace(ROW, case="pull"))
    result = CliRunner().invoke(main, ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert result.exit_code == 1
    assert "no timed case in common" in result.output
