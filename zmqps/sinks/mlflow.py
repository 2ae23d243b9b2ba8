"""MLflow: an experiment for each job, a run for each of its workers."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zmqps.errors import ConfigurationError
from zmqps.extras import advice
from zmqps.sinks.sink import Runs

#: Metrics that one request may have.
MOST_METRICS = 1000
#: In no name of a metric: MLflow refuses a request that has one.
REFUSED = re.compile(r"[^\w. :/-]")


@dataclass(slots=True)
class _Run:
    number: str
    metrics: list[Any] = field(default_factory=list)  # not sent yet
    num_calls: int = 0


class MLflow:
    """A tracking server, or a directory or database that MLflow knows as one.

    Parameters
    ----------
    uri
        Its URI, such as ``http://127.0.0.1:5000`` or ``sqlite:///mlflow.db``.
    """

    def __init__(self, uri: str) -> None:
        try:
            from mlflow.entities import Metric
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise ConfigurationError(
                f"--values mlflow:URI needs MLflow, which is not installed here: {advice('mlflow')}"
            ) from None
        self._metric = Metric
        self._client = MlflowClient(tracking_uri=uri)
        self._runs: Runs[_Run] = Runs(self._begin, self._end)

    def _begin(self, job: str, node: str) -> _Run:
        experiment = self._client.get_experiment_by_name(job)
        number = self._client.create_experiment(job) if experiment is None else experiment.experiment_id
        return _Run(self._client.create_run(number, run_name=node).info.run_id)

    def values(self, job: str, node: str, step: int | None, at: float, values: Mapping[str, float]) -> None:
        """Keep them for the next request."""
        run = self._runs.of(job, node)
        if len(run.metrics) + len(values) > MOST_METRICS:
            self._send(run)
        step = run.num_calls if step is None else step
        run.metrics += [self._metric(accepted(name), value, int(1000 * at), step) for name, value in values.items()]
        run.num_calls += 1

    def _send(self, run: _Run) -> None:
        metrics, run.metrics = run.metrics, []
        if metrics:
            self._client.log_batch(run.number, metrics=metrics)

    def _end(self, run: _Run) -> None:
        try:
            self._send(run)
        finally:
            self._client.set_terminated(run.number)

    def flush(self) -> None:
        """Send what is kept."""
        for run in self._runs.each():
            self._send(run)

    def close(self) -> None:
        """Send what is kept, and end the runs."""
        self._runs.close()


def accepted(name: str) -> str:
    """Return a name as MLflow accepts it: ``loss _train_`` for ``loss (train)``."""
    return posixpath.normpath("/" + REFUSED.sub("_", name)).lstrip("/") or "_"  # stores may take it for a path
