"""Rows of sparse tables: that the case runs, is checked, and says what it must; never how fast."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.__main__ import main
from bench.cases import sparse
from bench.cases.sparse import Sparse
from bench.ids import RowWork
from bench.rows import OPERATIONS
from tests.tables import for_each

WORK = RowWork(rows=2000, dim=8, batch=512)


def test_bytes_count_each_different_row_once() -> None:
    case = Sparse(WORK)
    different, row = case.different, 4 * WORK.dim
    assert 100 < different < WORK.batch
    assert case.nbytes("pull") == (8 * different, row * different)
    assert case.nbytes("push") == ((8 + row) * different, 0)
    assert case.nbytes("step") == case.nbytes("push_pull") == ((16 + row) * different, row * different)


@pytest.mark.processes
def test_all_operations_are_measured_beside_one_process_and_drawn(tmp_path: Path) -> None:
    flags = ["--rows", "2_000", "--dim", "8", "--batch", "512", "--steps", "1", "--output", str(tmp_path)]
    result = CliRunner().invoke(main, ["sparse", *flags])
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "results.json").read_text())
    assert [row["case"] for row in written["rows"]] == [f"sparse {operation}" for operation in OPERATIONS]
    for row in written["rows"]:
        assert row["model"] == "2k×8 zipf 512"
        assert row["checked"]
        assert row["table_rows"] == 2000
        assert row["table_nbytes"] > 2000 * 8 * 4
        assert row["rows_per_s"] == pytest.approx(512 / row["median_s"])
        assert row["ratio_to_limit"] == pytest.approx(row["median_s"] / row["limit_s"])
        for name in ("moved", "numpy", "own"):
            assert row[f"ratio_to_{name}"] == pytest.approx(row["median_s"] / row[f"{name}_s"])
    assert {path.name for path in tmp_path.glob("*.svg")} == {"times.svg", "sparse.svg"}
    assert "2,000 rows" in result.output


@pytest.mark.processes
def test_several_nodes_take_part_and_steps_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    flags = ["--rows", "1000", "--dim", "4", "--batch", "128", "--servers", "2", "--workers", "2", "--ids", "uniform"]
    flags += ["--transport", "shm", "--optimizer", "sgd", "--operation", "push_pull", "--steps", "1", "--phases"]
    result = CliRunner().invoke(main, ["sparse", *flags, "--json", str(path)])
    assert result.exit_code == 0, result.output
    [row] = json.loads(path.read_text())["rows"]
    assert (row["case"], row["servers"], row["workers"]) == ("sparse push_pull", 2, 2)
    phases = {(phase["role"], phase["name"]) for phase in row["phases"]["phases"]}
    assert phases >= {("worker", "send"), ("server", "serve"), ("server", "apply"), ("server", "reply")}
    assert ("worker", "land") in phases


@pytest.mark.processes
def test_wrong_rows_fail_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse.Child, "call", _answering(sparse.Child.call, deviation=2.0))
    with pytest.raises(RuntimeError, match="off by 2 times"):
        sparse.measure(Sparse(WORK, steps=1), ("pull",))


def _answering(call, **answers):
    def answer(self, method, *arguments, **options):
        return answers[method] if method in answers else call(self, method, *arguments, **options)

    return answer


@for_each("flags", [["--ids", "pareto"], ["--optimizer", "magic"], ["--dim", "0"], ["--operation", "walk"]])
def test_bad_arguments_are_refused_before_anything_starts(flags: list[str]) -> None:
    assert CliRunner().invoke(main, ["sparse", *flags]).exit_code == 2
