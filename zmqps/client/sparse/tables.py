"""Sparse tables in a training script: the options of a job's tables, and a worker's handle of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from zmqps import checks
from zmqps.client.futures import blocking, done, future_of
from zmqps.client.sparse.cache_options import CacheStatistics
from zmqps.client.sparse.row_cache import Call, RowCache
from zmqps.client.sparse.rows import Brought, Wanted
from zmqps.client.sparse.whole import WholeTable
from zmqps.client.thread import refuse_in_callback
from zmqps.codecs import Codec
from zmqps.core.job.tables import TableSpec
from zmqps.core.worker.operations import Exchange
from zmqps.errors import ConfigurationError
from zmqps.optim import OptimizerSpec
from zmqps.optim.rows import kernel_of_table
from zmqps.rows.initial import Initial

if TYPE_CHECKING:
    from zmqps.client.requests import Requests
    from zmqps.client.sparse.rows import RowRequests
    from zmqps.core.worker.operations import Operation

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class TableOptions:
    """A table of a job to be started; made by `table`, named by `zmqps.Worker.init`."""

    options: Mapping[str, Any]

    def named(self, name: str) -> TableSpec:
        """Return the table of this name."""
        checks.name("a table's name", name)
        spec = TableSpec(name=name, **self.options)
        counts: Any = spec.step_counts
        kernel_of_table(spec.optimizer, name, spec.dim, "numpy", counts)  # raises if there is no such rule
        return spec


@checks.options()
def table(
    dim: int,
    *,
    optimizer: OptimizerSpec,
    initial: Initial | None = None,
    capacity_nbytes: int | None = None,
    when_full: str = "refuse",
    admit: int = 1,
    expire_steps: int | None = None,
    expire_seconds: float | None = None,
    step_counts: str = "rows",
    lazy_decay: bool = False,
) -> TableOptions:
    """Describe a sparse table, for ``worker.init(..., tables={"items": zmqps.table(64, …)})``.

    It has a row of float32 for each 64-bit id that was ever pushed. Other ids take no memory; reading one returns its
    initial value.

    Parameters
    ----------
    dim : int
        Elements of a row, 1 to 4,096.
    optimizer : OptimizerSpec
        From `zmqps.optim`: applied only to the rows that a push names.
    initial : Initial, optional
        Initial values of rows, from `zmqps.initial`; by default zeros.
    capacity_nbytes : int, optional
        The most bytes of all its rows, with slots and index, over all servers. They are reserved when the job begins.
        By default all memory of the servers' hosts, allocated as the table grows.
    when_full : {"refuse", "evict"}
        Whether new rows are then refused (`TableFullError`), or the rows changed least recently are evicted.
    admit : int
        The number of touches by a push after which an id gets a row; earlier pushes have no effect. A sketch counts
        touches; it may count too many, never too few.
    expire_steps : int, optional
        After how many pushes to the table (synchronous: steps) without one that names it a row is removed.
    expire_seconds : float, optional
        The same in seconds.
    step_counts : {"rows", "table"}
        What an optimizer's bias corrections count: the updates of each row, or those of the table, as PyTorch's
        SparseAdam does.
    lazy_decay : bool
        Whether decoupled weight decay (``adamw``) makes up, when a row is touched, for the updates it has
        missed; otherwise only touched rows decay.

    Returns
    -------
    TableOptions
    """
    if not isinstance(optimizer, OptimizerSpec):
        raise ConfigurationError(f"optimizer comes from zmqps.optim, as adagrad(0.05); got {checks.shown(optimizer)}")
    initial = Initial("zeros") if initial is None else initial
    if not isinstance(initial, Initial):
        raise ConfigurationError(f"initial comes from zmqps.initial, as normal(0.01); got {checks.shown(initial)}")
    options = {
        "dim": dim,
        "optimizer": optimizer.to_wire(),
        "initial": initial.to_wire(),
        "capacity_nbytes": capacity_nbytes,
        "when_full": when_full,
        "admit": admit,
        "expire_steps": expire_steps,
        "expire_s": expire_seconds,
        "step_counts": step_counts,
        "lazy_decay": lazy_decay,
    }
    found = TableOptions(options)
    found.named("table")  # so errors are raised where the user wrote the options
    return found


def specs_of(tables: Mapping[str, TableOptions] | None) -> tuple[TableSpec, ...]:
    """Return a job's tables as they are named."""
    if tables is None:
        return ()
    for name, options in checks.mapping("tables", tables, "name -> zmqps.table(...)").items():
        if not isinstance(options, TableOptions):
            raise ConfigurationError(f"table {name!r} is made by zmqps.table(dim, …), not {checks.shown(options):.60}")
    return tuple(options.named(name) for name, options in tables.items())


