"""The server's machine when memory is short: it says so, to whom it concerns, and serves on."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from tests.core.machines import error_of, errors, job, logged, peer, sent, ticketed
from tests.core.server.scarcity import ScarceHost, ScarceRules, Scarcity, copies_of
from tests.core.server.test_machine import Server, pull, push
from tests.core.server.test_machine_steps import ONES, brought, commit
from tests.simulator.jobs.training import ReferenceRules
from tests.tables import for_each
from zmqps.core.protocol.events import COORDINATOR
from zmqps.core.protocol.messages import Ack, Commit, Committed, Error, Load, Values
from zmqps.core.server.dense.memory import HostMemory
from zmqps.core.server.dense.stale import treated
from zmqps.core.server.shard import Shard
from zmqps.core.treatments import Compensate
from zmqps.errors import DeviceMemoryError, ServerMemoryError, ShardBrokenError
from zmqps.optim import OptimizerSpec

WHOLE = {"parts": ((0, 0, ()), (1, 0, ())), "payload": (np.ones(16, np.float32),)}


def scarce(*names: str, **options: Any) -> tuple[Server, Scarcity]:
    """Return a server that trains, and what makes its memory fail."""
    scarcity = Scarcity()

    def make(spec: Any, where: Any, index: int, room: Any) -> Shard:
        rules = ScarceRules(OptimizerSpec.from_wire(spec.optimizer), scarcity)
        synchronous = spec.mode == "sync"
        return Shard(where, index, rules, synchronous=synchronous, retain=spec.retain, memory=ScarceHost(scarcity))

    server = Server(make)
    server.spec = job("a", "b", **options)
    server.train(*names)
    return server, scarcity


def test_a_push_for_which_memory_is_short_is_refused_and_its_repetition_is_applied_once() -> None:
    server, scarcity = scarce("w")
    failures = 0
    while True:
        scarcity.fail_after(failures)
        actions = server.get(push(1 + failures // 2, **WHOLE), "w")  # each number twice
        if sent(actions, Ack):
            break
        failures += 1
        error = error_of(actions, ServerMemoryError, peer("w"))
        assert (error.server, error.what, error.why) == ("s", "a push", "no more")
        assert server.values() == [0.0] * 16
    assert failures >= 4, "values and slots of two slices"
    assert server.values() == [-1.0] * 16
    assert server.machine.tenants[1].counts["pushes"] == 1
    again = server.get(push(1 + failures // 2, **WHOLE), "w")
    assert sent(again, Ack)
    assert server.values() == [-1.0] * 16, "sent again by the same number"


def test_many_failures_make_few_lines() -> None:
    server, scarcity = scarce("w")
    lines = []
    for seq in range(1, 200):
        scarcity.fail_after(0)
        lines += logged(server.get(push(seq), "w")).splitlines()
    assert 1 <= len(lines) <= 20
    assert "refused a request of w" in lines[0]
    assert "lacks the memory for a push" in lines[0]


@pytest.mark.parametrize(
    "cause",
    [
        MemoryError(),
        np._core._exceptions._ArrayMemoryError((1 << 20,), np.dtype("f4")),  # type: ignore[attr-defined]
        DeviceMemoryError(device="cuda:0", what="one array", needed_nbytes=4096, free_nbytes=5),
        type("OutOfMemoryError", (MemoryError,), {})("Out of memory allocating 4,096 bytes"),  # as CuPy's
    ],
    ids=["python", "numpy", "device", "cupy"],
)
def test_whatever_memory_is_short_the_error_is_one(cause: MemoryError, monkeypatch: pytest.MonkeyPatch) -> None:
    server, _ = scarce("w")

    def fail(*_: Any) -> Any:
        raise cause

    monkeypatch.setattr(HostMemory, "empty", fail)
    error = error_of(server.get(push(1), "w"), ServerMemoryError)
    assert isinstance(error, MemoryError)
    assert error.why == (str(cause) or "the system gave none")


def test_a_commit_that_fails_is_answered_to_the_coordinator_and_applied_once_when_it_is_repeated() -> None:
    server, scarcity = scarce("w", "v", mode="sync")
    for name, value in (("w", ONES), ("v", 3 * ONES)):
        for slice_ in (0, 1):
            server.get(push(slice_ + 1, value, slice_=slice_, attempt=1, examples=1 + (name == "v")), name)
    mean = np.float32(-(1 / 3 + 3 * 2 / 3))
    seen = set()
    for failures in range(100):
        scarcity.fail_after(failures)
        actions = commit(server, brought("w"), brought("v"))
        if sent(actions, Committed):
            break
        (message,) = sent(actions, Error, COORDINATOR)
        assert (message.request, message.code) == (1, ServerMemoryError.code)
        assert "for step 0" in message.text
        seen.add(tuple(np.float32(value) for value in server.values()))
        assert server.machine.counters()["version"] == 0
    scarcity.fail_after(None)
    np.testing.assert_allclose(server.values(), mean, rtol=1e-6)
    assert len(seen) == 2, "before, and with the first slice done"
    assert sent(commit(server, brought("w"), brought("v")), Committed), "asked again it is confirmed again"
    np.testing.assert_allclose(server.values(), mean, rtol=1e-6)


def test_gradients_for_which_memory_is_short_are_not_kept_in_part() -> None:
    server, scarcity = scarce("w", mode="sync")
    scarcity.fail_after(1)
    assert errors(server.get(push(1, attempt=1, **WHOLE), "w")) == [ServerMemoryError.code]
    assert sent(server.get(push(2, attempt=2, **WHOLE), "w"), Ack)
    commit(server, brought("w", 2))
    assert server.values() == [-1.0] * 16


def failing_send(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let values find no memory to be encoded, so many times."""
    send, left = HostMemory.send, [times]

    def fail(memory: HostMemory, *arguments: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise MemoryError("no room to encode")
        return send(memory, *arguments)

    monkeypatch.setattr(HostMemory, "send", fail)


def test_a_push_that_is_applied_is_not_said_to_have_failed_because_its_answer_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, _ = scarce("w")
    failing_send(monkeypatch, 2)
    first = server.get(push(1, ONES, reply=1), "w")
    assert (sent(first, Values), sent(first, Error)) == ([], [])
    assert "cannot answer w" in logged(first)
    assert sent(server.get(push(1, ONES, reply=1), "w"), Error) == []
    (values,) = sent(server.get(push(1, ONES, reply=1), "w"), Values)
    assert list(values.payload[0]) == [-1.0] * 8, "applied once, however often it was asked for"


@for_each("failing", [0, 2])
def test_what_cannot_be_remembered_is_not_applied(failing: int) -> None:
    server, _ = scarce("w")
    assert sent(server.get(push(1, ONES), "w"), Ack)

    class Full(OrderedDict[int, Any]):
        """Has room for what is in it and no more, for so many requests."""

        left = 0

        def setdefault(self, key: int, default: Any = None) -> Any:
            self.check(key)
            return super().setdefault(key, default)

        def __setitem__(self, key: int, value: Any) -> None:
            self.check(key)
            super().__setitem__(key, value)

        def check(self, key: int) -> None:
            if key not in self and self.left:
                self.left -= 1
                raise MemoryError

    (ledger,) = server.machine.tenants[1].ledgers.values()
    ledger.results = Full(ledger.results)
    ledger.results.left = failing
    for _ in range(failing):
        assert errors(server.get(push(2, ONES), "w")) == [ServerMemoryError.code]
        assert server.values() == [*[-1.0] * 8, *[0.0] * 8]
    for _ in range(2):
        assert sent(server.get(push(2, ONES), "w"), Ack)
        assert server.values() == [*[-2.0] * 8, *[0.0] * 8], "once"


@pytest.mark.parametrize("with_push", [False, True])
def test_what_could_not_be_sent_does_not_count_as_read(with_push: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(spec: Any, where: Any, index: int, room: Any) -> Shard:
        return Shard(
            where, index, ReferenceRules(OptimizerSpec.from_wire(spec.optimizer)), dense=treated(Compensate(0.5))
        )

    server = Server(make)
    server.train("w", "v")
    server.get(pull(1), "w")
    server.get(push(1, ONES), "v")
    shard = server.machine.tenants[1].built()
    copies = copies_of(shard.dense)
    assert copies is not None
    (who,) = copies._copies
    failing_send(monkeypatch, 1)
    asked = push(1, ONES, reply=1) if with_push else pull(2, codec="int8")
    server.get(asked, "w")
    found = copies.find(who, 0, 0)
    assert found is not None, "it still computes from what it got"
    assert list(found) == [0.0] * 8
    assert sent(server.get(asked, "w"), Values)
    assert copies.find(who, 0, 0) is None
    assert copies.find(who, 0, 1 + with_push) is not None


def test_a_pull_for_which_memory_is_short_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    server, _ = scarce("w", "v", mode="sync")
    for slice_ in (0, 1):
        server.get(push(slice_ + 1, ONES, slice_=slice_, attempt=1), "w")
    server.get(pull(7, version=1), "w")
    server.get(pull(8, version=1), "v")
    failing_send(monkeypatch, 1)
    actions = commit(server, brought("w"))
    assert sent(actions, Committed) == [Committed(1, 0)]
    assert errors(actions, peer("w")) == [ServerMemoryError.code]
    assert [list(values.versions) for values in sent(actions, Values, peer("v"))] == [[1]]
    assert not server.machine.tenants[1].parked
    (values,) = sent(server.get(pull(9, version=1), "w"), Values)
    assert list(values.payload[0]) == [-1.0] * 8


def test_initial_values_may_be_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server.trained("w")
    server.assign(epoch=2)
    server.get(ticketed("worker", "loader", loads=True, epoch=2), "loader")
    take = HostMemory.take

    def fail(_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(HostMemory, "take", staticmethod(fail))
    load = Load(3, 2, WHOLE["parts"], WHOLE["payload"])
    error = error_of(server.get(load, "loader"), ServerMemoryError)
    assert error.what == "initial values"
    monkeypatch.setattr(HostMemory, "take", staticmethod(take))
    assert sent(server.get(load, "loader"), Ack)
    assert server.values(2) == [1.0] * 16


def test_a_shard_that_is_half_updated_answers_with_that_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server.trained("w")
    updates = server.machine.tenants[1].built().dense.updates
    updates._undoes = False
    kernel, left = updates.kernels[0], [1]

    def fail(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise ZeroDivisionError("of the schedule")
        assert kernel is not None
        kernel(*arguments)

    updates.kernels = [fail]
    first = server.get(push(1, **WHOLE), "w")
    assert errors(first, peer("w")) == [ShardBrokenError.code]
    (told,) = sent(first, Error, COORDINATOR)
    assert told.request == 1
    for message in (push(2), pull(9)):
        actions = server.get(message, "w")
        assert errors(actions, peer("w")) == [ShardBrokenError.code]
        assert sent(actions, Error, COORDINATOR) == [], "it has been told"
    assert errors(server.get(Commit(1, 0, ()))) == [ShardBrokenError.code]
