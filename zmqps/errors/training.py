"""Errors of a job: how it begins and ends, what it trains, and the memory and devices it takes."""

from __future__ import annotations

from zmqps.errors.base import PSError


class JobError(PSError, RuntimeError):
    """The job cannot be started, or has not been started yet."""

    code = 40


class JobEndedError(JobError):
    """The job this node was there for has ended."""

    code = 48
    text = "the job {job!r} has ended: {reason}; connect again to begin a new one"
    job: str
    reason: str


class JobMemoryError(JobError, MemoryError):
    """A server lacks the memory for its shard of a job; no other job is touched."""

    code = 49
    text = (
        "{server} lacks the memory for {what}: it needs {needed_nbytes:,} bytes, {free_nbytes:,} are free; start more "
        "servers, end another job (zmqps jobs end NAME), or allow more with --memory"
    )
    server: str
    what: str
    needed_nbytes: int
    free_nbytes: int


class ShardBrokenError(JobError):
    """An update of a shard failed after it had begun to write, and could not be taken back: its values are lost."""

    code = 51
    text = (
        "an update of this shard failed half way, and nothing can be done with it any more: {why}; that is a defect of "
        "zmqps or of the optimizer, see the server's log. Begin the job again, from values that you have saved"
    )
    why: str


class TableFullError(PSError):
    """A sparse table has no room for rows that are new; nothing has changed, and rows that are there can be trained."""

    code = 52
    text = (
        "table {table!r} has no room for {new:,} new rows on this server, where {num_rows:,} rows take {nbytes:,} "
        "bytes; allow more (capacity_nbytes, or memory on the servers' hosts), start more servers, or let rows expire "
        "or make way (expire_steps, when_full='evict')"
    )
    table: str
    num_rows: int
    new: int
    nbytes: int


class JobMismatchError(PSError, ValueError):
    """This worker's ``init`` differs from the job the first worker defined."""

    code = 41
    text = (
        "this worker and the running job differ in {what}: the job, set by {owner}, has {theirs}; this worker has "
        "{ours}. Make them equal, or give this worker's job another name: connect(..., job=...)"
    )
    what: str
    ours: str
    theirs: str
    owner: str


class UnknownParameterError(PSError, KeyError):
    """A name that is not among the job's parameters."""

    code = 42
    text = "no parameter named {name!r}; {hint}"
    name: str
    hint: str


class ShapeError(PSError, ValueError):
    """An array whose shape is not its parameter's."""

    code = 43
    text = "{name!r} has shape {got}, expected {expected}"
    name: str
    got: str
    expected: str


class DtypeError(PSError, TypeError):
    """An array whose dtype cannot be trained, or not be converted without loss of meaning."""

    code = 44
    text = "{name!r} has dtype {got}, expected {expected}"
    name: str
    got: str
    expected: str


class NonFiniteGradientError(PSError, ValueError):
    """A gradient with NaN or infinity was refused; the values are as they were."""

    code = 45
    text = (
        "gradient of {parameters} pushed by {worker} contains NaN or infinity and was refused, nothing was applied; "
        "clip or skip such a batch, or allow them with init(..., nonfinite='allow')"
    )
    worker: str
    parameters: str


class OptimizerError(PSError, ValueError):
    """No optimizer, schedule or option of that name, or a value out of its range."""

    code = 46


class ServerMemoryError(PSError, MemoryError):
    """A server lacked the memory for a request, on its host or its GPU; the request has changed nothing there.

    It may be tried again. A push to several servers, or in several messages, may have been applied elsewhere, as
    after a `DeadlineError`; in the synchronous mode it counts only as a whole.
    """

    code = 50
    text = (
        "{server} lacks the memory for {what} ({why}); nothing was changed by it, so try again later. What else of the "
        "same push was applied is applied again then, unless the job is synchronous. If it lasts, end what else takes "
        "memory on its host, allow fewer workers or jobs, or start more servers"
    )
    server: str
    what: str
    why: str


class VersionError(PSError, LookupError):
    """Exactly this version was asked for, and it is not kept any more."""

    code = 47
    text = (
        "version {version} is not kept any more, only {oldest} to {newest}; "
        "ask for at_least, or keep more with init(..., retain=n)"
    )
    version: int
    oldest: int
    newest: int


class DeviceError(PSError, RuntimeError):
    """A GPU that cannot be used, or that failed."""

    code = 60


class DeviceMemoryError(DeviceError, MemoryError):
    """A GPU lacks the memory for what it is asked to hold; what it held before is as it was."""

    code = 61
    text = (
        "{device}: {what} needs {needed_nbytes:,} bytes, {free_nbytes:,} are free; start more servers, on other "
        "devices, or let this server use the processor's memory with --device cpu"
    )
    device: str
    what: str
    needed_nbytes: int
    free_nbytes: int
