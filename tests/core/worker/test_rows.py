"""Rows on their way: every id goes with the message of its bucket, and every row comes to all who asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.machines import hello, sent
from tests.tables import for_each
from zmqps import codecs
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.core.job.tables import MAX_DIM, NUM_BUCKETS, TableSpec
from zmqps.core.node.handshake import Handshake
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.events import Action, Send, server_peer
from zmqps.core.protocol.messages import Ack, PullRows, PushRows, ScanRows, Values, Welcome
from zmqps.core.protocol.messages.rows import SCANNED
from zmqps.core.worker import rows
from zmqps.core.worker.connections.link import Link, LinkCommons, ShardServer
from zmqps.core.worker.rows import RowCargo, RowParts, RowSource, RowTarget, ScanTarget, row_message
from zmqps.core.worker.transfer import PullTransfer, PushTransfer
from zmqps.errors import ProtocolError
from zmqps.optim import sgd
from zmqps.rows.hashing import buckets_of
from zmqps.rows.initial import Initial
from zmqps.rows.unique import Grouped

DIM = 3
TABLE = TableSpec(name="items", dim=DIM, optimizer=sgd(1.0).to_wire(), initial=Initial("zeros").to_wire())
OTHER = replace(TABLE, name="users", dim=MAX_DIM)
W = Parameter("w", (40,), "float32")
WELCOME = Welcome(1, b"i" * 16, "s0", 0, 0.0, 0.0, 1, 1)

IDS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), max_size=60).map(lambda x: np.array(x, np.int64))
SHARDS = st.integers(1, 5)
#: Of some rows, from one message a shard up to one a bucket.
NUM_ROWS = st.integers(0, 1 << 40)


def parts_of(shards: int, table: TableSpec = TABLE, parameters: Sequence[Parameter] = (W,)) -> RowParts:
    """Return the parts of a table beside a parameter and another table."""
    keyspace = KeySpace(parameters, (OTHER, table))
    return RowParts(Placement.balance(keyspace, shards, 64), len(keyspace.tables) - 1)


def grouped(shards: int, ids: Array, num_rows: int = 0) -> tuple[RowParts, Any, Grouped]:
    """Return the parts of a table, their map for a batch of so many rows, and some ids in their order."""
    parts = parts_of(shards)
    where = parts.part_of_bucket(num_rows)
    return parts, where, parts.group(parts.different(ids), where)


def some_ids(number: int, seed: int = 0) -> Array:
    """Return different ids."""
    found: Array = np.unique(np.random.default_rng(seed).integers(-(1 << 62), 1 << 62, number))
    return found


def flat(cargoes: tuple[tuple[RowCargo, ...], ...]) -> list[RowCargo]:
    return [cargo for row in cargoes for cargo in row]


def values_of(ids: Array) -> Array:
    """Return rows that say whose they are."""
    column = (ids % 100_003).astype(np.float32)
    return np.stack([column, column + 0.25, column + 0.5], axis=1)


# --- parts --------------------------------------------------------------------------------------


@given(shards=SHARDS, num_rows=NUM_ROWS)
def test_every_bucket_is_in_one_part_and_parts_lie_in_their_slices(shards: int, num_rows: int) -> None:
    parts = parts_of(shards)
    numbers, of_part = parts.part_of_bucket(num_rows)
    assert (numbers.dtype.name, numbers.shape) == ("int64", (NUM_BUCKETS,))
    assert numbers[0] == 0
    assert numbers[-1] == len(of_part) - 1
    assert set(np.diff(numbers).tolist()) <= {0, 1}, "each part is a stretch of buckets, and none is empty"
    for slice_ in parts.slices:
        assert {of_part[number] for number in numbers[slice_.start : slice_.stop].tolist()} == {slice_}
    assert [slice_.shard for slice_ in parts.slices] == list(range(shards))


@given(shards=SHARDS, num_rows=NUM_ROWS)
def test_the_parts_of_a_shard_are_of_about_one_size(shards: int, num_rows: int) -> None:
    parts = parts_of(shards)
    numbers, of_part = parts.part_of_bucket(num_rows)
    sizes = np.bincount(numbers, minlength=len(of_part))
    for slice_ in parts.slices:
        mine = [size for size, other in zip(sizes.tolist(), of_part, strict=True) if other is slice_]
        assert max(mine) - min(mine) <= 1


@for_each("shards", [1, 3])
def test_few_rows_are_one_message_a_shard_and_no_part_is_less_than_a_bucket(shards: int) -> None:
    parts = parts_of(shards)
    few = shards * rows.CHUNK_NBYTES // (TABLE.nbytes + 8)
    assert len(parts.part_of_bucket(0)[1]) == len(parts.part_of_bucket(few)[1]) == shards
    assert len(parts.part_of_bucket(few + shards)[1]) == 2 * shards
    assert len(parts.part_of_bucket(1 << 50)[1]) == NUM_BUCKETS


def test_batches_of_about_one_size_share_a_map() -> None:
    parts = parts_of(2)
    assert parts.part_of_bucket(10) is parts.part_of_bucket(11)
    maps = {id(parts.part_of_bucket(number)) for number in range(0, 1 << 24, 9973)}
    assert len(maps) <= 8


@pytest.mark.parametrize("shards", [1, 3])
def test_messages_of_a_large_batch_are_of_the_size_of_a_chunk(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CHUNK_NBYTES", 1 << 12)
    parts, ids = parts_of(shards), some_ids(10_000)
    where = parts.part_of_bucket(ids.size)
    found = flat(parts.cargoes(where, parts.group(parts.different(ids), where), None))
    assert all(cargo.nbytes == cargo.pushed.size * (TABLE.nbytes + 8) for cargo in found)
    assert sum(cargo.nbytes for cargo in found) == ids.size * (TABLE.nbytes + 8)
    assert max(cargo.nbytes for cargo in found) < 1.5 * rows.CHUNK_NBYTES
    assert np.mean([cargo.nbytes for cargo in found]) > rows.CHUNK_NBYTES / 3


def test_there_may_be_no_parameters_at_all() -> None:
    parts = parts_of(2, parameters=())
    assert [(slice_.shard, slice_.index, slice_.table) for slice_ in parts.slices] == [(0, 1, 1), (1, 1, 1)]


def test_a_shard_that_has_no_bucket_gets_no_message() -> None:
    keyspace = KeySpace((), (TABLE,))
    parts = RowParts(Placement.balance(keyspace, NUM_BUCKETS + 2, 64), 0)
    assert len(parts.slices) == NUM_BUCKETS
    where = parts.part_of_bucket(1)
    found = parts.cargoes(where, parts.group(parts.different(some_ids(9)), where), None, everywhere=True)
    assert sorted(map(len, found)) == [0] * 2 + [1] * NUM_BUCKETS


# --- cargoes ------------------------------------------------------------------------------------


def check(parts: RowParts, where: Any, found: tuple[tuple[RowCargo, ...], ...], ids: Array, *, wanted: bool) -> None:
    """Assert that the different ones of some ids go once each, with the message of their bucket, numbered in order."""
    after, seen = 0, list[int]()
    for shard, row in enumerate(found):
        for cargo in row:
            own, first = (cargo.wanted, cargo.wanted_first) if wanted else (cargo.pushed, cargo.first)
            assert cargo.slice.shard == shard
            buckets = buckets_of(own, TABLE.bucket_seed)
            assert ((cargo.slice.start <= buckets) & (buckets < cargo.slice.stop)).all()
            assert len(set(where[0][buckets].tolist())) <= 1
            assert not own.size or first == after
            after += own.size
            seen += own.tolist()
    assert len(seen) == len(set(seen))
    assert set(seen) == set(ids.tolist())


@given(pushed=IDS, wanted=IDS, shards=SHARDS, num_rows=NUM_ROWS)
def test_pushed_and_wanted_ids_go_once_each_with_the_message_of_their_bucket(
    pushed: Array, wanted: Array, shards: int, num_rows: int
) -> None:
    parts = parts_of(shards)
    where = parts.part_of_bucket(num_rows)
    mine, theirs = parts.group(parts.different(pushed), where), parts.group(parts.different(wanted), where)
    found = parts.cargoes(where, mine, theirs)
    check(parts, where, found, pushed, wanted=False)
    check(parts, where, found, wanted, wanted=True)
    assert all(cargo.pushed.size or cargo.wanted.size for cargo in flat(found)), "nothing needs no message"
    for alone, ids, is_wanted in (
        (parts.cargoes(where, mine, None), pushed, False),
        (parts.cargoes(where, None, theirs), wanted, True),
    ):
        check(parts, where, alone, ids, wanted=is_wanted)
        check(parts, where, alone, ids[:0], wanted=not is_wanted)


@given(ids=IDS, shards=SHARDS, num_rows=NUM_ROWS)
def test_a_push_begins_once_on_each_shard_and_everywhere_if_all_are_told_of_it(
    ids: Array, shards: int, num_rows: int
) -> None:
    parts, where, pushed = grouped(shards, ids, num_rows)
    told, everywhere = parts.cargoes(where, pushed, None), parts.cargoes(where, pushed, None, everywhere=True)
    for some, all_ in zip(told, everywhere, strict=True):
        assert [cargo.begins for cargo in some] == [True, *[False] * len(some)][: len(some)]
        assert [cargo.begins for cargo in all_] == [True] + [False] * (len(all_) - 1)
        if some:
            assert [cargo.pushed.tolist() for cargo in all_] == [cargo.pushed.tolist() for cargo in some]
        else:
            assert [(cargo.pushed.size, cargo.wanted.size) for cargo in all_] == [(0, 0)]


def test_nothing_is_no_message_unless_everybody_is_to_know() -> None:
    parts, where, nothing = grouped(3, np.empty(0, np.int64), 0)
    assert parts.cargoes(where, nothing, nothing) == ((), (), ())
    assert parts.cargoes(where, None, None) == ((), (), ())
    assert [len(row) for row in parts.cargoes(where, nothing, None, everywhere=True)] == [1, 1, 1]


@given(shards=SHARDS)
def test_the_whole_part_of_a_shard_is_asked_of_that_shard(shards: int) -> None:
    parts = parts_of(shards)
    for shard, slice_ in enumerate(parts.slices):
        found = parts.whole(slice_)
        assert [len(row) for row in found] == [int(other == shard) for other in range(shards)]
        assert found[shard][0].slice is slice_


# --- what is sent -------------------------------------------------------------------------------


@given(ids=IDS, shards=SHARDS, num_rows=NUM_ROWS)
def test_each_message_brings_the_rows_of_its_ids(ids: Array, shards: int, num_rows: int) -> None:
    parts, where, pushed = grouped(shards, ids, num_rows)
    source = RowSource(rows=values_of(pushed.ids))
    for cargo in flat(parts.cargoes(where, pushed, None, everywhere=True)):
        expected = values_of(cargo.pushed).reshape(-1)
        assert np.array_equal(np.concatenate(source.pieces(cargo)), expected)
        assert np.array_equal(np.concatenate([np.empty(0, np.float32), *source.payload([cargo])]), expected)


def test_rows_are_sent_where_they_lie() -> None:
    parts, where, pushed = grouped(1, some_ids(30_000), 0)
    source = RowSource(rows=values_of(pushed.ids))
    [cargo] = flat(parts.cargoes(where, pushed, None))
    [payload] = source.payload([cargo])
    assert np.shares_memory(payload, source.rows)


# --- what comes ---------------------------------------------------------------------------------


def target_of(grouped: Grouped, **options: Any) -> RowTarget:
    return RowTarget(inverse=grouped.inverse, out=np.full((grouped.inverse.size, DIM), -1.0, np.float32), **options)


@given(ids=IDS, shards=SHARDS, num_rows=NUM_ROWS, data=st.data())
def test_each_row_lands_at_every_position_that_asked_for_it(
    ids: Array, shards: int, num_rows: int, data: st.DataObject
) -> None:
    parts, where, wanted = grouped(shards, ids, num_rows)
    target, landed = target_of(wanted), np.zeros(ids.size, bool)
    for version, cargo in enumerate(data.draw(st.permutations(flat(parts.cargoes(where, None, wanted))))):
        assert target.size_of(cargo) == cargo.wanted.size * DIM
        target.land([cargo], cut(data, values_of(cargo.wanted).reshape(-1)), [version])
        assert target.versions[cargo] == version
        landed |= np.isin(ids, cargo.wanted)
        assert np.array_equal(target.out[landed], values_of(ids[landed]))
        assert (target.out[~landed] == -1.0).all()
    assert landed.all()


def cut(data: st.DataObject, array: Array) -> list[Array]:
    """Return an array in several frames, some of them as bytes that may lie anywhere."""
    ends = sorted({0, array.size, *data.draw(st.lists(st.integers(0, array.size), max_size=3))})
    pieces = [array[lo:hi] for lo, hi in pairwise(ends)]
    return [np.frombuffer(b"x" + piece.tobytes(), np.uint8)[1:] if i % 2 else piece for i, piece in enumerate(pieces)]


@for_each("wrong", [-1, 1])
def test_an_answer_of_another_size_is_refused_and_nothing_is_written(wrong: int) -> None:
    parts, where, wanted = grouped(2, some_ids(50), 0)
    target = target_of(wanted)
    cargo = flat(parts.cargoes(where, None, wanted))[0]
    with pytest.raises(ProtocolError):
        target.land([cargo], [np.zeros(target.size_of(cargo) + wrong, np.float32)], [1])
    assert (target.out == -1.0).all()
    assert not target.versions


def test_what_was_read_of_an_older_version_is_told_and_can_be_forgotten() -> None:
    parts, where, wanted = grouped(3, some_ids(50), 0)
    target = target_of(wanted)
    found = flat(parts.cargoes(where, None, wanted))
    for version, cargo in zip((4, 5, 5), found, strict=True):
        target.land([cargo], [values_of(cargo.wanted).reshape(-1)], [version])
    assert target.outdated() == (found[0],)
    target.forget([found[0]])
    assert set(target.versions) == set(found[1:])


def scanned(ids: Array, dim: int = DIM, after: int = 0, **counters: int) -> bytes:
    """Return what a server answers to a scan."""
    told = {"count": ids.size, "next": after, **counters}
    head = np.array([told.get(name, 0) for name in SCANNED], "<u8")
    gone = np.arange(told.get("gone", 0), dtype="<i8") - 1
    return b"".join(
        [head.tobytes(), ids.astype("<i8").tobytes(), values_of(ids)[:, :dim].astype("<f4").tobytes(), gone.tobytes()]
    )


@given(ids=IDS, data=st.data())
def test_a_scan_keeps_counters_ids_and_rows(ids: Array, data: st.DataObject) -> None:
    parts = parts_of(1)
    [cargo] = flat(parts.whole(parts.slices[0]))
    target = ScanTarget(start=5, most=100, dim=DIM)
    num_gone = data.draw(st.integers(0, 3))
    cursor = {"copy": 4, "version": 9, "steps": 8, "lifetime": 1 << 32, "num_gone": 1 << 63}
    whole = np.frombuffer(scanned(ids, after=7, rows=3, hits=1 << 60, gone=num_gone, reset=1, **cursor), np.uint8)
    target.land([cargo], cut(data, whole), [9])
    assert target.gone.tolist() == [-1, 0, 1][:num_gone]
    assert target.cursor == tuple(cursor.values())
    assert target.counters["reset"] == 1
    assert np.array_equal(target.ids, ids)
    assert np.array_equal(target.rows, values_of(ids))
    assert (target.ids.dtype.name, target.rows.dtype.name) == ("int64", "float32")
    assert (target.next_start, target.counters["rows"], target.counters["hits"]) == (7, 3, 1 << 60)
    assert target.versions == {cargo: 9}


@for_each(
    "dim, change",
    [
        (DIM, lambda b: b[:-1]),
        (DIM, lambda b: b + b"x"),
        (DIM, lambda b: b[:20]),
        (DIM, lambda b: b""),
        (DIM - 1, lambda b: b),
    ],
)
def test_a_scan_that_is_not_what_it_says_is_refused(dim: int, change: Any) -> None:
    parts = parts_of(1)
    target = ScanTarget(most=100, dim=dim)
    with pytest.raises(ProtocolError, match="an answer to a scan"):
        target.land(flat(parts.whole(parts.slices[0])), [change(scanned(np.arange(3)))], [1])
    assert not target.ids.size
    assert not target.versions


# --- messages -----------------------------------------------------------------------------------


class Connection:
    """A link to the only server, which has welcomed this worker."""

    def __init__(self) -> None:
        self.parts = parts_of(1)
        self.index = self.parts.slices[0].index
        handshake = Handshake(hello("worker"), server_peer(0), "tcp://s0:1")
        server = ShardServer(title="server 0", handshake=handshake, proof=b"", epoch=1)
        self.link = Link(server, self.index + 1, LinkCommons(messages={RowCargo: row_message}))
        handshake.start(0.0)
        self.link.on_welcome(WELCOME, 0.0)

    def begin(self, transfer: PushTransfer | PullTransfer) -> list[Action]:
        self.link.enqueue(transfer, transfer.cargoes[0])
        actions = self.link.pump(0.0)
        self.link.validate()
        return actions

    def push(self, ids: Array, num_rows: int = 0, *, wanted: Array | None = None, **options: Any) -> PushTransfer:
        where = self.parts.part_of_bucket(num_rows)
        pushed = self.parts.group(self.parts.different(ids), where)
        asked = None if wanted is None else self.parts.group(self.parts.different(wanted), where)
        codec = options.pop("codec", "raw")
        source = RowSource(rows=values_of(pushed.ids), codec=codec, checked=True)
        target = None if asked is None else target_of(asked, codec=options.pop("reply_codec", "raw"))
        return PushTransfer(cargoes=self.parts.cargoes(where, pushed, asked), source=source, target=target, **options)

    def pull(self, ids: Array, num_rows: int = 0, codec: str = "raw") -> PullTransfer:
        where = self.parts.part_of_bucket(num_rows)
        wanted = self.parts.group(self.parts.different(ids), where)
        return PullTransfer(
            cargoes=self.parts.cargoes(where, None, wanted), target=target_of(wanted, codec=codec), version=6
        )


def joined(payload: Sequence[Any]) -> bytes:
    return b"".join(memoryview(buffer).cast("B") for buffer in payload)


def test_a_push_is_a_message_a_part_with_its_ids_and_their_gradients() -> None:
    connection = Connection()
    push = connection.push(some_ids(500), 1 << 20, step=3, attempt=4, examples=5)
    messages = sent(connection.begin(push), PushRows)
    assert len(messages) == len(push.cargoes[0]) > 1
    assert [message.seq for message in messages] == list(range(1, len(messages) + 1))
    assert [message.begins for message in messages] == [1] + [0] * (len(messages) - 1)
    for message, cargo in zip(messages, push.cargoes[0], strict=True):
        assert isinstance(cargo, RowCargo)
        assert (message.index, message.epoch) == (connection.index, 1)
        assert (message.count, message.wanted) == (cargo.pushed.size, 0)
        assert (message.step, message.attempt, message.examples) == (3, 4, 5)
        assert (message.reply, message.checked, message.codec) == (0, 1, "raw")
        assert joined(message.payload) == cargo.pushed.tobytes() + values_of(cargo.pushed).tobytes()
    assert connection.link.counts["bytes_sent"] == 500 * (8 + TABLE.nbytes)


def test_a_push_that_wants_rows_is_answered_with_those_and_the_version_is_told_next_time() -> None:
    connection, wanted = Connection(), np.array([7, -7, 7])
    push = connection.push(np.array([1, 2]), wanted=wanted, reply_codec="bf16")
    [message] = sent(connection.begin(push), PushRows)
    assert (message.count, message.wanted, message.reply, message.reply_codec, message.version) == (2, 2, 1, "bf16", 0)
    [payload] = message.payload  # small arrays travel in one frame
    assert payload.tobytes() == np.array([1, 2, 7, -7]).tobytes() + values_of(np.array([1, 2])).tobytes()
    answer = Values(message.request, "raw", (11,), (2,), (values_of(np.array([7, -7])),))
    assert connection.link.on_answer(answer, 0.0) is push
    assert (push.remaining, push.staleness) == (0, 2)
    assert isinstance(push.target, RowTarget)
    assert np.array_equal(push.target.out, values_of(wanted))
    assert connection.link.counts["bytes_received"] == 2 * TABLE.nbytes
    assert [m.version for m in sent(connection.begin(connection.push(wanted)), PushRows)] == [11]


def test_a_pull_asks_for_each_different_id_once() -> None:
    connection = Connection()
    ids = np.array([5, 9, 5, 5])
    pull = connection.pull(ids, codec="fp16")
    [message] = sent(connection.begin(pull), PullRows)
    assert (message.count, message.index, message.version, message.codec) == (2, connection.index, 6, "fp16")
    assert joined(message.payload) == np.array([5, 9]).tobytes()
    half = codecs.fp16().encode(values_of(np.array([5, 9])).reshape(-1))
    connection.link.on_answer(Values(message.request, "fp16", (6,), (), (half,)), 0.0)
    assert isinstance(pull.target, RowTarget)
    assert np.array_equal(pull.target.out, values_of(ids))
    assert pull.remaining == 0


def test_a_scan_says_where_to_go_on_and_how_far() -> None:
    connection = Connection()
    cargoes = connection.parts.whole(connection.parts.slices[0])
    since = 4, 9, 8, 1 << 32, 0
    [follows] = sent(connection.begin(PullTransfer(cargoes=cargoes, target=ScanTarget(dim=DIM, since=since))), ScanRows)
    assert (follows.start, follows.since) == (0, since)
    scan = PullTransfer(cargoes=cargoes, target=ScanTarget(start=70, most=30, dim=DIM))
    [message] = sent(connection.begin(scan), ScanRows)
    assert (message.index, message.start, message.most, message.since) == (connection.index, 70, 30, ())
    answer = Values(message.request, "raw", (3,), (), (scanned(np.array([4, 2]), after=100),))
    assert connection.link.on_answer(answer, 0.0) is scan
    assert isinstance(scan.target, ScanTarget)
    assert scan.target.ids.tolist() == [4, 2]
    assert scan.target.next_start == 100


def test_gradients_travel_in_a_codec_where_there_are_many_and_ids_never() -> None:
    connection = Connection()
    ids = some_ids(5000)
    [message] = sent(connection.begin(connection.push(ids, codec="bf16")), PushRows)
    assert message.codec == "bf16"
    payload = joined(message.payload)
    pushed = np.frombuffer(payload[: 8 * ids.size], np.int64)
    assert set(pushed.tolist()) == set(ids.tolist())
    assert len(payload) == ids.size * (8 + 2 * DIM)
    found, _ = codecs.bf16().decode(payload[8 * ids.size :], ids.size * DIM, np.dtype("f4"))
    np.testing.assert_allclose(found.reshape(-1, DIM), values_of(pushed), rtol=2**-8)
    [small] = sent(connection.begin(connection.push(ids[:3], codec="bf16")), PushRows)
    assert small.codec == "raw"


def test_what_is_sent_again_is_the_same_and_as_it_was_encoded() -> None:
    connection = Connection()
    ids = some_ids(5000)
    before = connection.begin(connection.push(ids, codec="int8")) + connection.begin(connection.pull(ids[:9]))
    connection.link.on_disconnected(0.0)
    connection.link.on_connected(0.0)
    after = connection.link.on_welcome(WELCOME, 0.0)
    assert connection.link.counts["retries"] == 2
    for one, other in zip(before, after, strict=True):
        assert isinstance(one, Send)
        assert isinstance(other, Send)
        assert isinstance(one.message, PushRows | PullRows)
        assert isinstance(other.message, PushRows | PullRows)
        assert type(one.message) is type(other.message)
        assert one.message.request == other.message.request
        assert joined(one.message.payload) == joined(other.message.payload)


def test_a_pull_leaves_behind_the_pushes_to_its_table_and_before_those_to_others() -> None:
    connection, ids = Connection(), np.array([1])
    connection.link.on_disconnected(0.0)
    connection.link.on_connected(0.0)
    push, pull = connection.push(ids), connection.pull(ids)
    users = RowParts(Placement.balance(KeySpace((W,), (OTHER, TABLE)), 1, 64), 1)
    where = users.part_of_bucket(1)
    wanted = users.group(users.different(ids), where)
    target = RowTarget(inverse=wanted.inverse, out=np.zeros((1, MAX_DIM), np.float32))
    elsewhere = PullTransfer(cargoes=users.cargoes(where, None, wanted), target=target)
    assert connection.begin(push) + connection.begin(pull) + connection.begin(elsewhere) == []
    messages = [action.message for action in connection.link.on_welcome(WELCOME, 0.0) if isinstance(action, Send)]
    assert [type(message) for message in messages] == [PushRows, PullRows, PullRows], "pulls leave in the order asked"
    again = Connection()
    again.link.on_disconnected(0.0)
    again.link.on_connected(0.0)
    assert again.begin(push) + again.begin(elsewhere) == []
    messages = [action.message for action in again.link.on_welcome(WELCOME, 0.0) if isinstance(action, Send)]
    assert [type(message) for message in messages] == [PullRows, PushRows]


def test_an_acknowledgement_ends_a_push() -> None:
    connection = Connection()
    push = connection.push(some_ids(9))
    [message] = sent(connection.begin(push), PushRows)
    assert connection.link.on_answer(Ack(message.request, (1,), (0,)), 0.0) is push
    assert push.remaining == 0


@for_each("payload", [[], [np.zeros(DIM - 1, np.float32)], [np.zeros(3 * DIM, np.float32)]])
def test_an_answer_that_does_not_fit_is_a_protocol_error(payload: list[Array]) -> None:
    connection = Connection()
    [message] = sent(connection.begin(connection.pull(np.array([1, 2]))), PullRows)
    with pytest.raises(ProtocolError):
        connection.link.on_answer(Values(message.request, "raw", (1,), (), payload), 0.0)
