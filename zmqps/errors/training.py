"""Errors of a job: how it begins and ends, what it trains, and the memory and devices it takes."""

from __future__ import annotations

from zmqps.errors.base import PSError


class JobError(PSError, RuntimeError):
    """The job cannot be started, or has not been started yet.

    What to do next
    ---------------
    - The text says what is missing: usually `worker.init(...)`, which must come before `push` and `pull`, or a server
      or worker that is not there yet (`zmqps status`).
    - If part of the job is lost, begin it again, from a checkpoint if there is one (`--restore`,
      docs/checkpoints.md).
    """

    code = 40


class AmbiguousNodeError(JobError):
    """Several nodes have this name: one node's name is another's number, or several jobs have such a node.

    What to do next
    ---------------
    - Use the name in quotes that the text gives for the node you mean: role and number, as in `zmqps status`, and
      with several jobs the job's name and a slash before them.
    - Names and numbers agree if a launcher numbers the nodes and scripts do not name them: do
      not give `connect(name=...)` the number of another worker.
    """

    code = 53
    text = "{name!r} means several nodes; use the name quoted after the one you mean: {nodes}"
    name: str
    nodes: str


class JobEndedError(JobError):
    """This node's job has ended.

    What to do next
    ---------------
    - Connect again to begin a new one. `zmqps jobs` shows which have ended, and how.
    - If its workers were lost, their logs say why: `zmqps logs --node worker --level warning`.
    """

    code = 48
    text = "the job {job!r} has ended: {reason}; connect again to begin a new one"
    job: str
    reason: str


class JobMemoryError(JobError, MemoryError):
    """A server lacks the memory for its shard of a job; other jobs are not affected.

    What to do next
    ---------------
    - Start more servers, so that each holds less, or allow more with `--memory`.
    - End a job that is no longer needed: `zmqps jobs`, `zmqps jobs end NAME`.
    - An optimizer with fewer slots takes less: `sgd` has none, `adam` two copies of the parameters. So do fewer
      retained versions and `--replicas`.
    """

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
    """An update of a shard failed after it had begun to write, and could not be undone: its values are lost.

    What to do next
    ---------------
    - Begin the job again, from values that you have saved.
    - The server's log has the traceback. If a custom optimizer raised, correct it; please report
      anything else.
    """

    code = 51
    text = (
        "an update of this shard failed half way, so its values are lost: {why}; that is a defect of zmqps or of the "
        "optimizer, see the server's log. Begin the job again, from values that you have saved"
    )
    why: str


class TableFullError(PSError):
    """A sparse table has no room for new rows; nothing has changed, and present rows can still be trained.

    What to do next
    ---------------
    - Allow more with `capacity_nbytes=` of `zmqps.table`, or start more servers: `zmqps scale`.
    - Remove unused rows: `expire_steps=`, `when_full="evict"`; or admit fewer new ones
      (docs/sparse.md).
    """

    code = 52
    text = (
        "table {table!r} has no room for {new:,} new rows on this server, where {num_rows:,} rows take {nbytes:,} "
        "bytes; allow more (capacity_nbytes, or memory on the servers' hosts), start more servers, or have old rows "
        "removed (expire_steps, when_full='evict')"
    )
    table: str
    num_rows: int
    new: int
    nbytes: int


class JobMismatchError(PSError, ValueError):
    """This worker's ``init`` differs from the job the first worker defined.

    What to do next
    ---------------
    - Make them equal: the text says how they differ, and which worker set it.
    - If this worker should train something else, give its job another name: `connect(..., job=...)`.
    - If the job is an old one, end it: `zmqps jobs end NAME`.
    """

    code = 41
    text = (
        "this worker and the running job differ in {what}: the job, set by {owner}, has {theirs}; this worker has "
        "{ours}. Make them equal, or {advice}"
    )
    what: str
    ours: str
    theirs: str
    owner: str
    advice: str


class UnknownParameterError(PSError, KeyError):
    """A name that is not among the job's parameters.

    What to do next
    ---------------
    - The text has the nearest name. `worker.init` names the parameters; use `worker.table(name)` for rows of tables.
    """

    code = 42
    text = "no parameter named {name!r}; {hint}"
    name: str
    hint: str


