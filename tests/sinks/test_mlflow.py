"""MLflow, by a double of its module: which experiments, runs and metrics it is told."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from zmqps.errors import ConfigurationError
from zmqps.sinks.mlflow import MOST_METRICS, MLflow


class Client:
    """What of ``MlflowClient`` is used."""

    def __init__(self, tracking_uri: str) -> None:
        self.uri = tracking_uri
        self.experiments: dict[str, str] = {"known": "7"}
        self.runs: dict[str, tuple[str, str]] = {}
        self.batches: list[tuple[str, list[tuple[Any, ...]]]] = []
        self.ended: list[str] = []

    def get_experiment_by_name(self, name: str) -> Any:
        number = self.experiments.get(name)
        return None if number is None else SimpleNamespace(experiment_id=number)

    def create_experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, str(len(self.experiments)))

    def create_run(self, experiment: str, run_name: str) -> Any:
        number = f"run {len(self.runs)}"
        self.runs[number] = (experiment, run_name)
        return SimpleNamespace(info=SimpleNamespace(run_id=number))

    def log_batch(self, run: str, metrics: list[Any]) -> None:
        assert 0 < len(metrics) <= MOST_METRICS
        self.batches.append((run, metrics))

    def set_terminated(self, run: str) -> None:
        self.ended.append(run)


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Any:
    mlflow, entities, tracking = ModuleType("mlflow"), ModuleType("mlflow.entities"), ModuleType("mlflow.tracking")
    entities.Metric = lambda *fields: fields  # type: ignore[attr-defined]
    tracking.MlflowClient = Client  # type: ignore[attr-defined]
    for module in (mlflow, entities, tracking):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return MLflow("http://127.0.0.1:5000")


def test_a_job_is_an_experiment_and_a_worker_a_run(sink: Any) -> None:
    sink.values("known", "worker 1", 3, 1764098765.125, {"loss": 0.5, "lr": 0.1})
    sink.values("new", "worker 0", 4, 1.0, {"loss": 0.25})
    client = sink._client
    assert client.uri == "http://127.0.0.1:5000"
    assert client.runs == {"run 0": ("7", "worker 1"), "run 1": ("1", "worker 0")}
    assert client.batches == [], "requests wait for the next flush"
    sink.flush()
    assert client.batches == [
        ("run 0", [("loss", 0.5, 1764098765125, 3), ("lr", 0.1, 1764098765125, 3)]),
        ("run 1", [("loss", 0.25, 1000, 4)]),
    ]
    sink.flush()
    assert len(client.batches) == 2


def test_at_the_end_the_rest_is_sent_and_the_runs_are_ended(sink: Any) -> None:
    sink.values("j", "worker 0", None, 1.0, {"a": 1.0})
    sink.values("j", "worker 0", None, 2.0, {"a": 2.0})
    sink.close()
    assert sink._client.batches == [("run 0", [("a", 1.0, 1000, 0), ("a", 2.0, 2000, 1)])]
    assert sink._client.ended == ["run 0"]


def test_no_request_has_more_metrics_than_the_server_takes(sink: Any) -> None:
    for number in range(MOST_METRICS // 64 + 2):
        sink.values("j", "worker 0", number, 1.0, {str(k): 1.0 for k in range(64)})
    sink.flush()
    assert sum(len(metrics) for _, metrics in sink._client.batches) == 64 * (MOST_METRICS // 64 + 2)


def test_without_mlflow_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.entities", None)
    with pytest.raises(ConfigurationError, match="pip install mlflow"):
        MLflow("http://127.0.0.1:5000")
