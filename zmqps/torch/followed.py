"""The hyper-parameters of an optimizer's groups and those of the servers, which are the same at each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from zmqps.torch.translate import Numbers
from zmqps.worker import Worker


class Followed:
    """Tells the servers what the groups of an optimizer hold, as the chief of the job.

    Nothing is taken for known before this worker has told it: the job may come from a checkpoint, or have had another
    chief. What has not changed since is not told again.

    Parameters
    ----------
    worker
        Of the job.
    optimizer
        That the job was made from.
    num_parameters
        How many the model has.
    sync
        Whether a step says itself with which numbers it is done. Otherwise a push has those that hold when it begins,
        so this waits for the answer.
    timeout
        Of each call.
    """

    def __init__(
        self,
        worker: Worker,
        optimizer: torch.optim.Optimizer,
        num_parameters: int,
        *,
        sync: bool,
        timeout: float | None,
    ) -> None:
        self._worker = worker
        self._numbers = Numbers(optimizer, num_parameters)
        self._sync = sync
        self._timeout = timeout
        self._told: Any = None
        self._telling: Future[bool] | None = None

    def follow(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Tell what the groups hold, for the step that is pushed next and those after it.

        Raises
        ------
        OptimizerError
            A flag has changed, or a number that the servers' rule does not have.
        PSError
            As `zmqps.Worker.set_hyperparameters`, of a step before.
        """
        self._heed()
        now = self._numbers.now(groups)
        if not self._worker.is_chief:
            self._told = None
        elif now is not self._told:
            values, of_groups = now
            self._telling = self._worker.set_hyperparameters_async(values, groups=of_groups, timeout=self._timeout)
            self._told = now
            if not self._sync:
                self._telling.exception()
                self._heed()

    def _heed(self) -> None:
        """Take the answer to what was told, if it is there."""
        if self._telling is not None and self._telling.done():
            telling, self._telling = self._telling, None
            if not telling.result():  # another worker is the chief by now
                self._told = None
