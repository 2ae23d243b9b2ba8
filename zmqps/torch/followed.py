"""The hyper-parameters of an optimizer's groups and those of the servers, which are the same at each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from zmqps.client.futures import begins
from zmqps.errors import OptimizerError
from zmqps.torch.translate import Numbers
from zmqps.worker import Worker


class Followed:
    """Sends the servers what the groups of an optimizer hold, if this worker is the chief of the job.

    Nothing is assumed to be known there before this worker has sent it: the job may come from a checkpoint, or have had
    another chief. What has not changed since is not sent again.

    Parameters
    ----------
    worker
        Of the job.
    optimizer
        That the job was made from.
    num_parameters
        How many the model has.
    sync
        Whether a step itself decides with which numbers it is done. Otherwise a push has those that hold when it
        begins, so this waits for the answer.
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
        self._parameters = [list(map(id, each["params"])) for each in optimizer.param_groups]
        self._sync = sync
        self._timeout = timeout
        self._sent: Any = None
        self._pending: Future[bool] | None = None

    def follow(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Send what the groups hold, for the step that is pushed next and those after it.

        Raises
        ------
        OptimizerError
            A flag has changed, or a number that the servers' rule does not have.
        PSError
            As `zmqps.Worker.set_hyperparameters`, of a step before. The next step sends the numbers again.
        """
        self._take_answer()
        if [list(map(id, each["params"])) for each in groups] != self._parameters:
            raise OptimizerError(
                "the parameters of the param groups are not those that the job began with: one was replaced, or taken "
                "out. Write to parameters in place, and freeze those that stay as they are (requires_grad_(False))"
            )
        now = self._numbers.now(groups)
        if not self._worker.is_chief:
            self._sent = None
        elif now is not self._sent:
            values, of_groups = now
            self._pending = begins(Worker.set_hyperparameters)(
                self._worker, values, groups=of_groups, timeout=self._timeout
            )
            self._sent = now
            if not self._sync:
                self._pending.exception()
                self._take_answer()

    def forget(self) -> None:
        """The job went back to a checkpoint, with the numbers of that: send all again."""
        self._sent = None

    def _take_answer(self) -> None:
        """Look at the answer to what was sent, if it is there."""
        if self._pending is not None and self._pending.done():
            (pending, self._pending), (sent, self._sent) = (self._pending, None), (self._sent, None)
            if pending.result():  # else another worker is the chief by now
                self._sent = sent
