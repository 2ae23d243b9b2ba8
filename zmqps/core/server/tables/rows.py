"""The sparse tables of one shard: the effects of messages about rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zmqps.codecs import Codec, for_values
from zmqps.core.job.keyspace import ROW_DTYPE, Placement
from zmqps.core.job.recut import Lookup
from zmqps.core.job.spec import JobSpec
from zmqps.core.job.tables import NUM_BUCKETS, TableSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.encoding import CODING, RAW, Coding, choose, named
from zmqps.core.protocol.message import Contributor
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
from zmqps.core.server.tables.arrays import ID_DTYPE, cut, joined, owned, read_arrays
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

#: The most bytes of rows in one answer: an id of 8 bytes may request 16 KiB.
MAX_ANSWER_NBYTES = 64 << 20
#: The most bytes of gradients of a worker in one synchronous step.
MAX_STAGED_NBYTES = 1 << 30
#: The status shows this many tables of a job: its counters travel with each heartbeat.
MAX_SHOWN = 8
#: The figures in the status, and their names.
SHOWN = {"rows": "rows", "nbytes": "row_nbytes", "refused": "rows_refused", "expired": "rows_expired"}
#: The memory of a stored message besides its gradients.
STAGED_NBYTES = 512
#: In addition to its share of the capacity a table has this part of it, and this many places, for rows of a new
#: division.
SPARE_SHARE, SPARE_PLACES = 4, 1024
#: The most places of rows: address space, of which a table uses what it needs.
MAX_RESERVED_NBYTES = 1 << 36


class Staged(NamedTuple):
    """One message's contribution to a synchronous step."""

    ids: Array
    grads: Array
    examples: int
    begins: bool
    is_set: bool


