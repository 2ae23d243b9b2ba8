"""One frozen dataclass per wire message; the number behind each name is its kind on the wire.

The annotations are the schema: `zmqps.core.protocol.wire` checks every field of a received message against
them before anybody sees it, so the machines may rely on types and sizes, never on meaning.
docs/protocol.md explains each message and who answers what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from zmqps.core.protocol.limits import MAX_FACT_CHARS

PROTOCOL_VERSION = 3
MAGIC = "zmqps"

if TYPE_CHECKING:
    from zmqps.core.protocol.fields import Contributor, Part
    from zmqps.errors import PSError

    U8: TypeAlias = int
    U32: TypeAlias = int
    U64: TypeAlias = int
    Text: TypeAlias = str
    Seconds: TypeAlias = float
    Incarnation: TypeAlias = bytes
    Key: TypeAlias = bytes  # 16 of them, or none: a secret, or what proves that somebody knows one
    Plain: TypeAlias = Mapping[str, Any]  # nested maps, lists, strings, numbers: what a job or a status is made of
    Facts: TypeAlias = Mapping[str, str | int | float | bool | None]
    Texts: TypeAlias = Sequence[str]
    Versions: TypeAlias = Sequence[int]
    Parts: TypeAlias = Sequence[Part]
    Contributors: TypeAlias = Sequence[Contributor]
    Buffer: TypeAlias = Any  # bytes, memoryview, ndarray: C-contiguous, with the buffer protocol
    Payload: TypeAlias = Sequence[Buffer]


class Message:
    """Base of all messages."""

    __slots__ = ()
    kind: ClassVar[int]


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """First message on every connection; its fields never change, later versions append theirs.

    ``job`` names the job that a worker trains or an observer looks at; a server has none of its own. ``secret``
    is known to the sender and, from then on, the receiver alone; to a server it is the ticket of ``epoch``'s `Job`.
    ``guard`` proves that the sender knows the cluster's job secret.
    """

    kind: ClassVar[int] = 1
    magic: Text
    version: U32
    role: Text
    incarnation: Incarnation
    name: Text
    host: Text
    pid: U32
    endpoint: Text = ""
    capabilities: Texts = ()
    job: Text = ""
    secret: Key = field(default=b"", repr=False)
    epoch: U32 = 0
    guard: Key = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """Answer to `Hello`; ``rank`` is the receiver's, the other facts are the sender's.

    ``proof`` shows that the sender is the server, or the coordinator, that the receiver is looking for.
    """

    kind: ClassVar[int] = 2
    version: U32
    incarnation: Incarnation
    name: Text
    rank: U32
    heartbeat_interval: Seconds
    heartbeat_timeout: Seconds
    num_workers: U32
    num_servers: U32
    capabilities: Texts = ()
    proof: Key = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """Sign of life to the coordinator, with the sender's counters for the status."""

    kind: ClassVar[int] = 3
    counters: Plain


@dataclass(frozen=True, slots=True)
class HeartbeatAck(Message):
    """The coordinator's sign of life."""

    kind: ClassVar[int] = 4
    num_workers: U32


@dataclass(frozen=True, slots=True)
class Leave(Message):
    """A member says goodbye; ``reason`` is ``finished`` or ``closed``."""

    kind: ClassVar[int] = 5
    reason: Text


@dataclass(frozen=True, slots=True)
class Left(Message):
    """Answer to `Leave`."""

    kind: ClassVar[int] = 6


@dataclass(frozen=True, slots=True)
class Error(Message):
    """A request (0: none in particular) failed; see `zmqps.errors` for codes and facts.

    Of a server to the coordinator, ``request`` is the epoch of the `Assign` that failed.
    """

    kind: ClassVar[int] = 7
    request: U64
    code: U32
    text: Text
    facts: Facts

    @classmethod
    def of(cls, request: int, error: PSError) -> Error:
        """Return the message that raises an error again at the other end."""
        facts = {name: fact[:MAX_FACT_CHARS] if isinstance(fact, str) else fact for name, fact in error.facts().items()}
        return cls(request, error.code, str(error), facts)


@dataclass(frozen=True, slots=True)
class Lost(Message):
    """The coordinator noticed that a member vanished."""

    kind: ClassVar[int] = 8
    role: Text
    rank: U32
    name: Text
    incarnation: Incarnation
    silent_s: Seconds


@dataclass(frozen=True, slots=True)
class Shutdown(Message):
    """The coordinator ends the cluster."""

    kind: ClassVar[int] = 9
    reason: Text


