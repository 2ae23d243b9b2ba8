"""`zmqps.aio`: the worker, to await."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.pace import allow
from tests.tables import for_each
from zmqps.core.worker.layout.rollbacks import Rollback
from zmqps.errors import ClosedError, ConfigurationError, DeadlineError, UnknownParameterError

PARAMS = {"w": np.zeros((4, 3), np.float32)}
GRADS = {"w": np.ones((4, 3), np.float32)}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with InProcessCluster() as cluster:
        yield cluster.address


async def start(worker: zmqps.aio.AsyncWorker) -> None:
    await worker.init(PARAMS, optimizer=zmqps.optim.sgd(learning_rate=1.0), mode="async")


def test_everything_of_a_worker_can_be_awaited(address) -> None:
    async def main() -> None:
        async with zmqps.aio.connect(address, name="a") as worker:
            await start(worker)
            before = (await worker.pull())["w"]
            await worker.push(GRADS)
            after = await worker.push_pull(GRADS)
            np.testing.assert_array_equal(after["w"], before - 2.0)
            buffers = await worker.gradient_buffers()
            buffers["w"][...] = 1.0
            looked_at = await worker.push_pull(buffers, copy=False)
            np.testing.assert_array_equal(looked_at["w"], before - 3.0)
            assert not looked_at["w"].flags.writeable
            await worker.barrier("here", timeout=allow(10.0))
            assert (worker.rank, worker.num_workers, worker.steps_left_out) == (0, 1, 0)
            assert [m["name"] for m in (await worker.status())["members"]] == ["server-0", "a"]
            assert (await worker.statistics()).pushes == 3
            await worker.finish()
            assert (await worker.statistics()).pushes == 3
            with pytest.raises(ClosedError):
                await worker.pull()
            await worker.close()

    asyncio.run(main())


def test_a_rollback_is_told_in_the_loop_before_values_that_went_back(address) -> None:
    async def main() -> None:
        said: list[tuple[object, int]] = []
        async with zmqps.aio.connect(address) as worker:
            await start(worker)
            worker.on_rollback(lambda rollback: said.append((rollback, threading.get_ident())))
            rollback = Rollback(version=1, shards=(0,), lost=2, state={}, path="somewhere")
            *_, listener = worker._worker._member.connection.listeners
            values = Future[None]()

            def receive() -> None:  # as the session's background thread does
                listener(rollback)
                values.set_result(None)

            background = threading.Thread(target=receive)
            background.start()
            await asyncio.wrap_future(values)
            background.join()
            assert said == [(rollback, threading.get_ident())]
            with pytest.raises(ConfigurationError, match="callback"):
                worker.on_rollback(3)  # type: ignore[arg-type]

    asyncio.run(main())


def test_workers_can_share_a_loop_and_each_can_do_many_things_at_once(address) -> None:
    async def main() -> None:
        one, two = await asyncio.gather(zmqps.aio.connect(address), zmqps.aio.connect(address))
        async with one, two:
            await asyncio.gather(start(one), start(two))
            before = (await one.pull())["w"]
            await asyncio.gather(*(worker.push(GRADS) for worker in (one, two) for _ in range(10)))
            np.testing.assert_array_equal((await two.pull())["w"], before - 20.0)

    asyncio.run(main())


def test_a_cancelled_wait_leaves_the_operation_to_its_end(address) -> None:
    async def main() -> None:
        async with zmqps.aio.connect(address) as worker, zmqps.aio.connect(address) as other:
            await start(worker)
            waiting = asyncio.create_task(worker.barrier("later", timeout=allow(10.0)))
            while not any("later" in text for text in (await other.status())["waiting"]):
                pass
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await other.barrier("later", timeout=allow(10.0))  # the first is still in it

    asyncio.run(main())


def test_errors_are_those_of_the_worker(address) -> None:
    async def main() -> None:
        async with zmqps.aio.connect(address) as worker:
            await start(worker)
            with pytest.raises(UnknownParameterError):
                await worker.push({"v": GRADS["w"]})
        with pytest.raises(DeadlineError):
            await zmqps.aio.connect("tcp://127.0.0.1:1", timeout=0.1)

    asyncio.run(main())


def test_a_cancelled_connect_closes_what_comes_of_it(address) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await zmqps.aio.connect(address)

    asyncio.run(main())
    for thread in threading.enumerate():
        if thread.name.startswith("zmqps-aio"):
            thread.join(allow(30.0))  # it connects and closes yet; the check for leaks has the last word


def test_partial_pushes_become_a_step_and_who_rejoins_goes_on_with_the_job() -> None:
    params = {"w": np.zeros(3, np.float32), "v": np.zeros(3, np.float32)}
    one = np.ones(3, np.float32)

    async def main() -> None:
        async with zmqps.aio.connect(cluster.address, name="a") as worker:
            await worker.init(params, optimizer=zmqps.optim.sgd(learning_rate=1.0), mode="sync")
            for name in params:
                await worker.push({name: one})
            assert (await worker.pull()).version == 0
            await worker.advance()
            pulled = await worker.pull()
            assert (pulled.version, pulled["w"].tolist(), pulled["v"].tolist()) == (1, [-1.0] * 3, [-1.0] * 3)
            await worker.rejoin(timeout=allow(20.0))
            assert ((await worker.statistics()).pushes, worker.rank) == (0, 0)
            assert (await worker.pull()).version == 1
            assert (await worker.push_pull(params)).version == 2
            await worker.finish()
            with pytest.raises(ClosedError, match="connect again"):
                await worker.rejoin()

    with InProcessCluster() as cluster:
        asyncio.run(main())


def test_advancing_without_anything_pushed_in_asynchronous_mode_does_nothing(address) -> None:
    async def main() -> None:
        async with zmqps.aio.connect(address) as worker:
            await start(worker)
            await worker.advance()
            assert (await worker.statistics()).pushes == 0

    asyncio.run(main())


#: What `AsyncWorker` and `AsyncTable` write by themselves: generators, and what ends them.
ITERATORS = {"pull_each", "ranges", "steps", "chunks"}
#: What there is nothing to await of.
AT_ONCE = {"log", "on_rollback", "cache_statistics"}
#: What only the blocking ones have: futures; and of tables what is done with files, and feeds.
BLOCKING = {"changes", "dim", "export", "load_file"}
NAMES = [
    (ours, theirs, name)
    for ours, theirs in ((zmqps.aio.AsyncWorker, zmqps.Worker), (zmqps.aio.AsyncTable, zmqps.Table))
    for name in dir(theirs)
    if not name.startswith("_") and not name.endswith("_async") and name not in BLOCKING
]


@for_each("ours, theirs, name", NAMES)
def test_names_arguments_and_texts_are_those_of_what_blocks(ours: Any, theirs: Any, name: str) -> None:
    found, other = getattr(ours, name), getattr(theirs, name)
    if isinstance(other, property):
        assert isinstance(found, property)
        assert found.__doc__ == other.__doc__
        return
    assert inspect.iscoroutinefunction(found) is (name not in ITERATORS | AT_ONCE)
    expected, signature = inspect.signature(other), inspect.signature(found)
    if name in ITERATORS or name == "table":
        assert signature.parameters == expected.parameters
    else:
        assert signature == expected
    assert found.__doc__


def test_tables_can_be_awaited() -> None:
    async def main(address: str) -> None:
        async with zmqps.aio.connect(address) as worker:
            await worker.init({}, tables={"t": zmqps.table(2, optimizer=zmqps.optim.sgd(1.0))}, mode="async")
            table = await worker.table("t", cache=zmqps.row_cache(10))
            assert repr(table) == "<zmqps.aio.AsyncTable 't'>"
            await table.push([1, 2], np.ones((2, 2)))
            rows = await table.push_pull([1], np.ones((1, 2)), [[1], [2]])
            np.testing.assert_array_equal(rows[:, 0, 0], [-2.0, -1.0])
            first, second = await asyncio.gather(table.pull([1]), table.pull([2]))
            assert (first[0, 0], second[0, 0]) == (-2.0, -1.0)
            await table.load([7], np.full((1, 2), 3.0))
            await table.flush()
            assert (await table.rows([7]))[0, 0] == 3.0
            assert (await table.statistics()).rows == 3
            assert sorted([id_ async for ids, _ in table.chunks(2) for id_ in ids.tolist()]) == [1, 2, 7]
            assert table.cache_statistics().hits
            with pytest.raises(UnknownParameterError):
                await worker.table("other")

    with InProcessCluster() as cluster:
        asyncio.run(main(cluster.address))
