"""The command line; speed is never tested, only that a benchmark runs and says what it must."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench import suite
from bench.__main__ import main
from bench.cases import core
from bench.children import Child, ChildError
from bench.setup import Setup
from bench.transfer import measure
from tests.tables import for_each
from zmqps.codecs import CODECS

FIELDS = {
    "case", "model", "servers", "workers", "transport", "optimizer", "median_s", "p90_s", "goodput_gb_s", "limit_s",
    "ratio_to_limit", "codec", "bound_s", "machine", "versions", "commit",
}  # fmt: skip


@for_each("case", sorted(main.commands))
def test_every_command_explains_itself(case: str) -> None:
    result = CliRunner().invoke(main, [case, "--help"])
    assert result.exit_code == 0
    assert len(result.output.splitlines()) > 5


@for_each(
    "arguments",
    [
        ["push_pull", "--model", "resnet18"],
        ["push_pull", "--servers", "0"],
        ["push_pull", "--optimizer", "magic"],
        ["push_pull", "--transport", "carrier-pigeon"],
        ["push_pull", "--codec", "int8:block=1"],
        ["codecs", "--codec", "zip"],
        ["apply", "--kernels", "fortran"],
        ["apply", "--device", "gpu"],
        ["push_pull", "--device", "cuda:x"],
        ["compare", "no-such-file", "no-such-file"],
        ["juggle"],
    ],
)
def test_bad_arguments_are_refused_before_anything_starts(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, arguments).exit_code == 2


@pytest.mark.processes
def test_one_case_writes_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result = CliRunner().invoke(main, ["push_pull", "--model", "4KB", "--steps", "1", "--json", str(path)])
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert set(written) >= FIELDS
    assert (written["case"], written["model"], written["servers"], written["workers"]) == ("push_pull", "4KB", 1, 1)
    assert written["ratio_to_limit"] == pytest.approx(written["median_s"] / written["limit_s"])


@pytest.mark.processes
def test_steps_in_a_codec_are_checked_and_recorded(tmp_path: Path) -> None:
    json_path, trace_path = tmp_path / "result.json", tmp_path / "trace.json"
    flags = ["--model", "64KB", "--codec", "topk", "--transport", "shm", "--steps", "1", "--phases"]
    flags += ["--json", str(json_path), "--trace", str(trace_path)]
    result = CliRunner().invoke(main, ["push_pull", *flags])
    assert result.exit_code == 0, result.output
    written = json.loads(json_path.read_text())
    assert (written["codec"], written["checked"]) == ("topk:fraction=0.1", True)
    phases = {(phase["role"], phase["name"]): phase["total_s"] for phase in written["phases"]["phases"]}
    assert phases.keys() >= {("worker", "encode"), ("wire", "wire there"), ("server", "decode"), ("server", "apply")}
    assert "wire back" in result.output
    assert json.loads(trace_path.read_text())["traceEvents"]


def test_a_codec_alone_says_whether_it_pays(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    flags = ["--model", "64KB", "--codec", "bf16", "--kernels", "numpy", "--steps", "2", "--json", str(path)]
    result = CliRunner().invoke(main, ["codecs", *flags])
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert written["smaller_by"] == 2.0
    assert written["verdict"] == f"pays on wires below {written['pays_below_gbit_s']:.1f} Gbit/s"
    assert (written["cost_to_saving"] < 1) == (written["pays_below_gbit_s"] > 1)
    assert 0 < written["encode_one_thread_gb_s"]


def test_the_codec_that_pays_most_depends_on_the_wire(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    flags = ["--model", "1MB", "--kernels", "numpy", "--steps", "1", "--json", str(path)]
    slow = CliRunner().invoke(main, ["codecs", *flags, "--wire", "0.001"])
    assert "on a wire of 0.001 Gbit/s onebit:block=1024 pays most" in slow.output, slow.output
    assert len(json.loads(path.read_text())["rows"]) == len(CODECS)
    fast = CliRunner().invoke(main, ["codecs", *flags, "--wire", "100000"])
    assert "on a wire of 100000 Gbit/s raw pays most" in fast.output, fast.output


@pytest.mark.processes
def test_two_workers_and_servers_take_part() -> None:
    row = measure("push_pull", Setup(model="64KB", servers=2, workers=2, steps=1))
    assert row.steps == 2 * 16  # each worker takes sixteen so short steps in a turn


def test_the_core_is_measured_without_sockets() -> None:
    row = core.measure("64KB", 2)
    assert row.extra["messages"] == 2


def test_the_suites_have_no_case_twice() -> None:
    titles = {suite_: [job.title for job in suite_(Path())] for suite_ in (suite.short, suite.full)}
    for found in titles.values():
        assert len(found) == len(set(found))
    assert set(titles[suite.short]) <= set(titles[suite.full])


class Fragile:
    def echo(self, value: object) -> object:
        return value

    def fail(self) -> None:
        raise ValueError("on purpose")


def test_a_child_answers_and_tells_why_it_failed() -> None:
    with Child(Fragile) as child:
        child.result()
        assert child.call("echo", 5) == 5
        with pytest.raises(ChildError, match="on purpose"):
            child.call("fail")


@pytest.mark.processes
@pytest.mark.parametrize("operation", ["push", "pull", "push_pull"])
def test_steps_in_place_lead_to_the_same_values(operation: str) -> None:
    row = measure(operation, Setup(model="256KB", transport="shm", steps=1, in_place=True))
    assert row.case == f"{operation} in place"
    assert row.extra["checked"]


@pytest.mark.processes
@pytest.mark.parametrize("operation", ["pull", "push_pull"])
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_steps_with_new_arrays_lead_to_the_same_values(operation: str, transport: str) -> None:
    row = measure(operation, Setup(model="2MB", transport=transport, steps=3, new=True))
    assert row.case == f"{operation} new"
    assert row.extra["checked"]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_devices_kernels_stand_beside_a_copy_on_it(device: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    flags = ["--device", device, "--model", "64KB", "--optimizer", "adam", "--steps", "2", "--json", str(path)]
    result = CliRunner().invoke(main, ["apply", *flags])
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert written["touched_nbytes"] == 7 * (64 << 10)  # reads the gradient, reads and writes values and two slots
    assert written["ratio_to_limit"] == pytest.approx(written["median_s"] / written["limit_s"])
    assert written["copy_gb_s"] > 0
    assert written["ratio_in_one_piece"] > 0


@pytest.mark.processes
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_step_with_a_device_says_what_bounds_it(device: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    flags = ["--device", device, "--model", "64KB", "--steps", "1", "--json", str(path)]
    result = CliRunner().invoke(main, ["push_pull", *flags])
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert list(written["device_phases"]) == ["receive", "host to device", "apply", "device to host", "send"]
    assert all(value > 0 for value in written["device_phases"].values())
    assert written["checked"]
    assert "bound: " in result.output
