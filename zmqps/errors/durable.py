"""Errors of what outlives a process: checkpoints, a coordinator's journal, shards that change hands."""

from __future__ import annotations

from zmqps.errors.base import PSError
from zmqps.errors.configuration import ConfigurationError


class CheckpointError(PSError, RuntimeError):
    """A checkpoint that cannot be used, or written.

    Attributes
    ----------
    path : str
        Of the checkpoint, or of the file in question.
    what : str
        What is wrong with it.
    good : str
        The newest other checkpoint of the job that looks whole; empty if there is none, or none was looked for.
    advice : str
        What to do.

    What to do next
    ---------------
    - Do what the text says; if it names a good checkpoint, use that.
    - `zmqps checkpoint verify PATH` reads all of it and reports what is wrong.
    """

    code = 70
    text = "{path}: {what}; {advice}"
    path: str
    what: str
    good: str
    advice: str


class CheckpointNotFoundError(CheckpointError, LookupError):
    """There is no checkpoint there, or no complete one.

    What to do next
    ---------------
    - Check the path and the job's name: `zmqps checkpoint show DIRECTORY` lists the checkpoints there.
    - On several hosts the directory has to be the same for all, on a shared file system or in an object store.
    """

    code = 71


class CheckpointForeignError(CheckpointError):
    """A directory that is not a checkpoint of zmqps, or an unfinished checkpoint.

    What to do next
    ---------------
    - Name the directory of one checkpoint, or their parent directory.
    - An unfinished checkpoint cannot be used: use the one before it.
    """

    code = 72


class CheckpointFormatError(CheckpointError):
    """A checkpoint in a format that this version does not know yet, or no longer reads.

    What to do next
    ---------------
    - One of a newer format: install the zmqps that wrote it, which the text names, or a newer one.
    - One of format 1 that builds upon another checkpoint has only the parameters that have changed, which is no longer
      read. Install the zmqps that wrote it and rewrite it as a whole: `zmqps checkpoint compact PATH`. Or continue
      from a checkpoint that builds upon no other; these are read in both formats.
    """

    code = 73


class CheckpointCorruptError(CheckpointError):
    """A file of a checkpoint is missing, truncated or changed.

    What to do next
    ---------------
    - Continue from the older checkpoint that the text names, if there is one.
    - If it was copied, copy it again from the original, and check the disk: zmqps publishes only complete
      checkpoints.
    """

    code = 74


class CheckpointMismatchError(CheckpointError):
    """A checkpoint of another model, or another optimizer, than the job's.

    What to do next
    ---------------
    - Name a checkpoint of this model, or define the model as before: the text says which parameter or option differs.
    - To take only values from it, read it with `zmqps.load` and pass them to `init`.
    """

    code = 75


class CheckpointStorageError(CheckpointError, OSError):
    """The disk is full or read-only, or fails, or another cluster saves there; earlier checkpoints are unchanged.

    What to do next
    ---------------
    - A directory belongs to one cluster at a time. The text names the one that has it: end that cluster, or use another
      directory, such as a subdirectory.
    - Free space, or make the directory writable for the nodes' user: `df -h`, `ls -ld`.
    - Training continues, and the next checkpoint is tried at its time. Older ones are unchanged.
    """

    code = 76


class CheckpointFailedError(PSError, RuntimeError):
    """A requested checkpoint could not be made. Training continues, and earlier checkpoints are unchanged.

    What to do next
    ---------------
    - The text says why, and the coordinator's log has more. Once that is corrected, run `zmqps checkpoint`, or
      wait for the next one.
    - Do not ignore this: without a recent checkpoint a loss takes training far back.
    """

    code = 77
    text = "no checkpoint of the job {job!r} was made: {why}; earlier checkpoints are unchanged"
    job: str
    why: str


class CheckpointTooSoonError(PSError, RuntimeError):
    """The workers of a job have requested too many checkpoints in a short time; nothing was begun.

    What to do next
    ---------------
    - Try again after `seconds`, or save less often. `--checkpoint-every` saves automatically.
    - The command `zmqps checkpoint` is not limited.
    """

    code = 78
    text = (
        "the workers of the job {job!r} have requested too many checkpoints, more than one every {every:g} s in the "
        "long run; they may request the next one in {seconds:.1f} s"
    )
    job: str
    seconds: float
    every: float


class JournalError(ConfigurationError):
    """A coordinator cannot resume from its journal, and has not begun another one.

    What to do next
    ---------------
    - Do what the text says. A journal belongs to one cluster, one host's disk and one user.
    - To begin again without it, give the coordinator another directory, and the jobs a checkpoint: `--restore`.
    """

    code = 85
    text = "cannot resume from the coordinator's journal {path}: {why}; {advice}"
    path: str
    why: str
    advice: str


class JournalBehindError(PSError, RuntimeError):
    """Servers have steps that the coordinator's journal lacks: its host lost the last writes.

    What to do next
    ---------------
    - Begin the job again, from a checkpoint if there is one: the servers' values cannot be trusted.
    - Keep the journal on a disk that does not lose confirmed writes in a power failure.
    """

    code = 86
    text = (
        "the coordinator's journal is behind: {server} has {theirs} steps of job {job!r}, the journal {ours}, so the "
        "contributors of the others are unknown; begin the job again, from a checkpoint if there is one"
    )
    server: str
    job: str
    theirs: int
    ours: int


class DeposedError(PSError, ConnectionError):
    """This replica does not lead its shard: another one does, or is about to.

    What to do next
    ---------------
    - Usually nothing: workers wait until the coordinator names the new leader. If a script gets it, connect again.
    """

    code = 80
    text = (
        "this copy of a shard of the job {job!r} does not lead it (generation {generation}): another server has taken "
        "over, or is about to; wait until the coordinator names it"
    )
    job: str
    generation: int


class DrainError(PSError, RuntimeError):
    """A server cannot be drained, because no other server can take its shards. It stays; nothing has changed.

    What to do next
    ---------------
    - Do what the text says: usually start another server (`zmqps server`), then drain
      again.
    - `zmqps status` shows where each shard is.
    """

    code = 81
    text = "{server} cannot be drained: {why}; {advice}"
    server: str
    why: str
    advice: str


class ScaleError(PSError, RuntimeError):
    """The jobs cannot be placed on that many servers; training continues on the present ones.

    What to do next
    ---------------
    - Do what the text says: start enough servers with enough room, then run `zmqps scale --servers N` again.
    """

    code = 82
    text = "the cluster cannot have {servers} servers: {why}; {advice}"
    servers: int
    why: str
    advice: str
