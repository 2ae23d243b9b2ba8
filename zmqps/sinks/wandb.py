"""Weights & Biases: a group for each job, a run for each of its workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zmqps.errors import ConfigurationError
from zmqps.extras import advice
from zmqps.sinks.sink import Runs


class WeightsAndBiases:
    """A project there; the account comes from its own configuration (``wandb login``, ``WANDB_…``).

    Parameters
    ----------
    project
        Its name, or ENTITY/NAME.

    Notes
    -----
    Charts have ``step`` on their horizontal axis: the script's step, or the number of its call.
    """

    def __init__(self, project: str) -> None:
        try:
            import wandb
        except ImportError:
            raise ConfigurationError(
                f"--values wandb:PROJECT needs Weights & Biases, which is not installed here: {advice('wandb')}"
            ) from None
        entity, _, name = project.rpartition("/")
        # a run shows its worker: not what the coordinator prints, nor how busy its host is
        settings = wandb.Settings(console="off", quiet=True, x_disable_stats=True)

        def begin(job: str, node: str) -> Any:
            run = wandb.init(
                project=name, entity=entity or None, group=job, name=node, reinit="create_new", settings=settings
            )
            # a script may go back to a lower step: what is logged with `step=` would be dropped then
            run.define_metric("*", step_metric="step")
            return run

        self._runs: Runs[Any] = Runs(begin, lambda run: run.finish())

    def values(self, job: str, node: str, step: int | None, at: float, values: Mapping[str, float]) -> None:
        """Hand them to its library, which sends them by itself."""
        run = self._runs.of(job, node)
        run.log({"step": run.step if step is None else step, **values, "_timestamp": at})

    def flush(self) -> None:
        """Nothing is kept here."""

    def close(self) -> None:
        """End the runs."""
        self._runs.close()
