"""Weights & Biases: a group for each job, a run for each of its workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zmqps.errors import ConfigurationError
from zmqps.sinks.sink import Runs


class WeightsAndBiases:
    """A project there; the account comes from its own configuration (``wandb login``, ``WANDB_…``).

    Parameters
    ----------
    project
        Its name, or ENTITY/NAME.
    """

    def __init__(self, project: str) -> None:
        try:
            import wandb
        except ImportError:
            raise ConfigurationError(
                "--values wandb:PROJECT needs Weights & Biases, which is not installed here: pip install wandb"
            ) from None
        entity, _, name = project.rpartition("/")

        def begin(job: str, node: str) -> Any:
            return wandb.init(project=name, entity=entity or None, group=job, name=node, reinit="create_new")

        self._runs: Runs[Any] = Runs(begin, lambda run: run.finish())

    def values(self, job: str, node: str, step: int | None, at: float, values: Mapping[str, float]) -> None:
        """Hand them to its library, which sends them by itself."""
        self._runs.of(job, node).log({**values, "_timestamp": at}, step=step)

    def flush(self) -> None:
        """Nothing is kept here."""

    def close(self) -> None:
        """End the runs."""
        self._runs.close()
