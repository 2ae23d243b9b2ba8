"""How far a training loop is: what `Worker.steps` and its form in `zmqps.aio` share."""

from __future__ import annotations

from zmqps.core.job.spec import JobSpec
from zmqps.errors import ConfigurationError


class Steps:
    """The steps of one loop of a worker.

    Parameters
    ----------
    until
        The step at which the loop ends.
    job
        What is trained.
    at
        The step it begins with; in synchronous mode the pulled version says so.
    """

    def __init__(self, until: int, job: JobSpec, at: int) -> None:
        self.until = until
        self.at = at
        self._by_version = job.mode == "sync"
        self._most = (job.aggregate or 1) + 1  # a worker may bring all gradients of a step; and it may have gone back
        self._num_begun = 0  # how often the current step was begun

    @property
    def is_over(self) -> bool:
        """Whether all steps are taken."""
        return self.at >= self.until

    def begin(self, version: int) -> bool:
        """Begin a step with values of this version; return whether there is one left.

        Raises
        ------
        ConfigurationError
            The body of the loop has not ended its step.
        """
        if not self._by_version:
            self.at += 1
            return True
        self._num_begun = self._num_begun + 1 if version == self.at else 1
        if self._num_begun > self._most:
            raise ConfigurationError(
                f"the body of the loop has not ended step {version}: push the gradients of all parameters in it, or "
                "call advance() after the last push, or skip()"
            )
        self.at = version
        return not self.is_over

    def check_next(self, until: int) -> None:
        """Raise `ConfigurationError` if a loop up to a step would take none, because this one was as long."""
        if self.is_over and until <= self.until:
            raise ConfigurationError(
                f"steps({until}) ends at step {until}, and this worker has trained up to step {self.until}: for "
                f"{until} more, call steps({self.until + until})"
            )
