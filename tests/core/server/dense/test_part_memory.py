"""A shard whose allocator fails at each request in turn: what fails changes nothing, and may be asked for again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.server.dense.test_buffers import Lent, Reading
from tests.core.server.scarcity import ScarceRules, Scarcity, held_nbytes, memory_of, slice_state, state_of
from tests.tables import for_each
from zmqps import codecs
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.core.server.dense.aggregate import SPARE_STEPS
from zmqps.core.server.dense.buffers import ROUNDS
from zmqps.core.server.dense.memory import HostMemory
from zmqps.core.server.dense.stale import treated
from zmqps.core.server.shard import Shard
from zmqps.core.treatments import Compensate, Divide, Treatment
from zmqps.errors import InternalError, ShardBrokenError
from zmqps.optim import group, sgd

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
SIZE = 8
#: Four slices of two dtypes; one of them is updated by two kernels.
PARAMETERS = [
    Parameter("a", (SIZE,), "float32"),
    Parameter("b", (SIZE // 2,), "float32"),
    Parameter("c", (SIZE // 2,), "float32"),
    Parameter("d", (SIZE,), "float64"),
]
SPEC = sgd(0.5, momentum=0.9, groups=[group("c", learning_rate=0.25)])
PLACEMENT = Placement.balance(KeySpace(PARAMETERS), 1, 4 * SIZE)
SLICES = PLACEMENT.slices[0]
ALL = tuple(range(len(SLICES)))
MODES = ["async", "treated", "sync", "retained"]


def new_shard(mode: str, where: str, scarcity: Scarcity, treatment: Treatment | None = None) -> Shard:
    shard = Shard(
        PLACEMENT, 0, ScarceRules(SPEC, scarcity, where), memory=memory_of(where, scarcity),
        synchronous=mode in ("sync", "retained"), retain=2 if mode == "retained" else 0,
        dense=treated((treatment or Compensate(0.1)) if mode == "treated" else None),
    )  # fmt: skip
    shard.dense.load([(index, 0, ()) for index in ALL], [gradient(index, 1) for index in ALL])
    return shard


def gradient(index: int, seed: int) -> Any:
    table = PLACEMENT.keyspace.tables[SLICES[index].table]
    return np.random.default_rng([index, seed]).standard_normal(SLICES[index].size).astype(table.dtype)


@dataclass
class Pair:
    """A shard whose memory fails, and one that does the same and has enough."""

    mode: str
    where: str
    treatment: Treatment | None = None

    def __post_init__(self) -> None:
        self.scarcity = Scarcity()
        self.scarce = new_shard(self.mode, self.where, self.scarcity, self.treatment)
        self.plenty = new_shard(self.mode, self.where, Scarcity(), self.treatment)
        self.num_failures = 0
        self.readers: list[Any] = []
        self.attempts = 0

    def both(self, do: Callable[[Shard], Any]) -> None:
        """Do the same with both; it fails at each request for memory in turn, and then it works."""
        before = state_of(self.plenty)
        assert state_of(self.scarce) == before
        results: list[Any] = [do(self.plenty)]
        while len(results) == 1:
            for requests in range(1000):
                self.scarcity.fail_after(requests)
                try:
                    results.append(do(self.scarce))
                    break
                except MemoryError:
                    self.num_failures += 1
                    self.scarce.validate()
                    self.unchanged(before)
        self.scarcity.fail_after(None)
        assert str(results[0]) == str(results[1])
        assert state_of(self.scarce) == state_of(self.plenty)
        for shard in (self.scarce, self.plenty):
            shard.validate()
            assert shard.counters["spare_nbytes"] == held_nbytes(shard)

    def unchanged(self, before: dict[str, Any]) -> None:
        now = state_of(self.scarce)
        if now["slices"] == before["slices"]:
            assert now == before
            return
        assert self.mode in ("sync", "retained"), "only a commit may be done in part"
        after = [slice_state(state) for state in self.plenty.slices]
        assert all(n in (b, a) for n, b, a in zip(now["slices"], before["slices"], after, strict=True))
        assert {**now, "slices": None} == {**before, "slices": None}

    # --- what is done with them ----------------------------------------------------------------

    def push(self, indices: Sequence[int], seed: int, codec: str, ranges: bool) -> None:
        parts = [(i, max(0, self.plenty.slices[i].version - seed % 3), self.half(i) if ranges else ()) for i in indices]
        sizes = [sum(stop - start for start, stop in zip(r[::2], r[1::2], strict=True)) for *_, r in parts]
        arrays = [gradient(i, seed)[: size or None] for i, size in zip(indices, sizes, strict=True)]
        found = None if codec == "raw" else codecs.parse(codec)
        payload = arrays if found is None else [found.encode(array, seed=1) for array in arrays]
        self.attempts += 1
        attempt = self.attempts

        def do(shard: Shard) -> Any:
            taken: Any = payload
            if found is not None:
                taken = shard.memory.decode(found, payload, shard.dense.sizes(parts), checked=True)
            if shard.steps is None:
                return shard.dense.push(parts, taken, "w", checked=True, puller=A)
            worker = (A, B, C)[seed % 3]
            return shard.dense.collect(parts, taken, (worker, attempt), shard.version, 1 + seed % 2, "w", checked=True)

        if indices:
            self.both(do)

    @staticmethod
    def half(index: int) -> tuple[int, ...]:
        first = SLICES[index].segments[0]
        return (first.position, first.position + first.size)

    def pull(self, indices: Sequence[int], lent: bool, codec: str) -> None:
        parts = [(index, 0, ()) for index in indices]
        if not parts:
            return
        reader = Lent() if lent else Reading()
        found = None if codec == "raw" else codecs.parse(codec)

        def do(shard: Shard) -> Any:
            pieces, versions, readers = shard.dense.pull(parts, None, A)
            if found is not None:
                shard.memory.send(found, pieces, 1, readers)
            else:
                for watchers in readers:
                    watchers.append(reader)
            shard.dense.note_read(parts, A)
            return versions

        self.readers.append(reader)
        self.both(do)

    def release(self) -> None:
        for reader in self.readers[:1]:
            if isinstance(reader, Lent):
                reader.over = True
            else:
                reader.done = True
        del self.readers[:1]

    def commit(self, seed: int) -> None:
        if self.plenty.steps is None:
            return
        pushes = sorted(self.plenty.steps.stage._steps.get(self.plenty.version, {}))
        contributors = [(worker, (attempt,)) for worker, attempt in pushes if attempt % 4 != seed % 4]
        step = self.plenty.version

        def do(shard: Shard) -> None:
            shard.commit(step, contributors)

        self.both(do)


INDICES = st.sets(st.sampled_from(ALL)).map(sorted)
CODEC = st.sampled_from(["raw", "raw", "int8", "bf16"])
PUSHES = st.tuples(st.just("push"), INDICES, st.integers(0, 9), CODEC, st.booleans())
PULLS = st.tuples(st.just("pull"), INDICES, st.booleans(), CODEC)
OPERATIONS = st.one_of(
    PUSHES, PUSHES, PULLS, st.tuples(st.just("release")), st.tuples(st.just("commit"), st.integers(0, 9))
)


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("mode", MODES)
@given(operations=st.lists(OPERATIONS, min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_what_fails_for_want_of_memory_changes_nothing(mode: str, where: str, operations: list[Any]) -> None:
    pair = Pair(mode, where)
    for name, *arguments in operations:
        getattr(pair, name)(*arguments)


@for_each("where", ["host", "device"])
@for_each("mode", MODES)
def test_each_request_of_a_training_fails_once(mode: str, where: str) -> None:
    pair = Pair(mode, where, Divide() if mode == "treated" else None)
    for step in range(5):
        pair.pull(ALL, step % 2 == 0, "raw")
        for seed, codec in enumerate(("raw", "int8", "raw")):
            pair.push(ALL, 3 * step + seed, codec, seed == 2)
        pair.commit(1)
        if step > 2:
            pair.release()
    assert pair.num_failures > 50


# --- kernels that fail ----------------------------------------------------------------------------


class Breaking(ScarceRules):
    """Kernels that need no memory, so that there is no copy of what they write to."""

    allocates = False

    def __init__(self, cause: Exception) -> None:
        super().__init__(SPEC, Scarcity())
        self.cause = cause
        self.left = 1 << 30

    def _half_and_half(self, kernel: Any) -> Any:
        def run(*arguments: Any) -> None:
            self.left -= 1
            if self.left < 0:
                raise self.cause
            kernel(*arguments)

        return run


def broken_after(calls: int, cause: Exception, **options: Any) -> tuple[Shard, Breaking]:
    rules = Breaking(cause)
    shard = Shard(PLACEMENT, 0, rules, **options)
    shard.dense.load([(index, 0, ()) for index in ALL], [gradient(index, 1) for index in ALL])
    rules.left = calls
    return shard, rules


def push_all(shard: Shard) -> Any:
    return shard.dense.push([(index, 0, ()) for index in ALL], [gradient(index, 2) for index in ALL], "w")


def test_a_kernel_that_fails_before_it_writes_changes_nothing() -> None:
    shard, rules = broken_after(0, ZeroDivisionError("of the schedule"))
    before = state_of(shard)
    with pytest.raises(ZeroDivisionError):
        push_all(shard)
    assert state_of(shard) == before
    assert shard.dense.updates.broken is None
    rules.left = 1 << 30
    push_all(shard)


@for_each("calls, cause", [(1, ZeroDivisionError("of the schedule")), (0, InternalError(node="a thread", what="half"))])
def test_a_shard_that_is_half_updated_says_so(calls: int, cause: Exception) -> None:
    shard, _ = broken_after(calls, cause)
    with pytest.raises(ShardBrokenError, match=type(cause).__name__) as caught:
        push_all(shard)
    assert caught.value.__cause__ is cause
    assert str(shard.dense.updates.broken) == str(caught.value)
    assert shard.dense.updates.broken.__traceback__ is None, "it would keep the gradient"


def test_a_commit_goes_on_where_it_failed() -> None:
    shard, rules = broken_after(2, ZeroDivisionError("of the schedule"), synchronous=True)
    twin, _ = broken_after(1 << 30, ZeroDivisionError(), synchronous=True)
    for one in (shard, twin):
        for seed, worker in enumerate((A, B)):
            payload = [gradient(index, seed) for index in ALL]
            one.dense.collect([(index, 0, ()) for index in ALL], payload, (worker, 1), 0, 1 + seed, "w")
    contributors = [(A, (1,)), (B, (1,))]
    twin.commit(0, contributors)
    rules.left = 1
    with pytest.raises(ZeroDivisionError):
        shard.commit(0, contributors)
    assert [state.version for state in shard.slices] == [1, 0, 0, 0]
    assert shard.version == 0
    shard.validate()
    rules.left = 1 << 30
    shard.commit(0, contributors)
    assert state_of(shard) == state_of(twin)


# --- what is not needed any more ------------------------------------------------------------------


def read_all(shard: Shard) -> Reading:
    """Return who reads the values of all slices as they are."""
    reader = Reading()
    for readers in shard.dense.pull([(index, 0, ()) for index in ALL])[2]:
        readers.append(reader)
    return reader


def read_slowly(shard: Shard) -> list[Reading]:
    """Let five readers begin, with a push after each, so that each reads other values."""
    slow = []
    for _ in range(5):
        slow.append(read_all(shard))
        push_all(shard)
    return slow


def test_spares_are_given_back_when_a_slow_reader_has_gone() -> None:
    shard = new_shard("async", "host", Scarcity())
    slow = read_slowly(shard)
    most = shard.counters["spare_nbytes"]
    assert most == 5 * PLACEMENT.nbytes(0) == held_nbytes(shard)
    for reader in slow:
        reader.done = True
    for _ in range(3 * ROUNDS):
        reader = read_all(shard)
        reader.done = True
        push_all(shard)
    assert shard.counters["spare_nbytes"] == held_nbytes(shard) == 0
    assert all(state.value is state.places[0][0] for state in shard.slices)


def test_spares_are_given_back_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqps.core.server.dense.buffers.GIVE_BACK_NBYTES", 64)
    given_back: list[int] = []
    monkeypatch.setattr(HostMemory, "given_back", lambda self, nbytes: given_back.append(nbytes))
    shard = new_shard("async", "host", Scarcity())
    slow = read_slowly(shard)
    most = shard.counters["spare_nbytes"]
    for reader in slow:
        reader.done = True
    for _ in range(4 * ROUNDS):
        before = len(given_back)
        reader = read_all(shard)
        reader.done = True
        push_all(shard)
        assert len(given_back) - before <= 1, "once a round at most"
        assert shard.counters["spare_nbytes"] == held_nbytes(shard)
    largest = max(slice_.size * 8 for slice_ in SLICES)
    assert sum(given_back) == most
    assert len(given_back) > 3
    assert max(given_back) < 64 + largest


def test_gradients_of_workers_that_have_gone_are_given_back_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqps.core.server.dense.aggregate.GIVE_BACK_NBYTES", 64)
    given_back: list[int] = []
    monkeypatch.setattr(HostMemory, "given_back", lambda self, nbytes: given_back.append(nbytes))
    shard = new_shard("sync", "host", Scarcity())
    workers = [bytes([number]) * 16 for number in range(6)]
    for step in range(4 * SPARE_STEPS):
        there = workers if step == 0 else workers[:1]
        for worker in there:
            shard.dense.collect(
                [(i, 0, ()) for i in ALL], [gradient(i, step) for i in ALL], (worker, step), step, 1, "w"
            )
        shard.commit(step, [(worker, (step,)) for worker in there])
        shard.validate()
    assert shard.steps is not None
    assert sum(given_back) == 5 * PLACEMENT.nbytes(0)
    assert len(given_back) > 5
    assert max(given_back) < 64 + max(slice_.size * 8 for slice_ in SLICES)


def test_spares_that_each_step_needs_are_not_given_back() -> None:
    shard = new_shard("async", "host", Scarcity())
    made = 0
    for step in range(6 * ROUNDS):
        reader = read_all(shard)
        push_all(shard)  # while it is still being sent
        reader.done = True
        if step == 1:
            made = shard.counters["spare_buffers"]
    assert shard.counters["spare_buffers"] == made == len(ALL)


def test_kept_versions_take_as_much_as_was_admitted_for_them() -> None:
    shard = new_shard("retained", "host", Scarcity())
    for step in range(20):
        shard.dense.collect([(i, 0, ()) for i in ALL], [gradient(i, step) for i in ALL], (A, step), step, 1, "w")
        shard.commit(step, [(A, (step,))])
        assert shard.counters["spare_nbytes"] == held_nbytes(shard) <= 2 * PLACEMENT.nbytes(0)
