"""Pulling a job's parameters: what workers and observers share, on top of `Connection`."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from zmqps import checks
from zmqps.client.connection import Connection
from zmqps.client.inplace import GradientBuffers, SharedMemory
from zmqps.client.pytrees import register_where_used
from zmqps.client.requests import Params, Requests
from zmqps.client.sparse.cache_options import CacheOptions
from zmqps.client.sparse.row_cache import Call, RowCaches
from zmqps.client.sparse.tables import Table
from zmqps.client.thread import in_callback, refuse_in_callback
from zmqps.codecs import Codec
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.loans import Bytes
from zmqps.core.worker.layout.rollbacks import Rollback
from zmqps.core.worker.operations import Attached, Exchange, Restored, StartJob
from zmqps.core.worker.statistics import Statistics
from zmqps.errors import ConfigurationError
from zmqps.gpu.handover import Handover
from zmqps.net.lane.private import Private


class Puller(Connection):
    """A member that uses the job as it is and pulls; `Pusher` adds what changes it."""

    _requests: Requests | None = None
    _restored: Restored | None = None

    def __init__(
        self,
        address: str | None,
        *,
        job: str,
        timeout: float,
        name: str | None,
        observer: bool,
        transport: str,
        job_secret: str | os.PathLike[str] | None = None,
        keys: str | os.PathLike[str] | None = None,
        token: str | None = None,
        io_threads: int = 1,
        metrics: str = "",
    ) -> None:
        register_where_used()
        self._handover = handover = Handover()
        self._buffers: GradientBuffers | None = None  # kept across lives in the cluster
        self._trained: JobSpec | None = None  # likewise: a later life trains the same job, or none
        self._named = False  # this worker has named the job: a later life names it, too, to count
        self._caches = RowCaches()  # of sparse tables; kept across lives, but without their contents
        super().__init__(
            address,
            job=job,
            timeout=timeout,
            name=name,
            observer=observer,
            transport=transport,
            job_secret=job_secret,
            keys=keys,
            token=token,
            io_threads=io_threads,
            metrics=metrics,
            pinned=lambda: handover.pinned_nbytes,
        )
        me = weakref.ref(self)

        def recut(event: Any) -> None:
            worker = me()
            requests = None if worker is None else worker._requests
            if isinstance(event, Attached) and requests is not None:
                requests.lie(event.placement)
            if worker is not None and isinstance(event, Attached | Rollback):
                worker._caches.outdate()

        self._listeners.append(recut)

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The job's parameters, and its buffers, in the order of the key space; empty before `init`."""
        return self._requests.job.parameters if self._requests else ()

    @property
    def restored(self) -> Restored | None:
        """The checkpoint that the job started from, with the state saved in it; None: it began with new values."""
        return self._restored

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
        self._listeners.append(lambda event: call(event) if isinstance(event, Rollback) else None)

    def statistics(self) -> Statistics:
        """Return a frozen copy of this worker's counts so far, also after `close`. Not in a callback of a future."""
        shared, borrowed = self._arenas.nbytes, self._lanes.borrowed_nbytes if self._lanes else 0
        pinned = self._handover.pinned_nbytes
        return replace(super().statistics(), pinned_bytes=pinned, shared_bytes=shared, borrowed_bytes=borrowed)

    def _disown(self) -> None:
        super()._disown()
        self._requests = None  # so each request asks for the job, and is refused before it touches an array
        self._caches = RowCaches()

    def _reads_in_place(self) -> bool:
        return self._lanes is not None and self._lanes.in_place

    def _attach(self, init: StartJob, timeout: float | None) -> Future[None]:
        me = weakref.ref(self)

        def reads() -> bool:
            worker = me()  # no cycle, which would keep a worker without references alive
            return worker is not None and worker._reads_in_place()

        def private(memory: Bytes, hold: Any) -> Private | None:
            worker = me()
            lanes = None if worker is None else worker._lanes
            return None if lanes is None else lanes.private(memory, hold)

        def num_workers() -> int:
            worker = me()
            return 1 if worker is None else worker.num_workers

        lent = None if self._role == "observer" else private  # training does not wait until it has read them
        memory = SharedMemory(
            empty=self._arenas.empty,
            part=self._arenas.part,
            reads=reads,
            private=lent,
            num_workers=num_workers,
        )

        def attach(value: Attached) -> None:
            self._named |= init.job is not None
            self._restored = value.restored
            if init.job is not None or self._trained is None:
                self._trained = value.job
            if self._requests is None:
                self._requests = Requests(value, self._handover, memory, self._buffers)

        return self._submit(init, timeout, attach)

    def _job(self, timeout: float | None) -> Requests:
        """Return the job; an observer, or a worker that did not call `init`, uses it as it is."""
        if self._requests is None:
            refuse_in_callback()
            self._attach(StartJob(0.0), timeout).result()
            assert self._requests is not None
            if self._trained is not None and self._requests.job != self._trained:
                found, self._requests = self._requests.job, None
                found.check_same(self._trained, "the worker that restarted it")
            if self._named:  # only now: before, it would have started an ended job again
                self._attach(StartJob(0.0, job=self._trained), timeout).result()
        assert self._requests is not None
        return self._requests

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
        job = self._job(timeout)
        requests = job.table(name)
        if cache is not None:
            if not isinstance(cache, CacheOptions):
                raise ConfigurationError(f"cache comes from zmqps.row_cache, not {checks.shown(cache):.60}")
            call = Call(self, requests, timeout)
            self._caches.choose(name, cache, job.job, call)
        return Table(self, name)

    def _reads_at(self) -> int | None:
        """Return the clock of a read requested now, after all submitted operations; None: this member ends no steps."""
        if not self._named:
            return None
        return self._thread.ask(lambda: self._thread.machine.transfers.pace.reads_at)

    def _send_kept(self, timeout: float | None = None) -> list[Future[Any]]:
        """Start to send the gradients that caches keep."""
        requests = self._requests
        if requests is None or not self._caches:
            return []
        return [cache.flush(Call(self, requests.table(name), timeout)) for name, cache in self._caches.items()]

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
            for sent in self._send_kept(timeout):
                sent.result()
        finally:
            super().finish(timeout=timeout)

    def finish_async(self, *, timeout: float | None = None) -> Future[None]:
        """`finish` without the close, as a future."""
        self._send_kept(timeout)
        return super().finish_async(timeout=timeout)

    def drain_async(self, *, timeout: float | None = None) -> Future[None]:
        """`drain` without the close and the end of the program, as a future."""
        self._send_kept(timeout)
        return super().drain_async(timeout=timeout)

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
        if self._caches and not in_callback():  # there it is refused
            requests = self._requests
            for name, cache in self._caches.items():
                cache.leave(None if requests is None else Call(self, requests.table(name), None))
        super().close(timeout=timeout)
        if self._requests is not None:
            self._requests.staging.end()

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
            By default the arrays are yours. On a server's host they may lie in its memory, page by page until you write
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
        refuse_in_callback()
        pull, result = self._job(timeout).pull(names, out, at_least, exact, codec, copy)
        params: Params = self._complete(Exchange(pull=pull), timeout, result)
        return params

    def pull_async(
        self,
        names: str | Iterable[str] | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        at_least: int | None = None,
        exact: int | None = None,
        codec: str | Codec | None = None,
        copy: bool = True,
        timeout: float | None = None,
    ) -> Future[Params]:
        """`pull`, as a future."""
        pull, result = self._job(timeout).pull(names, out, at_least, exact, codec, copy)
        return self._submit(Exchange(pull=pull), timeout, result)

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
        futures = self.pull_each_async(names, out=out, at_least=at_least, codec=codec, timeout=timeout)
        return ((name, future.result()) for name, future in futures.items())

    def pull_each_async(
        self,
        names: str | Iterable[str] | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        at_least: int | None = None,
        codec: str | Codec | None = None,
        timeout: float | None = None,
    ) -> dict[str, Future[Any]]:
        """`pull_each`, as a future for each parameter."""
        requests = self._job(timeout)
        pull, values = requests.pull_each(names, out, at_least, codec)
        futures = self._submit_each(Exchange(pull=pull), timeout, values)
        return {requests.job.parameters[number].name: future for number, future in futures.items()}
