"""Every exception zmqps raises, in one place; this docstring is the tree.

::

    PSError
    ├── ConfigurationError (ValueError)      a flag, variable or option that cannot be used
    │   ├── UnsafeFileError                  a file or directory that another user may have put there
    │   ├── UnresolvedNameError              a host's name that stands for no address
    │   └── UnreachableAddressError          a server tells others an address by which they cannot reach it
    ├── AddressInUseError (OSError)          the port is taken, and by whom
    ├── DeadlineError (TimeoutError)         a wait ended; says who was awaited and since when
    ├── ClosedError (RuntimeError)           the worker was closed or has finished
    │   └── ForkedError                      it belongs to the process that this one was forked from
    ├── PeerLostError (ConnectionError)      a node vanished; names it and its last sign of life
    ├── CoordinatorRestartedError (ConnectionError)  another coordinator answers at the address of the one it had joined
    ├── EvictedError (ConnectionError)       the others went on without this node
    ├── ShutdownError (ConnectionError)      the cluster is ending
    ├── NodeFailedError (RuntimeError)       a process started here ended; says how, and its last lines
    ├── InternalError (RuntimeError)         a defect of zmqps; says in which node
    ├── IdentityError (PermissionError)      a node cannot prove that it is who it says; says what to do
    │   └── WrongPeerError                   another process listens where a server should
    ├── KeyRefusedError (PermissionError)    a node lets this process in with no key, or not with this one
    ├── ProtocolError (ValueError)           the bytes are not what docs/protocol.md says
    │   ├── ProtocolVersionError             the two ends speak different versions
    │   ├── LimitError                       a size beyond what the receiver accepts
    │   ├── NotJoinedError                   a request before the handshake
    │   ├── StaleEpochError                  addressed to an older placement of the shards
    │   ├── SliceRangeError (IndexError)     no such slice, or a range that cuts a parameter
    │   └── LedgerError                      a sequence number the ledger can no longer judge
    ├── JobError (RuntimeError)              the job cannot be started, or is not started yet
    │   ├── JobEndedError                    the job has ended; says how, and how to begin anew
    │   ├── JobMemoryError (MemoryError)     a server lacks the memory for its shard; says what is needed and free
    │   └── ShardBrokenError                 an update of a shard failed half way: its values are lost
    ├── JobMismatchError (ValueError)        this worker trains something else than the job
    ├── UnknownParameterError (KeyError)     no parameter of that name
    ├── ShapeError (ValueError)              an array of the wrong shape
    ├── DtypeError (TypeError)               an array of a dtype that cannot be trained
    ├── NonFiniteGradientError (ValueError)  NaN or infinity in a gradient; names the culprit
    ├── OptimizerError (ValueError)          no such optimizer, schedule or option
    ├── ServerMemoryError (MemoryError)      a server lacked the memory for a request; it may be tried again
    ├── VersionError (LookupError)           a version that is not kept any more
    ├── DeviceError (RuntimeError)           no such GPU, or it failed; says what to install or to name
    │   └── DeviceMemoryError (MemoryError)  the GPU is too small; says what is needed and what is free
    └── CheckpointError (RuntimeError)       a checkpoint that cannot be used; says why, and which older one is good
        ├── CheckpointNotFoundError (LookupError)  there is none, or none that is whole
        ├── CheckpointForeignError           a directory that is no checkpoint of zmqps
        ├── CheckpointFormatError            written by a newer zmqps
        ├── CheckpointCorruptError           a file is missing, cut short or changed
        ├── CheckpointMismatchError          of another model or optimizer than asked for
        └── CheckpointStorageError (OSError)  the disk is full, read-only or fails

An exception holds its facts as attributes and builds its text from them. The same facts travel
in an ``Error`` message under the class's number, so both ends of a connection raise the same
class with the same attributes.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from zmqps import words

counted, listed, num_bytes, printable = words.counted, words.listed, words.num_bytes, words.printable

Fact = str | int | float | bool | None


class PSError(Exception):
    """Base of all errors of zmqps.

    Parameters
    ----------
    **facts
        Exactly the attributes the class annotates; ``text`` is formatted with them.
    """

    code: ClassVar[int] = 1
    text: ClassVar[str] = "{reason}"
    fact_names: ClassVar[tuple[str, ...]] = ("reason",)
    reason: str

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = tuple(n for n, t in inspect.get_annotations(cls).items() if "ClassVar" not in t)
        if own:
            cls.fact_names = own

    def __init__(self, reason: str | None = None, **facts: Fact) -> None:
        if reason is not None:
            facts["reason"] = reason
        if set(facts) != set(self.fact_names):
            raise TypeError(f"{type(self).__name__} takes {self.fact_names}, not {sorted(facts)}")
        for name, value in facts.items():
            setattr(self, name, value)
        super().__init__(self.text.format_map(facts))

    def __str__(self) -> str:  # KeyError would show the repr
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.facts())

    def facts(self) -> dict[str, Fact]:
        """Return the facts of this error, ready for an ``Error`` message."""
        return {name: getattr(self, name) for name in self.fact_names}

    def again(self) -> Self:
        """Return a new error that says the same, for one that is kept and raised more than once.

        Each time it is raised, an error gets the frames that it went through, in addition to those that it has; and by
        way of them it keeps all that they refer to, such as the message that was refused.
        """
        error = type(self)(**self.facts())  # type: ignore[arg-type]
        error.__cause__ = self.__cause__
        return error


def _rebuild(cls: type[PSError], facts: dict[str, Fact]) -> PSError:
    return cls(**facts)  # type: ignore[arg-type]


class ConfigurationError(PSError, ValueError):
    """A flag, environment variable, file entry or option that cannot be used."""

    code = 2


class UnsafeFileError(ConfigurationError):
    """A file or directory that this process must not write to, or believe: another user may have put it there."""

    code = 13
    text = "{path} is not safe to use: {why}; {advice}"
    path: str
    why: str
    advice: str


class UnresolvedNameError(ConfigurationError):
    """A host's name stands for no address, at the moment or at all."""

    code = 15
    text = "the name {name!r} does not resolve on {host} ({why}); check its spelling, or write the address"
    name: str
    host: str
    why: str


