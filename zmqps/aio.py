"""The worker for asyncio programs: the names of ``zmqps.Worker``, to await.

::

    async with zmqps.aio.connect("tcp://127.0.0.1:5570") as worker:
        await worker.init(params, optimizer=zmqps.optim.sgd(learning_rate=0.1))
        values = await worker.push_pull(grads)

There is one worker: everything here hands it an operation and awaits the future of that. The
loop is never blocked; what would block is done by one helper thread a worker, in the order asked
(`statistics`, `rejoin` and `close` do not wait for their turn).

Cancelling an ``await`` withdraws a pull, and a push of which nothing has left yet: the arrays given to it
are free. Anything else continues in the background: a push that was begun is still applied,
once, and its result is dropped; its arrays stay in use until it is done, at its timeout at the latest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, NoReturn, ParamSpec, Self, TypeVar

from zmqps import checks
from zmqps.client.groups import Security
from zmqps.client.requests import Params
from zmqps.client.sparse.cache_options import CacheOptions, CacheStatistics
from zmqps.client.sparse.tables import Table
from zmqps.client.sparse.whole import CHUNK_ROWS, TableStatistics
from zmqps.codecs import Codec
from zmqps.core.job.data import DataRange, DataSpec
from zmqps.core.job.spec import Parameter
from zmqps.core.worker.layout.rollbacks import Rollback
from zmqps.core.worker.statistics import Statistics
from zmqps.errors import ClosedError
from zmqps.worker import DRAINED, Worker
from zmqps.worker import connect as connect_blocking

P = ParamSpec("P")
T = TypeVar("T")
#: What blocks: `Worker`, `Table`.
B = TypeVar("B", covariant=True)

__all__ = ["AsyncTable", "AsyncWorker", "connect"]


class _Awaitable(Generic[B]):
    """Something that blocks, whose methods are asked for in their turn.

    Parameters
    ----------
    blocking
        It.
    hand_over
        Lets the helper thread call something: ``hand_over(call)``, a future.
    """

    def __init__(self, blocking: B, hand_over: Callable[[Callable[[], Any]], Future[Any]]) -> None:
        self._blocking = blocking
        self._hand_over = hand_over

    async def _ask(self, call: Callable[[], T]) -> T:
        """Return what a call returns, in its turn."""
        return await asyncio.wrap_future(self._hand_over(call))


def _awaiting(
    blocking: Callable[Concatenate[B, P], T], begin: Callable[Concatenate[B, P], Future[T]]
) -> Callable[Concatenate[_Awaitable[B], P], Coroutine[Any, Any, T]]:
    """Return a blocking method as one to await, made from the method that returns its future."""

    @wraps(blocking)
    async def method(self: _Awaitable[B], /, *args: P.args, **kwargs: P.kwargs) -> T:
        # even to begin may take long: to convert a large model's arrays, or to ask for the job
        asked = self._hand_over(partial(begin, self._blocking, *args, **kwargs))
        try:
            begun = await asyncio.wrap_future(asked)
        except asyncio.CancelledError:
            asked.add_done_callback(_cancel_unwanted)
            raise
        return await asyncio.wrap_future(begun)

    return method


class AsyncTable(_Awaitable[Table]):
    """A sparse table; made by `AsyncWorker.table`. Arguments, results and errors are those of `zmqps.Table`."""

    pull = _awaiting(Table.pull, Table.pull_async)
    push = _awaiting(Table.push, Table.push_async)
    push_pull = _awaiting(Table.push_pull, Table.push_pull_async)
    load = _awaiting(Table.load, Table.load_async)
    flush = _awaiting(Table.flush, Table.flush_async)

    async def rows(self, ids: Any, *, timeout: float | None = None) -> Any:
        """Return rows as they are on the servers, as `zmqps.Table.rows` does."""
        return await self._ask(partial(self._blocking.rows, ids, timeout=timeout))

    async def statistics(self, *, timeout: float | None = None) -> TableStatistics:
        """Ask the servers what the table holds."""
        return await self._ask(partial(self._blocking.statistics, timeout=timeout))

    async def chunks(self, most: int = CHUNK_ROWS, *, timeout: float | None = None) -> AsyncIterator[tuple[Any, Any]]:
        """Go through all rows, as `zmqps.Table.chunks` does, for ``async for``."""
        chunks = self._blocking.chunks(most, timeout=timeout)
        while (chunk := await self._ask(partial(next, chunks, None))) is not None:
            yield chunk

    def cache_statistics(self) -> CacheStatistics:
        """Return what this worker's cache of the table holds, and what it has saved; without one, zeros."""
        return self._blocking.cache_statistics()

    def __repr__(self) -> str:
        return repr(self._blocking).replace("zmqps.Table", "zmqps.aio.AsyncTable")


