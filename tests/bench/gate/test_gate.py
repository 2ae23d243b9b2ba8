"""The regression gate's command: what it compares, and what its exit code says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bench import results
from bench.__main__ import main
from bench.gate import command

#: Clock and processor time.
PACE = {"latency-tcp": (1.5, 1.0), "sgd-1x1": (1.0, 1.0), "adam-1x1": (0.5, 1.2)}


@pytest.fixture
def roots(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Path]]:
    """Measure nothing: `PACE` is the new version's times over the old one's; return what would have been measured."""
    measured: list[Sequence[Path]] = []

    def measure_round(case: str, roots: Sequence[Path], turns: int, number: int) -> list[command.Sample]:
        measured.append(roots)
        for root in roots:
            assert (root / "zmqps" / "__init__.py").exists()
            assert not (root / "bench").exists(), "what measures is the same for both"
        clock, processor = PACE[case]
        return [command.Sample(2.0 + number, 3.0), command.Sample((2.0 + number) * clock, 3.0 * processor)]

    monkeypatch.setattr(results, "_copy_s", lambda: 0.1)
    monkeypatch.setattr(command, "measure_round", measure_round)
    monkeypatch.setattr(command, "CASES", dict.fromkeys(PACE))
    return measured


def gate(path: Path, *flags: str) -> Result:
    return CliRunner().invoke(main, ["gate", "--json", str(path), *flags])


def test_it_fails_and_says_which_case_is_slower_and_by_how_much(tmp_path: Path, roots: list[Sequence[Path]]) -> None:
    path = tmp_path / "gate.json"
    result = gate(path, "--base", "HEAD", "--rounds", "4")
    assert result.exit_code == 1
    assert "slower than HEAD: latency-tcp by 50% (clock), adam-1x1 by 20% (processor)" in result.output
    assert len(roots) == 4 * len(PACE)
    content = json.loads(path.read_text())
    assert content["base"] == "HEAD"
    assert [(row["case"], row["time"], row["verdict"]) for row in content["rows"]] == [
        ("latency-tcp", "clock", "slower"),
        ("latency-tcp", "processor", "same"),
        ("sgd-1x1", "clock", "same"),
        ("sgd-1x1", "processor", "same"),
        ("adam-1x1", "clock", "faster"),
        ("adam-1x1", "processor", "slower"),
    ]


def test_it_passes_where_nothing_is_slower(tmp_path: Path, roots: list[Sequence[Path]]) -> None:
    assert gate(tmp_path / "gate.json", "--base", "HEAD", "--only", "sgd-1x1").exit_code == 0
    assert not any(root.exists() for both in roots for root in both), "nothing is left behind"


def test_processor_time_has_a_tolerance_of_its_own(tmp_path: Path, roots: list[Sequence[Path]]) -> None:
    flags = ("--base", "HEAD", "--only", "adam")
    assert gate(tmp_path / "gate.json", *flags, "--threshold", "0.5").exit_code == 1
    assert gate(tmp_path / "gate.json", *flags, "--processor-threshold", "0.25").exit_code == 0


def test_what_is_to_be_compared_with_has_to_be_there(
    tmp_path: Path, roots: list[Sequence[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = gate(tmp_path / "gate.json", "--base", "no-such-commit")
    assert (result.exit_code, roots) == (1, [])
    assert "no package in 'no-such-commit'" in result.output
    monkeypatch.setattr(command, "_git", answers())
    result = gate(tmp_path / "gate.json")
    assert (result.exit_code, roots) == (1, [])
    assert result.output.splitlines()[-1] == (
        "Error: there is no earlier version here to compare with: name a commit, as in make bench-gate BASE=main~20"
    )


def answers(**said: str) -> Callable[..., bytes]:
    """Return a git that answers so, and fails in all else."""

    def git(command_: str, *arguments: str) -> bytes:
        if command_ not in said:
            raise command.subprocess.CalledProcessError(128, ["git", command_, *arguments])
        return said[command_].encode()

    return git


@pytest.mark.parametrize(
    ("said", "base"),
    [
        ({"describe": "v0.1.0\n"}, "v0.1.0"),
        ({"status": "", "log": "c0ffee1 (Mend it)"}, "HEAD~1"),
        ({"status": " M zmqps/words.py", "log": "c0ffee1 (Mend it)"}, "HEAD"),
    ],
)
def test_without_a_tag_it_is_compared_with_what_is_committed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: dict[str, str], base: str
) -> None:
    monkeypatch.setattr(command, "_git", answers(**said))
    assert command.find_base() == base
    told = capsys.readouterr().out
    assert ("there is no tag" in told) is ("describe" not in said)
    assert ("BASE=COMMIT" in told) is ("describe" not in said)


@pytest.mark.processes
@pytest.mark.parametrize("case", ["pipelined-tcp", pytest.param("sync-2x2", marks=pytest.mark.slow)])
def test_a_version_measures_the_package_of_the_directory_it_is_started_in(case: str) -> None:
    root = command.REPOSITORY
    old, new = command.measure_round(case, [root, root], 1, 0)
    assert min(*old, *new) > 0


@pytest.mark.processes
def test_a_version_refuses_to_measure_another_package(tmp_path: Path) -> None:
    with pytest.raises(command.PeerError, match="this would measure"):
        command.measure_round("latency-tcp", [tmp_path, tmp_path], 1, 0)
