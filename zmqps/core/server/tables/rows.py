"""The sparse tables of one shard: what messages about rows do to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zmqps.codecs import Codec
from zmqps.core.job.keyspace import ROW_DTYPE, Placement
from zmqps.core.job.recut import Lookup
from zmqps.core.job.spec import JobSpec
from zmqps.core.job.tables import NUM_BUCKETS, TableSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import CODING, RAW, Coding, choose, named
from zmqps.core.protocol.fields import Contributor
from zmqps.core.protocol.messages import Message, PullRows, PushRows, Replicate, ScanRows
from zmqps.core.protocol.messages.rows import CURSOR, SCANNED
from zmqps.core.protocol.terms import SET, are_values
from zmqps.core.server.clients import Client
from zmqps.core.server.dense.aggregate import PushId
from zmqps.core.server.dense.rules import Timing
from zmqps.core.server.dense.slices import Note
from zmqps.core.server.dense.steps import ShardSteps, pushes_of, unnoted
from zmqps.core.server.ledger import Result
from zmqps.core.server.parts import COMMITTED, AnyPull, Apply, Awaited, Found, Noted
from zmqps.core.server.shard import Shard
from zmqps.core.server.tables.arrays import ID_DTYPE, owned, read_arrays
from zmqps.core.server.tables.feed import Told, changes
from zmqps.core.server.tables.row_records import adopt
from zmqps.core.server.tables.table import RowTable, RowUpdate
from zmqps.errors import LimitError, ProtocolError, SliceRangeError
from zmqps.rows.hashing import seed_of
from zmqps.rows.initial import Initial, filler
from zmqps.rows.store import RowStore
from zmqps.rows.unique import merged

if TYPE_CHECKING:
    from zmqps.core.protocol.messages import Buffer

#: Bytes of rows that one answer has at most: an id of 8 bytes may ask for 16 KiB.
MAX_ANSWER_NBYTES = 64 << 20
#: Bytes of gradients that a worker may bring to one step of the synchronous mode.
MAX_STAGED_NBYTES = 1 << 30
#: The status shows so many tables of a job: its counters travel with each heartbeat.
MAX_SHOWN = 8
#: Which figures it shows, and under which name.
SHOWN = {"rows": "rows", "nbytes": "row_nbytes", "refused": "rows_refused", "expired": "rows_expired"}
#: What keeping one message's gradients takes beside them.
STAGED_NBYTES = 512
#: Beside its share of the capacity a table has this part of it, and so many places, for the rows of a cut.
SPARE_SHARE, SPARE_PLACES = 4, 1024
#: Rows have at most so many places: address space, of which a table uses what it needs.
MAX_RESERVED_NBYTES = 1 << 36


class Staged(NamedTuple):
    """What one message brings to a step of the synchronous mode."""

    ids: Array
    grads: Array
    examples: int
    begins: bool
    is_set: bool


class Rows:
    """The tables of a shard.

    In the synchronous mode gradients are kept until their step is committed. Then those of the contributors are added
    per id, in their order, each counting as often as it has examples; the sum is divided by the examples of all who
    pushed to the table in that step, whether they touched a row or not, or of all contributors, if the commit says how
    many these are. So the result is that of one large batch.
    """

    def __init__(
        self,
        tables: Sequence[RowTable],  # the shard's parts of the tables, in the order of their slices
        first: int,  # the number of the first; the others follow
        *,
        reject_nonfinite: bool = True,  # whether gradients with NaN or infinity are refused
        coding: Coding = CODING,  # the door to the codecs
        secret: int = 0,  # a number that nobody else knows, and no other copy of the shard has
    ) -> None:
        self.tables = tuple(tables)
        self._first = first
        self._reject_nonfinite = reject_nonfinite
        self._coding = coding
        self._secret = secret
        self._staged: dict[int, dict[PushId, dict[int, list[Staged]]]] = {}  # by step, push and table
        self._used: dict[int, Counter[bytes]] = {}  # bytes, by step and worker
        self._steps: ShardSteps | None = None  # of the shard, in the synchronous mode
        self._updated: set[int] = set()  # tables whose gradients of the step that is committed are applied
        self._reserved: dict[int, Counter[int]] = {}  # rows that may be made, by step and table

    def follow_steps(self, steps: ShardSteps | None) -> None:
        """Gradients wait for the commits of the shard that has these tables; None: they are applied on arrival."""
        self._steps = steps

    @property
    def members(self) -> Sequence[RowTable]:
        return self.tables

    @property
    def numbers(self) -> range:
        return range(self._first, self._first + len(self.tables))

    def table(self, index: int) -> RowTable:
        """Return a table by the number that messages have.

        Raises
        ------
        SliceRangeError
            There is none.
        """
        if index not in self.numbers:
            raise SliceRangeError(f"this shard has {len(self.tables)} tables, none of them is number {index}")
        return self.tables[index - self._first]

    def tick(self, now: float) -> None:
        """Take note of the time, by which rows expire."""
        for table in self.tables:
            table.gone.tick(now)
            if table.spec.expire_s is not None:
                table.tick(now)

    # --- messages ------------------------------------------------------------------------------

    @property
    def takes(self) -> Mapping[type[Message], Apply]:
        return {PushRows: self.apply if self._steps is None else self.gather}

    pulls = (PullRows, ScanRows)

    def apply(
        self, message: PushRows, client: Client, payload: Sequence[Buffer], note: Noted | None, now: float
    ) -> Result:
        """Apply a push on arrival; raises as `push` does."""
        self.tick(now)
        return self.push(message, client.name, note)

    def gather(
        self, message: PushRows, client: Client, payload: Sequence[Buffer], note: Noted | None, now: float
    ) -> Result:
        """Keep a push for its step; raises as `collect` does."""
        assert self._steps is not None
        self.tick(now)
        staleness = self._steps.staleness(message.step)
        return self.collect(message, client.hello.incarnation, staleness, client.name, note)

    def find(self, message: PushRows | PullRows | ScanRows, puller: bytes, now: float) -> Found:
        self.tick(now)
        if isinstance(message, ScanRows):
            return self.scan(message, now)
        return self.pull(message.index, self.wanted(message))

    def is_available(self, message: PullRows | ScanRows) -> bool:
        return self.table(message.index).version >= message.version

    def awaited(self, message: PullRows | ScanRows) -> list[Awaited]:
        return [(message.index if self._steps is None else COMMITTED, message.version)]

    def codec(self, message: PushRows | AnyPull, spec: str, nbytes: int) -> Codec | None:
        return choose(spec, nbytes)

    def unanswered(self, message: PushRows) -> PushRows:
        """Return a push without its gradients, but with the ids whose rows it asks for."""
        if not message.reply:
            return replace(message, payload=())
        return replace(message, count=0, codec=RAW, payload=[self.wanted(message)])

    # --- reading -------------------------------------------------------------------------------

    def pull(self, index: int, ids: Array) -> Found:
        """Return the rows of some ids, in an array that nobody else has, and the table's version.

        Raises
        ------
        LimitError
            They are too many for one answer.
        """
        table = self.table(index)
        nbytes = ids.size * table.spec.nbytes
        if nbytes > MAX_ANSWER_NBYTES:
            raise LimitError(what="bytes of the rows of one message", got=nbytes, limit=MAX_ANSWER_NBYTES)
        return [[table.read(ids).reshape(-1)]], (table.version,), [[]]

    def wanted(self, message: PushRows | PullRows) -> Array:
        """Return the ids whose rows a message asks for.

        Raises
        ------
        ProtocolError, SliceRangeError
            The payload is not what the message says.
        """
        if isinstance(message, PullRows):
            self.table(message.index)
            return read_arrays(message.payload, [(message.count, ID_DTYPE)])[0]
        if message.codec != RAW:
            return read_arrays(self._split(message)[0], _ids_of(message))[1]
        size = message.count * self.table(message.index).spec.dim
        return read_arrays(message.payload, [*_ids_of(message), (size, ROW_DTYPE)])[1]

    def scan(self, message: ScanRows, now: float) -> Found:
        """Return what tells of rows as they lie (`SCANNED`), ids and values, ids that are gone; and the version.

        Raises
        ------
        SliceRangeError, ProtocolError
            There is no such table, or that is no cursor.
        """
        table = self.table(message.index)
        store = table.store
        most = min(message.most, MAX_ANSWER_NBYTES // (table.spec.nbytes + ID_DTYPE.itemsize))
        if message.since:
            copy = seed_of("copy", self._secret, message.epoch)  # also unlike those of clusters that were before
            told = changes(table, copy, message.start, most, message.since, now)
        else:
            stop = min(store.end, message.start + most)
            rows = np.arange(min(message.start, stop), stop)
            told = Told(rows[table.is_there(rows)], rows[:0], stop if stop < store.end else 0)
        rows, gone = told.places, told.gone
        figures = {
            **table.figures(),
            "count": rows.size,
            "next": told.next,
            "gone": gone.size,
            "reset": int(told.reset),
        }
        figures |= zip(CURSOR, told.cursor, strict=True)
        counters = np.array([figures[name] for name in SCANNED], "<u8")
        parts = [counters, store.ids[rows], store.read(rows).reshape(-1), gone]
        return [[part.view(np.uint8) for part in parts if part.size]], (table.version,), [[]]

    # --- writing -------------------------------------------------------------------------------

    def push(self, message: PushRows, worker: str, note: Noted | None = None) -> Result:
        """Apply gradients on arrival, or set rows; what fails changes nothing.

        Raises
        ------
        SliceRangeError, ProtocolError
            There is no such table, or the payload is not what the message says.
        NonFiniteGradientError
            Names the worker and ids.
        TableFullError
            There is no room for rows that are new.
        MemoryError
            There was not enough.
        """
        table = self.table(message.index)
        ids, values, is_set = self._read(message, table, worker)
        result = (table.version + 1,), (max(0, table.version - message.version),)
        if is_set:
            table.put(ids, values)
        else:
            table.update(ids, values, begins=bool(message.begins))
        table.version += 1
        if note is not None:
            note(result)
        return result

    def collect(self, message: PushRows, who: bytes, staleness: int, worker: str, note: Noted | None = None) -> Result:
        """Keep gradients for their step; those of a step that is over are dropped.

        Raises
        ------
        SliceRangeError, ProtocolError, NonFiniteGradientError, TableFullError
            As `push`; nothing is kept.
        LimitError
            The worker has brought more to this step than it may.
        """
        table = self.table(message.index)
        ids, grads, is_set = self._read(message, table, worker)
        result = (table.version,), (staleness,)
        noted: Note = partial(note, result) if note is not None else unnoted
        if staleness:
            noted()
            return result
        step, push, number = message.step, (who, message.attempt), message.index - self._first
        used = self._used.setdefault(step, Counter())
        got = used[who] + ids.nbytes + grads.nbytes + STAGED_NBYTES
        if got > MAX_STAGED_NBYTES:
            raise LimitError(what="bytes of one worker's rows of a step", got=got, limit=MAX_STAGED_NBYTES)
        others = sum(reserved[number] for reserved in self._reserved.values())
        new = table.reserve(ids, others)
        staged = Staged(owned(ids), owned(grads), message.examples, bool(message.begins), is_set)
        noted()
        self._staged.setdefault(step, {}).setdefault(push, {}).setdefault(number, []).append(staged)
        self._reserved.setdefault(step, Counter())[number] += new
        used[who] = got
        return result

    def _read(self, message: PushRows, table: RowTable, worker: str) -> tuple[Array, Array, bool]:
        """Return ids, what is brought for each, and whether that is values."""
        if is_set := are_values(message.terms):
            if message.terms[0] != SET:
                raise ProtocolError("rows are set, or updated; their mean is not taken")
        size, runs = message.count * table.spec.dim, _ids_of(message)
        if message.codec == RAW:
            ids, _, values = read_arrays(message.payload, [*runs, (size, ROW_DTYPE)])
        else:
            head, body = self._split(message)
            codec = named(message.codec)
            assert codec is not None
            if codec.error_feedback:
                raise ProtocolError(f"{codec.name} leaves values out; rows travel in raw, bf16, fp16 or int8")
            ids, _ = read_arrays(head, runs)
            [values] = read_arrays(self._coding.decompress(codec, body, [(size, ROW_DTYPE)]), [(size, ROW_DTYPE)])
        values = values.reshape(message.count, table.spec.dim)
        if self._reject_nonfinite and not message.checked:
            table.check_finite(ids, values, worker)
        return ids, values, is_set

    @staticmethod
    def _split(message: PushRows) -> tuple[list[Buffer], list[Buffer]]:
        """Return the parts of a payload that hold ids, and those that hold gradients in a codec."""
        left = ID_DTYPE.itemsize * (message.count + message.wanted)
        head: list[Buffer] = []
        body: list[Buffer] = []
        for buffer in message.payload:
            view = memoryview(buffer).cast("B")
            if left:
                head.append(view[:left])
            if view.nbytes > left:  # what is small travels in one piece
                body.append(view[left:])
            left = max(0, left - view.nbytes)
        if left:
            raise ProtocolError("the payload ends before its ids do")
        return head, body

    # --- steps ---------------------------------------------------------------------------------

    @property
    def stage_nbytes(self) -> int:
        """Bytes of the gradients that wait for a commit."""
        return sum(sum(used.values()) for used in self._used.values())

    @property
    def has_open_step(self) -> bool:
        return bool(self.stage_nbytes)

    def commit(
        self,
        step: int,
        contributors: Sequence[Contributor],
        terms: Sequence[float] = (),
        examples: int = 0,
        *,
        left_out: bool = False,
    ) -> None:
        """Apply what the contributors brought to a step; asked again, it goes on where it has failed.

        With ``left_out`` rows are set, and no gradient is applied.
        """
        pushes = self._staged.get(step, {})
        order = pushes_of(contributors)
        for number, table in enumerate(self.tables):
            if table.version != step:
                continue  # it was done before a later one failed
            brought = [pushes[push][number] for push in order if push in pushes and number in pushes[push]]
            grads = [[staged for staged in messages if not staged.is_set] for messages in brought]
            counted = [messages[0].examples for messages in grads if messages]
            parts = [(s.ids, s.grads, s.examples) for messages in grads for s in messages if s.ids.size]
            if counted and not left_out and number not in self._updated:
                ids, means = merged(parts, max(examples, sum(counted)), table.spec.dim)
                table.update(ids, means, promised=True)
                self._updated.add(number)  # what is set may yet fail, and all be asked for again
            taken = np.empty(0, np.int64)
            for staged in [s for messages in brought for s in messages if s.is_set]:  # the first has its way
                fresh = ~np.isin(staged.ids, taken)
                table.put(staged.ids[fresh], staged.grads[fresh], promised=True)
                taken = np.concatenate([taken, staged.ids[fresh]])
            table.version = step + 1

    def end_step(self, step: int) -> None:
        """End a step that another copy has committed, also for tables that nobody pushed to in it."""
        for table in self.tables:
            if table.version == step:
                table.version = step + 1

    def close(self, step: int, contributors: Sequence[Contributor] = ()) -> None:
        """Forget what was brought to a step, and to those before."""
        self._updated.clear()
        for old in [number for number in self._used if number <= step]:
            for kept in (self._staged, self._used, self._reserved):
                kept.pop(old, None)

    # --- copies --------------------------------------------------------------------------------

    def adopt(self, record: Replicate) -> bool:
        """Take rows as the leader of this copy has them; return whether its table is whole with them.

        Raises
        ------
        SliceRangeError, ProtocolError, TableFullError
            There is no such table, or it is not what was sent; or there is no room for them.
        """
        if len(record.parts) != 1:
            raise ProtocolError("rows of one table at a time")
        [(index, version, _)] = record.parts
        return adopt(self.table(index), version, record.payload)

    def refill(self, parents: Sequence[Rows]) -> None:
        there = Lookup([(table.slice, table) for parent in parents for table in parent.tables])
        for table in self.tables:
            table.refill(list(there.over(table.slice)))

    # --- figures -------------------------------------------------------------------------------

    @property
    def granted_nbytes(self) -> int:
        """Bytes that may be taken for rows of tables without a capacity."""
        return sum([table.room.granted_nbytes for table in self.tables])

    def held_nbytes(self, *, loaded: bool) -> int:
        return sum([table.store.nbytes for table in self.tables])

    @property
    def timings(self) -> Iterator[Timing]:
        return (table.timing for table in self.tables)

    def figures(self) -> dict[str, int]:
        """Return what the status shows: ``rows.items`` and others, of all tables and of each of the first ones."""
        found: Counter[str] = Counter()
        for number, table in enumerate(self.tables):
            figures = table.figures()
            for name, shown in SHOWN.items():
                found[shown] += figures[name]
                if number < MAX_SHOWN:
                    found[f"{shown}.{table.spec.name}"] += figures[name]
        return dict(found)

    def validate(self, version: int | None = None, missing: Container[int] = ()) -> None:
        for table in self.tables:
            table.validate()
            assert version is None or table.version - version in (0, 1) or table.slice.index in missing
        for used in self._used.values():
            assert all(0 <= nbytes <= MAX_STAGED_NBYTES for nbytes in used.values())


def rows_in(shard: Shard) -> Rows:
    """Return the tables of a shard, which may be none."""
    return next((part for part in shard.others if isinstance(part, Rows)), NONE)


#: Of a shard that has no tables.
NONE = Rows((), 0)


def make_rows(
    job: JobSpec,
    placement: Placement,
    index: int,
    kernel_of: Callable[[TableSpec], RowUpdate],
    *,
    coding: Coding = CODING,
    available_nbytes: int = MAX_RESERVED_NBYTES,
    more: Callable[[int], bool] = lambda nbytes: True,
    secret: int = 0,
    store_of: Callable[..., RowStore] = RowStore,
) -> Rows:
    """Return a shard's tables, empty.

    Parameters
    ----------
    job, placement, index
        Which shard.
    kernel_of
        Compiles a table's rule.
    coding
        The door to the codecs.
    available_nbytes
        How much memory all rows of a table that has no capacity might come to take.
    more
        Asks for memory for them, while they do.
    secret
        A number that nobody else knows: who does not know how ids are hashed cannot make many collide.
    store_of
        Makes a store in the memory that the shard's arrays are in (`Memory.rows`).
    """
    slices = placement.row_slices[index]
    tables = []
    for slice_ in slices:
        spec = placement.keyspace.tables[slice_.table].rows
        assert spec is not None
        kernel = kernel_of(spec)
        capacity = share_nbytes(spec, slice_.stop - slice_.start)
        row_nbytes = spec.nbytes * (1 + len(kernel.slot_fill)) + 16
        most = min(available_nbytes, MAX_RESERVED_NBYTES) if capacity is None else capacity
        places = most // row_nbytes
        if capacity is not None:  # shards that are cut may get more than their share
            places += places // SPARE_SHARE + SPARE_PLACES
        store = store_of(
            spec.dim,
            filler(Initial.from_wire(spec.initial), spec.name),
            slots=kernel.slot_fill,
            row_slots=kernel.row_slot_fill,
            counts=kernel.counts,
            seed=seed_of("index", spec.name, index) ^ secret,
            reserve_rows=max(1, min(places, (1 << 32) - 3)),
        )
        table = RowTable(slice_, spec, kernel, store, more=more)
        if capacity is not None:
            store.have_room(table.room.limit)
        tables.append(table)
    first = slices[0].index if slices else len(placement.slices[index])
    return Rows(tables, first, reject_nonfinite=job.nonfinite == "reject", coding=coding, secret=secret)


def capacity_nbytes(placement: Placement, index: int) -> int:
    """Return how much the tables of a shard may take that have a capacity."""
    slices = placement.row_slices[index]
    found = [(placement.keyspace.tables[slice_.table].rows, slice_.stop - slice_.start) for slice_ in slices]
    return sum(share_nbytes(spec, buckets) or 0 for spec, buckets in found if spec is not None)


def share_nbytes(spec: TableSpec, buckets: int) -> int | None:
    """Return how much of a table's capacity so many of its buckets may take."""
    return None if spec.capacity_nbytes is None else spec.capacity_nbytes * buckets // NUM_BUCKETS


def _ids_of(message: PushRows) -> list[tuple[int, np.dtype[Any]]]:
    """Return how many ids of which kind a payload begins with."""
    return [(message.count, ID_DTYPE), (message.wanted, ID_DTYPE)]