class Member(Protocol):
    """What a table requires of its member of the cluster."""

    @property
    def job_name(self) -> str:
        """The name of its job."""

    @property
    def caches(self) -> Mapping[str, RowCache]:
        """Return the caches of its tables that have one, by name."""

    def reads_at(self) -> int | None:
        """Return the clock of a read requested now; None: it ends no steps."""

    def job(self, timeout: float | None) -> Requests:
        """Return the job."""

    def submit(
        self, operation: Operation, timeout: float | None, result: Callable[[Any], Any] | None = ...
    ) -> Future[Any]:
        """Begin an operation."""

    def complete(self, operation: Operation, timeout: float | None, result: Callable[[Any], Any] | None = ...) -> Any:
        """Begin an operation and return its result; this thread may run the loop meanwhile."""


#: Names of other systems -> what a table has.
ELSEWHERE = {
    "lookup": "pull(ids)",
    "embedding_lookup": "pull(ids)",
    "get": "pull(ids)",
    "gather": "pull(ids)",
    "update": "push(ids, grads)",
    "scatter_add": "push(ids, grads)",
    "set": "load(ids, values)",
    "save": "export(path)",
    "shape": "dim, and len(table)",
    "num_rows": "statistics().rows",
}


class Table(WholeTable):
    """A sparse table of the job; made by `zmqps.Worker.table`.

    A training loop calls `push_pull`: the gradients of this batch go, and the rows of the next one come. Ids are signed
    64-bit integers in any shape; unsigned ones are taken by their bits. Methods that end in ``_async`` return a future
    at once; until it is done their arrays are read or written. For timeouts and losses see `zmqps.Worker`; for cached
    rows, `zmqps.row_cache`.
    """

    def __init__(self, member: Member, name: str) -> None:
        self.name = name
        self._member = member

    if not TYPE_CHECKING:  # for which there is no other attribute

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(checks.no_attribute("a table", name, ELSEWHERE), name=name, obj=self)

        def __getitem__(self, ids: Any) -> NoReturn:
            raise TypeError("rows are pulled: table.pull(ids), and set by table.load(ids, values)")

    @property
    def dim(self) -> int:
        """Elements of a row."""
        return self._requests(None).spec.dim

    def pull(self, ids: Any, *, out: Any = None, codec: str | Codec | None = None, timeout: float | None = None) -> Any:
        """Return rows.

        Parameters
        ----------
        ids : array of int64
            Of any shape; an id may occur often.
        out : array, optional
            For the rows, ``ids.shape + (dim,)``, of any floating dtype; it may be on a GPU.
        codec : Codec or str, optional
            The codec of the rows; by default the job's ``pull_codec``.
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Returns
        -------
        float32 array ``ids.shape + (dim,)``
            Or ``out``. For an id without a row its initial value; reading creates none.

        Raises
        ------
        ShapeError, DtypeError
            Nothing was requested.
        DeadlineError, PeerLostError
            ``out`` may hold some of the rows.
        """
        return self._complete(None, Wanted(ids, out, codec), timeout)

    @future_of(pull)
    def pull_async(self, given: dict[str, Any]) -> Future[Any]:
        """`pull`, as a future: ask for the next batch's rows, and compute meanwhile."""
        return self._begin(None, Wanted(given["ids"], given["out"], given["codec"]), given["timeout"])

    def rows(self, ids: Any, *, timeout: float | None = None) -> Array:
        """Return rows as they are on the servers, in full precision whatever the job's codec; it creates none.

        Parameters
        ----------
        ids, timeout
            As for `pull`, as are the errors.

        Returns
        -------
        float32 array ``ids.shape + (dim,)``
        """
        found: Array = self.pull(ids, codec="raw", timeout=timeout)
        return found

    def push(
        self,
        ids: Any,
        grads: Any,
        *,
        examples: int = 1,
        codec: str | Codec | None = None,
        step: bool | None = None,
        timeout: float | None = None,
    ) -> None:
        """Send gradients of some rows; return when every shard has applied them, or keeps them for the step.

        Parameters
        ----------
        ids : array of int64
            Of any shape. An id that occurs several times gets the sum of its gradients. Other rows do not change.
        grads : array ``ids.shape + (dim,)``
            Of any floating dtype.
        examples : int
            Synchronous: the weight of these gradients. A row's gradient in a step is the sum over the workers of
            examples times gradient, divided by the examples of all that pushed to the table, whether they named the row
            or not: as with one large batch.
        codec : Codec or str, optional
            The codec of the gradients, one without error feedback; by default the job's if it has none, else raw.
        step : bool, optional
            Not asynchronous: whether this ends the worker's step. By default it does if the job trains only this table.
            With parameters, or other tables, push to the tables first: the last push, of all parameters, or
            `Worker.advance` ends it.
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Raises
        ------
        ShapeError, DtypeError, NonFiniteGradientError
            Nothing was sent. The last one names ids.
        TableFullError
            There is no room for new rows on one of the servers; other messages of this push may have been applied.
        DeadlineError, PeerLostError
            The push may have been applied in part; no part is ever applied twice.
        """
        self._complete(Brought(ids, grads, examples, codec, step), None, timeout)

    @future_of(push)
    def push_async(self, given: dict[str, Any]) -> Future[None]:
        """`push`, as a future."""
        timeout = given.pop("timeout")
        return self._begin(Brought(**given), None, timeout)

    def push_pull(
        self,
        ids: Any,
        grads: Any,
        next_ids: Any,
        *,
        out: Any = None,
        examples: int = 1,
        codec: str | Codec | None = None,
        pull_codec: str | Codec | None = None,
        step: bool | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Send the gradients of this batch and return the rows of the next one: the call of a training loop.

        Like `push`, then `pull`: the rows include this push. Asynchronous it is one round trip. Synchronous the rows
        are those after the step that the push ends; if it does not end one, those of the last completed step.

        Parameters
        ----------
        ids, grads, examples, codec, step
            As for `push`.
        next_ids, out, pull_codec
            As ``ids``, ``out`` and ``codec`` of `pull`.
        timeout : float, optional
            Seconds, for both.

        Returns
        -------
        float32 array ``next_ids.shape + (dim,)``
            Or ``out``.

        Raises
        ------
        PSError
            As `push` and `pull`.

        Examples
        --------
        >>> rows = items.pull(batches[0])  # doctest: +SKIP
        >>> for ids, next_ids in pairwise(batches):  # doctest: +SKIP
        ...     rows = items.push_pull(ids, gradients(rows), next_ids)
        """
        brought, wanted = Brought(ids, grads, examples, codec, step), Wanted(next_ids, out, pull_codec)
        return self._complete(brought, wanted, timeout)

    @future_of(push_pull)
    def push_pull_async(self, given: dict[str, Any]) -> Future[Any]:
        """`push_pull`, as a future."""
        wanted = Wanted(given.pop("next_ids"), given.pop("out"), given.pop("pull_codec"))
        timeout = given.pop("timeout")
        return self._begin(Brought(**given), wanted, timeout)

    @blocking
    def load(self, ids: Any, values: Any, *, step: bool = False, timeout: float | None = None) -> Future[None]:
        """Set rows to values, without the optimizer; missing ones are created.

        Slots and counts of the optimizer do not change. In synchronous mode it is a part of this worker's step, like
        `Worker.set`; if several workers set a row in a step, the value of the lowest rank counts.

        Parameters
        ----------
        ids : array of int64
            Of any shape; of a repeated id the last value counts. For millions of rows call it several times.
        values : array ``ids.shape + (dim,)``
            Of any floating dtype.
        step : bool
            Not asynchronous: whether this ends the worker's step.
        timeout : float, optional
            Seconds; by default as `connect` says, at least 60.

        Raises
        ------
        ShapeError, DtypeError, ConfigurationError
            Nothing was sent.
        TableFullError, DeadlineError, PeerLostError
            As for `push`.
        """
        if (cache := self._member.caches.get(self.name)) is not None:
            return cache.load(self._call(timeout), ids, values, step)
        push = self._requests(timeout).load(ids, values, step)
        return self._member.submit(Exchange(push=push), timeout)

    @blocking
    def flush(self, *, timeout: float | None = None) -> Future[None]:
        """Send the gradients deferred by this worker's cache of the table; return when servers have applied them.

        Without a cache, or with one that defers none, there are none. Errors are those of `push`, also of gradients
        sent since the last flush.
        """
        cache = self._member.caches.get(self.name)
        return done() if cache is None else cache.flush(self._call(timeout))

    def cache_statistics(self) -> CacheStatistics:
        """Return the contents and savings of this worker's cache of the table; without one, zeros."""
        cache = self._member.caches.get(self.name)
        return CacheStatistics() if cache is None else cache.statistics()

    def _complete(self, brought: Brought | None, wanted: Wanted | None, timeout: float | None) -> Any:
        """Push and pull, and return the result."""
        refuse_in_callback()
        if self.name in self._member.caches:
            return self._begin(brought, wanted, timeout).result()
        exchange, result = self._requests(timeout).exchange(brought, wanted)
        return self._member.complete(exchange, timeout, result)

    def _begin(self, brought: Brought | None, wanted: Wanted | None, timeout: float | None) -> Future[Any]:
        """Begin to push and pull."""
        if (cache := self._member.caches.get(self.name)) is not None:
            return cache.begin(self._call(timeout), brought, wanted)
        exchange, result = self._requests(timeout).exchange(brought, wanted)
        return self._member.submit(exchange, timeout, result)

    def _call(self, timeout: float | None) -> Call:
        return Call(self._member, self._requests(timeout), timeout)

    def _requests(self, timeout: float | None) -> RowRequests:
        return self._member.job(timeout).table(self.name)

    @property
    def _job_name(self) -> str:
        return self._member.job_name

    def _exchange(self, exchange: Exchange, timeout: float | None) -> Future[Any]:
        return self._member.submit(exchange, timeout)

    def __repr__(self) -> str:
        return f"<zmqps.Table {self.name!r}>"
