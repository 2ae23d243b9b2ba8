"""Messages about jobs: which one to train, which servers have its shards, and that it has ended."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, ClassVar

from zmqps.core.protocol.message import Message, immutable

if TYPE_CHECKING:
    from zmqps.core.protocol.message import U8, U32, U64, Key, Plain, Terms, Text


@immutable
class Init(Message):
    """A worker names the job it wants to train; an empty map asks for the job as it is."""

    kind: ClassVar[int] = 10
    request: U64
    job: Plain


@immutable
class Job(Message):
    """The job and where its shards are; ``load`` asks this worker to upload the initial values.

    ``epoch`` identifies the job as a whole. ``placement`` is what `zmqps.core.job.keyspace.Placement.to_wire` gives,
    and ``servers``: a map a shard, of ``name``, ``endpoint`` and ``rank`` of its server, the ``epoch`` of that copy,
    the ``ticket`` to show there and the ``proof`` to expect, in hex. ``step`` is the clock to begin with,
    ``num_workers`` how many the job counts on, ``rank`` the receiver's, ``chief`` whether it is the chief. ``note`` is
    for the user.
    ``restored`` is empty or says from which checkpoint the job has begun: ``path``, ``version``, and the user's
    ``state``.
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
    restored: Plain = field(default_factory=dict)
    chief: U8 = 0
    terms: Terms = ()


@immutable
class Assign(Message):
    """The coordinator gives a server a shard of a job; the job's ``name`` is that of its workers' `Hello`.

    ``epoch`` identifies this copy of the shard from now on; no other copy in the cluster ever has it.
    ``num_workers`` is how many the job counts on; ``sharing`` how many servers there are on its
    host, which share its memory. ``key`` is what this server knows tickets by, and proves itself with.
    ``restore`` is empty or names the checkpoint that the shard begins from: ``path``, ``version``, whether the
    ``optimizer``'s state is wanted, and the ``names`` there of parameters that are called otherwise here; with
    ``ledgers`` true, its records of workers' pushes are restored, too, for these workers continue with it; with
    ``anew`` true they are not, for the workers have renumbered their pushes since. With ``cut`` true it is filled from
    other copies on that server, at `Cut`. ``backup``
    is 1 for a copy that follows a leader, which has ``backups`` as in `Lead`; both are of this ``generation``.
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
    restore: Plain = field(default_factory=dict)
    generation: U64 = 0
    backup: U8 = 0
    backups: Plain = field(default_factory=dict)


@immutable
class Ready(Message):
    """A server has built its shard; ``loaded`` is 1 once it has the initial values as well."""

    kind: ClassVar[int] = 13
    epoch: U32
    loaded: U8


@immutable
class Discard(Message):
    """A server frees its copy of a shard: the job has ended or, with ``moved`` 1, another copy answers from now on."""

    kind: ClassVar[int] = 26
    epoch: U32
    moved: U8 = 0


@immutable
class Discarded(Message):
    """A server does not keep this copy of a shard any more."""

    kind: ClassVar[int] = 27
    epoch: U32


@immutable
class EndJob(Message):
    """End a job, or the cluster if ``job`` is empty; members are informed. Any peer may ask, without joining.

    If the cluster has a job secret, ``guard`` proves for this ``nonce`` that the sender knows it.
    """

    kind: ClassVar[int] = 28
    request: U64
    job: Text
    nonce: Key = b""
    guard: Key = field(default=b"", repr=False)


@immutable
class JobEnded(Message):
    """Answer to `EndJob`: the job has ended, or had before; ``text`` says how."""

    kind: ClassVar[int] = 29
    request: U64
    text: Text
