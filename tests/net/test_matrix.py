"""Every codec with every optimizer over every transport, by real sockets through a proxy that delays and splits:
the bits of a reference in plain numpy, although two workers push at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.codecs.cases import SPECS as CODECS
from tests.net.cluster import PATIENCE, Cluster
from tests.net.proxy import Proxy
from tests.optim.specs import SPECS as OPTIMIZERS
from tests.reference import Reference, odd_parameters
from tests.tables import for_each
from zmqps import codecs
from zmqps.client.futures import begins

#: Large enough that slices travel as frames without a copy.
SLICE_NBYTES = 128 << 10
# a value of bfloat16 begins as a float32 here, for numpy has no such dtype
PARAMETERS = tuple(p for p in odd_parameters(SLICE_NBYTES) if p.dtype != "bfloat16")
TRANSPORTS = ("tcp", "ipc", "shm")
FOR_PULLS = [codec for codec in CODECS if not codecs.parse(codec).error_feedback]
SERVERS, WORKERS = 2, 2


def arrays(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {p.name: rng.standard_normal(p.shape).astype(p.dtype) for p in PARAMETERS}


def flat(values: dict[str, Any]) -> list[Any]:
    return [np.asarray(values[p.name]).reshape(-1) for p in PARAMETERS]


def all_of(futures: Iterable[Future[Any]]) -> list[Any]:
    """Wait for what was asked of all workers at once."""
    return [future.result(PATIENCE) for future in list(futures)]


def train(transport: str, optimizer: str) -> None:
    """Let two workers push the same at the same time, so that it does not matter who is first, codec after codec."""
    everything = set(range(len(PARAMETERS)))
    proxy = Proxy(1)
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(SERVERS, SLICE_NBYTES, kernels="numba", proxy=proxy))
        workers = [
            stack.enter_context(zmqps.connect(cluster.address, transport=transport, timeout=PATIENCE))
            for _ in range(WORKERS)
        ]
        all_of(
            begins(zmqps.Worker.init)(worker, arrays(0), optimizer=OPTIMIZERS[optimizer], mode="async")
            for worker in workers
        )
        requests = workers[0]._member.requests
        assert requests is not None
        reference = Reference(requests.job, requests._planned[0], flat(arrays(0)))
        seqs = dict.fromkeys(range(SERVERS), 0)
        for number, codec in enumerate(CODECS):
            gradients, pull_codec = arrays(1 + number), FOR_PULLS[number % len(FOR_PULLS)]
            if number % 2:
                all_of([worker.push_pull_async(gradients, codec=codec) for worker in workers])
            else:
                all_of([worker.push_async(gradients, codec=codec) for worker in workers])
            for place in reference.places(everything):
                seqs[place[0]] += 1
                for worker in range(WORKERS):
                    travelled = reference.travelled(worker, place, flat(gradients), codec, None, seqs[place[0]])
                    reference.apply(place, travelled, everything)
            for pulled in all_of([worker.pull_async(codec=pull_codec) for worker in workers]):
                assert pulled.version == WORKERS * (number + 1)
                for place, cell in reference.cells.items():
                    seed = pulled.version << 32 | place[1]
                    expected = reference.read(place, pulled.version, everything, pull_codec, None, seed)
                    assert cell.of(flat(pulled), everything).tobytes() == expected.tobytes(), f"{codec}, {pull_codec}"
        assert [worker.statistics().retries for worker in workers] == [0] * WORKERS
        assert bool(cluster.num_lanes()) == (transport == "shm")
        assert not cluster.num_internal_errors()
    assert proxy.num_pieces > 100


@for_each(
    "transport, optimizer",
    [("tcp", "adam"), ("ipc", "momentum"), ("shm", "adamw")],
)
def test_every_codec_comes_through_every_transport(transport: str, optimizer: str) -> None:
    train(transport, optimizer)


@pytest.mark.slow
@for_each("transport", TRANSPORTS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_codec_comes_through_every_transport_with_every_optimizer(transport: str, optimizer: str) -> None:
    train(transport, optimizer)
