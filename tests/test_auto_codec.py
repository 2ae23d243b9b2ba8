"""A job that leaves to its workers how gradients travel: few bytes over a slow wire, exact ones through memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import zmqps
from tests.net.slowlink import SlowLink, slowed
from zmqps.codecs import auto
from zmqps.core.worker.choice import NUM_SAMPLES
from zmqps.errors import ConfigurationError
from zmqps.optim import sgd

pytestmark = pytest.mark.processes

#: 100 Mbit/s.
SLOW_BYTES_PER_S = 12.5e6
SIZE = 250_000


@pytest.fixture
def slow_wire(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowLink]:
    """Put a slow wire between this process's workers and their servers."""
    with slowed(monkeypatch, SLOW_BYTES_PER_S) as wire:
        yield wire


def pushed(worker: zmqps.Worker, times: int) -> None:
    gradient = np.resize(np.float32([0.0, 1.0, -127.0, 64.0]), SIZE)  # in int8 what it is in raw
    for _ in range(times):
        worker.push({"w": gradient})
    np.testing.assert_array_equal(worker.pull()["w"], -times * gradient)


def test_over_a_slow_wire_gradients_become_small_and_the_status_says_why(slow_wire: SlowLink) -> None:
    with zmqps.LocalCluster(servers=1) as cluster, zmqps.connect(cluster.address, transport="tcp") as worker:
        worker.init({"w": np.zeros(SIZE, np.float32)}, optimizer=sgd(1.0), push_codec="auto:bf16,int8")
        assert worker.statistics().push_codec.startswith("server 0: raw (not measured yet")
        pushed(worker, 3 * NUM_SAMPLES)
        found = worker.statistics().push_codec
        assert found.startswith("server 0: int8:block=1024 (wire "), found
        wire_mb_s = float(found.partition("(wire ")[2].partition(" MB/s")[0])
        # no faster than it is; a busy machine takes its time at both ends, which is not told apart
        assert 0.1 * SLOW_BYTES_PER_S < wire_mb_s * 1e6 < 1.1 * SLOW_BYTES_PER_S, found
        before = worker.statistics().bytes_sent
        pushed_again = np.ones(SIZE, np.float32)
        worker.push({"w": pushed_again})
        assert worker.statistics().bytes_sent - before < pushed_again.nbytes / 3
        worker.finish()


def test_through_memory_gradients_stay_as_they_are() -> None:
    with zmqps.LocalCluster(servers=1) as cluster, zmqps.connect(cluster.address, transport="shm") as worker:
        worker.init({"w": np.zeros(SIZE, np.float32)}, optimizer=sgd(1.0), push_codec=auto("bf16", "int8"))
        pushed(worker, 3 * NUM_SAMPLES)
        assert worker.statistics().push_codec == "server 0: raw (through memory)"
        worker.finish()


def test_what_is_not_allowed_is_not_lost_and_not_promised(slow_wire: SlowLink) -> None:
    with zmqps.LocalCluster(servers=1) as cluster, zmqps.connect(cluster.address, transport="tcp") as worker:
        w = {"w": np.zeros(SIZE, np.float32)}
        with pytest.raises(ConfigurationError, match="choose by the clock"):
            worker.init(w, optimizer=sgd(1.0), staleness=0, deterministic=True, push_codec="auto:bf16")
        with pytest.raises(ConfigurationError, match="auto chooses among codecs"):
            worker.init(w, optimizer=sgd(1.0), push_codec="auto:zip")
        with pytest.raises(ConfigurationError, match="auto is for a job's gradients"):
            worker.init(w, optimizer=sgd(1.0), pull_codec="auto:bf16")
        worker.init(w, optimizer=sgd(1.0), push_codec="auto")
        pushed(worker, NUM_SAMPLES + 1)
        assert worker.statistics().push_codec.startswith("server 0: raw (nothing else is allowed")
        with pytest.raises(ConfigurationError, match="auto is for a job's gradients"):
            worker.push(w, codec="auto:bf16")
        worker.finish()