class Rows:
    """The tables of a shard.

    In synchronous mode gradients are kept until their step is committed. Then those of the contributors are summed per
    id, in their order, weighted by their examples. The sum is divided by the examples of all that pushed to the table
    in that step, whether they touched a row or not, or of all contributors, if the commit has their number. So the
    result is that of one large batch.
    """

    def __init__(
        self,
        tables: Sequence[RowTable],  # the shard's parts of the tables, in the order of their slices
        first: int,  # the number of the first; the others follow
        *,
        reject_nonfinite: bool = True,  # whether gradients with NaN or infinity are refused
        coding: Coding = CODING,  # the door to the codecs
        secret: int = 0,  # a secret number, different for each copy of the shard
    ) -> None:
        self.tables = tuple(tables)
        self.numbers = range(first, first + len(self.tables))  # in messages
        self._reject_nonfinite = reject_nonfinite
        self._coding = coding
        self._secret = secret
        self._staged: dict[int, dict[PushId, dict[int, list[Staged]]]] = {}  # by step, push and table
        self._used: dict[int, Counter[bytes]] = {}  # bytes, by step and worker
        self._steps: ShardSteps | None = None  # of the shard, in the synchronous mode
        self._updated: set[int] = set()  # tables whose gradients of the committing step are applied
        self._reserved: dict[int, Counter[int]] = {}  # rows that may be created, by step and table

    def follow_steps(self, steps: ShardSteps | None) -> None:
        """Gradients wait for the commits of the shard that has these tables; None: they are applied on arrival."""
        self._steps = steps

    @property
    def members(self) -> Sequence[RowTable]:
        return self.tables

    def table(self, index: int) -> RowTable:
        """Return a table by its number in messages.

        Raises
        ------
        SliceRangeError
            There is no such table.
        """
        if index not in self.numbers:
            raise SliceRangeError(f"this shard has {len(self.tables)} tables, none of them is number {index}")
        return self.tables[index - self.numbers.start]

    def tick(self, now: float) -> None:
        """Record the time, by which rows expire."""
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
        """Return a push without its gradients, but with the requested ids."""
        if not message.reply:
            return replace(message, payload=())
        return replace(message, count=0, codec=RAW, payload=[self.wanted(message)])

    # --- reading -------------------------------------------------------------------------------

    def pull(self, index: int, ids: Array) -> Found:
        """Return the rows of some ids, in a new array, and the table's version.

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

    @staticmethod
    def wanted(message: PushRows | PullRows) -> Array:
        """Return the ids whose rows a message requests.

        Raises
        ------
        ProtocolError
            The payload does not match the message.
        """
        if isinstance(message, PullRows):
            return read_arrays(message.payload, [(message.count, ID_DTYPE)])[0]
        return joined(_parts_of(message)[1], ID_DTYPE)

    def scan(self, message: ScanRows, now: float) -> Found:
        """Return the facts of a scan (`SCANNED`), ids and values, removed ids; and the version.

        Raises
        ------
        SliceRangeError, ProtocolError
            There is no such table, or the cursor is malformed.
        """
        table = self.table(message.index)
        store = table.store
        most = min(message.most, MAX_ANSWER_NBYTES // (table.spec.nbytes + ID_DTYPE.itemsize))
        if message.since:
            copy = seed_of("copy", self._secret, message.epoch)  # also different from earlier clusters
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
        """Apply gradients on arrival, or set rows; a failure changes nothing.

        Raises
        ------
        SliceRangeError, ProtocolError
            There is no such table, or the payload does not match the message.
        NonFiniteGradientError
            Names the worker and ids.
        TableFullError
            There is no room for new rows.
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
        """Keep gradients for their step; those of a past step are dropped.

        Raises
        ------
        SliceRangeError, ProtocolError, NonFiniteGradientError, TableFullError
            As `push`; nothing is kept.
        LimitError
            The worker has contributed more to this step than allowed.
        """
        table = self.table(message.index)
        ids, grads, is_set = self._read(message, table, worker)
        result = (table.version,), (staleness,)
        noted: Note = partial(note, result) if note is not None else unnoted
        if staleness:
            noted()
            return result
        step, push, number = message.step, (who, message.attempt), message.index - self.numbers.start
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
        """Return ids, the payload for each, and whether it is values."""
        if is_set := are_values(message.terms):
            if message.terms[0] != SET:
                raise ProtocolError("rows are set, or updated; their mean is not taken")
        ids, _, body = _parts_of(message)
        if message.codec != RAW:
            codec = named(message.codec)
            assert codec is not None
            if codec.error_feedback:
                raise ProtocolError(f"{codec.name} leaves values out; rows travel in {for_values()}")
            body = self._coding.decompress(codec, body, [(message.count * table.spec.dim, ROW_DTYPE)])
        [values] = read_arrays(body, [(message.count * table.spec.dim, ROW_DTYPE)])
        numbers, values = joined(ids, ID_DTYPE), values.reshape(message.count, table.spec.dim)
        if self._reject_nonfinite and not message.checked:
            table.check_finite(numbers, values, worker)
        return numbers, values, is_set

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
        """Apply the contributions to a step; a repeated call continues where it failed.

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
                ids, means = merged(parts, max(examples, sum(counted)), table.spec.dim, self._secret)
                table.update(ids, means, promised=True)
                self._updated.add(number)  # setting may still fail, and the call be repeated
            taken = np.empty(0, np.int64)
            for staged in [s for messages in brought for s in messages if s.is_set]:  # the first one counts
                fresh = ~np.isin(staged.ids, taken)
                table.put(staged.ids[fresh], staged.grads[fresh], promised=True)
                taken = np.concatenate([taken, staged.ids[fresh]])
            table.version = step + 1

    def end_step(self, step: int) -> None:
        """End a step that another copy has committed, also for tables without a push in it."""
        for table in self.tables:
            if table.version == step:
                table.version = step + 1

    def close(self, step: int, contributors: Sequence[Contributor] = ()) -> None:
        """Free the contributions to a step, and to those before."""
        self._updated.clear()
        for old in [number for number in self._used if number <= step]:
            for kept in (self._staged, self._used, self._reserved):
                kept.pop(old, None)

    # --- copies --------------------------------------------------------------------------------

    def adopt(self, record: Replicate) -> bool:
        """Set rows to the state of this copy's leader; return whether its table is complete with them.

        Raises
        ------
        SliceRangeError, ProtocolError, TableFullError
            There is no such table, or it does not match; or there is no room for them.
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
        """Return counters for the status: ``rows.items`` and others, of all tables and of each of the first ones."""
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


#: Of a shard without tables.
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
        The shard.
    kernel_of
        Compiles a table's rule.
    coding
        The door to the codecs.
    available_nbytes
        The memory that all rows of a table without a capacity might take.
    more
        Requests memory for them as they grow.
    secret
        A secret number: without it a peer cannot make many ids collide.
    store_of
        Makes a store in the memory of the shard's arrays (`Memory.rows`).
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
        if capacity is not None:  # in a new division shards may get more than their share
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
    """Return the most bytes of a shard's tables with a capacity."""
    slices = placement.row_slices[index]
    found = [(placement.keyspace.tables[slice_.table].rows, slice_.stop - slice_.start) for slice_ in slices]
    return sum(share_nbytes(spec, buckets) or 0 for spec, buckets in found if spec is not None)


def share_nbytes(spec: TableSpec, buckets: int) -> int | None:
    """Return this many buckets' share of a table's capacity."""
    return None if spec.capacity_nbytes is None else spec.capacity_nbytes * buckets // NUM_BUCKETS


def _parts_of(message: PushRows) -> list[list[memoryview]]:
    """Return the pieces of a payload that are ids with gradients, requested ids, and gradients."""
    return cut(message.payload, ID_DTYPE.itemsize * message.count, ID_DTYPE.itemsize * message.wanted)
