"""A worker that comes back: after it was presumed dead, after it heard nobody any more, and where nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import PATIENCE, InProcessCluster
from tests.modes import MODES
from tests.net.proxy import Proxy
from tests.pace import stretch
from zmqps.client.futures import begins
from zmqps.core.job.data import DataSpec
from zmqps.core.protocol.events import Stop

pytestmark = pytest.mark.processes

ONE = {"w": np.ones(4, np.float32)}
#: Seconds after which whoever says nothing is lost here.
LOST_AFTER = 3.0


class Wire(Proxy):
    """A way to the coordinator that can be cut: then it takes connections, and nothing goes through them."""

    def __init__(self, cluster: InProcessCluster) -> None:
        super().__init__(seed=0)
        self._cluster, self._whole = cluster, asyncio.Event()
        self.entrance = ""
        self._whole.set()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, way: int) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(sink):
            while data := await source.read(1 << 17):
                await self._whole.wait()
                sink.write(data)
                await sink.drain()

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Cut it for a while; what was under way arrives then."""
        self._cluster._loop.call_soon_threadsafe(self._whole.clear)
        try:
            yield
        finally:
            self._cluster._loop.call_soon_threadsafe(self._whole.set)


@contextlib.contextmanager
def training(mode: str = "async") -> Iterator[tuple[InProcessCluster, Wire, zmqps.Worker]]:
    """Start a cluster and its worker, which reaches the coordinator by a wire and has pushed once."""
    with InProcessCluster(workers=1, heartbeat_interval=0.2, heartbeat_timeout=stretch(LOST_AFTER)) as cluster:
        wire = Wire(cluster)

        def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
            return asyncio.run_coroutine_threadsafe(coroutine, cluster._loop).result(PATIENCE)

        try:
            wire.entrance = run(wire.before(cluster.address))
            with zmqps.connect(wire.entrance, timeout=PATIENCE, name="back") as worker:
                worker.init(
                    {"w": np.zeros(4, np.float32)},
                    optimizer=zmqps.optim.sgd(1.0),
                    **MODES[mode],
                    timeout=PATIENCE,
                )
                worker.push(ONE, timeout=PATIENCE)
                yield cluster, wire, worker
        finally:
            run(wire.close())


def test_who_has_lost_the_coordinator_rejoins_as_soon_as_it_is_reached_again() -> None:
    with training() as (cluster, wire, worker):
        with wire.cut():
            with pytest.raises(zmqps.PeerLostError, match=r"lost the coordinator .*worker.rejoin\(\) brings it back"):
                worker.barrier("nobody answers", timeout=PATIENCE)
            for call in (worker.rejoin, worker.pull):
                with pytest.raises(zmqps.DeadlineError, match="waiting for the coordinator at"):
                    call(timeout=0.5)
        worker.rejoin(timeout=PATIENCE)
        assert (worker.pull(timeout=PATIENCE)["w"] == -1).all()
        worker.push(ONE, timeout=PATIENCE)
        assert (worker.pull(timeout=PATIENCE)["w"] == -2).all()
        cluster.wait_until(lambda status: sum(member["role"] == "worker" for member in status["members"]) == 1)
        assert worker.rank == 0


def test_a_lost_server_leaves_nothing_to_rejoin() -> None:
    with training() as (cluster, _, worker):
        cluster._loop.call_soon_threadsafe(cluster.drivers[1].submit, Stop("the test takes it away"))
        cluster.wait_until(lambda status: any(gone["role"] == "server" for gone in status["gone"]))
        with pytest.raises(zmqps.PeerLostError, match=r"lost server 0 .* are lost; begin the job again") as lost:
            worker.pull(timeout=PATIENCE)
        with pytest.raises(zmqps.PeerLostError) as again:
            worker.rejoin(timeout=PATIENCE)
        assert str(again.value) == str(lost.value)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_every_call_that_waits_says_that_the_coordinator_is_gone(mode: str) -> None:
    data = DataSpec(name="data", num_examples=8, range_size=4)
    with training(mode) as (_, wire, worker), zmqps.connect(wire.entrance, timeout=PATIENCE, job="next") as other:
        with wire.cut():
            waiting: dict[str, Future[Any]] = {
                "init": begins(zmqps.Worker.init)(
                    other, ONE, optimizer=zmqps.optim.sgd(1.0), mode="async", timeout=PATIENCE
                ),
                "barrier": begins(zmqps.Worker.barrier)(worker, "all", timeout=PATIENCE),
                "ranges": worker._exchanges.take(data, None, PATIENCE),
                "status": begins(zmqps.Worker.status)(worker, timeout=PATIENCE),
            }
            if mode != "async":  # otherwise it is the servers' business alone
                worker.push_async(ONE, timeout=PATIENCE)
                waiting["pull"] = worker.pull_async(timeout=PATIENCE)  # of the next step
            for call, future in waiting.items():
                lost = future.exception(PATIENCE)
                assert isinstance(lost, zmqps.PeerLostError), (call, lost)
                assert str(lost).startswith("lost the coordinator at tcp://127.0.0.1:"), call
