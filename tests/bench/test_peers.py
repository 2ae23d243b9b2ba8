"""The comparison with other systems, without the other systems: what fails, what is kept, what is reached."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bench.__main__ import main
from bench.children import ChildError
from bench.peers import command, forms, works
from bench.peers.process import PeerMissing, PeerProcess
from bench.setup import Setup


def outcome(work: str, peer: str, ratio: float) -> works.Result:
    return works.Result(
        work=work,
        peer=peer,
        zmqps_s=ratio,
        peer_s=1.0,
        zmqps_min_s=ratio,
        peer_min_s=1.0,
        ratio=ratio,
        ratio_low=0.9 * ratio,
        ratio_high=1.1 * ratio,
        steps=20,
    )


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Three pairs: one fails once, one always, one misses its target; return how often each ran."""
    count: dict[str, int] = {}

    def pair(work: str, peer: str, ratio: float, failures: int) -> works.Pair:
        def run(steps: int) -> list[works.Result]:
            count[work] = count.get(work, 0) + 1
            if count[work] <= failures:
                raise ChildError(f"[{work}] on purpose")
            return [outcome(work, peer, ratio)]

        return works.Pair(work, peer, run)

    listed = [
        pair("sgd-1x1-tcp", "sockets", 1.2, failures=1),
        pair("sgd-1x1", "ray", 1.0, failures=99),
        pair("sgd-2x2", "tensorflow", 0.5, failures=0),
    ]
    monkeypatch.setattr(command, "pairs", lambda python: listed)
    return count


def compare(path: Path, *flags: str) -> Result:
    return CliRunner().invoke(main, ["peers", "--python", str(path.parent), "--json", str(path), *flags])


def test_a_pair_that_failed_is_tried_again_and_the_others_are_kept(tmp_path: Path, runs: dict[str, int]) -> None:
    path = tmp_path / "peers.json"
    result = compare(path)
    assert result.exit_code == 1
    assert "sgd-1x1 ray failed, attempt 2 of 2: [sgd-1x1] on purpose" in result.output
    assert "these could not be compared: sgd-1x1 ray" in result.output
    assert runs == {"sgd-1x1-tcp": 2, "sgd-1x1": 2, "sgd-2x2": 1}
    rows = json.loads(path.read_text())["rows"]
    assert [(row["work"], row["target"], row["verdict"]) for row in rows] == [
        ("sgd-1x1-tcp", 1.25, "reached"),
        ("sgd-2x2", 0.25, "missed by 100%"),
    ]


def test_the_targets_are_shown_with_what_was_not_measured(tmp_path: Path, runs: dict[str, int]) -> None:
    lines = compare(tmp_path / "peers.json", "--targets").output.splitlines()
    assert "sgd-1x1" not in runs  # ray has none
    shown = {(line.split()[0], line.split()[1]): line for line in lines if line.startswith(("sgd-", "kernel-"))}
    assert shown["sgd-1x1-tcp", "sockets"].endswith("reached ")
    assert "missed by 100%" in shown["sgd-2x2", "tensorflow"]
    assert "not measured" in shown["kernel-adam", "copy"]


def test_a_resumed_comparison_does_what_is_missing(tmp_path: Path, runs: dict[str, int]) -> None:
    path = tmp_path / "peers.json"
    assert compare(path, "--only", "sockets").exit_code == 0
    assert compare(path, "--only", "sockets", "--only", "2x2", "--resume").exit_code == 0
    assert runs == {"sgd-1x1-tcp": 2, "sgd-2x2": 1}
    assert [row["work"] for row in json.loads(path.read_text())["rows"]] == ["sgd-1x1-tcp", "sgd-2x2"]


