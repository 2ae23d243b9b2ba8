"""MLflow's store of files, read back by its client."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tables import for_each
from zmqps.errors import ConfigurationError
from zmqps.sinks.mlflow import MOST_METRICS, MLflow, accepted

AT = 1764098765.125


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return pytest.importorskip("mlflow.tracking").MlflowClient(tracking_uri=tmp_path.as_uri())


@pytest.fixture
def sink(client: Any, tmp_path: Path) -> MLflow:
    return MLflow(tmp_path.as_uri())


def runs(client: Any, job: str) -> dict[str, Any]:
    """Return the runs of a job's experiment by their names."""
    found = client.search_runs([client.get_experiment_by_name(job).experiment_id])
    return {run.info.run_name: run for run in found}


def history(client: Any, run: Any, name: str) -> list[tuple[int, int, float]]:
    """Return (step, time in milliseconds, value) of a run's metric."""
    return [(one.step, one.timestamp, one.value) for one in client.get_metric_history(run.info.run_id, name)]


def test_a_job_is_an_experiment_and_a_worker_a_run(sink: MLflow, client: Any) -> None:
    known = client.create_experiment("known")
    sink.values("known", "worker 1", 3, AT, {"loss": 0.5, "lr": 0.1})
    sink.values("new", "worker 0", 4, 1.0, {"loss": 0.25})
    [run] = runs(client, "known").values()
    assert (run.info.run_name, run.info.experiment_id) == ("worker 1", known)
    assert run.data.metrics == {}, "they wait for the next flush"
    for _ in range(2):
        sink.flush()
    assert history(client, run, "loss") == [(3, 1764098765125, 0.5)]
    assert history(client, run, "lr") == [(3, 1764098765125, 0.1)]
    assert history(client, runs(client, "new")["worker 0"], "loss") == [(4, 1000, 0.25)]


def test_at_the_end_the_rest_is_sent_and_the_runs_are_ended(sink: MLflow, client: Any) -> None:
    sink.values("j", "worker 0", None, 1.0, {"a": 1.0})
    assert runs(client, "j")["worker 0"].info.status == "RUNNING"
    sink.values("j", "worker 0", None, 2.0, {"a": 2.0})
    sink.close()
    run = runs(client, "j")["worker 0"]
    assert history(client, run, "a") == [(0, 1000, 1.0), (1, 2000, 2.0)]
    assert run.info.status == "FINISHED"


def test_more_metrics_than_a_request_may_have_are_all_written(sink: MLflow, client: Any) -> None:
    steps = range(MOST_METRICS // 64 + 2)
    for step in steps:
        sink.values("j", "worker 0", step, 1.0, {str(k): 1.0 for k in range(64)})
    sink.flush()
    run = runs(client, "j")["worker 0"]
    assert [step for step, _, _ in history(client, run, "63")] == list(steps)


def test_nan_and_infinities_are_written_as_they_are(sink: MLflow, client: Any) -> None:
    sink.values("j", "worker 0", 0, 1.0, {"a": math.nan, "b": math.inf, "c": -math.inf})
    sink.close()
    metrics = runs(client, "j")["worker 0"].data.metrics
    assert math.isnan(metrics.pop("a"))
    assert metrics == {"b": math.inf, "c": -math.inf}


NAMES = {
    "loss": "loss",
    "top 5/accuracy: %": "top 5/accuracy: _",
    "größe_1-2.3": "größe_1-2.3",
    "loss (train)": "loss _train_",
    "../../etc": "etc",
    "/a//b/": "a/b",
    "..": "_",
    "α@β": "α_β",
}


def test_names_are_written_as_mlflow_accepts_them(sink: MLflow, client: Any) -> None:
    sink.values("j", "worker 0", 0, 1.0, dict.fromkeys(NAMES, 1.0))
    sink.close()
    assert set(runs(client, "j")["worker 0"].data.metrics) == set(NAMES.values())


@for_each("name", NAMES)
def test_each_name_is_close_to_what_it_was(name: str) -> None:
    assert accepted(name) == NAMES[name]


def test_a_run_that_cannot_begin_is_an_error_and_others_go_on(sink: MLflow, client: Any) -> None:
    client.delete_experiment(client.create_experiment("deleted"))
    with pytest.raises(Exception, match="Could not create run"):
        sink.values("deleted", "worker 0", 0, 1.0, {"a": 1.0})
    sink.values("j", "worker 0", 0, 1.0, {"a": 1.0})
    sink.close()
    assert runs(client, "j")["worker 0"].data.metrics == {"a": 1.0}


def test_without_mlflow_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.entities", None)
    with pytest.raises(ConfigurationError, match=r"pip install .*\[mlflow\]'"):
        MLflow("http://127.0.0.1:5000")
