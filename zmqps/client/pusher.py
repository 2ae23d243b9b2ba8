"""Pushing gradients, the ends of a worker's steps, and hyperparameters, on top of `Puller`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from zmqps import checks
from zmqps.client.puller import Puller
from zmqps.client.requests import Params
from zmqps.client.steps import Steps
from zmqps.client.thread import refuse_in_callback
from zmqps.codecs import Codec
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.terms import MOST_NUMBERS, SET, SET_TO_MEAN, UNCHANGED
from zmqps.core.worker.operations import Advance, Exchange, SetNumbers
from zmqps.errors import ConfigurationError
from zmqps.optim import Hyperparameters, OptimizerSpec


class Pusher(Puller):
    """A member that contributes gradients to its job; `zmqps.Worker` adds starting and saving it."""

    _steps: Steps | None = None  # those of the last loop
    _settable: tuple[JobSpec, Hyperparameters] | None = None  # the job whose numbers were set last, and what can be set

    def push(
        self,
        grads: Mapping[str, Any],
        *,
        atomic: bool = False,
        examples: int = 1,
        codec: str | Codec | None = None,
        step: bool | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send gradients; return when every shard has applied them, or keeps them for the step.

        Parameters
        ----------
        grads : mapping of str to array
            Gradients of some or all parameters; None: no gradient in this step. Contiguous ones are sent from where
            they lie; for servers on this host they are copied once, to memory that those read. `gradient_buffers` are
            not even copied. Those on a GPU are copied to this host before this returns, after pending work of their
            library; for a codec that gives the same bits on every device (``portable``) they are encoded first.
        atomic : bool
            Apply all of it on a shard at once, so that no other worker's update of that shard comes in between.
            Otherwise slices (4 MiB by default, see ``--slice-size``) are atomic. There is no guarantee across shards.
        examples : int
            Synchronous: the weight of these gradients in the step's mean, usually the size of the batch they are the
            mean of. Each parameter's mean is over the workers that pushed it, or over all of the step if the job has
            ``mean="workers"``; a parameter without a push in a step is not updated. Give the parts of one batch the
            same number, which counts once.
        codec : Codec or str, optional
            The codec of the gradients; by default the job's.
        step : bool, optional
            Not asynchronous: whether this ends the worker's step. By default it does if only frozen parameters
            (``optim.group(..., frozen=True)``) are left out. With False more pushes of the same step can follow; with
            True it ends the step whatever is in it, even nothing.
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Raises
        ------
        UnknownParameterError, ShapeError, DtypeError, NonFiniteGradientError, DeviceError
            Nothing was sent.
        DeadlineError, PeerLostError
            The push may have been applied in part; no part is ever applied twice. Parts may still be in flight: do not
            modify the arrays, or mixed values may arrive.
        """
        refuse_in_callback()
        requests = self._requests or self._job(timeout)
        staged, is_read = requests.stage(grads, codec), False
        try:
            push, _ = requests.push(grads, examples, codec, atomic=atomic, step=step, staged=staged)
            is_read = True
            self._complete(Exchange(push=push), timeout)
            is_read = False
        finally:
            if staged is not None:
                requests.staging.give_back(is_read=is_read)

    def push_async(
        self,
        grads: Mapping[str, Any],
        *,
        atomic: bool = False,
        examples: int = 1,
        codec: str | Codec | None = None,
        step: bool | None = None,
        timeout: float | None = None,
    ) -> Future[None]:
        """`push`, as a future."""
        push, _ = (self._requests or self._job(timeout)).push(grads, examples, codec, atomic=atomic, step=step)
        return self._submit(Exchange(push=push), timeout)

    def push_pull(
        self,
        grads: Mapping[str, Any],
        *,
        out: Mapping[str, Any] | None = None,
        examples: int = 1,
        codec: str | Codec | None = None,
        pull_codec: str | Codec | None = None,
        copy: bool = True,
        step: bool | None = None,
        timeout: float | None = None,
    ) -> Params:
        """Send gradients and return the values after them, in one round trip.

        As `push`, then `pull` of the same parameters, but each slice's values leave the server
        while later slices still arrive. ``step`` as in `push`, ``copy`` as in `pull`.
        """
        refuse_in_callback()
        requests = self._requests or self._job(timeout)
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

    def push_pull_async(
        self,
        grads: Mapping[str, Any],
        *,
        out: Mapping[str, Any] | None = None,
        examples: int = 1,
        codec: str | Codec | None = None,
        pull_codec: str | Codec | None = None,
        copy: bool = True,
        step: bool | None = None,
        timeout: float | None = None,
    ) -> Future[Params]:
        """`push_pull`, as a future."""
        requests = self._requests or self._job(timeout)
        push, pull, result = requests.push_pull(grads, out, examples, codec, pull_codec, copy, step)
        return self._submit(Exchange(push=push, pull=pull), timeout, result)

    def steps(
        self, until: int, *, out: Mapping[str, Any] | None = None, copy: bool = True, timeout: float | None = None
    ) -> Iterator[Params]:
        """Take steps up to a number: ``for params in worker.steps(1000): worker.push(gradients(params))``.

        Each turn of the loop is a step: it begins with `pull`, and its body ends it by a push of all gradients,
        `advance` or `skip`. In synchronous mode steps are the job's: all workers leave the loop with step ``until``
        applied. A worker that joins later, or a job that was restored from a checkpoint or has gone back to one,
        continues at its step. In the other modes they are this worker's own. In bounded mode a worker that joins or is
        restored begins at the step of the slowest; in asynchronous mode at 0, because no checkpoint knows how far each
        worker was.

        Parameters
        ----------
        until : int
            The step at which the loop ends, counted from 0, so a second loop goes on with a larger number.
        out, copy, timeout
            As for `pull`.

        Yields
        ------
        Params
            The values at the beginning of the step, as of `pull`. `push_pull` gets the next ones in the same round trip
            as it pushes, and needs no loop of this kind.

        Raises
        ------
        ConfigurationError
            The body does not end its step; or the last loop went as far; or this is an observer.
        PSError
            As `pull`.
        """
        return self._each_step(self._begin_steps(until, timeout), out, copy, timeout)

    def _each_step(
        self, steps: Steps, out: Mapping[str, Any] | None, copy: bool, timeout: float | None
    ) -> Iterator[Params]:
        while not steps.is_over:
            params = self.pull(out=out, copy=copy, timeout=timeout)
            if not steps.begin(params.version):
                return
            yield params
            del params  # before the next ones arrive

    def _begin_steps(self, until: int, timeout: float | None) -> Steps:
        checks.whole("until", until, 1)
        if self._role == "observer":
            raise ConfigurationError("an observer is not waited for, so it takes no steps")
        refuse_in_callback()
        last, job = self._steps, self._job(timeout).job
        if last is not None:
            last.check_next(until)
        at = (self._reads_at() or 0) if job.mode == "bounded" else 0 if last is None else last.at
        self._steps = Steps(until, job, at)
        return self._steps

    def set(self, values: Mapping[str, Any], *, step: bool = False, timeout: float | None = None) -> None:
        """Write parameters or buffers directly, without the optimizer; return when every shard has them.

        Each shard takes all of it at once. In synchronous mode it is a part of this worker's step, like a push: the
        version that the step makes is the first with it, on all shards; until then pulls return the old values. A value
        set in a step is not trained in it. If several workers set a value in a step, that of the lowest rank counts, so
        all may run the same script. In the other modes the next pull returns it. The optimizer's slots and step counts
        do not change.

        Parameters
        ----------
        values : mapping of str to array
            By name, in the shapes of `init`; of any dtype that converts without becoming another kind of number. A
            buffer may hold NaN and infinity. They are sent raw, whatever the job's codecs.
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
        """Set parameters or buffers to the mean of the workers' values in a step, such as BatchNorm statistics.

        Like `set`, but only in synchronous mode, whose workers share their steps. The mean is over the workers that
        give values for a name in the step. If a worker sets it in the same step, the set value counts.

        Parameters
        ----------
        values, step, timeout
            As for `set`; of a floating dtype.
        examples : int
            The weight of these values in the mean.

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
                'workers that share no steps have no values to average: train with mode="sync", or set what one worker '
                "has, worker.set(values)"
            )
        return self._submit(Exchange(push=requests.put(values, SET_TO_MEAN, examples, step=step)), timeout)

    def gradient_buffers(self, *, timeout: float | None = None) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
        """Return an array for the gradient of each parameter, in memory that servers on this host read in place.

        Buffers have none.

        Compute gradients into them (``np.multiply(…, out=buffers["w"])``, or tensors made by
        ``torch.from_numpy(buffers["w"])``) and push them: all at once, as the returned dict or one like it, or some.
        Servers on this host apply them from there, without a copy; to others they travel like any arrays. A program
        that cannot compute in place gains nothing.

        Parameters
        ----------
        timeout : float, optional
            Seconds to ask for the job, if `init` was not called.

        Returns
        -------
        dict of str to array
            Initially zeros, in the shape of each parameter and the dtype that servers keep (float32 or float64). The
            same arrays at each call, also after `rejoin` if the job is the same. They are plain memory of this process,
            valid as long as they are referred to, and count in ``statistics().shared_bytes`` if they are shared. As
            with any array, do not modify them from a push until it is done.
        """
        self._buffers = self._job(timeout).gradient_buffers()
        return dict(self._buffers.arrays)

    def advance(self, *, timeout: float | None = None) -> None:
        """End this worker's step: of several partial pushes, or of none.

        A push that leaves out only frozen parameters does so by itself; after that, this ends the next step. A worker
        that holds only some of the layers calls this after pushing them: each parameter's mean is over the workers that
        pushed it. With nothing pushed it is `skip`; but if the job has ``mean="workers"``, the worker counts in the
        mean with one example, or with those of ``push({}, step=True, examples=…)``. It does nothing in asynchronous
        mode.

        Parameters
        ----------
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60. The next transfer waits for the end of the step, this
            call only for the end of the previous step.

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
        """Declare that this worker contributes nothing to this step: the others continue without its gradient.

        Use it for an empty batch, or a gradient that is not finite. In synchronous mode the mean is over the
        contributors, and a partial push of this step does not count. If all workers skip a step, nothing is updated in
        it, and the version is one higher. With ``aggregate`` a step still needs that many gradients: while
        too few are in flight, this worker is released to contribute another one. In bounded mode the worker's clock
        advances. It does nothing in asynchronous mode.

        With ``for_all`` the step's gradients of all workers are discarded, as DDP with a GradScaler does when one
        worker has a gradient that is not finite. The step ends as usual, once all have arrived, and the version rises
        by one; parameters, rows, optimizer slots and step counts stay the same. Values passed to `set` or `average` in
        this step are still written. Other workers see it in `steps_left_out`. A step that was committed before this
        call arrives is not undone (``aggregate``, ``on_straggler``). In the other modes, which have no
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
            self._job(timeout)  # its mode says whether there are steps
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
            as ``momentum`` or ``b1``. They apply to the parameters in no group, and to groups that do not have their
            own number of that name.
        groups : sequence of mapping, optional
            Likewise of the optimizer's groups, in their order; None leaves one unchanged. Groups that started with the
            same numbers may diverge.
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Returns
        -------
        bool
            Whether these numbers are in force now. For a worker that is not the chief: only if the chief has set the
            same ones.

        Raises
        ------
        OptimizerError
            A number is out of its range, or not one of the optimizer's; or it decides which state is kept or its
            initial value, such as the first ``momentum`` of `zmqps.optim.rmsprop`; or their number differs from that of
            groups.
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
        """Set the job's learning rate: `set_hyperparameters` with only that.

        Other numbers set before return to those of `init`.

        Parameters
        ----------
        learning_rate : float
            Of the parameters that are in no group with its own learning rate.
        groups : sequence of float, optional
            The learning rates of the optimizer's groups, in their order; None leaves one unchanged.
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Returns
        -------
        bool
            As `set_hyperparameters`, as are the errors.
        """
        refuse_in_callback()
        return self.set_learning_rate_async(learning_rate, groups=groups, timeout=timeout).result()

    def set_learning_rate_async(
        self, learning_rate: float, *, groups: Sequence[float | None] | None = None, timeout: float | None = None
    ) -> Future[bool]:
        """`set_learning_rate`, as a future."""
        each: Any = groups  # anything but a sequence is refused where it is read
        if isinstance(groups, Sequence):
            each = [None if rate is None else {"learning_rate": rate} for rate in groups]
        return self.set_hyperparameters_async({"learning_rate": learning_rate}, groups=each, timeout=timeout)
