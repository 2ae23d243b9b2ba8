"""Every exception zmqps raises; all are imported from here, and this docstring is the tree.

::

    PSError
    ├── ConfigurationError (ValueError)      an invalid flag, variable or option
    │   ├── UnsafeFileError                  a file or directory that another user may have put there
    │   ├── JournalError                     a coordinator cannot resume from its journal; says what to do
    │   ├── ProgramMissingError              ssh or rsync is not installed, or too old; says where
    │   ├── UnresolvedNameError              a host's name that does not resolve
    │   └── UnreachableAddressError          a server advertises an address that others cannot reach
    ├── AddressInUseError (OSError)          the port is in use; names the process
    ├── DeposedError (ConnectionError)       a replica that no longer leads its shard; another one does, or will
    ├── DrainError (RuntimeError)            a server cannot be drained: no other server can take its shards
    ├── ScaleError (RuntimeError)            the jobs cannot be placed on that many servers
    ├── DeadlineError (TimeoutError)         a timeout; names the node awaited, and since when
    ├── ClosedError (RuntimeError)           the worker was closed or has finished
    │   └── ForkedError                      the worker belongs to the parent of this forked process
    ├── PeerLostError (ConnectionError)      a node vanished; names it and its last sign of life
    ├── UnusableHostError (ConnectionError)  a host that ssh does not reach, or that cannot run this zmqps
    ├── CoordinatorRestartedError (ConnectionError)  a new coordinator answers at the old one's address
    ├── HostLeaderLostError (ConnectionError)  the worker that pushes for its host ended during a push
    ├── JournalBehindError (RuntimeError)    servers have steps that the coordinator's journal lacks
    ├── EvictedError (ConnectionError)       the job continued without this node
    ├── ShutdownError (ConnectionError)      the cluster is ending
    ├── NodeFailedError (RuntimeError)       a process started here ended; has its exit and last lines
    ├── InternalError (RuntimeError)         a defect of zmqps; says in which node
    ├── IdentityError (PermissionError)      a node cannot prove its identity; says what to do
    │   └── WrongPeerError                   another process listens where a server should
    ├── KeyRefusedError (PermissionError)    a node refuses this process's key, or requires one
    ├── ProtocolError (ValueError)           the bytes are not what docs/protocol.md says
    │   ├── ProtocolVersionError             the two ends speak different versions
    │   ├── CodecError                       no such codec is installed; says what to install
    │   ├── LimitError                       a size beyond what the receiver accepts
    │   ├── NotJoinedError                   a request before the handshake
    │   ├── StaleEpochError                  addressed to an older placement of the shards
    │   ├── SliceRangeError (IndexError)     no such slice, or a range that cuts a parameter
    │   └── LedgerError                      a sequence number too old for the ledger
    ├── JobError (RuntimeError)              the job cannot be started, or is not started yet
    │   ├── AmbiguousNodeError               a name that several nodes have; says how to name each
    │   ├── JobEndedError                    the job has ended; says how, and how to begin a new one
    │   ├── JobMemoryError (MemoryError)     a server lacks the memory for its shard; says what is needed and free
    │   └── ShardBrokenError                 an update of a shard failed half way: its values are lost
    ├── JobMismatchError (ValueError)        this worker's model differs from the job's
    ├── UnknownParameterError (KeyError)     no parameter of that name
    ├── ShapeError (ValueError)              an array of the wrong shape
    ├── DtypeError (TypeError)               an array of a dtype that cannot be trained
    ├── NonFiniteGradientError (ValueError)  NaN or infinity in a gradient; names the culprit
    ├── OptimizerError (ValueError)          no such optimizer, schedule or option
    ├── ServerMemoryError (MemoryError)      a server lacked the memory for a request; it may be tried again
    ├── TableFullError                       a sparse table has no room for new rows; says how many it has
    ├── VersionError (LookupError)           a version that is no longer retained
    ├── DeviceError (RuntimeError)           no such GPU, or it failed; says what to install or to name
    │   └── DeviceMemoryError (MemoryError)  the GPU is too small; says what is needed and what is free
    ├── CheckpointFailedError (RuntimeError)  a checkpoint could not be written; training continues
    ├── CheckpointTooSoonError (RuntimeError)  workers ask for checkpoints too often; says when to ask next
    └── CheckpointError (RuntimeError)       an unusable checkpoint; says why, and which older one is good
        ├── CheckpointNotFoundError (LookupError)  there is no complete checkpoint
        ├── CheckpointForeignError           a directory that is not a zmqps checkpoint
        ├── CheckpointFormatError            written by a newer zmqps
        ├── CheckpointCorruptError           a file is missing, truncated or changed
        ├── CheckpointMismatchError          of another model or optimizer than asked for
        └── CheckpointStorageError (OSError)  the disk is full, read-only or fails

An exception holds its facts as attributes and builds its text from them. The same facts travel
in an ``Error`` message under the class's number, so both ends of a connection raise the same
class with the same attributes.
"""