class UnreachableAddressError(ConfigurationError):
    """A server tells others an address by which they cannot reach it."""

    code = 17
    text = "{node} advertises {endpoint}, {why}; {advice}"
    node: str
    endpoint: str
    why: str
    advice: str


class AddressInUseError(PSError, OSError):
    """The endpoint cannot be bound because somebody holds its port."""

    code = 3
    text = "cannot bind {endpoint}: port {port} is in use by {owner}; choose another port, or 0 for a free one"
    endpoint: str
    port: int
    owner: str


class DeadlineError(PSError, TimeoutError):
    """A wait ended at its timeout.

    Nothing is known to be lost: a push that timed out may or may not have been applied, and is applied at most once.
    """

    code = 4
    text = "{operation} timed out after {seconds:.1f} s, waiting for {waiting_for}"
    operation: str
    seconds: float
    waiting_for: str


class ClosedError(PSError, RuntimeError):
    """The object was closed, or its worker has finished."""

    code = 5


class PeerLostError(PSError, ConnectionError):
    """A node gave no sign of life for longer than the heartbeat timeout."""

    code = 6
    text = "lost {name}: last sign of life {silent_s:.1f} s ago; {advice}"
    role: str
    name: str
    silent_s: float
    advice: str


class EvictedError(PSError, ConnectionError):
    """The coordinator presumed this node dead, and the others went on without it."""

    code = 7


class ShutdownError(PSError, ConnectionError):
    """The cluster is ending, so the request will not be answered."""

    code = 8


class NodeFailedError(PSError, RuntimeError):
    """A node that this process had started ended by itself."""

    code = 9
    text = "{name} ended with {how}; its last lines:\n{tail}"
    name: str
    how: str
    tail: str


class InternalError(PSError, RuntimeError):
    """A node did what it never should: a defect of zmqps.

    The exception behind it is its ``__cause__`` in the process where it happened, and in that node's log.
    """

    code = 10
    text = "internal error of {node}: {what}; please report it, with that node's log"
    node: str
    what: str


