"""The worker: what a training script does with a job, on top of `Pusher`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from functools import cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from zmqps import checks
from zmqps.client.draining import drain_on as drain_on
from zmqps.client.groups import Gradients, Security, Steps, group_of
from zmqps.client.naming import check_groups
from zmqps.client.pusher import Pusher
from zmqps.client.sparse.tables import TableOptions, specs_of
from zmqps.client.tensors import describe
from zmqps.client.thread import refuse_in_callback
from zmqps.codecs import Codec
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.encoding import check_codec
from zmqps.core.protocol.exits import DRAINED as DRAINED
from zmqps.core.worker.operations import SavedCheckpoint, SaveJob, StartJob
from zmqps.errors import ClosedError, ConfigurationError
from zmqps.optim import OptimizerSpec, sgd

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
    "load": "restored, and LocalCluster(restore=DIR) or --restore DIR",
    "restore": "restored, and LocalCluster(restore=DIR) or --restore DIR",
    "set_lr": "set_learning_rate(rate)",
    "shard": "ranges(num_examples, range_size), or zmqps.torch.shard(loader, worker)",
    "stats": "statistics()",
    "wait": "barrier(name)",
    "disconnect": "close()",
    "shutdown": "finish(), or close()",
}


class Worker(Pusher):
    """A connection to a cluster; made by `connect`.

    Methods block until done; those in ``_async`` return a `concurrent.futures.Future` with the
    same outcome. Cancelling one withdraws a pull, or a push of which nothing has left yet; anything else
    goes on. All may be called from any thread, one at a time; in a callback of a future, which runs on the
    background thread, only those that do not block (`ConfigurationError`), and in a forked child none
    (`ForkedError`): it connects itself. Arrays handed to a push are read
    until it is done, arrays in ``out`` are written until it is done: leave them alone meanwhile.
    After a `DeadlineError` a push may still be applied, once or not at all.

    Close it, best as a context manager. A worker without references leaves by itself: operations in flight have
    two seconds to complete. A worker whose `init_async` is under way is kept until that is done, at its timeout at the
    latest. What is still open when the program ends is closed then.
    """

    def __init__(self, address: str | None = None, **options: Any) -> None:
        if "job" not in options:
            raise ConfigurationError("a worker is made by zmqps.connect(address)")
        super().__init__(address, **options)

    if not TYPE_CHECKING:  # for which there is no other attribute

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(checks.no_attribute("a worker", name, ELSEWHERE), name=name, obj=self)

        async def __aenter__(self) -> NoReturn:
            self.close()
            raise TypeError("a worker that is awaited is connected so: async with zmqps.aio.connect(address) as worker")

        async def __aexit__(self, *_: object) -> None: ...

    # --- the job ------------------------------------------------------------------------------

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
    ) -> None:
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
        refuse_in_callback()
        self.init_async(
            params,
            optimizer,
            tables=tables,
            buffers=buffers,
            mode=mode,
            staleness=staleness,
            workers=workers,
            steps=steps,
            gradients=gradients,
            push_codec=push_codec,
            pull_codec=pull_codec,
            timeout=timeout,
        ).result()

    def init_async(
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
        """`init`, as a future."""
        specs = specs_of(tables)
        if optimizer is None and specs and not params:
            optimizer = sgd(1.0)  # of nothing
        if not isinstance(optimizer, OptimizerSpec):
            raise ConfigurationError(f"optimizer comes from zmqps.optim, as adam(1e-3); got {checks.shown(optimizer)}")
        steps, gradients = group_of("steps", steps, Steps), group_of("gradients", gradients, Gradients)
        gradients.check()
        checks.flag("deterministic", steps.deterministic)
        parameters, values = describe(params, self._handover)
        check_groups(optimizer, [parameter.name for parameter in parameters])
        set_only, initial = describe({} if buffers is None else buffers, self._handover, buffers=True)
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
        return self._attach(StartJob(0.0, job=job, values=[*values, *initial]), timeout)

    def rejoin(self, *, timeout: float | None = None) -> None:
        """Come back as a new member: what to do after `EvictedError`, or a `PeerLostError` of the coordinator.

        A worker that was stopped, or cut off, for longer than the heartbeat timeout is presumed
        dead, and the others go on without it. It hears so from them, or gets no answers. This
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
        before = self._thread
        try:
            left = self._rejoin(self._seconds(timeout))
        finally:
            if self._thread is not before:  # even before an answer: this life knows no server
                if self._requests is not None:
                    self._requests.copies.end()
                self._requests = None
                self._caches.forget()
        if self._trained is not None:
            self._job(left)

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
        if self._closed:
            raise ClosedError("the worker is closed")
        if self._thread.forked:
            self._refuse_in_fork()
        self._notebook.add(self._thread.time(), values, step)

    # --- checkpoints --------------------------------------------------------------------------

    def checkpoint(
        self, *, state: Mapping[str, Any] | None = None, consistent: bool = False, timeout: float | None = None
    ) -> SavedCheckpoint:
        """Save the job where the cluster keeps checkpoints; return when the checkpoint is whole and on the disk.

        Training goes on meanwhile, this worker's in other threads. Saved are values, the optimizer's slots and step
        counts, the steps or clocks, how far the data sets are, and ``state``. In the synchronous mode it is the version
        at the end of the last complete step. One job is saved at a time: others wait for their turn.

        Parameters
        ----------
        state : mapping, optional
            Other data to save, such as ``{"epoch": 3}``: plain data, some kilobytes. `restored` has it again.
        consistent : bool
            Asynchronous: cut between pushes, for which all workers pause until those under way are acknowledged.
            Otherwise each slice (4 MiB) is whole, with a version of its own. The other modes always do what it takes.
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
            It could not be made, for example because the disk is full. Training goes on.
        JobError
            The job is not being trained, has lost values, or is ending, and its last checkpoint has begun.
        CheckpointTooSoonError
            The workers of this job have asked for eight, and for more than one every 2 s since.
        IdentityError
            This is an observer, which may not save.
        DeadlineError
            It is not complete; it may yet be.
        """
        refuse_in_callback()
        for sent in self._send_kept(timeout):
            sent.result()
        return self.checkpoint_async(state=state, consistent=consistent, timeout=timeout).result()

    def checkpoint_async(
        self, *, state: Mapping[str, Any] | None = None, consistent: bool = False, timeout: float | None = None
    ) -> Future[SavedCheckpoint]:
        """`checkpoint`, as a future."""
        checks.flag("consistent", consistent)
        self._send_kept(timeout)
        return self._submit(SaveJob(0.0, consistent=consistent, state=checks.plain("state", state or {})), timeout)