class ShapeError(PSError, ValueError):
    """An array with another shape than its parameter.

    What to do next
    ---------------
    - Pass an array of the shape that the text names; a gradient has the shape of its parameter.
    - One extra dimension usually means that the mean over the batch is missing.
    """

    code = 43
    text = "{name!r} has shape {got}, expected {expected}"
    name: str
    got: str
    expected: str


class DtypeError(PSError, TypeError):
    """An array of a dtype that cannot be trained, or cannot be converted without loss.

    What to do next
    ---------------
    - Convert it: `array.astype(numpy.float32)`. Parameters are floats; integers and booleans go into `buffers=`
      (docs/buffers.md).
    """

    code = 44
    text = "{name!r} has dtype {got}, expected {expected}"
    name: str
    got: str
    expected: str


class NonFiniteGradientError(PSError, ValueError):
    """A gradient with NaN or infinity was refused; the values are as they were.

    What to do next
    ---------------
    - Skip the batch (`worker.skip()` in the synchronous mode), or clip gradients: `clip_norm=` of the optimizer.
    - If it happens again, lower the learning rate, look at the loss before it, and at mixed precision without a loss
      scale.
    - `init(..., gradients=zmqps.Gradients(nonfinite="allow"))` lets them through; the values may then become useless.
    """

    code = 45
    text = (
        "gradient of {parameters} pushed by {worker} contains NaN or infinity and was refused, nothing was applied; "
        "clip or skip such a batch, or allow them with init(..., gradients=zmqps.Gradients(nonfinite='allow'))"
    )
    worker: str
    parameters: str


class OptimizerError(PSError, ValueError):
    """No optimizer, schedule or option of that name, or a value out of its range.

    What to do next
    ---------------
    - The text names what is unknown or out of range; docs/optimizers.md lists all of them.
    - Install a custom optimizer on every server, under the entry point `zmqps.optimizers`.
    """

    code = 46


class ServerMemoryError(PSError, MemoryError):
    """A server lacked the memory for a request, on its host or its GPU; the request has changed nothing there.

    It may be tried again. A push to several servers, or in several messages, may have been applied elsewhere, as
    after a `DeadlineError`; in the synchronous mode it counts only as a whole.

    What to do next
    ---------------
    - Try the same call again in a moment.
    - If it persists, see what takes the memory (`zmqps status --json`: `spare_nbytes`, `stage_nbytes`), end other
      programs on that host, or start more servers.
    - If a push must not be applied twice, train in the synchronous mode, or push with `atomic=True` to one server.
    """

    code = 50
    text = (
        "{server} lacks the memory for {what} ({why}); it has changed nothing, so try again later. Other parts of the "
        "same push may then be applied twice, unless the job is synchronous. If it lasts, end other programs on its "
        "host, allow fewer workers or jobs, or start more servers"
    )
    server: str
    what: str
    why: str


class VersionError(PSError, LookupError):
    """The requested version is no longer retained.

    What to do next
    ---------------
    - Ask for `at_least` a version, or for the newest.
    - Keep more of them: `init(..., steps=zmqps.Steps(retain=n))`; each costs as much memory as the parameters.
    """

    code = 47
    text = (
        "version {version} is no longer kept, only {oldest} to {newest}; "
        "ask for at_least, or keep more with init(..., steps=zmqps.Steps(retain=n))"
    )
    version: int
    oldest: int
    newest: int


class DeviceError(PSError, RuntimeError):
    """A GPU that cannot be used, or that failed.

    What to do next
    ---------------
    - The text says what is missing: CuPy, a driver, or the device of that number. `zmqps doctor` shows what the host
      has.
    - `--device cpu` needs no GPU; `--device auto` uses one if it works.
    - If it failed during work, look at `nvidia-smi` and `dmesg | grep -i xid`.
    """

    code = 60


class DeviceMemoryError(DeviceError, MemoryError):
    """A GPU lacks the memory for a request; its contents have not changed.

    What to do next
    ---------------
    - Start more servers on other GPUs, or use the processor's memory: `--device cpu`.
    - See what else is on the GPU: `nvidia-smi`. A worker on the same GPU takes what its framework reserves.
    """

    code = 61
    text = (
        "{device}: {what} needs {needed_nbytes:,} bytes, {free_nbytes:,} are free; start more servers, on other "
        "devices, or let this server use the processor's memory with --device cpu"
    )
    device: str
    what: str
    needed_nbytes: int
    free_nbytes: int