class IdentityError(PSError, PermissionError):
    """A node did not prove that it is who it says, or may ask for what it asks; nothing has changed."""

    code = 11


class WrongPeerError(IdentityError):
    """What listens at a server's endpoint is not that server; nothing was sent there."""

    code = 16
    text = (
        "what listens at the endpoint of {server} is not the server that the coordinator named ({why}); look what "
        "listens there, and which address the server advertises (zmqps server --advertise)"
    )
    server: str
    why: str


class KeyRefusedError(PSError, PermissionError):
    """A node and this process do not agree on keys, so no connection is made, now or later."""

    code = 18
    text = "{address} refuses this {role}: {why}"
    address: str
    role: str
    why: str


class ForkedError(ClosedError):
    """What a process has opened was used in a forked child, which must not touch it."""

    code = 12
    text = "this {what} belongs to process {pid}, and this process is a fork of it; {advice}"
    what: str
    pid: int
    advice: str


class CoordinatorRestartedError(PSError, ConnectionError):
    """The coordinator that this node had joined has ended, and another one answers at its address."""

    code = 14
    text = "the coordinator at {address} is a new one: the one that {node} had joined has ended with its jobs; {advice}"
    address: str
    node: str
    advice: str


class ProtocolError(PSError, ValueError):
    """The bytes received are not a message of docs/protocol.md."""

    code = 20


class ProtocolVersionError(ProtocolError):
    """Both ends speak zmqps, but different versions of its protocol."""

    code = 21
    text = "protocol version {theirs} is not supported here, only {ours}; install the same zmqps on every node"
    ours: int
    theirs: int


class LimitError(ProtocolError):
    """A size or count beyond what the receiver accepts, refused before anything was allocated."""

    code = 22
    text = "{what} of {got} is beyond the limit of {limit}"
    what: str
    got: int
    limit: int


class NotJoinedError(ProtocolError):
    """A request from a peer that has not shaken hands, or whose handshake was forgotten."""

    code = 23


class StaleEpochError(ProtocolError):
    """The message was addressed under an older placement of the shards."""

    code = 24
    text = "message of epoch {theirs}, the placement is of epoch {ours}"
    ours: int
    theirs: int


class SliceRangeError(ProtocolError, IndexError):
    """No such slice on this shard, or a range that does not fall on parameter boundaries."""

    code = 25


class LedgerError(ProtocolError):
    """A sequence number so old that the ledger no longer knows whether it was applied."""

    code = 26


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
    """

    code = 70
    text = "{path}: {what}; {advice}"
    path: str
    what: str
    good: str
    advice: str


class CheckpointNotFoundError(CheckpointError, LookupError):
    """There is no checkpoint there, or none that is whole."""

    code = 71


class CheckpointForeignError(CheckpointError):
    """A directory that is no checkpoint of zmqps, or one that was never finished."""

    code = 72


class CheckpointFormatError(CheckpointError):
    """A checkpoint in a format that this version does not know yet."""

    code = 73


class CheckpointCorruptError(CheckpointError):
    """A file of a checkpoint is missing, cut short or not what was written."""

    code = 74


class CheckpointMismatchError(CheckpointError):
    """A checkpoint of another model, or another optimizer, than what it is to be restored to."""

    code = 75


class CheckpointStorageError(CheckpointError, OSError):
    """The disk is full or read-only, or fails; what was saved before is as it was."""

    code = 76


def _tree(cls: type[PSError]) -> list[type[PSError]]:
    return [cls] + [c for sub in cls.__subclasses__() for c in _tree(sub)]


#: Wire number -> class. A number is never given a second meaning.
BY_CODE: dict[int, type[PSError]] = {cls.code: cls for cls in _tree(PSError)}


def from_wire(code: int, text: str, facts: Mapping[str, Fact]) -> PSError:
    """Return the exception an ``Error`` message stands for.

    A number or facts this version does not know (a newer peer's) give a plain `PSError` with the peer's text.
    """
    cls, text = BY_CODE.get(code), printable(text)
    facts = {name: printable(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}
    if cls is not None and set(facts) == set(cls.fact_names):
        try:
            return cls(**facts)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            pass  # a fact of the wrong type does not format; its text still tells
    return PSError(text)
