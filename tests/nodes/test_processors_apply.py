"""Apply threads give the bits that one thread gives, and leave nothing running behind an error."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.optim.specs import BY_SLOTS, SPECS, rule_of
from tests.pace import allow
from tests.tables import for_each
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.errors import ConfigurationError, InternalError
from zmqps.nodes import processors
from zmqps.nodes.processors import ApplyThreads
from zmqps.nodes.server import ServerConfig, make_shard
from zmqps.optim import adam, make_kernel

#: Small, so that small arrays have blocks.
BLOCK_NBYTES = 1024


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch) -> None:
    monkeypatch.setattr(processors, "MIN_BLOCK_NBYTES", BLOCK_NBYTES)


@for_each("backend", ["numpy", "numba"])
@for_each("dtype", ["float32", "float64"])
@for_each("case", BY_SLOTS)
def test_threads_give_the_bits_of_one(case: str, dtype: str, backend: str) -> None:
    rule = rule_of(SPECS[case])
    kernel, threads = make_kernel(rule, backend), ApplyThreads(3)
    least = BLOCK_NBYTES // np.dtype(dtype).itemsize
    for size in (0, 1, 2 * least - 1, 3 * least + 1, 5003):
        rng = np.random.default_rng(size)
        alone = [rng.standard_normal(size).astype(dtype), *(np.full(size, f, dtype) for f in rule.slot_fill)]
        shared = [array.copy() for array in alone]
        for step in (1, 2):
            g = rng.standard_normal(size).astype(dtype)
            kernel(alone[0], g, alone[0], tuple(alone[1:]), step)
            threads.over(kernel)(shared[0], g, shared[0], tuple(shared[1:]), step)
        assert [a.tobytes() for a in alone] == [a.tobytes() for a in shared], f"{size} elements"


def test_every_element_is_updated_once_and_in_blocks_on_cache_lines() -> None:
    blocks: list[tuple[int, int]] = []
    w = np.zeros(10_001, np.float32)

    def kernel(w, g, out, slots, step) -> None:
        out += 1.0
        blocks.append(((out.ctypes.data - start) // 4, out.size))

    start = w.ctypes.data
    ApplyThreads(4).over(kernel)(w, w, w, (), 1)
    assert (w == 1.0).all()
    assert len(blocks) == 4
    assert all(first % 16 == 0 for first, _ in blocks)


def test_what_is_small_is_done_by_the_thread_that_asks() -> None:
    by: list[threading.Thread] = []
    w = np.zeros(2 * BLOCK_NBYTES // 4 - 1, np.float32)
    ApplyThreads(2).over(lambda *arguments: by.append(threading.current_thread()))(w, w, w, (), 1)
    assert by == [threading.current_thread()]


def test_one_thread_is_the_kernel_itself() -> None:
    kernel = make_kernel(rule_of(SPECS["sgd"]))
    assert ApplyThreads(1).over(kernel) is kernel


@for_each("failing", [0, 1])
def test_an_error_is_raised_when_no_thread_writes_any_more(failing: int) -> None:
    w = np.zeros(2 * BLOCK_NBYTES // 4, np.float32)
    other_may_end, ended = threading.Event(), []

    def kernel(w, g, out, slots, step) -> None:
        if bool(out[0]) == bool(failing):
            other_may_end.set()
            raise FloatingPointError("of this block")
        assert other_may_end.wait(allow(10.0))
        ended.append(True)

    w[-w.size // 2 :] = 1.0  # the second block
    with pytest.raises(FloatingPointError, match="of this block"):
        ApplyThreads(2).over(kernel)(w, w, w, (), 1)
    assert ended


def test_a_shard_with_apply_threads_holds_the_same_values() -> None:
    parameters = (Parameter("w", (3001,), "float32"), Parameter("v", (7, 11), "float64"))
    job = JobSpec(parameters=parameters, optimizer=adam(0.1).to_wire(), mode="async", nonfinite="reject")
    placement = Placement.balance(KeySpace(parameters), 1, 1 << 20)
    shards = [
        make_shard(ServerConfig(coordinator="tcp://127.0.0.1:1", kernels="numpy", apply_threads=n), job, placement, 0)
        for n in (1, 3)
    ]
    rng = np.random.default_rng(0)
    for shard in shards:
        shard.dense.load([(state.slice.index, 0, ()) for state in shard.slices], [np.zeros(12004 + 616, np.uint8)])
    for _ in range(3):
        for index, state in enumerate(shards[0].slices):
            gradient = rng.standard_normal(state.slice.size).astype(state.value.dtype)
            for shard in shards:
                shard.dense.push([(index, 0, ())], [gradient], "worker")
    values = [[(s.value.tobytes(), *(slot.tobytes() for slot in s.slots)) for s in shard.slices] for shard in shards]
    assert values[0] == values[1]


@for_each("number", [0, -1, 65, 2.0, True, "2"])
def test_how_many_is_a_number_from_1(number) -> None:
    with pytest.raises(ConfigurationError, match="apply_threads must be a whole number from 1 to 64"):
        ServerConfig(coordinator="tcp://127.0.0.1:1", apply_threads=number)


class Whole:
    """A kernel that needs no memory: alone, what fails changes nothing."""

    allocates = False

    def __init__(self, failing: set[int]) -> None:
        self.failing = failing

    def __call__(self, w, g, out, slots, step) -> None:
        if int(out[0]) in self.failing:
            raise MemoryError("of this block")
        out += 10.0


@for_each("failing, error", [({0, 1}, MemoryError), ({0}, InternalError), ({1}, InternalError)])
def test_an_update_of_which_some_blocks_were_done_is_not_said_to_have_changed_nothing(failing, error) -> None:
    w = np.zeros(2 * BLOCK_NBYTES // 4, np.float32)
    w[-w.size // 2 :] = 1.0  # the second block
    with pytest.raises(error, match="of this block"):
        ApplyThreads(2).over(Whole(failing))(w, w, w, (), 1)
    assert {0, 1} - set(w.tolist()) == {0, 1} - failing


@pytest.mark.parametrize(("handed_on", "error"), [(0, MemoryError), (1, InternalError)])
def test_an_update_that_cannot_be_handed_on_to_all_threads_waits_for_those_that_have_begun(
    handed_on, error, monkeypatch
) -> None:
    threads = ApplyThreads(3)
    submit, calls = threads._others.submit, []

    def fail(*arguments):
        calls.append(1)
        if len(calls) > handed_on:
            raise MemoryError("for the next block")
        return submit(*arguments)

    monkeypatch.setattr(threads._others, "submit", fail)
    w = np.zeros(3 * BLOCK_NBYTES // 4, np.float32)
    with pytest.raises(error, match="for the next block"):
        threads.over(Whole(set()))(w, w, w, (), 1)
    assert np.count_nonzero(w) == handed_on * w.size // 3, "and nobody goes on to write"


def test_all_threads_are_there_before_the_first_update(monkeypatch) -> None:
    threads = ApplyThreads(4)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    w = np.zeros(4 * BLOCK_NBYTES // 4, np.float32)
    threads.over(Whole(set()))(w, w, w, (), 1)
    assert (w == 10.0).all()
    with pytest.raises(RuntimeError):
        ApplyThreads(4)