class AsyncWorker(_Awaitable[Worker]):
    """A connection to a cluster; made by `connect`. Arguments, results and errors are those of `zmqps.Worker`."""

    def __init__(self, worker: Worker, helper: ThreadPoolExecutor) -> None:
        super().__init__(worker, self._to_helper)
        self._worker = worker
        self._helper = helper

    init = _awaiting(Worker.init, Worker.init_async)
    pull = _awaiting(Worker.pull, Worker.pull_async)
    push = _awaiting(Worker.push, Worker.push_async)
    push_pull = _awaiting(Worker.push_pull, Worker.push_pull_async)
    advance = _awaiting(Worker.advance, Worker.advance_async)
    skip = _awaiting(Worker.skip, Worker.skip_async)
    set = _awaiting(Worker.set, Worker.set_async)
    average = _awaiting(Worker.average, Worker.average_async)
    set_hyperparameters = _awaiting(Worker.set_hyperparameters, Worker.set_hyperparameters_async)
    set_learning_rate = _awaiting(Worker.set_learning_rate, Worker.set_learning_rate_async)
    barrier = _awaiting(Worker.barrier, Worker.barrier_async)
    checkpoint = _awaiting(Worker.checkpoint, Worker.checkpoint_async)
    status = _awaiting(Worker.status, Worker.status_async)
    _finish = _awaiting(Worker.finish, Worker.finish_async)
    _drain = _awaiting(Worker.drain, Worker.drain_async)

    def log(self, values: Mapping[str, Any], *, step: int | None = None) -> None:
        """Note numbers of this script, as `zmqps.Worker.log` does; there is nothing to await."""
        self._worker.log(values, step=step)

    async def gradient_buffers(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return arrays that servers on this host read in place, as `zmqps.Worker.gradient_buffers` does."""
        return await self._ask(partial(self._worker.gradient_buffers, timeout=timeout))

    async def ranges(
        self,
        num_examples: int,
        range_size: int,
        *,
        passes: int = 1,
        shuffle_seed: int | None = None,
        name: str = "data",
        timeout: float | None = None,
    ) -> AsyncIterator[DataRange]:
        """`Worker.ranges`, for ``async for``."""
        data = DataSpec(
            name=name, num_examples=num_examples, range_size=range_size, passes=passes, shuffle_seed=shuffle_seed
        )
        taken: DataRange | None = None
        while (taken := await asyncio.wrap_future(self._worker._take_async(data, taken, timeout=timeout))) is not None:
            yield taken

    async def steps(
        self, until: int, *, out: Mapping[str, Any] | None = None, copy: bool = True, timeout: float | None = None
    ) -> AsyncIterator[Params]:
        """`Worker.steps`, for ``async for``."""
        steps = await self._ask(partial(self._worker._begin_steps, until, timeout))
        while not steps.is_over:
            params = await self.pull(out=out, copy=copy, timeout=timeout)
            if not steps.begin(params.version):
                return
            yield params
            del params  # before the next ones arrive

    async def pull_each(
        self,
        names: str | Iterable[str] | None = None,
        *,
        out: Mapping[str, Any] | None = None,
        at_least: int | None = None,
        codec: str | Codec | None = None,
        timeout: float | None = None,
    ) -> AsyncIterator[tuple[str, Any]]:
        """`Worker.pull_each`, for ``async for``; the pull begins with the first step of the loop."""
        begin = partial(self._worker.pull_each_async, names, out=out, at_least=at_least, codec=codec, timeout=timeout)
        futures = await self._ask(begin)
        try:
            for name, future in futures.items():
                yield name, await asyncio.wrap_future(future)
        finally:
            for future in futures.values():  # of a loop that was left early
                future.cancel()

    def on_rollback(self, callback: Callable[[Rollback], object]) -> None:
        """Let a function be called in the running loop whenever the job goes back, as `zmqps.Worker.on_rollback` does.

        It is called before any ``await`` returns values that have gone back.
        """
        loop = asyncio.get_running_loop()
        if callable(callback):
            self._worker.on_rollback(lambda rollback: loop.call_soon_threadsafe(callback, rollback))
        else:
            self._worker.on_rollback(callback)  # which refuses it

    async def table(self, name: str, *, cache: CacheOptions | None = None, timeout: float | None = None) -> AsyncTable:
        """Return a sparse table of the job, as `zmqps.Worker.table` does."""
        table = await self._ask(partial(self._worker.table, name, cache=cache, timeout=timeout))
        return AsyncTable(table, self._hand_over)

    def _to_helper(self, call: Callable[[], T]) -> Future[T]:
        self._worker._refuse_in_fork()  # in which the helper does not run
        try:
            return self._helper.submit(call)
        except RuntimeError:  # the helper is gone, so the worker is closed
            raise ClosedError("the worker is closed") from None

    @property
    def rank(self) -> int:
        """This worker's 0-based index: the lowest free one, or the one that it had before where it is restarted.

        If a number of workers is expected, `init` may change it, so that strangers take no rank of a training worker.
        """
        return self._worker.rank

    @property
    def is_chief(self) -> bool:
        """Whether this worker is to do what only one does, as `zmqps.Worker.is_chief`."""
        return self._worker.is_chief

    @property
    def num_workers(self) -> int:
        """How many workers the job counts on: as many as it expects, or those here now."""
        return self._worker.num_workers

    @property
    def steps_left_out(self) -> int:
        """How many of this worker's steps were skipped for all workers, as `zmqps.Worker.steps_left_out`."""
        return self._worker.steps_left_out

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """What the job trains; empty before `init` or the first pull."""
        return self._worker.parameters

    @property
    def address(self) -> str:
        """The coordinator's endpoint."""
        return self._worker.address

    async def statistics(self) -> Statistics:
        """Return what this worker has done so far; a frozen copy, also after `close`."""
        return await asyncio.to_thread(self._worker.statistics)

    async def rejoin(self, *, timeout: float | None = None) -> None:
        """Come back as a new member, as `zmqps.Worker.rejoin` does: what to do after having been stopped or cut off."""
        await asyncio.to_thread(self._worker.rejoin, timeout=timeout)

    async def finish(self, *, timeout: float | None = None) -> None:
        """Complete what is under way, tell the others that this worker is done, and close.

        When all expected workers have finished the cluster ends.
        """
        try:
            await self._finish(timeout=timeout)
        finally:
            await self.close()

    @property
    def draining(self) -> bool:
        """Whether this process was asked to go, by a signal of `zmqps.drain_on`: `drain` where a step is done."""
        return self._worker.draining

    async def drain(self, *, timeout: float | None = None) -> NoReturn:
        """Say goodbye because this process was asked to go, close and end the program, as `zmqps.Worker.drain` does."""
        try:
            await self._drain(timeout=timeout)
        finally:
            await self.close()
        raise SystemExit(DRAINED)

    async def close(self, *, timeout: float | None = None) -> None:
        """Leave the cluster and release everything, as `zmqps.Worker.close` does."""
        # not on the helper thread, which may be waiting for just what this ends
        await asyncio.to_thread(self._close, timeout)

    def _close(self, timeout: float | None) -> None:
        self._worker._refuse_in_fork()
        self._helper.shutdown(wait=False)
        self._worker.close(timeout=timeout)
        self._helper.shutdown(wait=True)  # what it was doing has failed by now

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._worker).replace("zmqps.Worker", "zmqps.aio.AsyncWorker")


