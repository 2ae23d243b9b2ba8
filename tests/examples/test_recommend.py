"""The recommenders: their gradients, their data, and what they reach."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zmqps
from examples import recommend
from tests.inprocess import InProcessCluster
from tests.team import PATIENCE

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]


def write_ratings(path: Path, users: int = 60, movies: int = 40) -> Path:
    """Write ratings that factors and biases explain."""
    rng = np.random.default_rng(2)
    factors, tastes = rng.normal(size=(users, 2)), rng.normal(size=(movies, 2))
    liked = rng.normal(0, 0.5, movies)
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    for user in range(users):
        for movie in range(movies):
            stars = np.clip(np.rint(3.2 + factors[user] @ tastes[movie] / 2 + liked[movie]), 1, 5)
            lines.append(f"{user + 1}\t{movie + 1}\t{stars:.0f}\t881250949")
    path.write_text("\n".join(lines) + "\n")
    return path


def arguments(*more: str) -> Any:
    return recommend.parser().parse_args(["--examples", "3000", *more])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_ratings(tmp_path / "ratings.inter")


@pytest.mark.parametrize("name", ["movies", "clicks"])
def test_gradients_are_those_of_the_loss(name: str, data: Path) -> None:
    model = recommend.MODELS[name](arguments("--data", str(data)))
    which = np.arange(5)
    rng = np.random.default_rng(1)
    ids = model.ids(which)
    rows = {field: rng.normal(size=(5, dim)) for field, dim in model.fields.items()}
    params = {key: value + rng.normal(0, 0.1, value.shape) for key, value in model.params().items()}
    assert {field: some.shape for field, some in ids.items()} == dict.fromkeys(model.fields, (5,))

    def loss() -> float:
        if name == "clicks":
            return float(model.gradients(params, rows, which)[0])
        penalty = sum(float((model.decay * rows[field] ** 2).sum()) for field in rows)
        return float(model.gradients(params, rows, which)[0]) * 5 / 2 + penalty / 2

    _, dense, sparse = model.gradients(params, rows, which)
    for found, of, scale in ((dense, params, 5.0 if name == "movies" else 1.0), (sparse, rows, 1.0)):
        for key, gradient in found.items():
            flat = of[key].reshape(-1)
            for at in rng.choice(flat.size, min(6, flat.size), replace=False):
                before = flat[at]
                flat[at] = before + 1e-5
                above = loss()
                flat[at] = before - 1e-5
                below = loss()
                flat[at] = before
                assert scale * gradient.reshape(-1)[at] == pytest.approx((above - below) / 2e-5, rel=1e-3, abs=1e-6)


def test_each_worker_has_as_many_steps_and_no_example_twice(data: Path) -> None:
    args = arguments("--data", str(data), "--batch", "50", "--passes", "1")
    model = recommend.Movies(args)
    assert model.num_train == 2160
    shares = [recommend.batches(model, args, rank, 4) for rank in range(4)]
    assert {len(share) for share in shares} == {10}
    every = np.concatenate([which for share in shares for which in share])
    assert np.unique(every).size == every.size


def test_one_process_learns_both(data: Path) -> None:
    movies = recommend.Movies(arguments("--data", str(data)))
    assert recommend.train_alone(movies, arguments("--batch", "64", "--passes", "20")) < 0.7
    clicks = recommend.Clicks(arguments())
    assert recommend.train_alone(clicks, arguments("--batch", "64", "--passes", "3")) > 0.6


def test_data_that_cannot_be_had_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(command: list[str], **_: Any) -> Any:
        assert command[:5] == [sys.executable, "-m", "pip", "download", "--quiet"]
        return subprocess.CompletedProcess(command, 1, "", "no matching distribution")

    monkeypatch.setattr(recommend.subprocess, "run", fails)
    with pytest.raises(SystemExit, match=r"--model clicks(.|\n)*no matching distribution"):
        recommend.ratings(tmp_path)
    (tmp_path / "ml-100k.inter").write_text("mine")
    with pytest.raises(SystemExit, match="other ratings"):
        recommend.ratings(tmp_path)


def test_a_cache_takes_bytes_away_and_learns_as_well() -> None:
    def train(*more: str) -> tuple[float, int]:
        args = recommend.parser().parse_args(
            ["--model", "clicks", "--mode", "async", "--examples", "6000", "--batch", "64", *more]
        )
        model = recommend.Clicks(args)
        with InProcessCluster() as cluster, zmqps.connect(cluster.address, timeout=PATIENCE) as worker:
            recommend.train(worker, model, args)
            figures = worker.statistics()
            tables = {name: worker.table(name) for name in model.fields}
            measured = model.measure(worker.pull(timeout=PATIENCE), lambda name, ids: tables[name].rows(ids))
            return measured, figures.bytes_sent + figures.bytes_received

    (before, all_bytes), (after, fewer) = train(), train("--cache", "2000", "--cache-staleness", "4")
    assert fewer < 0.9 * all_bytes
    assert after > before - 0.02 > 0.6