def test_several_runs_are_told_by_their_median_and_quartiles(tmp_path: Path, runs: dict[str, int]) -> None:
    path = tmp_path / "peers.json"
    assert compare(path, "--only", "2x2", "--runs", "2").exit_code == 0
    assert compare(path, "--only", "2x2", "--only", "sockets", "--runs", "3", "--resume").exit_code == 0
    assert runs == {"sgd-1x1-tcp": 4, "sgd-2x2": 3}
    content = json.loads(path.read_text())
    assert [(row["work"], row["runs"], row["steps"]) for row in content["rows"]] == [
        ("sgd-2x2", 3, 60),
        ("sgd-1x1-tcp", 3, 60),
    ]
    assert len(content["runs"]) == 6


def test_the_quartiles_of_runs_are_those_of_their_ratios() -> None:
    found = works.combine([outcome("sgd-2x2", "ray", ratio) for ratio in (0.5, 1.5, 0.9, 0.6, 0.7)])
    assert (found.ratio_low, found.ratio, found.ratio_high, found.runs) == (0.6, 0.7, 0.9, 5)
    assert found.zmqps_s == 0.7


def test_a_single_run_keeps_the_quartiles_of_its_neighbours() -> None:
    assert works.combine([outcome("sgd-2x2", "ray", 1.0)]).ratio_low == 0.9


def test_what_is_not_installed_is_named_with_the_reason_and_the_others_go_on(
    tmp_path: Path, runs: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run(steps: int) -> list[works.Result]:
        asked.append(steps)
        raise PeerMissing("No module named 'pyarrow'")

    missing = [works.Pair(work, "flight", run) for work in ("sgd-1x1", "adam-1x1")]
    others = [pair for pair in command.pairs(Path()) if pair.work == "sgd-2x2"]
    monkeypatch.setattr(command, "pairs", lambda python: missing + others)
    result = compare(tmp_path / "peers.json", "--runs", "2")
    assert result.exit_code == 0
    assert (len(asked), runs) == (1, {"sgd-2x2": 2})
    assert "not compared with flight, which is not installed: No module named 'pyarrow'" in result.output
    assert json.loads((tmp_path / "peers.json").read_text())["missing"] == {"flight": "No module named 'pyarrow'"}


def test_a_script_that_lacks_a_package_says_which(tmp_path: Path) -> None:
    (tmp_path / "lacking.py").write_text("import no_such_package\n")
    with pytest.raises(PeerMissing, match=r"^No module named 'no_such_package'$"):
        PeerProcess(Path(sys.executable), "lacking", [], tmp_path)


def test_a_peer_is_compared_in_the_form_that_is_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = {"flat": [9.0, 2.0, 2.0, 2.0], "buckets": [3.0, 3.0, 3.0, 3.0]}
    started: list[str] = []

    class Process:
        def __init__(self, python: Path, module: str, flags: list[str]) -> None:
            self.variant = flags[-1].partition("=")[2]
            started.append(self.variant)

        def steps(self, count: int) -> list[float]:
            return pace[self.variant]

        def __enter__(self) -> Process:
            return self

        def __exit__(self, *raised: object) -> None: ...

    monkeypatch.setattr(forms, "PeerProcess", Process)
    setup = Setup(servers=2, workers=4)
    assert forms.fastest("gloo", setup, Path("of-a-test")) == "flat"
    assert forms.start("gloo", setup, Path("of-a-test")).variant == "flat"
    assert started == ["flat", "buckets", "flat"], "what is known is not tried again"


def test_every_target_belongs_to_a_pair() -> None:
    measured = {(pair.work, pair.peer) for pair in works.pairs(Path())}
    assert measured >= set(works.TARGETS)


@pytest.mark.processes
@pytest.mark.parametrize("peer", ["sockets", "zmq-echo"])
def test_what_bounds_us_is_a_peer(peer: str) -> None:
    [result] = works.compare("latency-tcp", peer, Path(), 1)
    assert (result.work, result.peer, result.steps) == ("latency-tcp", peer, forms.BATCH)
    assert result.ratio == result.zmqps_s / result.peer_s
    assert 0.0 < result.processor_ratio < 1e3
