"""Weights & Biases, by a double of its module: which runs there are, and what they are told."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from zmqps.errors import ConfigurationError
from zmqps.sinks.wandb import WeightsAndBiases


class Run:
    """What of its runs is used."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.logged: list[tuple[dict[str, float], int | None]] = []
        self.is_finished = False

    def log(self, values: dict[str, float], step: int | None) -> None:
        self.logged.append((values, step))

    def finish(self) -> None:
        self.is_finished = True


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    wandb, found = ModuleType("wandb"), list[Run]()

    def init(**options: Any) -> Run:
        found.append(Run(**options))
        return found[-1]

    wandb.init = init  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return found


def test_a_job_is_a_group_and_a_worker_a_run(runs: list[Run]) -> None:
    sink = WeightsAndBiases("team/project")
    sink.values("j", "worker 1", 3, 8.5, {"loss": 0.5})
    sink.values("j", "worker 1", None, 9.5, {"loss": 0.25})
    sink.flush()
    [run] = runs
    assert run.options == {
        "project": "project", "entity": "team", "group": "j", "name": "worker 1", "reinit": "create_new"
    }  # fmt: skip
    assert run.logged == [({"loss": 0.5, "_timestamp": 8.5}, 3), ({"loss": 0.25, "_timestamp": 9.5}, None)]
    sink.close()
    assert run.is_finished


def test_without_it_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigurationError, match="pip install wandb"):
        WeightsAndBiases("project")