#: Called in every step, so their options are checked by Python alone.
OFTEN = {name + form for name in ("push", "pull", "push_pull") for form in ("", "_async")}


def _own_names(worker: type[Worker]) -> None:
    """Let errors of calls name the class that a script knows, not the one below, and the option that is meant."""
    for name in dir(worker):
        method = getattr(worker, name)
        if name.startswith("_") or not isinstance(method, FunctionType):
            continue
        if name not in OFTEN and not hasattr(method, "__wrapped__"):
            method = checks.options()(method)
            setattr(worker, name, method)
        for called in (method, getattr(method, "__wrapped__", method)):
            called.__qualname__ = f"Worker.{name}"


_own_names(Worker)


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
    shown = group_of("security", security, Security)
    secret = os.environ.get(JOB_SECRET_VARIABLE) or None if shown.job_secret is None else shown.job_secret
    if combine is None:  # the environment's value is meant for training workers
        combine = (os.environ.get(COMBINE_VARIABLE) or "none") if observer is False else "none"
    kind = Worker if checks.one_of("combine", combine, COMBINES) == "none" else _host_worker()
    return kind(
        address,
        job=job,
        timeout=timeout,
        name=name,
        observer=observer,
        transport=transport,
        job_secret=secret,
        keys=shown.keys,
        token=shown.token,
        io_threads=io_threads,
        metrics=os.environ.get(METRICS_VARIABLE, "") if metrics is None else metrics,
    )


@cache
def _host_worker() -> type[Worker]:
    from zmqps.combine.pusher import HostPusher  # imported only where it is used

    class HostWorker(HostPusher, Worker):
        """A worker that combines its gradients with those of its host (``combine="host"``)."""

    _own_names(HostWorker)
    return HostWorker
