"""The hyper-parameters of an optimizer's groups, and the servers', which are to be the same at each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from zmqps.worker import Worker


class Numbers:
    """Tells the servers what the groups of an optimizer hold, as the chief of the job.

    Nothing is taken for known before this worker has told it: the job may come from a checkpoint, or have had another
    chief. What has not changed since is not told again.

    Parameters
    ----------
    worker
        Of the job.
    twin
        The optimizer that the job was made from.
    has_frozen
        Whether parameters of the model are in no group.
    timeout
        Of each call.
    """

    def __init__(self, worker: Worker, twin: torch.optim.Optimizer, has_frozen: bool, timeout: float | None) -> None:
        self._worker = worker
        self._twin = twin
        self._has_frozen = has_frozen
        self._timeout = timeout
        self._told: Any = None
        self._telling: Future[bool] | None = None

    def follow(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Tell what the groups hold, for the step that is pushed next and those after it.

        Raises
        ------
        OptimizerError
            A number has changed that the servers' rule does not have, or an option that is not a number.
        PSError
            As `zmqps.Worker.set_hyperparameters`, of a step before.
        """
        if self._telling is not None and self._telling.done():
            if not self._telling.result():  # another worker is the chief by now
                self._told = None
            self._telling = None
        if not self._worker.is_chief:
            self._told = None
            return
        rates = [float(each["lr"]) for each in groups]
        if rates == self._told:
            return
        of_groups: list[float | None] = [
            rate for rate, each in zip(rates[1:], groups[1:], strict=True) if each["params"]
        ]
        of_groups += [None] * self._has_frozen
        self._telling = self._worker.set_learning_rate_async(rates[0], groups=of_groups or None, timeout=self._timeout)
        self._told = rates
