"""The options of a cache of rows, whether they suit the job, and the cache's statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from zmqps import checks
from zmqps.core.job.spec import JobSpec
from zmqps.core.job.tables import TableSpec
from zmqps.core.protocol.encoding import RAW
from zmqps.errors import ConfigurationError
from zmqps.optim.rows import kernel_of_table
from zmqps.optim.schedules import Schedule

MAX_ROWS = 1 << 31
MAX_STALENESS = 1 << 31
#: Used if the user names none and the mode sets no bound.
STALENESS = 8


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """How a worker keeps rows of a table; made by `row_cache`, passed to `zmqps.Worker.table`."""

    rows: int
    staleness: int | None
    defer: bool
    read_own: bool

    def bound(self, job: JobSpec, spec: TableSpec) -> int:
        """Return for how many clocks a row may be read again.

        Raises
        ------
        ConfigurationError
            These options do not suit the job, or the table.
        """
        if job.mode == "sync":
            raise ConfigurationError(
                "synchronous training has no cache of rows: each step reads what the last one made; train with "
                'mode="async" or mode="bounded", or leave cache= out'
            )
        if job.mode == "bounded":
            if self.defer:
                raise ConfigurationError(
                    'with mode="bounded" others count on what was pushed in a step, so gradients of rows are not '
                    'deferred: leave defer=True out, or train with mode="async"'
                )
            most = job.staleness or 0
            if self.staleness is not None and self.staleness > most:
                raise ConfigurationError(
                    f"the job's reads are at most {most} clocks old, so rows are not kept for {self.staleness}: "
                    f"row_cache(…, staleness={most}) or less"
                )
            return most if self.staleness is None else self.staleness
        if self.defer and self.read_own and rate_of(job, spec) is None:
            raise ConfigurationError(
                f"only servers know what {spec.optimizer.get('name')!r} makes of a row of {spec.name!r}, so a worker "
                "does not see its own gradients that are deferred: say read_own=False if it need not, or leave "
                "defer=True out (it sees them with plain sgd, raw gradients and admit=1)"
            )
        return STALENESS if self.staleness is None else self.staleness


@checks.options()
def row_cache(rows: int, *, staleness: int | None = None, defer: bool = False, read_own: bool = True) -> CacheOptions:
    """Describe a worker's cache of hot rows, for ``worker.table("items", cache=zmqps.row_cache(100_000))``.

    It belongs to this worker: others may have another one, or none. Not in synchronous mode, where each step reads the
    result of the last one.

    Parameters
    ----------
    rows : int
        The most rows to keep; rows that were read once are evicted first. 0: end the cache.
    staleness : int, optional
        For how many clocks a row may be read again. Asynchronous: a clock is a push of this worker to the table, or a
        pull without a push since the one before; by default 8. Bounded: a clock is a step of this worker; by default,
        and at most, the job's ``staleness``, whose guarantee holds.
    defer : bool
        Asynchronous: gradients of cached rows that were read again are summed here. They are sent when the first of
        them is ``staleness`` clocks old, when the row is evicted, or by `Table.flush`. Servers apply the sum as one
        gradient. A worker that dies loses what it has not sent.
    read_own : bool
        Whether this worker reads its own pushes at once. With plain ``sgd`` the worker applies them to its copies.
        Otherwise only servers can compute the new row: a pushed row is fetched again, and ``defer`` is refused. With
        False a row may lack what this worker has pushed in the last ``staleness`` clocks, as it may lack what others
        have.

    Returns
    -------
    CacheOptions

    References
    ----------
    Miao et al., "HET: Scaling out Huge Embedding Model Training via Cache-enabled Distributed Framework", VLDB 2022.
    """
    return CacheOptions(
        checks.whole("rows", rows, 0, MAX_ROWS),
        checks.whole("staleness", staleness, 1, MAX_STALENESS, optional=True),
        checks.flag("defer", defer),
        checks.flag("read_own", read_own),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatistics:
    """What a worker's cache of a table holds, and what it has saved.

    Attributes
    ----------
    rows : int
        The cached rows.
    bytes : int
        Memory that they take, with their index.
    hits, misses : int
        Ids whose row was cached, and ids that were requested; repeated ids of a call count once.
    evicted : int
        Rows evicted for others.
    deferred, sent : int
        Gradients of a row that were not sent at once, and sums of these that were sent.
    bytes_saved : int
        Bytes that were not sent because of the cache: ids and rows, as raw. With a codec it is less.
    """

    rows: int = 0
    bytes: int = 0
    hits: int = 0
    misses: int = 0
    evicted: int = 0
    deferred: int = 0
    sent: int = 0
    bytes_saved: int = 0


def rate_of(job: JobSpec, spec: TableSpec) -> float | None:
    """Return the factor from a gradient to its change of a row; None: only servers can compute it."""
    counts: Any = spec.step_counts
    rule = kernel_of_table(spec.optimizer, spec.name, spec.dim, "numpy", counts).rule
    rate = rule.learning_rate
    changed = rule.slots or rule.weight_decay or rule.clip_value is not None or rule.clip_norm is not None
    if rule.name != "sgd" or rule.frozen or changed or isinstance(rate, Schedule):
        return None
    return float(rate) if spec.admit == 1 and job.push_codec == RAW else None
