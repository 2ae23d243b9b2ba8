"""What bounds a step, said in a sentence: on traces made so that one thing does."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.trace.made import Made
from zmqps.optim import sgd
from zmqps.trace.bounds import Bound, bound


def steps(compute: float, **stages: float) -> Bound:
    """Return what bounds ten steps that are all alike."""
    made, at = Made(), 0.0
    for number in range(10):
        at = made.push_pull(0, at, version=number + 1, **stages) + compute  # type: ignore[arg-type]
    found = bound(made.trace())
    assert found is not None
    return found


def test_compute() -> None:
    found = steps(30_000.0, there=1000.0, back=1000.0, apply=2000.0)
    assert (found.kind, found.step_s, found.took_s) == ("compute", pytest.approx(0.034), pytest.approx(0.03))
    assert found.text.startswith("A step of 34 ms is bound by compute: 30 ms of it")


def test_check() -> None:
    found = steps(1000.0, check=9000.0)
    assert (found.kind, found.took_s) == ("check", pytest.approx(0.009))
    assert "bound by the check" in found.text
    (advised,) = re.findall(r"(init\(.*?\)) leaves it out", found.text)
    with InProcessCluster() as cluster, zmqps.connect(cluster.address) as worker:

        def init(**options: Any) -> None:
            worker.init({"w": np.zeros(3)}, optimizer=sgd(1.0), **options)

        eval(advised, {"init": init, "zmqps": zmqps})
        worker.push({"w": np.array([1.0, np.nan, np.inf])})


def test_codec() -> None:
    found = steps(1000.0, encode=9000.0)
    assert (found.kind, found.took_s) == ("codec", pytest.approx(0.009))


def test_wire() -> None:
    found = steps(1000.0, there=11_000.0, back=9000.0, nbytes=100_000_000)  # type: ignore[arg-type]
    assert (found.kind, found.took_s, found.nbytes) == ("wire", pytest.approx(0.02), pytest.approx(2e8))
    assert "20 ms of it move 200 MB at 10 GB/s" in found.text


def test_where_few_bytes_travel_it_is_the_messages_that_take_the_time() -> None:
    found = steps(1000.0, there=3000.0, back=3000.0, nbytes=2000)  # type: ignore[arg-type]
    assert (found.kind, found.nbytes) == ("wire", pytest.approx(4000))
    assert "6 ms of it move 4 kB at 667 kB/s" in found.text
    assert "fewer, larger ones" in found.text
    assert "fewer" not in steps(1000.0, there=3000.0, back=3000.0, nbytes=10_000_000).text  # type: ignore[arg-type]


def test_the_wires_bound_is_that_of_the_quickest_step() -> None:
    made, at = Made(), 0.0
    for number in range(10):
        at = made.push_pull(0, at, there=4000.0 if number == 4 else 10_000.0, nbytes=1_000_000) + 100.0
    found = bound(made.trace())
    assert found is not None
    assert (found.kind, found.bound_s) == ("wire", pytest.approx(0.004, rel=0.01))


def test_apply() -> None:
    found = steps(1000.0, apply=9000.0)
    assert (found.kind, found.took_s, found.bound_s) == ("apply", pytest.approx(0.009), pytest.approx(0.009))


def test_what_a_message_waits_for_while_the_server_updates_for_another_is_the_apply() -> None:
    made, at = Made(2), 0.0
    for _ in range(10):
        end = made.push_pull(0, at, apply=6000.0)
        other = made.push_pull(1, at, there=6001.0, apply=6000.0)
        at = max(end, other)
    found = bound(made.trace())
    assert found is not None
    assert found.kind == "apply"


def synchronous(late: list[int], wait: float = 12_000.0) -> Bound:
    """Return what bounds steps of three workers, of whom one comes late in each: by its number."""
    made, at = Made(3), 0.0
    for step, who in enumerate(late):
        committed = at + wait + 3000.0
        ends = [
            made.push_pull(
                worker, at + (wait if worker == who else 0.0), apply=1000.0, until=committed,
                commit=500.0 if worker == who else 0.0, version=step + 1, step=step,
            )
            for worker in range(3)
        ]  # fmt: skip
        at = max(ends) + 2000.0
    found = bound(made.trace())
    assert found is not None
    return found


def test_straggler() -> None:
    found = synchronous([2] * 10)
    assert (found.kind, found.worker) == ("straggler", "worker 2")
    assert "100% of that for worker 2" in found.text
    assert found.bound_s < 0.5 * found.step_s


def test_barrier() -> None:
    found = synchronous([0, 1, 2] * 4)
    assert found.kind == "barrier"
    assert "not for one alone" in found.text


def test_where_nobody_has_done_two_steps_nothing_is_said() -> None:
    assert bound(Made().trace()) is None
    made = Made()
    made.push_pull(0, 0.0)
    assert bound(made.trace()) is None


def test_waiting_for_the_coordinators_word_is_waiting_too() -> None:
    made, at = Made(), 0.0
    for _ in range(10):
        end = made.push_pull(0, at)
        made.span(made.workers[0], "push", "operation", end, end + 9000.0)
        made.span(made.workers[0], "control", "worker", end + 9000.0 - 1.0, end + 9000.0, message="Proceed")
        at = end + 9000.0
    found = bound(made.trace())
    assert found is not None
    assert found.kind == "barrier"