from __future__ import annotations

from collections.abc import Mapping

from zmqps.errors.base import Fact, PSError, _rebuild
from zmqps.errors.configuration import (
    RSYNC,
    SAME_VERSION,
    AddressInUseError,
    ConfigurationError,
    ProgramMissingError,
    UnreachableAddressError,
    UnresolvedNameError,
    UnsafeFileError,
    UnusableHostError,
    host_advice,
)
from zmqps.errors.durable import (
    CheckpointCorruptError,
    CheckpointError,
    CheckpointFailedError,
    CheckpointForeignError,
    CheckpointFormatError,
    CheckpointMismatchError,
    CheckpointNotFoundError,
    CheckpointStorageError,
    CheckpointTooSoonError,
    DeposedError,
    DrainError,
    JournalBehindError,
    JournalError,
    ScaleError,
)
from zmqps.errors.nodes import (
    ClosedError,
    CoordinatorRestartedError,
    DeadlineError,
    EvictedError,
    ForkedError,
    HostLeaderLostError,
    IdentityError,
    InternalError,
    KeyRefusedError,
    NodeFailedError,
    PeerLostError,
    ShutdownError,
    WrongPeerError,
)
from zmqps.errors.protocol import (
    CodecError,
    LedgerError,
    LimitError,
    NotJoinedError,
    ProtocolError,
    ProtocolVersionError,
    SliceRangeError,
    StaleEpochError,
)
from zmqps.errors.training import (
    AmbiguousNodeError,
    DeviceError,
    DeviceMemoryError,
    DtypeError,
    JobEndedError,
    JobError,
    JobMemoryError,
    JobMismatchError,
    NonFiniteGradientError,
    OptimizerError,
    ServerMemoryError,
    ShapeError,
    ShardBrokenError,
    TableFullError,
    UnknownParameterError,
    VersionError,
)
from zmqps.words import ago, counted, is_short, joined, listed, num_bytes, presented, printable, seconds

__all__ = [
    "BY_CODE",
    "RSYNC",
    "SAME_VERSION",
    "AddressInUseError",
    "AmbiguousNodeError",
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointFailedError",
    "CheckpointForeignError",
    "CheckpointFormatError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "CheckpointStorageError",
    "CheckpointTooSoonError",
    "ClosedError",
    "CodecError",
    "ConfigurationError",
    "CoordinatorRestartedError",
    "DeadlineError",
    "DeposedError",
    "DeviceError",
    "DeviceMemoryError",
    "DrainError",
    "DtypeError",
    "EvictedError",
    "Fact",
    "ForkedError",
    "HostLeaderLostError",
    "IdentityError",
    "InternalError",
    "JobEndedError",
    "JobError",
    "JobMemoryError",
    "JobMismatchError",
    "JournalBehindError",
    "JournalError",
    "KeyRefusedError",
    "LedgerError",
    "LimitError",
    "NodeFailedError",
    "NonFiniteGradientError",
    "NotJoinedError",
    "OptimizerError",
    "PSError",
    "PeerLostError",
    "ProgramMissingError",
    "ProtocolError",
    "ProtocolVersionError",
    "ScaleError",
    "ServerMemoryError",
    "ShapeError",
    "ShardBrokenError",
    "ShutdownError",
    "SliceRangeError",
    "StaleEpochError",
    "TableFullError",
    "UnknownParameterError",
    "UnreachableAddressError",
    "UnresolvedNameError",
    "UnsafeFileError",
    "UnusableHostError",
    "VersionError",
    "WrongPeerError",
    "ago",
    "counted",
    "from_wire",
    "host_advice",
    "is_short",
    "joined",
    "listed",
    "num_bytes",
    "presented",
    "printable",
    "seconds",
]


def _tree(cls: type[PSError]) -> list[type[PSError]]:
    return [cls] + [c for sub in cls.__subclasses__() for c in _tree(sub)]


#: Wire number -> class. A number is never given a second meaning.
BY_CODE: dict[int, type[PSError]] = {cls.code: cls for cls in _tree(PSError)}

# Where users import them from is what tracebacks and pickles show, whichever file of this room they are written in.
for _shown in (*BY_CODE.values(), _rebuild):
    _shown.__module__ = __name__


def from_wire(code: int, text: str, facts: Mapping[str, Fact]) -> PSError:
    """Return the exception that an ``Error`` message carries.

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