class _Connecting:
    """What `connect` returns: await it, or enter it with ``async with``."""

    def __init__(self, connecting: Coroutine[Any, Any, AsyncWorker]) -> None:
        self._connecting = connecting
        self._worker: AsyncWorker | None = None

    def __await__(self) -> Generator[Any, None, AsyncWorker]:
        return self._connecting.__await__()

    async def __aenter__(self) -> AsyncWorker:
        self._worker = await self._connecting
        return self._worker

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._worker is not None
        await self._worker.close()


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
) -> _Connecting:
    """Join a cluster as a worker: ``await connect(…)`` or ``async with connect(…) as worker``.

    Parameters, result and errors are those of `zmqps.connect`. When cancelled, a connection that
    is made nevertheless is closed.
    """
    return _Connecting(
        _connect(
            address,
            job=job,
            name=name,
            observer=observer,
            transport=transport,
            security=security,
            io_threads=io_threads,
            combine=combine,
            metrics=metrics,
            timeout=timeout,
        )
    )


async def _connect(address: str | None, **options: Any) -> AsyncWorker:
    helper = ThreadPoolExecutor(1, thread_name_prefix="zmqps-aio")
    future = helper.submit(connect_blocking, address, **options)
    try:
        return AsyncWorker(await asyncio.wrap_future(future), helper)
    except BaseException:
        future.add_done_callback(_close_unwanted)
        helper.shutdown(wait=False)
        raise


def _cancel_unwanted(asked: Future[Future[Any]]) -> None:
    if not asked.cancelled() and asked.exception() is None:
        asked.result().cancel()


def _close_unwanted(future: Future[Worker]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()
