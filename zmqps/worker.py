"""The worker: what a training script does with a job. It consists of its parts of `zmqps.client`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from types import FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from zmqps import checks
from zmqps.client.connection import Connection, Profile, profile_of
from zmqps.client.exchanges import Exchanges, Loop
from zmqps.client.futures import begins, blocking, future_of
from zmqps.client.groups import Gradients, Steps
from zmqps.client.lives import drain_on as drain_on
from zmqps.client.lives import is_draining
from zmqps.client.member import Member, close_namesakes
from zmqps.client.naming import check_groups
from zmqps.client.requests import Params
from zmqps.client.sparse.cache_options import CacheOptions
from zmqps.client.sparse.row_cache import Call
from zmqps.client.sparse.tables import Table, TableOptions, specs_of
from zmqps.client.tensors import describe
from zmqps.client.thread import refuse_in_callback
from zmqps.codecs import Codec
from zmqps.core.job.data import DataRange, DataSpec
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.encoding import check_codec
from zmqps.core.protocol.exits import DRAINED as DRAINED
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.core.protocol.terms import MOST_NUMBERS, UNCHANGED
from zmqps.core.worker.layout.rollbacks import Rollback
from zmqps.core.worker.operations import Advance, AskStatus, Restored, SavedCheckpoint, SaveJob, SetNumbers
from zmqps.core.worker.statistics import Statistics
from zmqps.errors import ConfigurationError
from zmqps.keys.security import Security
from zmqps.optim import Hyperparameters, OptimizerSpec, sgd

if TYPE_CHECKING:
    from zmqps.combine.exchanges import HostExchanges

TRANSPORT_VARIABLE = "ZMQPS_TRANSPORT"
JOB_VARIABLE = "ZMQPS_JOB"
JOB_SECRET_VARIABLE = "ZMQPS_JOB_SECRET"
COMBINE_VARIABLE = "ZMQPS_COMBINE"
METRICS_VARIABLE = "ZMQPS_METRICS"
COMBINES = ("none", "host")
DEFAULT_JOB = "default"


#: Names of other systems -> what a worker has.
ELSEWHERE = {
    "step": "push(grads), or advance() to end a step by itself",
    "pushpull": "push_pull(grads)",
    "params": "pull()",
    "version": "pull().version",
    "world_size": "num_workers",
    "size": "num_workers",
    "id": "rank",
    "is_master": "is_chief",
    "is_leader": "is_chief",
    "save": "checkpoint(); the cluster says where",
    "load": "restored, and Saving(restore=DIR) or --restore DIR",
    "restore": "restored, and Saving(restore=DIR) or --restore DIR",
    "set_lr": "set_learning_rate(rate)",
    "shard": "ranges(num_examples, range_size), or zmqps.torch.shard(loader, worker)",
    "stats": "statistics()",
    "wait": "barrier(name)",
    "disconnect": "close()",
    "shutdown": "finish(), or close()",
}


class Worker:
    """A connection to a cluster; made by `connect`.

    Methods block until done; `push_async`, `pull_async` and `push_pull_async` return a `concurrent.futures.Future` with
    the same outcome. Cancelling one withdraws a pull, or a push of which nothing was sent yet; anything else continues.
    All may be called from any thread, one at a time; in a callback of a future, which runs on the background thread,
    only those that do not block (`ConfigurationError`), and in a forked child none (`ForkedError`): it connects itself.
    Arrays handed to a push are read until it is done, arrays in ``out`` are written until it is done: leave them alone
    meanwhile. After a `DeadlineError` a push may still be applied, once or not at all.

    Close it, best as a context manager. A worker without references leaves by itself: operations in flight have two
    seconds to complete. What is still open when the program ends is closed then.
    """

    _exchanges: Exchanges | HostExchanges
    _member: Member
    _loop: Loop | None  # that of `steps`, the last one
    _settable: tuple[JobSpec, Hyperparameters] | None  # the job whose numbers were set last, and what can be set

    def __init__(self, address: str | None = None, **options: Any) -> None:
        raise ConfigurationError("a worker is made by zmqps.connect(address)")

    @classmethod
    def _connected(cls, profile: Profile, *, named: bool, metrics: str, combine: bool) -> Self:
        """Return a worker that has joined; ``named``: by a name of its script, which only one of this process has."""
        if named:
            close_namesakes(profile)
        self = cls.__new__(cls)
        connection = Connection(profile, metrics)
        self._loop = self._settable = None
        if combine:
            from zmqps.combine.exchanges import HostExchanges  # imported only where it is used

            self._exchanges = HostExchanges.of(connection)
        else:
            self._exchanges = Exchanges(Member(connection))
        self._member = self._exchanges.member
        try:
            connection.join()
        except BaseException:
            self.close()
            raise
        return self

    if not TYPE_CHECKING:  # for which there is no other attribute

        def __getattr__(self, name: str) -> NoReturn:
            there = ELSEWHERE
            if hasattr(Worker, call := name.removesuffix("_async")) and call != name:
                there = {name: f"{call}(), or await it by zmqps.aio"}
            raise AttributeError(checks.no_attribute("a worker", name, there), name=name, obj=self)

        async def __aenter__(self) -> NoReturn:
            self.close()
            raise TypeError("a worker that is awaited is connected so: async with zmqps.aio.connect(address) as worker")

        async def __aexit__(self, *_: object) -> None: ...

    # --- identity ------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """The coordinator's endpoint."""
        return self._member.connection.profile.address

    @property
    def rank(self) -> int:
        """This worker's 0-based index: its number if a launcher has started it (``ZMQPS_WORKER_INDEX``).

        Otherwise it is the lowest free rank, or the previous one. If a number of workers is expected, `init` may change
        it to one below that number, so that strangers take no rank from the training workers.
        """
        return self._member.connection.thread.machine.member.rank

    @property
    def is_chief(self) -> bool:
        """Whether this worker does what only one worker should do: save files, print, evaluate.

        Once all expected workers of the job have called `init`, there is always one: the worker with the lowest rank,
        which is 0 at first. When it is lost or leaves, the coordinator names the next one and shows it in the status. A
        restarted worker that gets rank 0 back is the chief again. Workers are informed one after the other, so during a
        change there may be none or two for a moment.
        """
        return self._member.connection.thread.machine.member.cluster.is_chief

    @property
    def job(self) -> str:
        """The name of this worker's job."""
        return self._member.job_name

    @property
    def num_workers(self) -> int:
        """How many workers the job counts on: the expected number, or the present one."""
        return self._member.connection.num_workers

    # --- the job -------------------------------------------------------------------------------

    @blocking
    def init(
        self,
        params: Mapping[str, Any],
        optimizer: OptimizerSpec | None = None,
        *,
        tables: Mapping[str, TableOptions] | None = None,
        buffers: Mapping[str, Any] | None = None,
        mode: str = "sync",
        staleness: int | None = None,
        workers: int | None = None,
        steps: Steps | None = None,
        gradients: Gradients | None = None,
        push_codec: str | Codec = "raw",
        pull_codec: str | Codec = "raw",
        timeout: float | None = None,
    ) -> Future[None]:
        """Start the job, or join it if another worker has started it.

        The first worker defines the job, and its values are the initial ones. Later workers must pass
        the same names, shapes, dtypes and options; their values are ignored. So every worker may call
        this, at any time, more than once.

        Parameters
        ----------
        params : mapping of str to array
            Initial values: float32, float64, or float16 and bfloat16 which the servers keep and
            send in float32. Anything with ``__array__``, DLPack or the buffer protocol; on a GPU
            anything with DLPack or ``__cuda_array_interface__``, such as tensors of PyTorch (needs CuPy).
            May be empty where there are ``tables``.
        optimizer : OptimizerSpec
            From `zmqps.optim`; optional if ``params`` is empty.
        tables : mapping of str to TableOptions, optional
            Sparse tables by name, from `zmqps.table`; each has its own optimizer. `table` returns a handle to one.
        buffers : mapping of str to array, optional
            Parts of the model that are not trained, such as statistics of BatchNorm, counters or tables: of any
            floating dtype, integers or bools. They have no gradients; `set` and `average` write them, pulls read
            them, checkpoints hold them.
        mode : {"sync", "async", "bounded"}
            How workers wait for each other. ``sync``: a step is the mean of all workers' gradients, applied once, and
            each worker waits for it. ``async``: each push is applied when it arrives, and no worker waits for another.
            ``bounded``: as ``async``, but no worker reads when it is more than ``staleness`` steps ahead of the
            slowest. Where it is ``sync`` or ``bounded``, a push of all parameters that are not frozen (or `advance`,
            or `skip`) ends this worker's step, and its next transfer waits as the mode requires.
        staleness : int, optional
            Bounded, and required there: by how many steps a read may lag, 1 or more.
        workers : int, optional
            How many workers the job expects: its first synchronous step, its barriers and its end wait for as
            many. By default what the cluster was started with (``--workers``), else any number.
        steps : Steps, optional
            Synchronous: how many gradients make a step, what it does about stragglers, what the mean is over, which
            versions stay readable, and whether it is deterministic.
        gradients : Gradients, optional
            Whether NaN and infinity are refused, and how servers treat stale gradients.
        push_codec, pull_codec : Codec or str
            The default codecs of gradients and values: ``raw``, or one of
            `zmqps.codecs`, such as ``"bf16"`` or ``codecs.topk(0.01)``; small arrays go raw. Codecs
            that leave out part of a gradient send it with a later one (error feedback).
            ``python -m bench codecs`` tells which pays on a given wire.
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Raises
        ------
        JobMismatchError
            The running job differs; names the difference and both sides.
        ConfigurationError
            The options do not go together.
        DeadlineError
            Names the nodes it waited for.
        """
        specs = specs_of(tables)
        if optimizer is None and specs and not params:
            optimizer = sgd(1.0)  # of nothing
        if not isinstance(optimizer, OptimizerSpec):
            raise ConfigurationError(f"optimizer comes from zmqps.optim, as adam(1e-3); got {checks.shown(optimizer)}")
        steps = checks.group("steps", steps, Steps)
        gradients = checks.group("gradients", gradients, Gradients)
        gradients.check()
        checks.flag("deterministic", steps.deterministic)
        handover = self._member.connection.handover
        parameters, values = describe(params, handover)
        check_groups(optimizer, [parameter.name for parameter in parameters])
        set_only, initial = describe({} if buffers is None else buffers, handover, buffers=True)
        job = JobSpec(
            parameters=(*parameters, *set_only),
            tables=specs,
            optimizer=optimizer.to_wire(),
            mode=mode,
            staleness=staleness,
            nonfinite=gradients.nonfinite,
            aggregate=steps.aggregate,
            on_straggler=steps.on_straggler,
            mean="pushed" if steps.mean is None else steps.mean,
            retain=steps.retain,
            push_codec=check_codec(push_codec, pulls=False),
            pull_codec=check_codec(pull_codec, pulls=True),
            treatment=None if gradients.treatment is None else gradients.treatment.to_wire(),
            deterministic=steps.deterministic,
            workers=workers,
        )
        if job.nonfinite == "reject":
            for parameter, value in zip(parameters, values, strict=True):
                if not np.isfinite(value).all():
                    raise ConfigurationError(f"the initial value of {parameter.name!r} contains NaN or infinity")
        return self._exchanges.start(job, [*values, *initial], timeout)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The job's parameters, and its buffers, in the order of the key space; empty before `init`."""
        requests = self._member.requests
        return requests.job.parameters if requests else ()

    @property
    def restored(self) -> Restored | None:
        """The checkpoint that the job started from, with the state saved in it; None: it began with new values."""
        return self._member.restored

    def on_rollback(self, callback: Callable[[Rollback], object]) -> None:
        """Register a callback for whenever the job goes back to a checkpoint, because a part of it was lost.

        It runs on the background thread, like callbacks of futures, before any rolled-back values are returned, so it
        may call only methods that do not block. A training loop that uses ``Params.version`` needs none. Errors of the
        callback are logged.

        Parameters
        ----------
        callback : callable
            Called with a `Rollback`: the version, how much is lost, and the state saved in the checkpoint.
        """
        call = checks.function("callback", callback)
        listeners = self._member.connection.listeners
        listeners.append(lambda event: call(event) if isinstance(event, Rollback) else None)

    def table(self, name: str, *, cache: CacheOptions | None = None, timeout: float | None = None) -> Table:
        """Return the handle of a sparse table of the job.

        Parameters
        ----------
        name : str
            As in ``init(tables={name: …})``.
        cache : CacheOptions, optional
            From `zmqps.row_cache`: how many rows this worker keeps, and for how long it reads them again. It belongs to
            the worker: all handles of the table use it from then on. By default unchanged; at first there is none.
        timeout : float, optional
            Seconds to ask for the job, if `init` was not called.

        Raises
        ------
        UnknownParameterError
            The job has no such table.
        ConfigurationError
            The cache does not suit the job: the job is synchronous, or has a smaller bound; or deferred gradients would
            not be visible.
        """
        member = self._member
        job = member.job(timeout)
        requests = job.table(name)
        if cache is not None:
            if not isinstance(cache, CacheOptions):
                raise ConfigurationError(f"cache comes from zmqps.row_cache, not {checks.shown(cache):.60}")
            member.caches.choose(name, cache, job.job, Call(member, requests, timeout))
        return Table(member, name)

    # --- gradients and values ------------------------------------------------------------------

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
            Gradients of some or all parameters; None: no gradient in this step. Contiguous ones are sent without
            a copy; for servers on this host they are copied once, to memory that those read. `gradient_buffers` are not
            even copied. Those on a GPU are copied to this host before this returns, after pending work of their
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
        self._exchanges.push(grads, atomic, examples, codec, step, timeout)

    @future_of(push)
    def push_async(self, given: dict[str, Any]) -> Future[None]:
        """`push`, as a future."""
        return self._exchanges.begin_push(**given)

    def pull(
        self,
        names: str | Iterable[str] | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        at_least: int | None = None,
        exact: int | None = None,
        codec: str | Codec | None = None,
        copy: bool = True,
        timeout: float | None = None,
    ) -> Params:
        """Return the parameters' values.

        Parameters
        ----------
        names : str or iterable of str, optional
            Which; by default those in ``out``, or all. They arrive in the order given here, as far as each server can
            order them: those of one slice arrive together.
        out : mapping of str to array, optional
            Arrays for the values, written in place, converted to their dtype. They may be on GPUs.
        at_least, exact : int, optional
            Wait for this version or a later one; or read exactly this version (synchronous mode, where it must be
            retained).
        codec : Codec or str, optional
            The codec of the values, one without error feedback; by default the job's.
        copy : bool
            By default the arrays are yours. On a server's host they may share its memory, page by page until you write
            there (``docs/lane.md``). False: return read-only arrays. They are views of a server's own memory if that is
            on this host, in reach, and holds the parameter in one piece. A view does not change until
            garbage-collected: the server writes later updates elsewhere, and keeps up to two more copies of its values
            for that. So drop the last values before, or soon after, the next ones arrive. A view is valid memory after
            `close`, and after the server ends. From other servers a parameter that arrived complete in one message, and
            is at least a sixteenth of it, is a view of that message, which stays in this process's memory. Others are
            copies. Not together with ``out``.
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Returns
        -------
        Params
            A dict of ``out``'s arrays, or of new ones in the servers' dtype, with their ``version``. In synchronous
            mode all values have that version. Otherwise a value may contain another worker's update in one slice and
            not yet in the next, and the version is the lowest of the slices'.

        Raises
        ------
        UnknownParameterError, ShapeError, DtypeError, DeviceError
            Nothing was requested.
        DeadlineError, PeerLostError
            ``out`` may hold some new values and some old ones.
        """
        return self._exchanges.pull(names, out, at_least, exact, codec, copy, timeout)

    @future_of(pull)
    def pull_async(self, given: dict[str, Any]) -> Future[Params]:
        """`pull`, as a future."""
        return self._exchanges.begin_pull(**given)

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
        return self._exchanges.push_pull(grads, out, examples, codec, pull_codec, copy, step, timeout)

    @future_of(push_pull)
    def push_pull_async(self, given: dict[str, Any]) -> Future[Params]:
        """`push_pull`, as a future."""
        return self._exchanges.begin_push_pull(**given)

    def pull_each(
        self,
        names: str | Iterable[str] | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        at_least: int | None = None,
        codec: str | Codec | None = None,
        timeout: float | None = None,
    ) -> Iterator[tuple[str, Any]]:
        """Request parameters at once and yield each as soon as it arrives, in the order of ``names``.

        So a forward pass can begin with the first layer while the last ones are in flight. It is one pull, started by
        this call, not by the first step of the loop.

        Parameters
        ----------
        names
            As for `pull`; by default the order of the job.
        out : mapping of str to ndarray, optional
            Contiguous arrays for the values; by default new ones.
        at_least, codec, timeout
            As for `pull`; the timeout is for all of it.

        Returns
        -------
        iterator of (str, ndarray)
            In synchronous mode all have one version: that of the worker's step. If the others may continue without this
            worker (backup workers), keep it readable with ``init(steps=zmqps.Steps(retain=n))``.

        Raises
        ------
        UnknownParameterError, ShapeError, DtypeError, ConfigurationError
            At once; nothing was requested.
        DeadlineError, PeerLostError, VersionError
            By the iterator, for a missing value; those yielded before are right.
        """
        refuse_in_callback()
        futures = self._exchanges.begin_pull_each(names, out, at_least, codec, timeout)
        return ((name, future.result()) for name, future in futures.items())

    @future_of(pull_each)
    def pull_each_async(self, given: dict[str, Any]) -> dict[str, Future[Any]]:
        """`pull_each`, as a future for each parameter."""
        return self._exchanges.begin_pull_each(**given)

    @blocking
    def set(self, values: Mapping[str, Any], *, step: bool = False, timeout: float | None = None) -> Future[None]:
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
        return self._exchanges.begin_set(values, step, timeout)

    @blocking
    def average(
        self, values: Mapping[str, Any], *, examples: int = 1, step: bool = False, timeout: float | None = None
    ) -> Future[None]:
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
        return self._exchanges.begin_average(values, examples, step, timeout)

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
        member = self._member
        member.buffers = member.job(timeout).gradient_buffers()
        return dict(member.buffers.arrays)

    # --- steps ---------------------------------------------------------------------------------

    def steps(
        self, until: int, *, out: Mapping[str, Any] | None = None, copy: bool = True, timeout: float | None = None
    ) -> Iterator[Params]:
        """Take steps up to a number: ``for params in worker.steps(1000): worker.push(gradients(params))``.

        Each turn of the loop is a step: it begins with `pull`, and its body ends it by a push of all gradients,
        `advance` or `skip`. In synchronous mode steps are the job's: all workers leave the loop with step ``until``
        applied. A worker that joins later continues at the job's step, and a job that goes back to a checkpoint at the
        checkpoint's. In the other modes they are this worker's own. In bounded mode a worker that joins or is restored
        begins at the step of the slowest; in asynchronous mode at 0, because no checkpoint knows how far each worker
        was.

        Parameters
        ----------
        until : int
            The step at which the loop ends, counted from 0, so a second loop needs a larger number.
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
        self, loop: Loop, out: Mapping[str, Any] | None, copy: bool, timeout: float | None
    ) -> Iterator[Params]:
        while not loop.is_over:
            params = self.pull(out=out, copy=copy, timeout=timeout)
            if not loop.begin(params.version):
                return
            yield params
            del params  # before the next ones arrive

    def _begin_steps(self, until: int, timeout: float | None) -> Loop:
        checks.whole("until", until, 1)
        if self._member.observes:
            raise ConfigurationError("an observer is not waited for, so it takes no steps")
        refuse_in_callback()
        last, job = self._loop, self._member.job(timeout).job
        if last is not None:
            last.check_next(until)
        at = (self._member.reads_at() or 0) if job.mode == "bounded" else 0 if last is None else last.at
        self._loop = Loop(until, job, at)
        return self._loop

    @blocking
    def advance(self, *, timeout: float | None = None) -> Future[None]:
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
        return self._exchanges.end_step(Advance(0.0), timeout)

    @blocking
    def skip(self, *, for_all: bool = False, timeout: float | None = None) -> Future[None]:
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
            Synchronous: discard the gradients of all workers, not only of this worker.
        timeout
            As for `advance`, as are the errors.
        """
        advance = Advance(0.0, skips=True, for_all=checks.flag("for_all", for_all))
        return self._exchanges.end_step(advance, timeout)

    @property
    def steps_left_out(self) -> int:
        """How many of this worker's steps were skipped for all workers, by this worker or another.

        The count rises when the next transfer ends: compare it before and after a `push_pull`, or before a push and
        after the next pull. Reading it sends nothing and never blocks. `rejoin` resets it to 0.
        """
        return self._member.connection.thread.machine.transfers.counts["left_out"]

    @blocking
    def set_hyperparameters(
        self,
        values: Mapping[str, float],
        *,
        groups: Sequence[Mapping[str, float] | None] | None = None,
        timeout: float | None = None,
    ) -> Future[bool]:
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
        if self._member.observes:
            raise ConfigurationError("an observer does not train, and cannot set hyperparameters")
        job = self._member.job(timeout).job
        if self._settable is None or self._settable[0] is not job:
            names = [parameter.name for parameter in job.parameters]
            self._settable = job, Hyperparameters(OptimizerSpec.from_wire(job.optimizer), names)
        terms = [UNCHANGED if number is None else number for number in self._settable[1].terms(values, groups)]
        if len(terms) > 1 + MOST_NUMBERS:
            raise ConfigurationError(
                f"{len(terms) - 1} numbers would travel with each update, for {int(terms[0])} groups; the limit is "
                f"{MOST_NUMBERS}: put parameters with the same numbers into one group"
            )
        return self._member.submit(SetNumbers(0.0, rates=terms), timeout)

    @blocking
    def set_learning_rate(
        self, learning_rate: float, *, groups: Sequence[float | None] | None = None, timeout: float | None = None
    ) -> Future[bool]:
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
        each: Any = groups  # anything but a sequence is refused where it is read
        if isinstance(groups, Sequence):
            each = [None if rate is None else {"learning_rate": rate} for rate in groups]
        begin = begins(Worker.set_hyperparameters)
        return begin(self, {"learning_rate": learning_rate}, groups=each, timeout=timeout)

    # --- other workers -------------------------------------------------------------------------

    @blocking
    def barrier(self, name: str, *, timeout: float | None = None) -> Future[None]:
        """Wait until every worker of the job has entered the barrier of this name.

        Workers that have finished are not waited for. No step of synchronous or bounded mode waits for a worker in a
        barrier: the others complete their steps without it, and it continues at the step they have reached. So workers
        may take different numbers of steps between two barriers. Complete pushes first (``push`` has returned).

        By default ``timeout`` is as `connect` says, at least 60 s.

        Raises
        ------
        DeadlineError
            Names the awaited workers; this worker is no longer in the barrier.
        PeerLostError
            One of the awaited workers is lost.
        """
        if self._member.observes:
            raise ConfigurationError("an observer is not waited for, so it cannot enter a barrier")
        return self._exchanges.enter(checks.name("a barrier's name", name), timeout)

    def ranges(
        self,
        num_examples: int,
        range_size: int,
        *,
        passes: int = 1,
        shuffle_seed: int | None = None,
        name: str = "data",
        timeout: float | None = None,
    ) -> Iterator[DataRange]:
        """Yield ranges of a data set's examples, which the coordinator hands out to all workers on request.

        So fast workers take more. A range counts as used when the loop asks for the next one, or when the worker
        finishes. The range of a worker that dies, is evicted or closes is handed out again. When no range of a pass is
        left, a worker waits until the others have used theirs, so in each pass every example is used by one worker,
        once. No step waits for this worker meanwhile.

        Parameters
        ----------
        num_examples : int
            The number of examples; the coordinator never sees them.
        range_size : int
            Examples per range: a few batches, because another worker repeats the range of a dead one.
        passes : int
            How often every example is used.
        shuffle_seed : int, optional
            Permute all examples, differently in each pass; by default they come in their order.
        name : str
            Of the data set. Workers with the same name share its ranges; a used-up data set stays used up.
        timeout : float, optional
            Seconds to wait for each range; by default as `connect` says, at least 60.

        Yields
        ------
        DataRange
            With ``indices``, an array; ``number`` and ``data_pass`` say which range of which pass it is.
            A loop left early keeps its range; the next one of that name begins with it.

        Raises
        ------
        JobMismatchError
            Another worker has described the data set differently.
        DeadlineError
            Names the workers whose ranges were awaited.
        """
        data = DataSpec(
            name=name, num_examples=num_examples, range_size=range_size, passes=passes, shuffle_seed=shuffle_seed
        )
        return self._each_range(data, timeout)

    def _each_range(self, data: DataSpec, timeout: float | None) -> Iterator[DataRange]:
        """Yield ranges; each one counts as used when the next one is requested."""
        taken: DataRange | None = None
        while True:
            refuse_in_callback()
            taken = self._exchanges.take(data, taken, timeout).result()
            if taken is None:
                return
            yield taken

    @blocking
    def status(self, *, timeout: float | None = None) -> Future[dict[str, Any]]:
        """Return the coordinator's view of the cluster, as ``zmqps status --json`` prints it."""
        return self._member.submit(AskStatus(0.0), timeout, dict)

    def statistics(self) -> Statistics:
        """Return a frozen copy of this worker's counts so far, also after `close`. Not in a callback of a future."""
        return self._member.connection.statistics()

    def log(self, values: Mapping[str, Any], *, step: int | None = None) -> None:
        """Log numbers of this script to the cluster, as in ``worker.log({"loss": loss, "accuracy": accuracy})``.

        The coordinator keeps a history of them, and writes them where ``--values`` says (``docs/watching.md``). This
        only notes them and returns, whatever the cluster does: the background thread sends them within a second, each
        once. Where more is logged than it can send, or the coordinator is away for long, the oldest are dropped and
        counted (``log_dropped`` of `statistics`). `finish` waits until they are there, two seconds at most.

        Parameters
        ----------
        values : mapping of str to number
            Up to 64, by names of up to 64 printable characters. A number of Python, numpy or PyTorch, or an array
            without dimensions; of one on a GPU this waits until it is computed. NaN and infinities are shown as such.
        step : int, optional
            Which step of the script they belong to, from 0.

        Raises
        ------
        ConfigurationError
            A value is not a number, a name or the step is not one; nothing of the call is noted then.
        ClosedError
            The worker is closed.
        """
        connection = self._member.connection
        connection.check_open()
        connection.thread.refuse_in_fork()
        connection.notebook.add(connection.thread.time(), values, step)

    # --- checkpoints ---------------------------------------------------------------------------

    @blocking
    def checkpoint(
        self, *, state: Mapping[str, Any] | None = None, consistent: bool = False, timeout: float | None = None
    ) -> Future[SavedCheckpoint]:
        """Save the job where the cluster keeps checkpoints; return when the checkpoint is whole and on the disk.

        Training continues meanwhile, this worker's in other threads. Saved are values, the optimizer's slots and step
        counts, the steps or clocks, how far the data sets are, and ``state``. In the synchronous mode it is the version
        at the end of the last complete step. One job is saved at a time: others wait for their turn.

        Parameters
        ----------
        state : mapping, optional
            Other data to save, such as ``{"epoch": 3}``: plain data, some kilobytes. `restored` has it again.
        consistent : bool
            Asynchronous: cut between pushes, for which all workers pause until those under way are acknowledged.
            Otherwise each slice (4 MiB) is whole, with its own version. The other modes always cut consistently.
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Returns
        -------
        Checkpoint
            Where it is, of which version, how long it took and how large it is.

        Raises
        ------
        ConfigurationError
            The cluster was started without a place for checkpoints; or ``state`` is not plain data.
        CheckpointFailedError
            It could not be made, for example because the disk is full. Training continues.
        JobError
            The job is not being trained, has lost values, or is ending, and its last checkpoint has begun.
        CheckpointTooSoonError
            The workers of this job have asked for eight, and for more than one every 2 s since.
        IdentityError
            This is an observer, which may not save.
        DeadlineError
            It is not complete; it may yet be.
        """
        checks.flag("consistent", consistent)
        save = SaveJob(0.0, consistent=consistent, state=checks.plain("state", state or {}))
        for sent in self._member.send_deferred(timeout):
            sent.result()
        return self._member.submit(save, timeout)

    # --- the end -------------------------------------------------------------------------------

    def rejoin(self, *, timeout: float | None = None) -> None:
        """Come back as a new member: what to do after `EvictedError`, or a `PeerLostError` of the coordinator.

        A worker that was stopped, or cut off, for longer than the heartbeat timeout is presumed
        dead, and the others continue without it. It hears so from them, or gets no answers. This
        waits until the coordinator can be reached, ends its old life and joins as a new
        incarnation under the same name, with its old rank where that is free; where this worker had called
        `init`, it attaches to the job as it is. So `pull` next: the values on the servers count.

        Of the old life's gradients, those that were complete (the worker had arrived) are in the
        step they were made for; what had been sent in part never counts. Statistics start from zero. What is
        under way fails with `ClosedError`.

        Parameters
        ----------
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Raises
        ------
        DeadlineError
            The coordinator did not answer; this may be called again.
        PeerLostError
            A server was lost, and its part of the model with it: all workers `connect` and `init` again.
        ClosedError
            The worker was closed: `connect` again.
        JobError, JobMismatchError
            The job has ended meanwhile, and perhaps another one has begun under its name.
        """
        self._member.rejoin(timeout)

    def finish(self, *, timeout: float | None = None) -> None:
        """Complete pending operations, inform the others that this worker is done, and close.

        Gradients that caches of tables keep are sent first. In synchronous mode the last push counts in its step, but
        this does not wait for it: pull first to see the result. When the last worker of a job has left, and one has
        finished, the job ends and its memory is freed. The cluster continues.

        Parameters
        ----------
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Raises
        ------
        DeadlineError
            Names the operations that did not complete; the worker is closed anyway.
        """
        refuse_in_callback()
        try:
            for sent in self._member.send_deferred(timeout):
                sent.result()
        finally:
            self._leave(timeout)

    @property
    def draining(self) -> bool:
        """Whether a signal of `zmqps.drain_on` has asked this process to leave: call `drain` at the end of a step."""
        return is_draining()

    def drain(self, *, timeout: float | None = None) -> NoReturn:
        """Complete pending operations, leave as drained, close, and end the program.

        Like `finish`, but the job is not done: it waits ``--lease`` seconds for workers that continue it. No loss is
        reported. The worker's current range of data, of which it may have used a part, is handed out again. A restarted
        worker of the same name gets its rank back if that is free.

        Parameters
        ----------
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Raises
        ------
        SystemExit
            Always, with the exit code 75, unless another error comes first. The supervisor knows by it that the worker
            left in order, before it was done.
        DeadlineError
            Names the operations that did not complete; the worker is closed anyway.
        """
        refuse_in_callback()
        self._leave(timeout, drained=True)
        raise SystemExit(DRAINED)

    def _leave(self, timeout: float | None, *, drained: bool = False) -> None:
        try:
            self._begin_leaving(timeout, drained=drained).result()
        finally:
            self.close()

    def _begin_leaving(self, timeout: float | None, *, drained: bool = False) -> Future[None]:
        return self._exchanges.finish(DepartureCause.DRAINED if drained else DepartureCause.FINISHED, timeout)

    def close(self, *, timeout: float | None = None) -> None:
        """Leave the cluster and release everything; pending operations fail with `ClosedError`.

        Gradients that caches of tables keep first have two seconds to be applied. When this returns nothing of the
        worker is open: no socket, no thread, no shared memory except what its arrays still refer to. The coordinator
        knows, unless it has not answered the goodbye within a second. Any thread, even several at once, and a signal
        handler may close it.

        Parameters
        ----------
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Raises
        ------
        DeadlineError
            A callback of a future does not return and blocks the background thread. The worker ends when it returns.
        ConfigurationError
            This is a callback of a future, which runs on the thread that must end.
        ForkedError
            The worker belongs to the parent process.
        """
        self._member.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if not self._member.connection.thread.forked:  # a forked child that leaves the block leaves it to its parent
            self.close()

    def __repr__(self) -> str:
        state = " closed" if self._member.connection.closed else ""
        return f"<zmqps.Worker {self.rank} of {self.num_workers} at {self.address}{state}>"


