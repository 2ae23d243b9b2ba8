"""What a worker exchanges with its job: gradients and values, the ends of its steps, and what others wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any

from zmqps.client.member import Member
from zmqps.client.requests import Params
from zmqps.client.thread import refuse_in_callback
from zmqps.codecs import Codec
from zmqps.core.job.data import DataRange, DataSpec
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.protocol.terms import SET, SET_TO_MEAN
from zmqps.core.worker.operations import Advance, EnterBarrier, Exchange, Finish, Operation, StartJob
from zmqps.errors import ConfigurationError

Named = Mapping[str, Any]


class Exchanges:
    """The exchanges of one worker, each by itself; `zmqps.combine.exchanges` combines those of a host.

    `zmqps.Worker` describes the arguments. What begins something returns its future; the others wait.

    Parameters
    ----------
    member
        Its connection and job.
    """

    def __init__(self, member: Member) -> None:
        self.member = member
        self._connection = member.connection

    def _complete(self, operation: Operation, timeout: float | None, result: Callable[[Any], Any] | None = None) -> Any:
        connection = self._connection  # as `Member.complete`: this runs in each step
        if connection.closed:
            connection.check_open()
        seconds = connection.default_timeout if timeout is None else timeout
        return connection.thread.complete(operation, seconds, result)

    # --- gradients and values -----------------------------------------------------------------

    def push(
        self, grads: Named, atomic: bool, examples: int, codec: str | Codec | None, step: bool | None,
        timeout: float | None,
    ) -> None:  # fmt: skip
        """Send gradients."""
        refuse_in_callback()
        requests = self.member.requests or self.member.job(timeout)
        staged, is_read = requests.stage(grads, codec), False
        try:
            push, _ = requests.push(grads, examples, codec, atomic=atomic, step=step, staged=staged)
            is_read = True
            self._complete(Exchange(push=push), timeout)
            is_read = False
        finally:
            if staged is not None:
                requests.staging.give_back(is_read=is_read)

    def begin_push(
        self, grads: Named, atomic: bool, examples: int, codec: str | Codec | None, step: bool | None,
        timeout: float | None,
    ) -> Future[None]:  # fmt: skip
        """Begin to send gradients."""
        push, _ = self.member.job(timeout).push(grads, examples, codec, atomic=atomic, step=step)
        return self.member.submit(Exchange(push=push), timeout)

    def push_pull(
        self, grads: Named, out: Named | None, examples: int, codec: str | Codec | None,
        pull_codec: str | Codec | None, copy: bool, step: bool | None, timeout: float | None,
    ) -> Params:  # fmt: skip
        """Send gradients and return the values after them."""
        refuse_in_callback()
        requests = self.member.requests or self.member.job(timeout)
        staged, is_read, is_lent = requests.stage(grads, codec), False, False
        try:
            push, pull, result = requests.push_pull(grads, out, examples, codec, pull_codec, copy, step, staged)
            is_lent, is_read = bool(push.source.in_place) and requests.lend(push, pull), True
            params: Params = self._complete(Exchange(push=push, pull=pull), timeout, result)
            is_read = False
            return params
        except BaseException as error:
            # servers may still read them, and the caller may write there from now on
            if is_lent and staged is None and requests.buffers is not None:
                try:
                    requests.buffers.part()
                except OSError as why:
                    error.add_note(f"servers may still read gradient_buffers: leave them alone ({why})")
            raise
        finally:
            if staged is not None:
                requests.staging.give_back(is_read=is_read)

    def begin_push_pull(
        self, grads: Named, out: Named | None, examples: int, codec: str | Codec | None,
        pull_codec: str | Codec | None, copy: bool, step: bool | None, timeout: float | None,
    ) -> Future[Params]:  # fmt: skip
        """Begin to send gradients and to ask for the values after them."""
        push, pull, result = self.member.job(timeout).push_pull(grads, out, examples, codec, pull_codec, copy, step)
        return self.member.submit(Exchange(push=push, pull=pull), timeout, result)

    def pull(
        self, names: str | Iterable[str] | None, out: Named | None, at_least: int | None, exact: int | None,
        codec: str | Codec | None, copy: bool, timeout: float | None,
    ) -> Params:  # fmt: skip
        """Return values."""
        refuse_in_callback()
        pull, result = self.member.job(timeout).pull(names, out, at_least, exact, codec, copy)
        params: Params = self._complete(Exchange(pull=pull), timeout, result)
        return params

    def begin_pull(
        self, names: str | Iterable[str] | None, out: Named | None, at_least: int | None, exact: int | None,
        codec: str | Codec | None, copy: bool, timeout: float | None,
    ) -> Future[Params]:  # fmt: skip
        """Begin to ask for values."""
        pull, result = self.member.job(timeout).pull(names, out, at_least, exact, codec, copy)
        return self.member.submit(Exchange(pull=pull), timeout, result)

    def begin_pull_each(
        self, names: str | Iterable[str] | None, out: Named | None, at_least: int | None, codec: str | Codec | None,
        timeout: float | None,
    ) -> dict[str, Future[Any]]:  # fmt: skip
        """Begin to ask for values that are awaited one by one."""
        requests, connection = self.member.job(timeout), self._connection
        pull, values = requests.pull_each(names, out, at_least, codec)
        connection.check_open()
        futures = connection.thread.submit_each(Exchange(pull=pull), connection.seconds(timeout), values)
        return {requests.job.parameters[number].name: future for number, future in futures.items()}

    def begin_set(self, values: Named, step: bool, timeout: float | None) -> Future[None]:
        """Begin to write values."""
        return self.member.submit(Exchange(push=self.member.job(timeout).put(values, SET, 1, step=step)), timeout)

    def begin_average(self, values: Named, examples: int, step: bool, timeout: float | None) -> Future[None]:
        """Begin to write the mean of workers' values."""
        requests = self.member.job(timeout)
        if requests.job.mode != "sync":
            raise ConfigurationError(
                'workers that share no steps have no values to average: train with mode="sync", or set what one worker '
                "has, worker.set(values)"
            )
        return self.member.submit(Exchange(push=requests.put(values, SET_TO_MEAN, examples, step=step)), timeout)

    # --- steps, and what others wait for ------------------------------------------------------

    def end_step(self, advance: Advance, timeout: float | None) -> Future[None]:
        """End this worker's step."""
        if self.member.observes:
            raise ConfigurationError("an observer is not waited for, so it has no steps to end")
        self.member.job(timeout)  # its mode says whether there are steps
        self.member.send_deferred(timeout)
        return self.member.submit(advance, timeout)

    def enter(self, barrier: str, timeout: float | None) -> Future[None]:
        """Enter a barrier."""
        return self.member.submit(EnterBarrier(0.0, barrier=barrier), timeout)

    def take(self, data: DataSpec, used: DataRange | None, timeout: float | None) -> Future[DataRange | None]:
        """Report the used range and request the next; None: all passes are done."""
        return self._connection.take(data, used, timeout)

    # --- from the beginning to the end --------------------------------------------------------

    def start(self, job: JobSpec, values: list[Any], timeout: float | None) -> Future[None]:
        """Start a job, or join it."""
        return self.member.attach(StartJob(0.0, job=job, values=values), timeout)

    def finish(self, reason: DepartureCause, timeout: float | None) -> Future[None]:
        """Complete what is pending, and say goodbye."""
        self.member.send_deferred(timeout)
        return self.member.submit(Finish(0.0, reason=reason), timeout)


class Loop:
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
        self._most = (job.aggregate or 1) + 1  # a worker may bring all gradients of a step; and the job may go back
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
