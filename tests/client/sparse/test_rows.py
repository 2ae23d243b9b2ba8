"""What ids and rows of a script become: whatever holds them, each id travels once, and each position has its row."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.modes import MODES
from tests.tables import for_each
from zmqps import codecs
from zmqps.client.requests import Requests
from zmqps.client.sparse.rows import Brought, RowRequests, Wanted
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.job.tables import TableSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.terms import SET
from zmqps.core.worker.operations import Attached
from zmqps.core.worker.rows import RowCargo, RowSource, RowTarget, ScanTarget
from zmqps.core.worker.transfer import PullTransfer, PushTransfer
from zmqps.errors import ConfigurationError, DtypeError, ShapeError, UnknownParameterError
from zmqps.gpu.handover import Handover
from zmqps.optim import group, sgd
from zmqps.rows.initial import Initial

DIM = 3
SGD = sgd(1.0).to_wire()
ITEMS = TableSpec(name="items", dim=DIM, optimizer=SGD, initial=Initial("zeros").to_wire())
JOB = JobSpec(parameters=(), optimizer=SGD, mode="async", tables=(ITEMS,))
#: Of every dtype that ids may be of, at both ends of what it holds.
ENDS = [
    (np.dtype(name), [np.iinfo(name).min, 1, np.iinfo(name).max])
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
]
LARGEST = float(np.finfo(np.float32).max)


class Servers:
    """A table on two shards, as a dict: gradients are subtracted, and what nobody has trained is zero."""

    def __init__(self, **options: Any) -> None:
        self.requests = of_job(**options)
        self.rows: dict[int, Array] = {}
        self.messages: list[RowCargo] = []

    def apply(self, push: PushTransfer) -> None:
        assert isinstance(push.source, RowSource)
        for cargo in cargoes_of(push):
            self.messages.append(cargo)
            brought = np.concatenate([np.empty(0, np.float32), *push.source.pieces(cargo)]).reshape(-1, DIM)
            for number, row in zip(cargo.pushed.tolist(), brought, strict=True):
                before = np.zeros(DIM, np.float32) if push.terms else self.rows.get(number, np.zeros(DIM, np.float32))
                self.rows[number] = before + row if push.terms else before - row

    def answer(self, pull: PullTransfer) -> None:
        assert isinstance(pull.target, RowTarget)
        for cargo in cargoes_of(pull):
            self.messages.append(cargo)
            found = [self.rows.get(number, np.zeros(DIM, np.float32)) for number in cargo.wanted.tolist()]
            pull.target.land([cargo], [np.stack(found)] if found else [], [1])

    def push(self, ids: Any, grads: Any, **options: Any) -> PushTransfer:
        transfer = pushing(self.requests, ids, grads, **options)
        self.apply(transfer)
        return transfer

    def pull(self, ids: Any, out: Any = None) -> Any:
        transfer, result = pulling(self.requests, ids, out)
        self.answer(transfer)
        return result(None)


def of_job(shards: int = 2, **options: Any) -> RowRequests:
    """Return what makes transfers of the table of a job with some options."""
    job = replace(JOB, **options)
    placement = Placement.balance(KeySpace.of(job), shards)
    return Requests(Attached(job, placement), Handover()).table(job.tables[-1].name)


def pushing(requests: RowRequests, ids: Any, grads: Any, *options: Any, **more: Any) -> PushTransfer:
    exchange, result = requests.exchange(Brought(ids, grads, *options, **more))
    assert exchange.push is not None
    assert exchange.pull is result is None
    return exchange.push


def pulling(requests: RowRequests, *wanted: Any) -> tuple[PullTransfer, Callable[[Any], Any]]:
    exchange, result = requests.exchange(None, Wanted(*wanted))
    assert exchange.pull is not None
    assert result is not None
    assert exchange.push is None
    return exchange.pull, result


def push_pulling(
    requests: RowRequests, ids: Any, grads: Any, next_ids: Any, codec: Any = None, pull_codec: Any = None
) -> tuple[PushTransfer, PullTransfer, Callable[[Any], Any]]:
    brought = Brought(ids, grads, codec=codec)
    exchange, result = requests.exchange(brought, Wanted(next_ids, codec=pull_codec))
    assert exchange.push is not None
    assert exchange.pull is not None
    assert result is not None
    return exchange.push, exchange.pull, result


def cargoes_of(transfer: PushTransfer | PullTransfer) -> list[RowCargo]:
    found = [cargo for row in transfer.cargoes for cargo in row]
    assert all(isinstance(cargo, RowCargo) for cargo in found)
    return [cargo for cargo in found if isinstance(cargo, RowCargo)]


def ids_of(transfer: PushTransfer | PullTransfer) -> list[int]:
    """Return the ids that a push brings, or a pull asks for."""
    arrays = [cargo.pushed if isinstance(transfer, PushTransfer) else cargo.wanted for cargo in cargoes_of(transfer)]
    return sorted(number for array in arrays for number in array.tolist())


def ones(*shape: int) -> Array:
    return np.ones((*shape, DIM), np.float32)


# --- ids ----------------------------------------------------------------------------------------


@for_each("dtype, ends", ENDS)
def test_ids_may_be_of_any_whole_number(dtype: np.dtype[Any], ends: list[int]) -> None:
    servers = Servers()
    ids = np.array(ends, dtype)
    expected = sorted(number - (1 << 64) if number >= 1 << 63 else number for number in ends)
    assert ids_of(servers.push(ids, -ones(3))) == expected
    assert ids_of(pulling(servers.requests, ids)[0]) == expected
    assert np.array_equal(servers.pull(np.array(expected)), ones(3))


def test_unsigned_ids_are_the_signed_ones_of_their_bits() -> None:
    servers = Servers()
    servers.push(np.array([2**64 - 1, 2**63], np.uint64), -ones(2))
    assert set(servers.rows) == {-1, -(2**63)}
    assert np.array_equal(servers.pull(np.array([-1, -(2**63), 2**63 - 1])), [*ones(2), np.zeros(DIM)])


@for_each(
    "ids",
    [
        [4, -2],
        (4, -2),
        np.array([4, -2]),
        np.array([4, -2], ">i8"),
        np.array([4, -2], "<i2"),
        np.array([4, 0, -2, 0])[::2],
        np.array([-2, 4])[::-1],
        array("q", [4, -2]),
    ],
    ids=["list", "tuple", "int64", "big endian", "int16", "strided", "reversed", "array of the standard library"],
)
def test_ids_may_come_in_anything_that_is_an_array(ids: Any) -> None:
    servers = Servers()
    servers.push([4, -2], [[-1.0] * DIM, [-2.0] * DIM])
    assert np.array_equal(servers.pull(ids), [[1.0] * DIM, [2.0] * DIM])


def test_a_range_is_ids() -> None:
    servers = Servers()
    servers.push(range(5, 8), -ones(3))
    assert np.array_equal(servers.pull(range(4, 9))[:, 0], [0, 1, 1, 1, 0])


@for_each("shape", [(), (1,), (6,), (2, 3), (3, 1, 2), (0,), (0, 4), (2, 0)])
def test_rows_have_the_shape_of_their_ids(shape: tuple[int, ...]) -> None:
    servers = Servers()
    ids = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    grads = -np.arange(ids.size * DIM, dtype=np.float32).reshape(*shape, DIM)
    servers.push(ids, grads)
    for some in (ids, ids.copy(order="F"), ids.tolist() if ids.size else ids):
        rows = servers.pull(some)
        assert (rows.shape, rows.dtype.name) == ((*shape, DIM), "float32")
        assert np.array_equal(rows, -grads)


@for_each("one", [7, np.int64(7), np.array(7), np.array(7, np.uint8), np.uint64(7)])
def test_one_id_alone_has_one_row(one: Any) -> None:
    servers = Servers()
    servers.push(one, -np.ones(DIM))
    assert servers.pull(one).tolist() == [1.0] * DIM
    assert servers.pull(7).shape == (DIM,)


@for_each(
    "ids", [np.array([1.0, 2.0]), [1.0, 2.0], [2**63, -1], [True, False], ["1"], [2**70], np.array([1j]), None, {1, 2}]
)
def test_what_is_not_whole_numbers_is_refused_by_the_name_of_the_table(ids: Any) -> None:
    requests = of_job()
    calls: list[Callable[[], Any]] = [
        lambda: pulling(requests, ids),
        lambda: pushing(requests, ids, ones(2)),
        lambda: requests.load(ids, ones(2), False),
        lambda: push_pulling(requests, ids, ones(2), [1]),
        lambda: push_pulling(requests, [1], ones(1), ids),
    ]
    for call in calls:
        with pytest.raises(DtypeError, match="ids for items"):
            call()


def test_a_million_times_one_id_is_one_row() -> None:
    servers = Servers()
    ids = np.full(1_000_000, -9)
    push = servers.push(ids, np.broadcast_to(np.float32(-1.0), (ids.size, DIM)))
    assert ids_of(push) == [-9]
    assert servers.rows[-9].tolist() == [1_000_000.0] * DIM
    pull, result = pulling(servers.requests, ids)
    assert ids_of(pull) == [-9]
    servers.answer(pull)
    rows = result(None)
    assert rows.shape == (1_000_000, DIM)
    assert (rows == 1_000_000.0).all()


@given(st.lists(st.integers(-4, 4) | st.integers(-(2**63), 2**63 - 1), max_size=50), st.integers(1, 4))
def test_a_batch_is_summed_by_id_and_read_by_position(numbers: list[int], shards: int) -> None:
    servers = Servers(shards=shards)
    ids = np.array(numbers, np.int64)
    grads = np.arange(ids.size * DIM, dtype=np.float32).reshape(-1, DIM)
    assert ids_of(servers.push(ids, grads)) == sorted(set(numbers))
    for number in set(numbers):
        assert np.array_equal(servers.rows[number], -grads[ids == number].sum(axis=0))
    rows = servers.pull(ids)
    assert all(np.array_equal(row, servers.rows[number]) for number, row in zip(numbers, rows, strict=True))


def test_ids_and_gradients_may_change_once_they_were_handed_over() -> None:
    servers = Servers()
    ids, grads = np.array([1, 2]), -ones(2)
    push = pushing(servers.requests, ids, grads)
    pull, result = pulling(servers.requests, ids)
    ids[:], grads[:] = 99, 99.0
    servers.apply(push)
    servers.answer(pull)
    assert set(servers.rows) == {1, 2}
    assert np.array_equal(result(None), ones(2))


# --- nothing ------------------------------------------------------------------------------------


@for_each("nothing", [[], (), range(0), np.empty(0, np.int64), np.empty((0, 5), np.uint8), [[], []]])
def test_an_empty_batch_asks_nobody(nothing: Any) -> None:
    servers = Servers()
    shape = np.shape(nothing)
    assert not cargoes_of(servers.push(nothing, np.empty((*shape, DIM), np.float32)))
    assert not cargoes_of(pulling(servers.requests, nothing)[0])
    assert servers.pull(nothing).shape == (*shape, DIM)
    assert not servers.messages
    assert not servers.rows


def test_an_empty_batch_of_a_step_tells_every_shard_of_a_push() -> None:
    push = Servers(mode="sync", shards=3).push([], np.empty((0, DIM)))
    assert [len(row) for row in push.cargoes] == [1, 1, 1]
    assert all(cargo.begins for cargo in cargoes_of(push))
    assert not cargoes_of(Servers(mode="bounded", staleness=2, shards=3).push([], np.empty((0, DIM))))


# --- gradients ----------------------------------------------------------------------------------


@for_each("dtype", ["float16", "float32", "float64", ">f4", ">f8"])
@for_each("lay", [lambda a: a, np.asfortranarray, lambda a: np.repeat(a, 2, axis=0)[::2], lambda a: a.tolist()])
def test_gradients_may_be_of_any_floating_dtype_and_lie_as_they_like(dtype: str, lay: Callable[[Array], Any]) -> None:
    servers = Servers()
    grads = np.arange(4 * DIM).reshape(4, DIM).astype(dtype)
    push = servers.push([1, 2, 1, 3], lay(grads))
    assert isinstance(push.source, RowSource)
    assert push.source.rows.dtype == np.float32
    assert np.array_equal(servers.rows[1], -(grads[0] + grads[2]))
    assert np.array_equal(servers.rows[3], -grads[3])


def test_gradients_may_be_read_only_and_unaligned() -> None:
    servers = Servers()
    grads = -ones(2)
    raw = np.frombuffer(b"x" + grads.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, DIM)
    assert not raw.flags.aligned
    servers.push([1, 2], raw)
    assert np.array_equal(servers.pull([1, 2]), ones(2))


@for_each("shape", [(3, DIM), (2,), (2, DIM + 1), (DIM,), (2, DIM, 1), (1, 2, DIM), (0, DIM), ()])
def test_gradients_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    requests = of_job()
    with pytest.raises(ShapeError, match=r"gradients for items.*expected \(2, 3\)"):
        pushing(requests, [1, 2], np.zeros(shape))
    with pytest.raises(ShapeError, match=r"values for items.*expected \(2, 3\)"):
        requests.load([1, 2], np.zeros(shape), False)


@for_each("dtype", ["int32", "bool", "complex64", "S1", "O"])
def test_gradients_that_are_no_floating_numbers_are_refused(dtype: str) -> None:
    with pytest.raises(DtypeError, match="gradients for items"):
        pushing(of_job(), [1, 2], np.zeros((2, DIM), dtype))


@for_each("bad", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_named_and_not_sent(bad: float) -> None:
    grads = ones(4)
    grads[2, 1] = bad
    push = pushing(of_job(), [5, 6, -7, 5], grads)
    assert (push.source.checked, list(push.source.nonfinite)) == (False, ["items[-7]"])
    allowed = pushing(of_job(nonfinite="allow"), [5, 6, -7, 5], grads)
    assert (allowed.source.checked, list(allowed.source.nonfinite)) == (True, [])


def test_what_overflows_is_not_finite() -> None:
    requests = of_job()
    push = pushing(requests, [1, 2, 2], np.array([[1.0], [LARGEST], [LARGEST]]) * np.ones(DIM))
    assert list(push.source.nonfinite) == ["items[2]"]
    push = pushing(requests, [1, 2], np.array([[1e300], [1.0]]) * np.ones(DIM))
    assert list(push.source.nonfinite) == ["items[1]"]


def test_a_push_says_how_many_examples_it_is_of() -> None:
    assert pushing(of_job(), [1], ones(1), 12).examples == 12
    for wrong in (0, -1, 1.5, True, None, 1 << 63):
        with pytest.raises(ConfigurationError, match="examples"):
            pushing(of_job(), [1], ones(1), wrong)  # type: ignore[arg-type]


# --- steps --------------------------------------------------------------------------------------

W = Parameter("w", (2,), "float32")
USERS = replace(ITEMS, name="users")
FROZEN = sgd(1.0, groups=[group("w", frozen=True)]).to_wire()


@for_each(
    "options, ends",
    [
        ({}, True),
        ({"tables": (USERS, ITEMS)}, False),
        ({"parameters": (W,)}, False),
        ({"parameters": (replace(W, buffer=True),)}, True),
        ({"parameters": (W,), "optimizer": FROZEN}, True),
    ],
    ids=["alone", "with another table", "beside parameters", "beside a buffer", "beside what is frozen"],
)
@for_each("mode", ["sync", "bounded"])
def test_a_push_ends_the_step_where_there_is_nothing_else_to_train(
    options: dict[str, Any], ends: bool, mode: str
) -> None:
    requests = of_job(**MODES[mode], **options)
    assert pushing(requests, [1], ones(1)).whole is ends
    assert push_pulling(requests, [1], ones(1), [2])[0].whole is ends
    for said in (True, False):
        assert pushing(requests, [1], ones(1), 1, None, said).whole is said
        assert requests.load([1], ones(1), said).whole is said
    with pytest.raises(ConfigurationError, match="step"):
        pushing(requests, [1], ones(1), 1, None, "yes")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="step"):
        requests.load([1], ones(1), None)  # type: ignore[arg-type]


@for_each("mode, shards_told", [("async", 1), ("bounded", 1), ("sync", 4)])
def test_every_shard_is_told_of_a_push_that_is_a_part_of_a_step(mode: str, shards_told: int) -> None:
    push = pushing(of_job(4, **MODES[mode]), [1], ones(1))
    assert sum(map(bool, push.cargoes)) == shards_told


def test_a_push_and_a_pull_are_one_round_trip_where_nothing_waits_for_others() -> None:
    for mode in MODES:
        requests = of_job(**MODES[mode])
        push, pull, _ = push_pulling(requests, [1, 2, 1], ones(3), [2, 9])
        assert (push.cargoes is pull.cargoes) == (mode == "async")
        assert ids_of(push) == [1, 2]
        assert ids_of(pull) == [2, 9]


def test_the_rows_of_a_push_pull_are_those_after_it() -> None:
    servers = Servers()
    push, pull, result = push_pulling(servers.requests, [1, 2, 1], -ones(3), [[2, 9], [1, 1]])
    servers.apply(push)
    servers.answer(pull)
    assert np.array_equal(result(None)[..., 0], [[1.0, 0.0], [2.0, 2.0]])


# --- codecs -------------------------------------------------------------------------------------


def test_rows_travel_in_the_jobs_codec_or_in_that_of_the_call() -> None:
    requests = of_job(push_codec="bf16", pull_codec="int8:block=64")
    assert pushing(requests, [1], ones(1)).source.codec == "bf16"
    assert pushing(requests, [1], ones(1), 1, codecs.fp16()).source.codec == "fp16"
    assert pulling(requests, [1])[0].target.codec == "int8:block=64"
    assert pulling(requests, [1], None, "raw")[0].target.codec == "raw"
    push, pull, _ = push_pulling(requests, [1], ones(1), [2], "raw", "bf16")
    assert (push.source.codec, pull.target.codec) == ("raw", "bf16")
    assert requests.load([1], ones(1), False).source.codec == "raw"


@for_each("codec", ["topk:fraction=0.1", "onebit", "twobit"])
def test_codecs_that_leave_something_out_are_not_for_rows(codec: str) -> None:
    requests = of_job(push_codec=codec)
    assert pushing(requests, [1], ones(1)).source.codec == "raw"
    with pytest.raises(ConfigurationError, match="leaves values out"):
        pushing(requests, [1], ones(1), 1, codec)
    with pytest.raises(ConfigurationError, match="leaves values out"):
        push_pulling(requests, [1], ones(1), [1], codec)
    with pytest.raises(ConfigurationError, match="what is pulled is read once"):
        pulling(requests, [1], None, codec)


# --- where rows go ------------------------------------------------------------------------------


@for_each("dtype", ["float16", "float32", "float64", ">f4"])
@for_each("lay", [lambda a: a, np.asfortranarray, lambda a: np.repeat(a, 2, axis=1)[:, ::2]])
def test_rows_go_to_where_they_are_wanted(dtype: str, lay: Callable[[Array], Array]) -> None:
    servers = Servers()
    servers.push([1, 2], [[-1.5] * DIM, [-2.5] * DIM])
    out = lay(np.full((2, 2, DIM), 9.0, dtype))
    assert servers.pull([[2, 1], [3, 2]], out) is out
    assert np.array_equal(out[..., 0], [[2.5, 1.5], [0.0, 2.5]])
    assert np.array_equal(out[..., 0], out[..., DIM - 1])


def test_rows_go_to_the_array_of_one_id_and_of_none() -> None:
    servers = Servers()
    servers.push(1, -np.ones(DIM))
    one, none = np.zeros(DIM), np.zeros((0, DIM), np.float32)
    assert servers.pull(1, one) is one
    assert one.tolist() == [1.0] * DIM
    assert servers.pull([], none) is none


def test_rows_are_written_in_place_where_they_are_float32() -> None:
    out = np.zeros((2, DIM), np.float32)
    transfer, _ = pulling(of_job(), [1, 2], out)
    assert isinstance(transfer.target, RowTarget)
    assert np.shares_memory(transfer.target.out, out)


@for_each("shape", [(2,), (2, DIM + 1), (3, DIM), (DIM,), (1, 2, DIM)])
def test_an_array_of_another_shape_holds_no_rows(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"expected \(2, 3\)"):
        pulling(of_job(), [1, 2], np.zeros(shape, np.float32))


def test_what_cannot_be_written_holds_no_rows() -> None:
    fixed = ones(2)
    fixed.flags.writeable = False
    wrong: list[Any] = [fixed, ones(2).tolist(), np.zeros((2, DIM), np.int64), "rows"]
    for out in wrong:
        with pytest.raises(DtypeError):
            pulling(of_job(), [1, 2], out)


# --- values -------------------------------------------------------------------------------------


def test_of_values_for_one_id_the_last_counts() -> None:
    servers = Servers()
    push = servers.requests.load([4, 5, 4, 4], np.arange(4 * DIM, dtype=np.float64).reshape(4, DIM), False)
    assert tuple(push.terms) == (SET,)
    servers.apply(push)
    assert servers.rows[4].tolist() == [9.0, 10.0, 11.0]
    assert servers.rows[5].tolist() == [3.0, 4.0, 5.0]


def test_values_that_are_not_finite_are_refused_unless_they_are_allowed() -> None:
    values = ones(3)
    values[1, 0] = np.nan
    with pytest.raises(ConfigurationError, match=r"the value of items\[-6\] contains NaN"):
        of_job().load([5, -6, 7], values, False)
    assert ids_of(of_job(nonfinite="allow").load([5, -6, 7], values, False)) == [-6, 5, 7]
    assert ids_of(of_job().load([5, 5, 5], values, False)) == [5], "what is set over is not looked at"


# --- scans and names ----------------------------------------------------------------------------


def test_each_part_of_a_table_is_scanned_by_itself() -> None:
    requests = of_job(3)
    assert requests.num_parts == 3
    for number in range(3):
        pull, target = requests.scan(number, 7, 50)
        assert isinstance(target, ScanTarget)
        assert (target.start, target.most, target.dim) == (7, 50, DIM)
        assert pull.target is target
        assert [len(row) for row in pull.cargoes] == [int(shard == number) for shard in range(3)]


def test_a_table_that_there_is_not_is_named_with_the_nearest() -> None:
    job = replace(JOB, tables=(ITEMS, USERS))
    requests = Requests(Attached(job, Placement.balance(KeySpace.of(job), 2)), Handover())
    assert requests.table("users").spec == USERS
    with pytest.raises(UnknownParameterError, match="did you mean 'items'"):
        requests.table("itms")
    for wrong in ("w", "", None, 3):
        with pytest.raises(UnknownParameterError):
            requests.table(wrong)  # type: ignore[arg-type]


def test_after_a_move_transfers_go_to_the_new_shards() -> None:
    requests = Requests(Attached(JOB, Placement.balance(KeySpace.of(JOB), 2)), Handover())
    before = requests.table("items")
    assert requests.table("items") is before
    requests.lie(Placement.balance(KeySpace.of(JOB), 3))
    assert requests.table("items").num_parts == 3


# --- other libraries ----------------------------------------------------------------------------


def test_ids_and_rows_may_be_tensors() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    servers = Servers()
    for dtype in (torch.int64, torch.int32, torch.uint8):
        ids = torch.tensor([[1, 2], [2, 3]], dtype=dtype)
        for kind in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            servers.rows.clear()
            servers.push(ids, -torch.ones((2, 2, DIM), dtype=kind, requires_grad=True))
            assert np.array_equal(servers.pull(ids)[..., 0], [[1.0, 2.0], [2.0, 1.0]])
            out = torch.zeros((2, 2, DIM), dtype=kind)
            assert servers.pull(ids, out) is out
            assert out[..., 0].float().tolist() == [[1.0, 2.0], [2.0, 1.0]]
            assert servers.pull(ids[0, 1]).tolist() == [2.0] * DIM
            assert servers.pull(ids.T, out.transpose(0, 1))[0, 1, 0] == 2.0
    with pytest.raises(DtypeError, match="ids for items"):
        servers.pull(torch.tensor([1.0]))
