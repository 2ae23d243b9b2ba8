"""Sparse tables as a script sees them: what is no table is said at once, and each call is one exchange."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.tables import for_each
from tests.team import PATIENCE
from zmqps import optim
from zmqps.client.futures import begins
from zmqps.client.requests import Requests
from zmqps.client.sparse.row_cache import RowCache
from zmqps.client.sparse.tables import Table, TableOptions, specs_of, table
from zmqps.client.sparse.whole import CHUNK_ROWS, TableStatistics
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.job.tables import MAX_DIM, TableSpec
from zmqps.core.protocol.arrays import Array
from zmqps.core.protocol.messages.rows import COUNTED, SCANNED
from zmqps.core.worker.operations import Attached, Exchange, Operation
from zmqps.core.worker.rows import RowCargo, RowSource, RowTarget, ScanTarget
from zmqps.core.worker.transfer import PullTransfer, PushTransfer
from zmqps.errors import ClosedError, ConfigurationError, JobError, OptimizerError, UnknownParameterError
from zmqps.gpu.handover import Handover
from zmqps.initial import constant, normal

SGD = optim.sgd(1.0)
SHARDS = 3


# --- what a table is ----------------------------------------------------------------------------


def test_a_table_is_described_by_its_options_and_named_by_init() -> None:
    options = table(
        64,
        optimizer=optim.rowwise_adagrad(0.05),
        initial=normal(0.01, seed=7),
        capacity_nbytes=1 << 30,
        when_full="evict",
        admit=3,
        expire_steps=1000,
        expire_seconds=60,
        step_counts="table",
        lazy_decay=True,
    )
    [spec] = specs_of({"items": options})
    assert spec == TableSpec(
        name="items",
        dim=64,
        optimizer=optim.rowwise_adagrad(0.05).to_wire(),
        initial=normal(0.01, seed=7).to_wire(),
        capacity_nbytes=1 << 30,
        when_full="evict",
        admit=3,
        expire_steps=1000,
        expire_s=60,
        step_counts="table",
        lazy_decay=True,
    )
    assert TableSpec.from_wire(spec.to_wire()) == spec


def test_rows_begin_with_zeros_and_stay_where_nothing_else_is_said() -> None:
    spec = table(4, optimizer=SGD).named("items")
    assert spec.initial == zmqps.initial.zeros().to_wire()
    assert (spec.capacity_nbytes, spec.when_full, spec.admit) == (None, "refuse", 1)
    assert (spec.expire_steps, spec.expire_s, spec.step_counts, spec.lazy_decay) == (None, None, "rows", False)


@for_each(
    "options, said",
    [
        ({"dim": 0}, "dim must be a whole number from 1 to 4096"),
        ({"dim": MAX_DIM + 1}, "dim must be"),
        ({"dim": 2.5}, "dim must be"),
        ({"optimizer": "sgd"}, "optimizer comes from zmqps.optim"),
        ({"optimizer": None}, "optimizer comes from zmqps.optim"),
        ({"initial": 0.0}, "initial comes from zmqps.initial"),
        ({"initial": normal}, "initial comes from zmqps.initial"),
        ({"capacity_nbytes": 0}, "capacity_nbytes must be"),
        ({"capacity_nbytes": 1e9}, "capacity_nbytes must be"),
        ({"when_full": "evict"}, "name capacity_nbytes"),
        ({"when_full": "panic"}, "when_full must be one of refuse, evict"),
        ({"admit": 0}, "admit must be"),
        ({"expire_steps": 0}, "expire_steps must be"),
        ({"expire_seconds": 0}, "expire_seconds must be"),
        ({"expire_seconds": math.nan}, "expire_seconds must be"),
        ({"step_counts": "pushes"}, "step_counts must be one of rows, table"),
        ({"lazy_decay": "yes"}, "lazy_decay must be True or False"),
    ],
)
def test_what_is_no_table_is_said_where_it_is_written(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        table(**{"dim": 4, "optimizer": SGD, **options})


def test_a_rule_with_more_slots_than_rows_have_is_said_where_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqps.optim.rows.MOST_SLOTS", 1)
    table(4, optimizer=optim.sgd(0.1, momentum=0.9))
    with pytest.raises(OptimizerError, match="'adam' is not for tables"):
        table(4, optimizer=optim.adam(0.1))


@for_each(
    "tables, said",
    [
        ([table(4, optimizer=SGD)], "tables must be a mapping"),
        ({"items": 4}, r"table 'items' is made by zmqps\.table"),
        ({"items": SGD}, r"table 'items' is made by zmqps\.table"),
        ({3: table(4, optimizer=SGD)}, "a table's name must be"),
        ({"": table(4, optimizer=SGD)}, "a table's name must be"),
        ({"two\nlines": table(4, optimizer=SGD)}, "a table's name must be"),
        ({"n" * 129: table(4, optimizer=SGD)}, "a table's name must be"),
    ],
)
def test_what_does_not_name_tables_is_refused(tables: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        specs_of(tables)


def test_no_tables_are_none() -> None:
    assert specs_of(None) == specs_of({}) == ()


def test_tables_can_be_had_from_the_package_and_hold_as_many_names_as_are_told() -> None:
    assert zmqps.table is table
    assert (zmqps.Table, zmqps.TableOptions, zmqps.TableStatistics) == (Table, TableOptions, TableStatistics)
    counted = ["bytes" if name == "nbytes" else name for name in COUNTED]
    assert [field.name for field in fields(TableStatistics)] == counted


# --- exchanges, with a member that knows the rows itself ----------------------------------------


class Member:
    """Stands for a worker and its servers: gradients are subtracted, scans go through places in the order of ids."""

    def __init__(self) -> None:
        tables = (table(2, optimizer=SGD).named("items"),)
        job = JobSpec(parameters=(), optimizer=SGD.to_wire(), mode="async", tables=tables, pull_codec="fp16")
        self.requests = Requests(Attached(job, Placement.balance(KeySpace.of(job), SHARDS)), Handover())
        self.rows: dict[int, Array] = {}
        self.shard_of: dict[int, int] = {}
        self.exchanges: list[Exchange] = []
        self.timeouts: set[float | None] = set()
        self.caches: dict[str, RowCache] = {}

    def reads_at(self) -> int | None:
        raise AssertionError("there is no cache that goes by steps")

    def job(self, timeout: float | None) -> Requests:
        self.timeouts.add(timeout)
        return self.requests

    def submit(
        self, operation: Operation, timeout: float | None, result: Callable[[Any], Any] | None = None
    ) -> Future[Any]:
        assert isinstance(operation, Exchange)
        self.exchanges.append(operation)
        self.timeouts.add(timeout)
        if operation.push is not None:
            self._apply(operation.push)
        if operation.pull is not None:
            self._answer(operation.pull)
        done = Future[Any]()
        done.set_result(None if result is None else result(None))
        return done

    def complete(self, operation: Operation, timeout: float | None, result: Callable[[Any], Any] | None = None) -> Any:
        return self.submit(operation, timeout, result).result()

    def _apply(self, push: PushTransfer) -> None:
        assert isinstance(push.source, RowSource)
        for cargo in cargoes_of(push):
            for at, number in enumerate(cargo.pushed.tolist()):
                row = push.source.rows[cargo.first + at]
                self.rows[number] = row if push.terms else self.rows.get(number, np.zeros(2, np.float32)) - row
                self.shard_of[number] = cargo.slice.shard

    def _answer(self, pull: PullTransfer) -> None:
        for cargo in cargoes_of(pull):
            if isinstance(pull.target, ScanTarget):
                pull.target.land([cargo], [self._scanned(cargo.slice.shard, pull.target)], [1])
            else:
                assert isinstance(pull.target, RowTarget)
                found = [self.rows.get(number, np.zeros(2, np.float32)) for number in cargo.wanted.tolist()]
                pull.target.land([cargo], [np.stack(found)] if found else [], [1])

    def _scanned(self, shard: int, target: ScanTarget) -> bytes:
        own = sorted(number for number, where in self.shard_of.items() if where == shard)
        stop = min(len(own), target.start + target.most)
        ids = np.array(own[target.start : stop], "<i8")
        told = {"count": ids.size, "next": stop if stop < len(own) else 0, "rows": len(own), "nbytes": 1000}
        told |= {"hits": shard, "new": 10 * shard, "waiting": 1}
        head = np.array([told.get(name, 0) for name in SCANNED], "<u8")
        rows = np.array([self.rows[number] for number in ids.tolist()], "<f4")
        return head.tobytes() + ids.tobytes() + rows.tobytes()


def cargoes_of(transfer: PushTransfer | PullTransfer) -> Iterator[RowCargo]:
    for row in transfer.cargoes:
        for cargo in row:
            assert isinstance(cargo, RowCargo)
            yield cargo


@pytest.fixture
def member() -> Member:
    return Member()


@pytest.fixture
def items(member: Member) -> Table:
    return Table(member, "items")


def test_each_call_is_one_exchange_with_its_timeout(member: Member, items: Table) -> None:
    ones = np.ones((2, 2), np.float32)
    calls: list[tuple[Callable[[], Any], tuple[bool, bool]]] = [
        (lambda: items.push([1, 2], ones, timeout=3.0), (True, False)),
        (lambda: items.pull([1, 2], timeout=3.0), (False, True)),
        (lambda: items.rows([1, 2], timeout=3.0), (False, True)),
        (lambda: items.push_pull([1, 2], ones, [1], timeout=3.0), (True, True)),
        (lambda: items.load([1, 2], ones, timeout=3.0), (True, False)),
        (lambda: items.push_async([1, 2], ones, timeout=3.0).result(), (True, False)),
        (lambda: items.pull_async([1, 2], timeout=3.0).result(), (False, True)),
        (lambda: items.push_pull_async([1, 2], ones, [1], timeout=3.0).result(), (True, True)),
        (lambda: begins(zmqps.Table.load)(items, [1, 2], ones, timeout=3.0).result(), (True, False)),
    ]
    for call, expected in calls:
        member.exchanges.clear()
        call()
        [exchange] = member.exchanges
        assert (exchange.push is not None, exchange.pull is not None) == expected
    assert member.timeouts == {3.0}


def test_what_is_pushed_is_pulled_in_the_shape_of_its_ids(items: Table) -> None:
    items.push([[5, 6], [5, 7]], -np.ones((2, 2, 2)))
    assert items.pull([5, 6, 7, 8])[:, 0].tolist() == [2.0, 1.0, 1.0, 0.0]
    following = items.push_pull(5, -np.ones(2), [[5], [6]])
    assert following[..., 1].tolist() == [[3.0], [1.0]]
    items.load([5, 6], np.full((2, 2), 9.0))
    assert items.rows([6, 5, 7])[:, 0].tolist() == [9.0, 9.0, 1.0]
    out = np.zeros((1, 2))
    assert items.pull([6], out=out) is out
    assert items.push_pull_async([7], np.zeros((1, 2)), [6], out=out).result() is out
    assert out.tolist() == [[9.0, 9.0]]


def test_rows_are_asked_for_as_they_are_whatever_the_codec(member: Member, items: Table) -> None:
    items.pull([1])
    items.pull([1], codec="bf16")
    items.rows([1])
    pulls = [exchange.pull for exchange in member.exchanges]
    assert [pull.target.codec for pull in pulls if pull is not None] == ["fp16", "bf16", "raw"]


def test_the_figures_are_those_of_all_shards(member: Member, items: Table) -> None:
    items.push(range(100), np.ones((100, 2)))
    member.exchanges.clear()
    assert items.statistics() == TableStatistics(rows=100, bytes=3000, hits=3, new=30, waiting=3)
    assert len(member.exchanges) == SHARDS
    assert len(items) == 100


@pytest.mark.parametrize("most", [1, 7, 100, CHUNK_ROWS])
def test_all_rows_come_once_in_chunks_of_so_many(most: int, member: Member, items: Table) -> None:
    items.push(range(100), np.arange(200).reshape(100, 2).astype(np.float32))
    seen: dict[int, list[float]] = {}
    for ids, rows in items.chunks(most):
        assert 0 < len(ids) == len(rows) <= most
        assert not seen.keys() & set(ids.tolist())
        seen |= dict(zip(ids.tolist(), rows.tolist(), strict=True))
    assert seen == {number: [-2.0 * number, -2.0 * number - 1.0] for number in range(100)}
    assert {number for ids, _ in items for number in ids.tolist()} == set(range(100))


def test_an_empty_table_has_no_chunks(items: Table) -> None:
    assert list(items) == []
    assert len(items) == 0
    assert items.statistics() == TableStatistics(bytes=3000, hits=3, new=30, waiting=3)


def test_chunks_have_a_row_at_least(items: Table) -> None:
    for wrong in (0, -1, 1.5, None):
        with pytest.raises(ConfigurationError, match="most must be a whole number"):
            next(items.chunks(wrong))  # type: ignore[arg-type]


def test_a_table_says_what_it_is(items: Table) -> None:
    assert (items.dim, items.name, repr(items)) == (2, "items", "<zmqps.Table 'items'>")


# --- with live nodes ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with InProcessCluster(servers=2) as cluster:
        yield cluster.address


def test_what_blocks_is_refused_in_a_callback_and_futures_go_on(address: str) -> None:
    with zmqps.connect(address, job="callback", timeout=PATIENCE) as worker:
        worker.init({}, tables={"t": table(2, optimizer=SGD, initial=constant(1.0))}, mode="async", timeout=PATIENCE)
        items = worker.table("t")
        blocking: list[Callable[[], Any]] = [
            lambda: items.pull([1]),
            lambda: items.rows([1]),
            lambda: items.push([1], np.ones((1, 2))),
            lambda: items.push_pull([1], np.ones((1, 2)), [1]),
            lambda: items.load([1], np.ones((1, 2))),
            lambda: items.statistics(),
            lambda: len(items),
            lambda: list(items),
        ]

        def look(_: Future[Any]) -> None:
            said = []
            for call in blocking:
                try:
                    call()
                except ConfigurationError as error:
                    said.append(str(error))
            told.set_result(said)

        said: list[str] = []
        while not said:  # a pull that is done by then calls back in this thread, which may wait
            told = Future[list[str]]()
            items.pull_async([1], timeout=PATIENCE).add_done_callback(look)
            said = told.result(PATIENCE)
        assert len(said) == len(blocking)
        assert all("must not wait there" in text for text in said)
        following = Future[Any]()
        items.pull_async([1], timeout=PATIENCE).add_done_callback(
            lambda _: items.pull_async([2], timeout=PATIENCE).add_done_callback(following.set_result)
        )
        assert following.result(PATIENCE).result().tolist() == [[1.0, 1.0]]


def test_a_future_brings_rows_while_something_else_is_done(address: str) -> None:
    with zmqps.connect(address, job="futures", timeout=PATIENCE) as worker:
        worker.init({}, tables={"t": table(2, optimizer=SGD)}, mode="async", timeout=PATIENCE)
        items, ids = worker.table("t"), np.arange(1000)
        pushes = [items.push_async(ids, np.full((1000, 2), -1.0), timeout=PATIENCE) for _ in range(20)]
        coming = items.pull_async(ids, timeout=PATIENCE)  # behind the pushes: it sees what they change
        assert (coming.result() == 20.0).all()
        assert all(push.done() for push in pushes)


def test_the_way_to_a_table_outlives_a_rejoin(address: str) -> None:
    with (
        zmqps.connect(address, job="rejoin", timeout=PATIENCE) as worker,
        zmqps.connect(address, job="rejoin", timeout=PATIENCE) as keeper,
    ):
        for member in (worker, keeper):
            member.init({}, tables={"t": table(2, optimizer=SGD)}, mode="async", timeout=PATIENCE)
        items = worker.table("t")
        items.push([4], -np.ones((1, 2)), timeout=PATIENCE)
        worker.rejoin(timeout=PATIENCE)
        assert items.push_pull([4], -np.ones((1, 2)), [4], timeout=PATIENCE).tolist() == [[2.0, 2.0]]


def test_there_is_no_table_before_there_is_a_job_and_none_after_a_close(address: str) -> None:
    with zmqps.connect(address, job="none", timeout=PATIENCE) as worker:
        with pytest.raises(JobError, match="no job is running yet"):
            worker.table("t")
        worker.init({}, tables={"t": table(2, optimizer=SGD)}, mode="async", timeout=PATIENCE)
        items = worker.table("t")
    with pytest.raises(ClosedError):
        items.pull([1])


def test_init_needs_an_optimizer_for_parameters_alone(address: str) -> None:
    with zmqps.connect(address, job="optimizer", timeout=PATIENCE) as worker:
        tables = {"t": table(2, optimizer=SGD)}
        with pytest.raises(ConfigurationError, match=r"optimizer comes from zmqps\.optim"):
            worker.init({"w": np.zeros(3)}, tables=tables, mode="async")
        with pytest.raises(ConfigurationError, match=r"optimizer comes from zmqps\.optim"):
            worker.init({}, tables={}, mode="async")
        with pytest.raises(ConfigurationError, match="at least one parameter, or a table"):
            worker.init({}, optimizer=SGD, mode="async")
        with pytest.raises(ConfigurationError, match="two parameters or tables are named 't'"):
            worker.init({"t": np.zeros(3)}, optimizer=SGD, mode="async", tables=tables)
        worker.init({}, tables=tables, mode="async", timeout=PATIENCE)
        with pytest.raises(UnknownParameterError, match="'t'"):
            worker.table("w")