@dataclass(frozen=True, slots=True)
class Init(Message):
    """A worker names the job it wants to train; an empty map asks for the job as it is."""

    kind: ClassVar[int] = 10
    request: U64
    job: Plain


@dataclass(frozen=True, slots=True)
class Job(Message):
    """The job and where its shards are; ``load`` asks this worker to upload the initial values.

    ``placement`` is what `zmqps.core.job.keyspace.Placement.to_wire` gives, and ``servers``: a map a shard, of
    ``name``, ``endpoint``, the ``ticket`` to show there and the ``proof`` to expect, in hex. ``step`` is the clock to
    begin with, ``num_workers`` how many the job counts on, ``rank`` the receiver's. ``note`` is for the user.
    """

    kind: ClassVar[int] = 11
    request: U64
    epoch: U32
    job: Plain
    placement: Plain
    load: U8
    step: U64
    num_workers: U32
    note: Text
    rank: U32


@dataclass(frozen=True, slots=True)
class Assign(Message):
    """The coordinator gives a server a shard of a job; the job's ``name`` is that of its workers' `Hello`.

    ``epoch`` stands for this job on all servers from now on; no other job of the cluster ever has it.
    ``num_workers`` is how many the job counts on; ``sharing`` how many servers there are on its
    host, which share its memory. ``key`` is what this server knows tickets by, and proves itself with.
    """

    kind: ClassVar[int] = 12
    epoch: U32
    name: Text
    num_workers: U32
    sharing: U32
    shard: U32
    job: Plain
    placement: Plain
    key: Key = field(repr=False)


@dataclass(frozen=True, slots=True)
class Ready(Message):
    """A server has built its shard; ``loaded`` is 1 once it has the initial values as well."""

    kind: ClassVar[int] = 13
    epoch: U32
    loaded: U8


@dataclass(frozen=True, slots=True)
class Discard(Message):
    """A job has ended: the server frees what it keeps of it."""

    kind: ClassVar[int] = 26
    epoch: U32


@dataclass(frozen=True, slots=True)
class Discarded(Message):
    """A server keeps nothing of a job any more."""

    kind: ClassVar[int] = 27
    epoch: U32


@dataclass(frozen=True, slots=True)
class Departed(Message):
    """A worker or observer has gone for good; ``evicted`` is 1 if it was lost, 2 if its key was revoked."""

    kind: ClassVar[int] = 30
    incarnation: Incarnation
    evicted: U8


@dataclass(frozen=True, slots=True)
class Forgotten(Message):
    """A server keeps nothing of one that has gone, and takes nothing of it."""

    kind: ClassVar[int] = 31
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class EndJob(Message):
    """Somebody ends a job, or the cluster where ``job`` is empty; members are told. Anybody may ask, without joining.

    Where the cluster has a job secret, ``guard`` proves for this ``nonce`` that the sender knows it.
    """

    kind: ClassVar[int] = 28
    request: U64
    job: Text
    nonce: Key = b""
    guard: Key = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class JobEnded(Message):
    """Answer to `EndJob`: the job has ended, or had before; ``text`` says how."""

    kind: ClassVar[int] = 29
    request: U64
    text: Text


@dataclass(frozen=True, slots=True)
class Enter(Message):
    """A worker enters a named barrier."""

    kind: ClassVar[int] = 14
    request: U64
    barrier: Text


@dataclass(frozen=True, slots=True)
class Released(Message):
    """Everybody has entered the barrier of ``request``; ``step`` as in `Range`."""

    kind: ClassVar[int] = 15
    request: U64
    step: U64


@dataclass(frozen=True, slots=True)
class Withdraw(Message):
    """A worker no longer waits for ``request``."""

    kind: ClassVar[int] = 16
    request: U64


@dataclass(frozen=True, slots=True)
class Waiting(Message):
    """Whom ``request`` waits for at the moment, in words."""

    kind: ClassVar[int] = 17
    request: U64
    text: Text


@dataclass(frozen=True, slots=True)
class Arrive(Message):
    """A worker has completed a step: all shards have acknowledged these pushes of it.

    No attempts: it only waits, once more, for what it has brought before.
    """

    kind: ClassVar[int] = 20
    request: U64
    step: U64
    attempts: Versions


@dataclass(frozen=True, slots=True)
class Proceed(Message):
    """The worker of ``request`` may go on, and reads version ``version`` or a later one.

    ``counted`` is 0 when the step was over before its gradients were complete: they were dropped.
    """

    kind: ClassVar[int] = 21
    request: U64
    version: U64
    counted: U8


