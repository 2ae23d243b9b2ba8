"""Probes of what is rare: they count what they look for, change nothing, and fail a run that never reaches one."""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path

import pytest

from tests.simulator.probes import ENOUGH_SEEDS, PROBES, CodeProbe, missed, table, watching
from tests.simulator.scenarios import SCENARIOS
from tests.simulator.seeds import SeedsRun, run_seeds
from tests.simulator.simulate import main

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "simulation.md"


class Counts:
    """Adds numbers."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, number: int, *, twice: bool = False) -> int:
        if number < 0:
            raise ValueError(number)
        self.total += number * (1 + twice)
        return self.total


def probe(**options: object) -> CodeProbe:
    return CodeProbe(name="it adds", of=Counts, method="add", **options)  # type: ignore[arg-type]


def test_a_probe_counts_the_calls_that_it_looks_for_before_and_after() -> None:
    reached: Counter[str] = Counter()
    looks = probe(before=lambda counts, number, twice=False: not counts.total, after=lambda counts, found: found > 1)
    with watching(reached, [looks]):
        counts = Counts()
        assert [counts.add(0), counts.add(1, twice=True), counts.add(5)] == [0, 2, 7]
    assert reached == {"it adds": 1}


def test_a_call_that_fails_reaches_nothing_and_fails_as_it_would() -> None:
    reached: Counter[str] = Counter()
    with watching(reached, [probe()]), pytest.raises(ValueError, match="-1"):
        Counts().add(-1)
    assert not reached


def test_what_is_watched_is_as_before_afterwards() -> None:
    before = [vars(probe.of)[probe.method] for probe in PROBES]
    with watching(Counter()):
        assert not any(vars(p.of)[p.method] is own for p, own in zip(PROBES, before, strict=True))
    assert [vars(probe.of)[probe.method] for probe in PROBES] == before


@pytest.mark.repeats
def test_probes_change_no_run() -> None:
    scenario = SCENARIOS["sync-scales-returned-replicas"]
    plain = scenario.simulation(3).run()
    with watching(Counter()):
        assert scenario.simulation(3).run() == plain


def test_each_probe_has_a_name_of_its_own_and_a_row_in_the_document() -> None:
    names = [probe.name for probe in PROBES]
    assert len(set(names)) == len(names)
    rows = [line.split(" | ")[0].removeprefix("| ") for line in DOCUMENT.read_text().splitlines() if " | `" in line]
    assert rows == names


def test_no_probe_is_of_what_every_step_calls() -> None:
    """A call costs a microsecond more: so it would show where there are thousands of a seed."""
    assert not {probe.method for probe in PROBES} & {"handle", "pump", "next_deadline", "push", "validate"}
    assert all(inspect.isfunction(vars(probe.of)[probe.method]) for probe in PROBES)


@pytest.mark.repeats
def test_seeds_say_how_many_of_them_have_reached_a_probe() -> None:
    name = "a comeback with a step that servers have not confirmed"
    _, reached = run_seeds(["sync-returned"], range(6), jobs=1)
    assert 0 < reached[name] <= 6
    assert f"{reached[name]:8,}  {name}\n" in table(reached)
    assert name not in missed(reached)


def test_a_run_fails_that_never_reaches_a_probe(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--scenario", "async-loss", "--seeds", "0:1", "--jobs", "1"]
    assert main(arguments) == 0
    assert "probe" not in capsys.readouterr().out
    assert main([*arguments, "--probes"]) == 1
    printed = capsys.readouterr()
    assert "       0  a comeback during a promotion\n" in printed.out
    assert "never reached: a comeback during a promotion\n" in printed.err


@pytest.mark.parametrize(("num_seeds", "code"), [(ENOUGH_SEEDS, 1), (ENOUGH_SEEDS - 1, 0)])
def test_a_long_run_of_all_scenarios_needs_no_option_for_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], num_seeds: int, code: int
) -> None:
    reached = Counter([probe.name for probe in PROBES[1:]])
    monkeypatch.setattr("tests.simulator.simulate.run_seeds", lambda *_: SeedsRun([], reached))
    assert main(["--seeds", f"0:{num_seeds}"]) == code
    assert (f"never reached: {PROBES[0].name}" in capsys.readouterr().err) == bool(code)
