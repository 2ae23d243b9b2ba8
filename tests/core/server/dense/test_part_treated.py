"""A shard that treats stale gradients: slice by slice, by the staleness of each, from what the worker read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.core.machines import KEY, assign, identity
from tests.core.server.scarcity import copies_of
from tests.simulator.jobs.training import ReferenceRules
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.protocol.events import COORDINATOR, Received, Returned, Run, Send
from zmqps.core.protocol.messages import PROTOCOL_VERSION, Ack, Departed, Hello, Leave, Load, Pull, Push, Values
from zmqps.core.protocol.security.keys import LOADER, ticket_of
from zmqps.core.server.builds import Room
from zmqps.core.server.dense.stale import treated
from zmqps.core.server.extensions import ServerMachine
from zmqps.core.server.shard import Shard
from zmqps.core.treatments import Compensate, Divide, Drop, Treatment, make_treatment
from zmqps.optim import sgd

A, B = b"a" * 16, b"b" * 16
SIZE = 4
PARAMETERS = (Parameter("v", (SIZE,), "float32"), Parameter("w", (SIZE,), "float32"))
ONES = np.ones(SIZE, "f4")


def make(treatment: Treatment | None, start: float = 0.0) -> Shard:
    """Return a shard of two slices, all values the same, plain SGD with a learning rate of 1."""
    placement = Placement.balance(KeySpace(PARAMETERS), 1, 4 * SIZE)
    shard = Shard(placement, 0, ReferenceRules(sgd(1.0)), dense=treated(treatment))
    for index in (0, 1):
        shard.dense.load([(index, 0, ())], [np.full(SIZE, start, "f4")])
    return shard


def push(shard: Shard, g: float, *read: int, puller: bytes = A) -> list[tuple[int, int]]:
    """Push a gradient to as many slices as versions are given."""
    parts = [(i, v, ()) for i, v in enumerate(read)]
    versions, staleness = shard.dense.push(parts, [g * ONES for _ in read], "a", puller=puller)
    shard.validate()
    return list(zip(versions, staleness, strict=True))


def values(shard: Shard) -> list[float]:
    assert all((state.value == state.value[0]).all() for state in shard.slices)
    return [float(state.value[0]) for state in shard.slices]


def read(shard: Shard, puller: bytes) -> None:
    parts = [(0, 0, ()), (1, 0, ())]
    shard.dense.pull(parts, None, puller)
    shard.dense.note_read(parts, puller)


def test_each_slice_is_divided_by_its_own_staleness() -> None:
    shard = make(Divide())
    for _ in range(4):
        push(shard, 0.0, 0)
    assert push(shard, 1.0, 0, 0) == [(5, 4), (1, 0)]
    assert values(shard) == [-0.25, -1.0]


def test_what_is_too_stale_changes_nothing_and_is_counted() -> None:
    shard = make(Drop(1))
    for _ in range(2):
        push(shard, 1.0, 9)
    assert push(shard, 1.0, 0, 0) == [(2, 2), (1, 0)]  # the version tells that the first was dropped
    assert values(shard) == [-2.0, -1.0]
    assert shard.counters["dropped"] == 1
    assert [state.steps.tolist() for state in shard.slices] == [[2], [1]]


def test_a_push_that_is_dropped_whole_is_answered_all_the_same() -> None:
    shard = make(Drop(0))
    push(shard, 1.0, 0, 0)
    assert push(shard, 1.0, 0, 0) == [(1, 1), (1, 1)]
    assert values(shard) == [-1.0, -1.0]


def test_a_delay_is_compensated_from_what_this_worker_read() -> None:
    shard = make(Compensate(0.5), start=1.0)
    read(shard, A)
    push(shard, 2.0, 0, 0, puller=B)  # 1 -> -1
    read(shard, B)
    assert push(shard, 3.0, 0, 0, puller=A) == [(2, 1), (2, 1)]
    compensated = 3.0 + 0.5 * 3.0 * 3.0 * (-1.0 - 1.0)
    assert values(shard) == [-1.0 - compensated] * 2
    assert shard.counters["uncompensated"] == 0


def test_ranges_of_a_slice_are_compensated_from_the_same_ranges() -> None:
    placement = Placement.balance(KeySpace(PARAMETERS), 1)  # both in one slice
    shard = Shard(placement, 0, ReferenceRules(sgd(1.0)), dense=treated(Compensate(1.0)))
    shard.dense.load([(0, 0, ())], [np.arange(8, dtype="f4")])
    shard.dense.pull([(0, 0, ())], None, A)
    shard.dense.note_read([(0, 0, ())], A)
    shard.dense.push([(0, 0, ())], [np.arange(8, dtype="f4")], "b", puller=B)  # now all 0
    shard.dense.push([(0, 0, (4, 8))], [ONES], "a", puller=A)
    expected = -(1.0 + (0.0 - np.arange(4, 8)))
    np.testing.assert_array_equal(shard.slices[0].value, [*[0.0] * 4, *expected])


def test_without_a_copy_of_that_version_the_gradient_is_applied_as_it_is_and_counted() -> None:
    shard = make(Compensate(0.5))
    read(shard, A)
    push(shard, 1.0, 0, 0, puller=B)
    read(shard, A)  # on its way while A pushes what it computed from the version before
    push(shard, 1.0, 0, 0, puller=A)
    assert values(shard) == [-2.0, -2.0]
    assert shard.counters["uncompensated"] == 2


def test_a_shard_without_treatment_keeps_no_copies() -> None:
    shard = make(None)
    read(shard, A)
    assert copies_of(shard.dense) is copies_of(make(Drop(1)).dense) is None


# --- the server ----------------------------------------------------------------------------------


class Server:
    """A server's machine whose shard compensates."""

    def __init__(self) -> None:
        job = JobSpec(
            parameters=PARAMETERS, optimizer=sgd(1.0).to_wire(), mode="async", treatment=Compensate(0.5).to_wire()
        )
        placement = Placement.balance(KeySpace(job.parameters), 1, 4 * SIZE)
        self.machine = ServerMachine(identity("server"), "tcp://c:1", self.build)
        self.machine.start(0.0)
        (run,) = [a for a in self.take(COORDINATOR, assign(job, placement)) if isinstance(a, Run)]
        self.machine.handle(Returned(run.tag, run.work()), 0.0)
        for peer, incarnation, role in ((b"a", A, "worker"), (b"b", B, "worker"), (b"o", b"o" * 16, "observer")):
            ticket = ticket_of(KEY, LOADER if peer == b"a" else role, incarnation)
            hello = Hello(
                "zmqps", PROTOCOL_VERSION, role, incarnation, "x", "host", 1, job="default", secret=ticket, epoch=1
            )
            self.take(peer, hello)
        for index in (0, 1):
            self.take(b"a", Load(1, 1, ((index, 0, ()),), (np.zeros(SIZE, "f4"),)))

    @staticmethod
    def build(job: JobSpec, placement: Placement, index: int, room: Room) -> Shard:
        return Shard(placement, index, ReferenceRules(sgd(1.0)), dense=treated(make_treatment(job.treatment)))

    def take(self, peer: bytes, message: Any) -> list[Any]:
        actions = self.machine.handle(Received(peer, message), 0.0)
        self.machine.validate()
        return actions

    def pull(self, peer: bytes) -> None:
        (send,) = [a for a in self.take(peer, Pull(2, 1, 0, 0, "raw", ((0, 0, ()), (1, 0, ())))) if isinstance(a, Send)]
        assert isinstance(send.message, Values)

    @property
    def copies_nbytes(self) -> int:
        return int(self.machine.counters()["copies_nbytes"])


