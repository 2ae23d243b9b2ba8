"""The experiments' harness: what it measures is what the real core did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.harness import COMPUTE_S, Run, one_slower
from experiments.past_the_minimum import run, theory, train
from experiments.problems import Parabola
from zmqps import stale
from zmqps.optim import sgd


def test_one_worker_on_a_parabola_is_gradient_descent() -> None:
    curve = Run(label="", optimizer=sgd(0.5), problem=Parabola(2.0), workers=1, mode="async", updates=4, every=1).run()
    assert curve.updates == [0, 1, 2, 3]
    assert curve.loss == [(2.0 * 0.5**k) ** 2 / 2 for k in range(4)]
    assert curve.staleness == {0: 4}
    assert curve.step_s == pytest.approx(COMPUTE_S, rel=0.5)


def test_synchronous_workers_wait_for_the_slowest_and_asynchronous_ones_do_not() -> None:
    def pushes(mode: str) -> int:
        speed = one_slower(4.0)
        return (
            Run(
                label="",
                optimizer=sgd(0.1),
                problem=Parabola(),
                workers=4,
                mode=mode,
                speed=speed,
                seconds=1.0,
            )
            .run()
            .pushes
        )

    steps = 1.0 / (4 * COMPUTE_S)
    assert pushes("sync") == pytest.approx(4 * steps, rel=0.2)
    assert pushes("async") == pytest.approx((1 + 3 * 4) * steps, rel=0.2)


def test_a_run_gives_the_same_figures_every_time() -> None:
    runs = [
        Run(label="", optimizer=sgd(0.1), problem=Parabola(), mode="async", treatment=stale.drop(2), updates=30)
        .run()
        .to_json()
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert runs[0]["dropped"] > 0


def test_two_workers_push_past_the_minimum() -> None:
    first, second, third = train(0.9, 2, 3)
    assert first["after"] == pytest.approx(0.2)
    assert (second["read"], second["after"]) == (2.0, pytest.approx(-1.6))
    assert third["read"] == pytest.approx(0.2)
    assert [theory(0), theory(1)] == pytest.approx([2.0, 1.0])


@pytest.mark.processes
def test_an_experiment_leaves_a_picture_and_its_figures(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("experiments.past_the_minimum.WORKERS", (1, 2))
    outcome = run(tmp_path)
    outcome.save(tmp_path / "figures.json")
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [float(row["largest stable rate"]) for row in figures["table"]] == pytest.approx([2.0, 1.0], rel=0.02)
    assert (tmp_path / "past_the_minimum.png").stat().st_size > 10_000
