"""The worker: a `SessionMachine` on a background thread, and the blocking face of it.

A training loop computes for seconds without coming back to any event loop. So transfers and
heartbeats run on one background thread with a loop of its own; the methods here hand it an
operation and wait for its future, or return the future.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import numpy as np

from zmqps.core.job import JobSpec, Parameter, attached
from zmqps.core.operations import (
    AskStatus,
    Attached,
    Cargo,
    Enter,
    Finish,
    Init,
    Join,
    Operation,
    Statistics,
    Transfer,
    plan,
)
from zmqps.core.session import SessionMachine
from zmqps.errors import ClosedError, ConfigurationError
from zmqps.net.routes import check_transport
from zmqps.net.shm import LaneTransport
from zmqps.net.thread import SessionThread
from zmqps.net.zeromq import ZmqTransport
from zmqps.node import check_endpoint, new_identity
from zmqps.optim import OptimizerSpec, all_finite
from zmqps.tensors import Tables, Target, check_names, describe, flatten

DEFAULT_TIMEOUT = 60.0
TRANSPORT_VARIABLE = "ZMQPS_TRANSPORT"
#: Distinct subsets of the parameters whose message plan is kept.
MAX_PLANS = 64

_open: weakref.WeakSet[Worker] = weakref.WeakSet()


def _start(address: str, role: str, name: str | None, transport: str) -> SessionThread:
    identity = new_identity(role, name=name)
    machine = SessionMachine(identity, address, lambda array: all_finite(array, "numba"))
    return SessionThread(machine, lambda: LaneTransport(ZmqTransport(identity.incarnation), transport))


class Worker:
    """A connection to a cluster; made by `connect`.

    Methods block until done; those in ``_async`` return a `concurrent.futures.Future` with the
    same outcome. All may be called from any thread, one at a time. Arrays handed to a push are read
    until it is done, arrays in ``out`` are written until it is done: leave them alone meanwhile.
    After a `DeadlineError` a push may still be applied, once or not at all.
    """

    def __init__(self, address: str, *, timeout: float, name: str | None, observer: bool, transport: str) -> None:
        check_endpoint(address)
        check_transport(transport)
        self.address = address
        self._timeout = timeout
        self._attached: Attached | None = None
        self._index: dict[str, int] = {}
        self._plans: dict[frozenset[int] | None, tuple[tuple[Cargo, ...], ...]] = {}
        self._tables = Tables()
        self._last_statistics = Statistics()
        self._closed = False
        self._thread = _start(address, "observer" if observer else "worker", name, transport)
        _open.add(self)
        try:
            self._thread.submit(Join(0.0), timeout).result()
        except BaseException:
            self.close()
            raise

    # --- who ----------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This worker's 0-based index; a worker that restarts takes the lowest free one."""
        return self._thread.machine.member.rank

    @property
    def num_workers(self) -> int:
        """How many workers the job counts on: as many as it expects, or those here now."""
        return self._thread.machine.member.num_workers

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The job's parameters in the order of the key space; empty before `init`."""
        return self._attached.job.parameters if self._attached else ()

    # --- the job ------------------------------------------------------------------------------

    def init(
        self,
        params: Mapping[str, Any],
        *,
        optimizer: OptimizerSpec,
        staleness: int | None = None,
        nonfinite: str = "reject",
        timeout: float | None = None,
    ) -> None:
        """Start the job, or join the one that another worker has started.

        The first worker's word is the job and its values are the initial ones; of later workers
        the names, shapes, dtypes and options must be the same, their values are ignored. So every
        worker may call this, at any time, more than once.

        Parameters
        ----------
        params : mapping of str to array
            Initial values: float32, float64, or float16 and bfloat16 which the servers keep and
            send in float32. Anything with ``__array__``, DLPack or the buffer protocol.
        optimizer : OptimizerSpec
            From `zmqps.optim`.
        staleness : None
            How many clocks a read may lag; None trains asynchronously.
        nonfinite : {"reject", "allow"}
            Whether a push with NaN or infinity in it is refused.
        timeout : float, optional
            Seconds; by default the one given to `connect`, at least 60.

        Raises
        ------
        JobMismatchError
            The running job is another one; names the difference and both sides.
        DeadlineError
            Says for whom it waited.
        """
        self.init_async(params, optimizer=optimizer, staleness=staleness, nonfinite=nonfinite, timeout=timeout).result()

    def init_async(
        self,
        params: Mapping[str, Any],
        *,
        optimizer: OptimizerSpec,
        staleness: int | None = None,
        nonfinite: str = "reject",
        timeout: float | None = None,
    ) -> Future[None]:
        """`init`, as a future."""
        if not isinstance(optimizer, OptimizerSpec):
            raise ConfigurationError(f"optimizer comes from zmqps.optim, say adam(1e-3); got {optimizer!r}")
        parameters, values = describe(params)
        job = JobSpec(parameters, optimizer.to_wire(), staleness, nonfinite)
        return self._attach(Init(0.0, job=job, values=values), timeout)

    def _attach(self, init: Init, timeout: float | None) -> Future[None]:
        def attach(value: Attached) -> None:
            self._index = {parameter.name: i for i, parameter in enumerate(value.job.parameters)}
            self._attached = value

        return self._submit(init, timeout, attach)

    def _job(self, timeout: float | None) -> Attached:
        """Return the job; an observer, or a worker that did not call `init`, takes it as it is."""
        if self._attached is None:
            self._attach(Init(0.0), timeout).result()
        assert self._attached is not None
        attached(self._attached.job)
        return self._attached

    # --- transfers ----------------------------------------------------------------------------

    def pull(
        self,
        names: str | Iterable[str] | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Return the parameters' values.

        Parameters
        ----------
        names : str or iterable of str, optional
            Which; by default those in ``out``, or all.
        out : mapping of str to array, optional
            Arrays to put the values into, in place, converted to their dtype.
        timeout : float, optional
            Seconds; by default 60.

        Returns
        -------
        dict of str to array
            ``out``'s arrays, or new ones in the dtype the servers keep. In asynchronous mode a
            value may hold another worker's update in one slice and not yet in the next.

        Raises
        ------
        UnknownParameterError, ShapeError, DtypeError
            Nothing was asked for.
        DeadlineError, PeerLostError
            ``out`` may hold some new values and some old ones.
        """
        return self.pull_async(names, out=out, timeout=timeout).result()

    def pull_async(
        self,
        names: str | Iterable[str] | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Future[dict[str, Any]]:
        """`pull`, as a future."""
        job = self._job(timeout)
        if isinstance(names, str):
            names = [names]
        if names is not None and out is not None:
            out = {name: out[name] for name in names if name in out} if set(names) <= set(out) else out
        numbers = None if names is None and out is None else check_names(names or out or (), self._index)
        transfer = Transfer(0.0, kind="pull")
        return self._submit(transfer, timeout, self._receive_into(transfer, job, numbers, out))

    def push(self, grads: Mapping[str, Any], *, timeout: float | None = None, atomic: bool = False) -> None:
        """Send gradients; return when every shard has applied them.

        Parameters
        ----------
        grads : mapping of str to array
            Gradients of some or all parameters; they are not copied where they are contiguous.
        timeout : float, optional
            Seconds; by default 60.
        atomic : bool
            Apply all of it on a shard at once, so that no other worker's update of that shard comes
            in between. Otherwise slices (1 MiB) are atomic. Over several shards nothing is promised.

        Raises
        ------
        UnknownParameterError, ShapeError, DtypeError, NonFiniteGradientError
            Nothing was sent.
        DeadlineError, PeerLostError
            The push may have been applied in part; what was is never applied twice.
        """
        self.push_async(grads, timeout=timeout, atomic=atomic).result()

    def push_async(
        self, grads: Mapping[str, Any], *, timeout: float | None = None, atomic: bool = False
    ) -> Future[None]:
        """`push`, as a future."""
        job = self._job(timeout)
        transfer = self._sending("push", job, grads, atomic)
        return self._submit(transfer, timeout)

    def push_pull(
        self,
        grads: Mapping[str, Any],
        *,
        out: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Send gradients and return the values after them, in one round trip.

        As `push`, then `pull` of the same parameters, but each slice's values leave the server
        while later slices still arrive.
        """
        return self.push_pull_async(grads, out=out, timeout=timeout).result()

    def push_pull_async(
        self,
        grads: Mapping[str, Any],
        *,
        out: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Future[dict[str, Any]]:
        """`push_pull`, as a future."""
        job = self._job(timeout)
        if out is not None and set(out) != set(grads):
            raise ConfigurationError("push_pull returns what was pushed: out has the same names as grads")
        transfer = self._sending("push_pull", job, grads, False)
        numbers = check_names(grads, self._index)
        return self._submit(transfer, timeout, self._receive_into(transfer, job, numbers, out))

    def _sending(self, kind: str, job: Attached, grads: Mapping[str, Any], atomic: bool) -> Transfer:
        source = flatten(grads, job.job.parameters, self._index)
        numbers = [number for number, array in enumerate(source) if array is not None]
        return Transfer(0.0, kind=kind, cargoes=self._plan(job, numbers), source=source, atomic=atomic)

    def _receive_into(
        self, transfer: Transfer, job: Attached, numbers: list[int] | None, out: Mapping[str, Any] | None
    ) -> Callable[[Any], dict[str, Any]]:
        """Say where a transfer's values go; return what makes the caller's dict of them."""
        parameters = job.job.parameters
        transfer.cargoes = self._plan(job, numbers)
        if out is not None:
            target = Target(out, parameters, self._index)
            transfer.out = target.flat
            return lambda _: target.deliver()
        if numbers is None or len(set(numbers)) == len(parameters):
            keyspace = job.placement.keyspace
            transfer.tables = self._tables.take(tuple((table.size, table.dtype) for table in keyspace.tables))
            arrays: dict[str, Any] = {}
            for flat, table in zip(transfer.tables, keyspace.tables, strict=True):
                for number, start in zip(table.parameters, table.offsets, strict=False):
                    parameter = parameters[number]
                    arrays[parameter.name] = flat[start : start + parameter.size].reshape(parameter.shape)
            ordered = {p.name: arrays[p.name] for p in parameters}
        else:
            ordered = {parameters[n].name: np.empty(parameters[n].shape, parameters[n].storage_dtype) for n in numbers}
            transfer.out = Target(ordered, parameters, self._index).flat
        return lambda _: ordered

    def _plan(self, job: Attached, numbers: list[int] | None) -> tuple[tuple[Cargo, ...], ...]:
        key = None if numbers is None or len(set(numbers)) == len(job.job.parameters) else frozenset(numbers)
        if key not in self._plans:
            if len(self._plans) >= MAX_PLANS:
                self._plans.pop(next(iter(self._plans)))
            self._plans[key] = plan(job.placement, key)
        return self._plans[key]

    # --- the others ---------------------------------------------------------------------------

    def barrier(self, name: str, *, timeout: float) -> None:
        """Wait until every worker of the job has entered the barrier of this name.

        Workers that have finished are not waited for.

        Raises
        ------
        DeadlineError
            Names those who are awaited; this worker is no longer in the barrier.
        PeerLostError
            One of the awaited vanished.
        """
        self.barrier_async(name, timeout=timeout).result()

    def barrier_async(self, name: str, *, timeout: float) -> Future[None]:
        """`barrier`, as a future."""
        return self._submit(Enter(0.0, barrier=name), timeout)

    def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return the coordinator's view of the cluster, as ``zmqps status --json`` prints it."""
        return self.status_async(timeout=timeout).result()

    def status_async(self, *, timeout: float | None = None) -> Future[dict[str, Any]]:
        """`status`, as a future."""
        return self._submit(AskStatus(0.0), timeout, dict)

    def statistics(self) -> Statistics:
        """Return what this worker has done so far; a frozen copy, also after `close`."""
        future: Future[Statistics] = Future()
        with suppress(RuntimeError):  # the loop is closed: the last word stands
            if not self._closed:
                machine = self._thread.machine
                self._thread.call_soon(lambda: future.set_result(machine.statistics()))
                self._last_statistics = future.result(timeout=DEFAULT_TIMEOUT)
        return self._last_statistics

    # --- the end ------------------------------------------------------------------------------

    def finish(self, *, timeout: float | None = None) -> None:
        """Complete what is under way, tell the others that this worker is done, and close.

        When all expected workers have finished the cluster ends.
        """
        try:
            self.finish_async(timeout=timeout).result()
        finally:
            self.close()

    def finish_async(self, *, timeout: float | None = None) -> Future[None]:
        """`finish` without the close, as a future."""
        return self._submit(Finish(0.0), timeout)

    def close(self) -> None:
        """Leave the cluster and release everything; what is under way fails with `ClosedError`."""
        if not self._closed:
            self.statistics()
            self._closed = True
            self._thread.stop()
            _open.discard(self)

    def _submit(
        self, operation: Operation, timeout: float | None, result: Callable[[Any], Any] | None = None
    ) -> Future[Any]:
        if self._closed:
            raise ClosedError("the worker is closed")
        return self._thread.submit(
            operation, max(self._timeout, DEFAULT_TIMEOUT) if timeout is None else timeout, result
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<zmqps.Worker {self.rank} of {self.num_workers} at {self.address}{' closed' if self._closed else ''}>"


def connect(
    address: str,
    *,
    timeout: float = 10.0,
    name: str | None = None,
    observer: bool = False,
    transport: str | None = None,
) -> Worker:
    """Join a cluster as a worker.

    Parameters
    ----------
    address : str
        The coordinator's endpoint, say ``tcp://127.0.0.1:5570``.
    timeout : float
        Seconds to wait for the coordinator.
    name : str, optional
        How logs and errors call this worker; by default made of host and pid.
    observer : bool
        Only look: pull, but never push, be counted or waited for.
    transport : {"auto", "tcp", "ipc", "shm"}, optional
        How arrays travel to and from the servers; by default what ``ZMQPS_TRANSPORT`` says, or
        ``auto``: through shared memory where a server is on this host and can share it, over TCP
        otherwise. With ``ipc`` and ``shm`` the first operation fails where that is impossible.

    Returns
    -------
    Worker
        Close it, or use it as a context manager.

    Raises
    ------
    DeadlineError
        The coordinator did not answer.
    ConfigurationError
        ``address`` is no endpoint, or there is no such transport.
    """
    transport = transport or os.environ.get(TRANSPORT_VARIABLE) or "auto"
    return Worker(address, timeout=timeout, name=name, observer=observer, transport=transport)


@atexit.register
def _close_all() -> None:
    for worker in list(_open):
        worker.close()