#: Called in every step, so their options are checked by Python alone.
OFTEN = ("push", "pull", "push_pull")

for _name, _method in list(vars(Worker).items()):
    if isinstance(_method, FunctionType) and not _name.startswith("_") and _name not in OFTEN:
        if not hasattr(_method, "__signature__"):  # else it is checked
            setattr(Worker, _name, checks.options()(_method))


@checks.options()
def connect(
    address: str | None = None,
    *,
    job: str | None = None,
    name: str | None = None,
    observer: bool = False,
    transport: str | None = None,
    security: Security | None = None,
    io_threads: int = 1,
    combine: str | None = None,
    metrics: str | None = None,
    timeout: float = 10.0,
) -> Worker:
    """Join a cluster as a worker of one of its jobs.

    Parameters
    ----------
    address : str, optional
        The coordinator's endpoint, such as ``tcp://127.0.0.1:5570``; by default the one that the token tells,
        else what the environment says (``docs/connect.md``): ``ZMQPS_COORDINATOR``, ``TF_CONFIG``, ``DMLC_*``,
        torchrun, Slurm, Open MPI or Kubernetes.
    job : str, optional
        The name of the job: workers that name the same one train one model together, and know nothing of
        other jobs. By default what ``ZMQPS_JOB`` says, or ``default``. A job begins with its first worker's
        `Worker.init` and ends when its workers have finished; then its name can be used again.
    name : str, optional
        This worker's name in logs and errors. A process has one worker of a name: if it connects again under it, the
        one before is closed. By default made of host and pid, or of its number where its supervisor
        starts it again when it fails (``--restart-workers``): it then has to be the same in each life.
    observer : bool
        Only look: pull, but never push, be counted or waited for.
    transport : {"auto", "tcp", "ipc", "shm"}, optional
        How arrays travel to and from the servers; by default what ``ZMQPS_TRANSPORT`` says, or
        ``auto``: through shared memory where a server is on this host and can share it, over TCP
        otherwise. With ``ipc`` and ``shm`` the first operation fails where that is impossible.
    security : Security, optional
        The key or token of this worker, or the job secret, if the cluster asks for them; by default as the environment
        says: ``ZMQPS_KEYS``, ``ZMQPS_TOKEN``, ``ZMQPS_JOB_SECRET``.
    io_threads : int
        How many threads read and write sockets, and encrypt what goes through them; more than one pays with keys
        and several servers.
    combine : {"none", "host"}, optional
        ``host``: the workers of this job on this host add their gradients in shared memory, push them once, and read
        values once (``docs/combine.md``); by default what ``ZMQPS_COMBINE`` says, or ``none``.
    metrics : str, optional
        Answer Prometheus there: ``HOST:PORT``, or a port of this host alone; 0 takes a free one, which the log tells.
        By default what ``ZMQPS_METRICS`` says, or nowhere: the coordinator has all workers' figures, too. Beyond this
        host scrapers have to show what is in the file that ``ZMQPS_METRICS_TOKEN`` names (``docs/watching.md``).
    timeout : float
        Seconds to wait for the coordinator. Later calls that are given none wait as long, but at least 60 s and twice
        the cluster's heartbeat timeout: a node lost meanwhile is named before.

    Returns
    -------
    Worker
        Close it, or use it as a context manager.

    Raises
    ------
    DeadlineError
        The coordinator did not answer.
    ConfigurationError
        ``address`` is not an endpoint, ``job`` is not a name, there is no such transport, the job secret is no
        file with one, or the keys or the token cannot be read.
    KeyRefusedError
        The cluster refuses this key, or requires one; or it has none.
    IdentityError
        The key does not allow this; or the cluster has a job secret, and this is not it; or the coordinator does not
        know this one.
    """
    if not isinstance(address, str | None) and isinstance(getattr(address, "address", None), str):
        raise ConfigurationError(
            f"address must be an endpoint, which a cluster has: connect(cluster.address), not {checks.shown(address)}"
        )
    job = os.environ.get(JOB_VARIABLE) or DEFAULT_JOB if job is None else job
    transport = os.environ.get(TRANSPORT_VARIABLE) or "auto" if transport is None else transport
    shown = checks.group("security", security, Security)
    if shown.job_secret is None and (secret := os.environ.get(JOB_SECRET_VARIABLE)):
        shown = replace(shown, job_secret=secret)
    if combine is None:  # the environment's value is meant for training workers
        combine = (os.environ.get(COMBINE_VARIABLE) or "none") if observer is False else "none"
    if checks.one_of("combine", combine, COMBINES) == "host" and observer is True:
        raise ConfigurationError("an observer pushes nothing, so there is nothing to combine: leave out combine")
    profile = profile_of(
        address, job=job, name=name, observer=observer, transport=transport, security=shown, io_threads=io_threads,
        timeout=timeout,
    )  # fmt: skip
    where = os.environ.get(METRICS_VARIABLE, "") if metrics is None else metrics
    return Worker._connected(profile, named=name is not None, metrics=where, combine=combine == "host")
