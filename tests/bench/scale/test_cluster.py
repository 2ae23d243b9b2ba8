"""The simulated cluster: queues that can be computed by hand, and a coordinator that decides as the real one does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.scale.cluster import Cluster, Network, Outcome, Size, _in_turn
from bench.scale.costs import Cost, Costs
from tests.tables import for_each
from zmqps.core.job.keyspace import SLICE_NBYTES

NOTHING = Cost(fixed=0.0)
FREE = Costs(
    push=NOTHING, part=NOTHING, commit=NOTHING, pull=NOTHING, begin=NOTHING, answer=NOTHING, shell_s=0.0,
    sockets_s_a_byte=0.0,
)  # fmt: skip
WIRE = Network(bytes_per_s=1e9, latency_s=0.0)


def run(size: Size, costs: Costs = FREE, network: Network = WIRE, compute: Callable[[Random], float] = lambda rng: 1.0,
        seed: int = 0) -> Outcome:  # fmt: skip
    return Cluster(size, costs, network, compute, seed).run()


def size(workers: int, servers: int, slices: int = 4, steps: int = 3, **mode: Any) -> Size:
    return Size(servers=servers, workers=workers, nbytes=slices * SLICE_NBYTES * servers, steps=steps, **mode)


@given(st.lists(st.floats(0.0, 100.0), min_size=1), st.floats(0.0, 5.0))
def test_pieces_go_through_a_wire_one_after_the_other(ready: list[float], each: float) -> None:
    free, expected = 0.0, []
    for at in ready:
        free = max(free, at) + each
        expected.append(free)
    assert _in_turn(np.array(ready), each) == pytest.approx(expected)


def test_alone_a_step_is_computing_and_the_bytes_there_and_the_last_slice_back() -> None:
    step = run(size(1, 1, mode="async")).step_s
    wire_s = 4 * SLICE_NBYTES / 1e9
    assert step == pytest.approx([1.0 + wire_s * (1 + 1 / 4)] * 3)


def test_the_bytes_of_all_workers_go_through_the_wire_of_one_server() -> None:
    outcome = run(size(20, 1, mode="async", slices=16), compute=lambda rng: 0.0)
    assert np.median(outcome.step_s) == pytest.approx(20 * 16 * SLICE_NBYTES / 1e9, rel=0.05)


def test_a_processor_that_is_slower_than_the_wire_is_what_is_waited_for() -> None:
    slow = Costs(
        push=Cost(fixed=0.1), part=NOTHING, commit=NOTHING, pull=NOTHING, begin=NOTHING, answer=NOTHING, shell_s=0.0,
        sockets_s_a_byte=0.0,
    )  # fmt: skip
    outcome = run(size(10, 1, mode="async", slices=1), slow, compute=lambda rng: 0.0)
    assert np.median(outcome.step_s) == pytest.approx(10 * 0.1, rel=0.05)


def test_a_synchronous_step_takes_as_long_as_the_slowest_worker() -> None:
    outcome = run(size(8, 2, mode="sync"), compute=lambda rng: 1.0 + 4.0 * (rng.random() < 0.2), seed=3)
    assert len(outcome.step_s) == 8 * 3
    assert outcome.num["Arrive"] >= 8 * 4
    assert outcome.num["Committed"] == 2 * 4  # of the last step, too: it is what the others wait for
    waited = outcome.idle_s / (outcome.idle_s + outcome.compute_s)
    assert 0.2 < waited < 0.8
    assert outcome.coordinator_s > 0
    assert set(outcome.num) >= {"Hello", "Init", "Ready", "Heartbeat"}


@for_each("tau", [0, 1, 3])
def test_nobody_reads_before_the_slowest_is_near_enough(tau: int) -> None:
    mode: dict[str, Any] = {"mode": "bounded", "staleness": tau} if tau else {"mode": "sync"}
    outcome = run(size(6, 2, steps=20, **mode), compute=lambda rng: rng.expovariate(1.0))
    pushed: Counter[int] = Counter(dict.fromkeys(range(6), 0))
    ahead = 0
    for _, kind, worker in outcome.events:
        if kind == "push":
            pushed[worker] += 1
        else:
            ahead = max(ahead, pushed[worker] - min(pushed.values()))
    assert ahead == tau, "it is let as far, and no farther"


def test_the_same_seed_gives_the_same_work() -> None:
    first, second = (run(size(5, 2, mode="async"), compute=lambda rng: rng.random(), seed=7) for _ in range(2))
    assert sorted(first.step_s) == pytest.approx(sorted(second.step_s), rel=0.01)  # but for the coordinator's pace