@dataclass(frozen=True, slots=True)
class Commit(Message):
    """The coordinator closes a step: apply the mean of these contributors' gradients, in this order."""

    kind: ClassVar[int] = 22
    epoch: U32
    step: U64
    contributors: Contributors


@dataclass(frozen=True, slots=True)
class Committed(Message):
    """A server has applied a step."""

    kind: ClassVar[int] = 23
    epoch: U32
    step: U64


@dataclass(frozen=True, slots=True)
class Take(Message):
    """A worker asks for a range of a data set's examples; the first one's description of it counts.

    ``shuffle`` is empty or holds a seed. ``done`` is empty or holds pass and number of the range that
    the worker has used. One that has a range it has not used gets that again.
    """

    kind: ClassVar[int] = 24
    request: U64
    name: Text
    num_examples: U64
    range_size: U64
    passes: U64
    shuffle: Versions
    done: Versions


@dataclass(frozen=True, slots=True)
class Range(Message):
    """Positions ``[start, stop)`` of a pass over a data set; an empty one says that there are no more.

    ``step`` is the clock the worker goes on with, if the others did not wait for it while it waited.
    """

    kind: ClassVar[int] = 25
    request: U64
    data_pass: U64
    number: U64
    start: U64
    stop: U64
    step: U64


@dataclass(frozen=True, slots=True)
class StatusRequest(Message):
    """Anybody may ask, without joining."""

    kind: ClassVar[int] = 18
    request: U64


@dataclass(frozen=True, slots=True)
class Status(Message):
    """The coordinator's view of the cluster."""

    kind: ClassVar[int] = 19
    request: U64
    status: Plain


@dataclass(frozen=True, slots=True)
class Load(Message):
    """Initial values; ignored, but acknowledged, once the shard has them all."""

    kind: ClassVar[int] = 32
    request: U64
    epoch: U32
    parts: Parts
    payload: Payload = field(repr=False)


@dataclass(frozen=True, slots=True)
class Push(Message):
    """Gradients; all parts of one message are applied, or kept, together.

    Asynchronous and bounded modes apply them on arrival; the synchronous mode keeps them for ``step``, each counting
    as often as it has ``examples``, until that is committed. ``attempt`` is the same in all messages of one push of
    the user's, so that one that failed halfway and was repeated is not taken for two.
    ``reply`` is 1 when the values after the update are wanted (`Values` instead of `Ack`), in ``reply_codec``.
    ``checked`` is 1 when the sender has made sure that all of its push is finite: what guards
    against accidents need not be done twice; 0 lets the server check.
    """

    kind: ClassVar[int] = 33
    request: U64
    seq: U64
    epoch: U32
    step: U64
    attempt: U64
    examples: U64
    reply: U8
    checked: U8
    codec: Text
    reply_codec: Text
    parts: Parts
    payload: Payload = field(repr=False)


@dataclass(frozen=True, slots=True)
class Pull(Message):
    """Ask for values of version ``version`` or a later one; with ``exact`` 1, of that one."""

    kind: ClassVar[int] = 34
    request: U64
    epoch: U32
    version: U64
    exact: U8
    codec: Text
    parts: Parts


@dataclass(frozen=True, slots=True)
class Ack(Message):
    """Loaded or applied; a version and, for a push, a staleness for each part."""

    kind: ClassVar[int] = 35
    request: U64
    versions: Versions
    staleness: Versions


@dataclass(frozen=True, slots=True)
class Values(Message):
    """Answer to `Pull`, and to a `Push` with ``reply``; payload in the order of the parts asked."""

    kind: ClassVar[int] = 36
    request: U64
    codec: Text
    versions: Versions
    staleness: Versions
    payload: Payload = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tensors(Message):
    """Arrays from one stage of a pipeline to another; ``number`` counts them in each direction, from 1.

    ``arrays`` maps each name to ``[dtype, shape, codec, bytes]``, in the order of the payload.
    """

    kind: ClassVar[int] = 40
    number: U64
    arrays: Plain
    payload: Payload = field(repr=False)


# Not Message.__subclasses__(): slots=True makes each class twice, and the first one lingers there.
BY_KIND: dict[int, type[Message]] = {
    cls.kind: cls
    for cls in list(globals().values())
    if isinstance(cls, type) and issubclass(cls, Message) and cls is not Message
}
