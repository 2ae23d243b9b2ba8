"""A sender that is faster than its server costs neither of them memory, also when the server stops for a while."""

from __future__ import annotations

import os
import signal

import numpy as np
import psutil
import pytest

import zmqps
from tests.pace import allow
from zmqps.core.worker.connections.link import PROBE_S, WINDOW_NBYTES

MODEL_NBYTES = 8 << 20
PUSHES = 64
#: The window, once as it is and once in the sockets or the lane, and what allocators keep.
ALLOWED_NBYTES = 4 * WINDOW_NBYTES


def resident(pid: int) -> int:
    return psutil.Process(pid).memory_info().rss


@pytest.mark.parametrize(
    ("transport", "seconds"),
    [
        ("tcp", 0.3),
        # so long that what is in flight is sent again
        pytest.param("tcp", PROBE_S + 0.5, marks=pytest.mark.processes),
        pytest.param("shm", PROBE_S + 0.5, marks=pytest.mark.processes),
    ],
)
def test_pushes_to_a_stopped_server_do_not_pile_up(transport: str, seconds: float) -> None:
    gradient = np.ones(MODEL_NBYTES // 4, np.float32)
    with (
        zmqps.LocalCluster(zmqps.Servers(kernels="numpy"), limits=zmqps.Limits(heartbeat_timeout=60.0)) as cluster,
        zmqps.connect(cluster.address, transport=transport) as worker,
    ):
        worker.init({"w": np.zeros_like(gradient)}, optimizer=zmqps.optim.sgd(1.0), mode="async", push_codec="bf16")
        values = np.zeros_like(gradient)
        for _ in range(3):  # pages get mapped, sockets find their sizes
            worker.push_pull({"w": gradient}, out={"w": values})
        server = cluster.pids["server-0"]
        before = resident(os.getpid()), resident(server)
        os.kill(server, signal.SIGSTOP)
        try:
            futures = [worker.push_async({"w": gradient}, timeout=allow(50.0)) for _ in range(PUSHES)]
            with pytest.raises(zmqps.DeadlineError):  # by then all was sent that can be
                worker.push({"w": gradient}, timeout=seconds)
            waiting = resident(os.getpid())
            in_flight = worker.statistics().in_flight_bytes
        finally:
            os.kill(server, signal.SIGCONT)
        for future in futures:
            future.result()
        after = resident(os.getpid()), resident(server)
        worker.pull(out={"w": values})
        worker.finish()
    assert 0 < in_flight <= WINDOW_NBYTES
    assert waiting - before[0] < ALLOWED_NBYTES
    assert after[0] - before[0] < ALLOWED_NBYTES
    assert after[1] - before[1] < ALLOWED_NBYTES
    # what was asked for is many times more, and each push counted once; the one given up, once or not at all
    assert PUSHES * MODEL_NBYTES > 7 * ALLOWED_NBYTES
    assert set(np.unique(values)) <= {-3.0 - PUSHES, -4.0 - PUSHES}
