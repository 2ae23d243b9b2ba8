"""Pushing gradients, where a worker's steps end, and with which numbers they are applied, on top of `Puller`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from zmqps import checks
from zmqps.client.puller import Puller
from zmqps.client.requests import Params
from zmqps.client.thread import refuse_in_callback
from zmqps.codecs import Codec
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.terms import MOST_NUMBERS, SET, SET_TO_MEAN, UNCHANGED
from zmqps.core.worker.operations import Advance, Exchange, SetNumbers
from zmqps.errors import ConfigurationError
from zmqps.optim import Hyperparameters, OptimizerSpec


class Pusher(Puller):
    """A member of a cluster that brings gradients to its job; `zmqps.Worker` adds what begins and saves that."""

    _settable: tuple[JobSpec, Hyperparameters] | None = None  # the job for which numbers were set last, and what can be

    def push(
        self,
        grads: Mapping[str, Any],
        *,
        timeout: float | None = None,
        atomic: bool = False,
        examples: int = 1,
        codec: str | Codec | None = None,
        step: bool | None = None,
    ) -> None:
        """Send gradients; return when every shard has applied them.

        Parameters
        ----------
        grads : mapping of str to array
            Gradients of some or all parameters; None: nothing for this one in this step. They are not copied
            where they are contiguous, and not even sent where they are `gradient_buffers` and the server is on
            this host. Those on a GPU are copied to this host, after what their library still computes, before
            this returns; in ``bf16``, ``fp16``, ``int8`` and ``topk`` they are encoded before that.
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.
        atomic : bool
            Apply all of it on a shard at once, so that no other worker's update of that shard comes
            in between. Otherwise slices (4 MiB unless ``--slice-size`` says otherwise) are atomic. Over
            several shards nothing is promised.
        examples : int
            Synchronous: how often these gradients count in the step's mean, usually the size of
            the batch they are the mean of. Each parameter's mean is over the workers that pushed it, or over all
            of the step where the job has ``mean="workers"``; what nobody pushed in a step is not updated.
            The parts of one batch are given the same number, which counts once.
        codec : Codec or str, optional
            How the gradients travel; by default the job's.
        step : bool, optional
            Not asynchronous: whether this ends the worker's step. By default it does where no parameter is left out
            but frozen ones (``optim.group(..., frozen=True)``). With False more pushes of the same step can follow;
            with True it ends whatever is in it, which may be nothing.

        Raises
        ------
        UnknownParameterError, ShapeError, DtypeError, NonFiniteGradientError, DeviceError
            Nothing was sent.
        DeadlineError, PeerLostError
            The push may have been applied in part; what was is never applied twice. Some of it may
            still be on its way: leave the arrays as they are, or what arrives may be neither.
        """
        refuse_in_callback()
        push, _ = (self._requests or self._job(timeout)).push(grads, examples, codec, atomic=atomic, step=step)
        self._complete(Exchange(push=push), timeout)

    def push_async(
        self,
        grads: Mapping[str, Any],
        *,
        timeout: float | None = None,
        atomic: bool = False,
        examples: int = 1,
        codec: str | Codec | None = None,
        step: bool | None = None,
    ) -> Future[None]:
        """`push`, as a future."""
        push, _ = (self._requests or self._job(timeout)).push(grads, examples, codec, atomic=atomic, step=step)
        return self._submit(Exchange(push=push), timeout)

    def push_pull(
        self,
        grads: Mapping[str, Any],
        *,
        out: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        examples: int = 1,
        codec: str | Codec | None = None,
        pull_codec: str | Codec | None = None,
        copy: bool = True,
        step: bool | None = None,
    ) -> Params:
        """Send gradients and return the values after them, in one round trip.

        As `push`, then `pull` of the same parameters, but each slice's values leave the server
        while later slices still arrive. ``step`` as in `push`, ``copy`` as in `pull`.
        """
        refuse_in_callback()
        requests = self._requests or self._job(timeout)
        push, pull, result = requests.push_pull(grads, out, examples, codec, pull_codec, copy, step)
        lent = requests.lend(push, pull) if push.source.in_place else None
        try:
            params: Params = self._complete(Exchange(push=push, pull=pull), timeout, result)
            return params
        except BaseException as error:
            if lent is not None:  # servers may be yet to read them, and the caller may write there from now on
                try:
                    lent.part()
                except OSError as why:
                    error.add_note(f"servers may still read gradient_buffers: leave them alone ({why})")
            raise

    def push_pull_async(
        self,
        grads: Mapping[str, Any],
        *,
        out: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        examples: int = 1,
        codec: str | Codec | None = None,
        pull_codec: str | Codec | None = None,
        copy: bool = True,
        step: bool | None = None,
    ) -> Future[Params]:
        """`push_pull`, as a future."""
        requests = self._requests or self._job(timeout)
        push, pull, result = requests.push_pull(grads, out, examples, codec, pull_codec, copy, step)
        return self._submit(Exchange(push=push, pull=pull), timeout, result)

    def set(self, values: Mapping[str, Any], *, step: bool = False, timeout: float | None = None) -> None:
        """Write parameters or buffers as they are, past the optimizer; return when every shard has them.

        Each shard takes all of it at once. In the synchronous mode it is a part of this worker's step, as a push is:
        the version that the step makes is the first with it, on all shards; until then pulls get the old values.
        What is set in a step is not trained in it; of several workers that set one thing in a step that with the lowest
        rank counts, so all may run the same script. In the other modes the next pull reads it. The optimizer's slots
        and step counts stay as they are.

        Parameters
        ----------
        values : mapping of str to array
            By name, in the shapes of `init`; of any dtype that converts without becoming another kind of number.
            A buffer may hold NaN and infinity. They are sent as they are, whatever the job's codecs.
        step : bool
            Not asynchronous: whether this ends the worker's step. By default a push does, or `advance`.
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Raises
        ------
        UnknownParameterError, ShapeError, DtypeError, ConfigurationError
            Nothing was sent.
        DeadlineError, PeerLostError
            As for `push`.
        """
        refuse_in_callback()
        self.set_async(values, step=step, timeout=timeout).result()

    def set_async(self, values: Mapping[str, Any], *, step: bool = False, timeout: float | None = None) -> Future[None]:
        """`set`, as a future."""
        push = (self._requests or self._job(timeout)).put(values, SET, 1, step=step)
        return self._submit(Exchange(push=push), timeout)

    def average(
        self, values: Mapping[str, Any], *, examples: int = 1, step: bool = False, timeout: float | None = None
    ) -> None:
        """Set parameters or buffers to the mean of what the workers say in a step, as statistics of BatchNorm.

        As `set`, for the synchronous mode, whose workers share their steps: the mean is over those who bring values for
        a name to the step. Where somebody sets that in the same step, it is what was set.

        Parameters
        ----------
        values, step, timeout
            As for `set`; of a floating dtype.
        examples : int
            How often these values count in the mean.

        Raises
        ------
        ConfigurationError
            The job is not synchronous; or as `set`.
        """
        refuse_in_callback()
        self.average_async(values, examples=examples, step=step, timeout=timeout).result()

    def average_async(
        self, values: Mapping[str, Any], *, examples: int = 1, step: bool = False, timeout: float | None = None
    ) -> Future[None]:
        """`average`, as a future."""
        requests = self._requests or self._job(timeout)
        if requests.job.mode != "sync":
            raise ConfigurationError(
                "workers that share no steps have no values to average: train with staleness=0, or set what one worker "
                "has, worker.set(values)"
            )
        return self._submit(Exchange(push=requests.put(values, SET_TO_MEAN, examples, step=step)), timeout)

    def gradient_buffers(self, *, timeout: float | None = None) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
        """Return an array for the gradient of each parameter, in memory that servers on this host read in place.

        Buffers have none.

        Compute gradients into them (``np.multiply(…, out=buffers["w"])``, or tensors made by
        ``torch.from_numpy(buffers["w"])``) and push them: all at once, as the dict that this
        returns or one like it, or some. Servers on this host apply them from there, nothing is copied;
        to others they travel as any arrays do. A program that cannot compute in place gains nothing.

        Parameters
        ----------
        timeout : float, optional
            Seconds to ask for the job, where `init` was not called.

        Returns
        -------
        dict of str to array
            Zeros at first, in the shape of each parameter and the dtype that servers keep (float32 or
            float64). The same arrays at each call, also after `rejoin` if the job is the same. They are
            plain memory of this process, valid as long as they are referred to, and count in
            ``statistics().shared_bytes`` where they are shared. As with any array, leave them alone
            from a push until it is done.
        """
        self._buffers = self._job(timeout).gradient_buffers()
        return dict(self._buffers.arrays)

    def advance(self, *, timeout: float | None = None) -> None:
        """End this worker's step: of several partial pushes, or of none.

        A push that leaves out no parameter but frozen ones does so by itself: after that, this ends the next step.
        A worker that holds only some of the layers calls this after having pushed theirs: each parameter's mean is
        over the workers that pushed it. With nothing pushed it is `skip`; but where the job has ``mean="workers"``, the
        worker counts in the mean with one example, or with those of ``push({}, step=True, examples=…)``. Nothing
        happens in asynchronous mode.

        Parameters
        ----------
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60. The next transfer waits for the end of the step, this
            only for that of the step before it.

        Raises
        ------
        ConfigurationError
            This is an observer.
        """
        refuse_in_callback()
        self.advance_async(timeout=timeout).result()

    def advance_async(self, *, timeout: float | None = None) -> Future[None]:
        """`advance`, as a future."""
        return self._end_step(Advance(0.0), timeout)

    def skip(self, *, for_all: bool = False, timeout: float | None = None) -> None:
        """Say that nothing comes from this worker in this step: the others go on without its gradient.

        For a batch that is empty, or a gradient that is not finite. In the synchronous mode the mean is over those who
        contributed, and what was pushed in this step in part does not count. If all skip a step, nothing is updated in
        it, and the version is one higher. With ``replicas_to_aggregate`` a step still needs that many gradients: while
        too few are on their way, this worker is let go to bring another one. In the bounded mode the worker's clock
        goes on. Nothing happens in asynchronous mode.

        With ``for_all`` the step's gradients of all workers are discarded, as DDP with a GradScaler does when one
        worker has a gradient that is not finite. The step ends as usual, once all have arrived, and the version rises
        by one; parameters, rows, optimizer slots and step counts stay the same. Values passed to `set` or `average` in
        this step are still written. Other workers see it in `steps_left_out`. A step that was committed before this
        call arrives is not undone (``replicas_to_aggregate``, ``on_straggler``). In the other modes, which have no
        common steps, this is a plain skip.

        Parameters
        ----------
        for_all : bool
            Synchronous: discard the gradients of all workers, not only this one's.
        timeout
            As for `advance`, as are the errors.
        """
        refuse_in_callback()
        self.skip_async(for_all=for_all, timeout=timeout).result()

    def skip_async(self, *, for_all: bool = False, timeout: float | None = None) -> Future[None]:
        """`skip`, as a future."""
        return self._end_step(Advance(0.0, skips=True, for_all=checks.flag("for_all", for_all)), timeout)

    @property
    def steps_left_out(self) -> int:
        """How many of this worker's steps were skipped for all workers, by this worker or another.

        The count rises when the next transfer ends: compare it before and after a `push_pull`, or before a push and
        after the next pull. Reading it sends nothing and never blocks. `rejoin` resets it to 0.
        """
        return self._thread.machine.transfers.counts["left_out"]

    def _end_step(self, advance: Advance, timeout: float | None) -> Future[None]:
        if self._role == "observer":
            raise ConfigurationError("an observer is not waited for, so it has no steps to end")
        if self._requests is None:
            self._job(timeout)  # whose mode says whether there are steps
        self._send_kept(timeout)
        return self._submit(advance, timeout)

    # --- the optimizer ------------------------------------------------------------------------

    def set_hyperparameters(
        self,
        values: Mapping[str, float],
        *,
        groups: Sequence[Mapping[str, float] | None] | None = None,
        timeout: float | None = None,
    ) -> bool:
        """Replace numbers of the job's optimizer, from this worker's next push on.

        Each call replaces the previous one completely: numbers it does not mention return to those of `init`, schedules
        included. ``{}`` restores them all.

        Only the chief's calls take effect (`is_chief`), so all workers can run the same script, such as one whose
        schedule follows the loss. In the synchronous mode the step of the chief's next push is the first
        with it, on all servers. In the other modes the chief's own next push is, and those of other workers follow
        within a second. A checkpoint and the coordinator's journal keep it.

        Parameters
        ----------
        values : mapping of str to float
            By the names of `zmqps.optim`: ``learning_rate``, ``weight_decay``, and each number of the optimizer, such
            as ``momentum`` or ``b1``. They are for the parameters in no group, and for groups that have no number of
            their own of that name.
        groups : sequence of mapping, optional
            Likewise of the optimizer's groups, in their order; None leaves one as it is. Groups that began with the
            same numbers may part.
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Returns
        -------
        bool
            Whether these numbers are in force now. For a worker that is not the chief: only if the chief has set the
            same.

        Raises
        ------
        OptimizerError
            A number is out of its range, or not one of the optimizer's; or it decides which state is kept or what that
            begins with, such as the first ``momentum`` of `zmqps.optim.rmsprop`; or there are not as many as groups.
        ConfigurationError
            This is an observer, or more than 4,096 numbers would travel with each update.
        DeadlineError
            The coordinator did not answer in time; the numbers may still take effect.
        """
        refuse_in_callback()
        return self.set_hyperparameters_async(values, groups=groups, timeout=timeout).result()

    def set_hyperparameters_async(
        self,
        values: Mapping[str, float],
        *,
        groups: Sequence[Mapping[str, float] | None] | None = None,
        timeout: float | None = None,
    ) -> Future[bool]:
        """`set_hyperparameters`, as a future."""
        if self._role == "observer":
            raise ConfigurationError("an observer does not train, and cannot set hyperparameters")
        job = self._job(timeout).job
        if self._settable is None or self._settable[0] is not job:
            names = [parameter.name for parameter in job.parameters]
            self._settable = job, Hyperparameters(OptimizerSpec.from_wire(job.optimizer), names)
        terms = [UNCHANGED if number is None else number for number in self._settable[1].terms(values, groups)]
        if len(terms) > 1 + MOST_NUMBERS:
            raise ConfigurationError(
                f"{len(terms) - 1} numbers would travel with each update, for {int(terms[0])} groups; the limit is "
                f"{MOST_NUMBERS}: put parameters with the same numbers into one group"
            )
        return self._submit(SetNumbers(0.0, rates=terms), timeout)

    def set_learning_rate(
        self, learning_rate: float, *, groups: Sequence[float | None] | None = None, timeout: float | None = None
    ) -> bool:
        """Set the job's learning rate: `set_hyperparameters` with that alone.

        Other numbers set before return to those of `init`.

        Parameters
        ----------
        learning_rate : float
            Of the parameters that are in no group with a learning rate of its own.
        groups : sequence of float, optional
            The learning rates of the optimizer's groups, in their order; None leaves one as it is.
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Returns
        -------
        bool
            As `set_hyperparameters`, and so are errors.
        """
        refuse_in_callback()
        return self.set_learning_rate_async(learning_rate, groups=groups, timeout=timeout).result()

    def set_learning_rate_async(
        self, learning_rate: float, *, groups: Sequence[float | None] | None = None, timeout: float | None = None
    ) -> Future[bool]:
        """`set_learning_rate`, as a future."""
        each: Any = groups  # what is no sequence is refused where it is looked into
        if isinstance(groups, Sequence):
            each = [None if rate is None else {"learning_rate": rate} for rate in groups]
        return self.set_hyperparameters_async({"learning_rate": learning_rate}, groups=each, timeout=timeout)