def test_the_server_shows_the_copies_and_drops_those_of_workers_that_go() -> None:
    server = Server()
    assert server.copies_nbytes == 0
    one = 2 * 4 * SIZE
    for peer, expected in ((b"a", one), (b"a", one), (b"b", 2 * one), (b"o", 2 * one)):  # an observer never pushes
        server.pull(peer)
        assert server.copies_nbytes == expected
    server.take(b"a", Leave("closed"))
    assert server.copies_nbytes == one
    server.take(COORDINATOR, Departed(B, 1))
    assert server.copies_nbytes == 0


def test_a_push_that_is_answered_with_values_is_a_read_too() -> None:
    server = Server()

    def send(peer: bytes, seq: int, version: int, reply: int) -> Any:
        push = Push(seq + 5, seq, 1, 0, 0, 1, reply, 1, "raw", "raw", (), ((0, version, ()),), (ONES,))
        (action,) = [a for a in server.take(peer, push) if isinstance(a, Send)]
        return action.message

    assert isinstance(send(b"a", 1, 0, 1), Values)  # 0 -> -1, and that is what a has read
    assert isinstance(send(b"b", 1, 1, 0), Ack)  # -1 -> -2
    assert send(b"a", 2, 1, 0).staleness == (1,)
    compensated = 1.0 + 0.5 * (-2.0 - -1.0)
    assert server.machine.tenants[1].built().slices[0].value[0] == pytest.approx(-2.0 - compensated)
