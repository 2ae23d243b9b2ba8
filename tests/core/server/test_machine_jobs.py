"""The server's machine with several jobs: each has its shard, its workers and its end."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.core.machines import assign, errors, hello, job, make_shard, peer, placement, sent, ticketed
from tests.core.server.test_machine import EIGHT, WELCOME, Server, pull, push, runs_of
from tests.tables import for_each
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import COORDINATOR, Action, Send
from zmqps.core.server.builds import Room
from zmqps.core.server.shard import Shard
from zmqps.errors import (
    EvictedError,
    JobEndedError,
    JobError,
    JobMemoryError,
    LimitError,
    NotJoinedError,
    ProtocolError,
    StaleEpochError,
    from_wire,
)

ASYNC, SYNC = job("a", "b"), job("x", "y", "z", mode="sync")
A, B = 1, 2  # their epochs
ONES = np.ones(8, np.float32)


class Host(Server):
    """A server that notes what room it was told of; the first shard reserves 10 bytes, the second 100, …"""

    def __init__(self) -> None:
        self.rooms: list[Room] = []
        self.fails: Exception | None = None
        super().__init__(self.make)
        self.get(WELCOME)

    def make(self, spec: JobSpec, where: Placement, index: int, room: Room) -> Shard:
        self.rooms.append(room)
        if self.fails is not None:
            raise self.fails
        shard = make_shard(spec, where, index)
        shard.required_nbytes = 10 ** len(self.rooms)
        return shard

    def ask(self, epoch: int, spec: JobSpec = ASYNC, name: str = "default") -> list[Action]:
        return self.get(assign(spec, placement(spec), epoch=epoch, name=name))

    def begin(self, epoch: int, spec: JobSpec, name: str, *workers: str) -> None:
        """Build and load a job's shard, and let its workers say hello."""
        (run,) = runs_of(self.ask(epoch, spec, name))
        assert len(sent(self.build(run), m.Ready)) == 1
        for worker in workers:
            role = "observer" if worker[0] == "o" else "worker"
            self.get(ticketed(role, worker, name, epoch=epoch), worker)
        self.load(epoch, name)

    def load(self, epoch: int, name: str) -> None:
        shard = self.machine.tenants[epoch].built()
        loader = f"loader of {name} {epoch}"
        self.get(ticketed("worker", loader[-9:], name, epoch=epoch, loads=True), loader)
        for slice_ in range(len(shard.slices)):
            self.get(m.Load(1, epoch, ((slice_, 0, ()),), (np.zeros(8, np.float32),)), loader)
        self.get(m.Leave("closed"), loader)


def two_jobs() -> Host:
    """Return a server of an asynchronous job, whose worker is v, and a synchronous one, whose worker is w."""
    server = Host()
    server.begin(A, ASYNC, "a", "v", "o")
    server.begin(B, SYNC, "b", "w")
    return server


# --- side by side -------------------------------------------------------------------------------


def test_each_job_has_its_own_values_versions_and_mode() -> None:
    server = two_jobs()
    assert sent(server.get(push(1, EIGHT, epoch=A), "v"), m.Ack)
    assert sent(server.get(push(1, ONES, epoch=B, attempt=1, slice_=2), "w"), m.Ack)
    assert server.values(A) == [*(-EIGHT).tolist(), *[0.0] * 8]
    assert server.values(B) == [0.0] * 24
    contributor = hello("worker", "w").incarnation, (1,)
    assert sent(server.get(m.Commit(B, 0, (contributor,))), m.Committed) == [m.Committed(B, 0)]
    assert server.values(B) == [*[0.0] * 16, *[-1.0] * 8]
    assert errors(server.get(m.Commit(A, 0, (contributor,))), COORDINATOR) == [ProtocolError.code]
    assert server.values(A) == [*(-EIGHT).tolist(), *[0.0] * 8]
    (values,) = sent(server.get(pull(epoch=B, version=1), "w"), m.Values)
    assert list(values.versions) == [1]


def test_counters_are_of_each_job_and_of_all() -> None:
    server = two_jobs()
    server.get(push(1, EIGHT, epoch=A), "v")
    server.get(push(1, ONES, epoch=B, attempt=1), "w")
    server.get(push(1, ONES, epoch=B, attempt=1), "w")
    server.get(pull(epoch=B, version=1), "w")
    counters = server.machine.counters()
    jobs = counters["jobs"]
    assert set(jobs) == {"1", "2"}
    assert [jobs[epoch]["pushes"] for epoch in ("1", "2")] == [1, 1]
    assert [jobs[epoch].get("duplicates", 0) for epoch in ("1", "2")] == [0, 1]
    assert [jobs[epoch]["parked"] for epoch in ("1", "2")] == [0, 1]
    assert (counters["pushes"], counters["duplicates"], counters["parked"], counters["clients"]) == (2, 1, 1, 3)
    assert counters["loaded"] is True
    server.ask(3)
    assert server.machine.counters()["loaded"] is False
    server.now = 5.0
    (heartbeat,) = sent(server.machine.on_deadline(5.0), m.Heartbeat)
    assert set(heartbeat.counters["jobs"]) == {"1", "2", "3"}


@for_each("who", ["w", "p"])
@for_each("message", [push(1, epoch=A), pull(epoch=A), m.Load(3, A, ((0, 0, ()),), (EIGHT,))])
def test_a_job_is_not_touched_by_those_of_another(who: str, message: Any) -> None:
    server = two_jobs()
    server.get(ticketed("worker", "p", "b", epoch=B), "p")
    (refused,) = sent(server.get(message, who), m.Error)
    assert refused.code == NotJoinedError.code
    assert refused.text == "this connection is for epoch 2; say Hello with the ticket of 1"
    assert server.values(A) == [0.0] * 16
    assert len(sent(server.get(pull(epoch=B), who), m.Values)) == 1, "it goes on with its own"


@for_each("name", ["", "x" * 4000])
def test_who_names_no_job_that_is_here_can_do_nothing(name: str) -> None:
    server = two_jobs()
    (refused,) = sent(server.get(replace(ticketed("worker", "u"), job=name), "u"), m.Error)
    assert refused.code == ProtocolError.code
    assert len(refused.text) < 200
    for message in (push(1, epoch=A), pull(epoch=B)):
        assert errors(server.get(message, "u")) == [NotJoinedError.code]
    assert server.values(A) == [0.0] * 16


def test_a_lost_worker_is_forgotten_where_it_was_and_the_others_go_on() -> None:
    server = two_jobs()
    server.get(push(1, EIGHT, epoch=A), "v")
    server.get(pull(epoch=A, version=5), "v")
    server.get(pull(epoch=B, version=5), "w")
    server.get(m.Departed(hello("worker", "v").incarnation, 1))
    assert errors(server.get(push(2, EIGHT, epoch=A), "v")) == [EvictedError.code]
    assert [tenant.counters()["parked"] for tenant in server.machine.tenants.values()] == [0, 1]
    assert sent(server.get(push(1, ONES, epoch=B, attempt=1), "w"), m.Ack)


def test_what_was_applied_of_a_worker_that_has_gone_is_not_applied_again_however_many_went_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("zmqps.core.server.clients.MAX_BARRED", 4)
    server, evicted = two_jobs(), ticketed("worker", "v", "a", epoch=A)
    said = push(1, EIGHT, epoch=A)
    assert sent(server.get(said, "v"), m.Ack)
    applied = server.values(A)
    server.get(m.Departed(evicted.incarnation, 1))
    for i in range(8):
        server.get(m.Departed(hello("worker", f"x{i}").incarnation, 0))
    assert errors(server.get(evicted, "elsewhere")) == [NotJoinedError.code]
    assert errors(server.get(said, "elsewhere")) == [NotJoinedError.code]
    assert server.values(A) == applied
    assert sent(server.get(ticketed("worker", "u", "a", epoch=A), "u"), m.Welcome), "a new one is welcome"
    server.get(ticketed("worker", "t", "a", epoch=A), "t")
    server.get(m.Departed(hello("worker", "t").incarnation, 1))
    for i in range(8):
        server.get(m.Departed(hello("worker", f"y{i}").incarnation, 0))
    assert sent(server.get(ticketed("worker", "t", "a", epoch=A), "t"), m.Welcome), "nothing was applied of it"


# --- building -----------------------------------------------------------------------------------


def test_shards_are_built_one_at_a_time_each_beside_what_was_admitted_before() -> None:
    server = Host()
    (first,) = runs_of(server.ask(1))
    assert server.ask(2) == server.ask(3) == []
    actions = server.build(first)
    assert [got.epoch for got in sent(actions, m.Ready)] == [1]
    (second,) = runs_of(actions)
    (third,) = runs_of(server.build(second))
    assert runs_of(server.build(third)) == []
    assert [room.reserved_nbytes for room in server.rooms] == [0, 10, 10 + 100]
    server.get(m.Discard(2))
    (fourth,) = runs_of(server.ask(4))
    server.build(fourth)
    assert server.rooms[3].reserved_nbytes == 10 + 1000


def test_the_room_for_a_shard_says_how_many_workers_and_servers_to_count_on() -> None:
    server = Host()
    (run,) = runs_of(server.get(replace(assign(ASYNC, placement(ASYNC)), num_workers=5, sharing=3)))
    server.build(run)
    assert server.rooms == [Room(0, (1 << 62) // 3, 5, sharing=3)]


def test_a_shard_without_room_is_reported_with_the_facts_and_touches_no_other_job() -> None:
    server = two_jobs()
    server.get(push(1, EIGHT, epoch=A), "v")
    server.fails = JobMemoryError(server="s", what="shard 0 of 1", needed_nbytes=100, free_nbytes=40)
    (run,) = runs_of(server.ask(3))
    server.ask(4)
    actions = server.build(run)
    (message,) = sent(actions, m.Error, COORDINATOR)
    error = from_wire(message.code, message.text, message.facts)
    assert isinstance(error, JobMemoryError)
    assert (message.request, error.needed_nbytes, error.free_nbytes) == (3, 100, 40)
    server.fails = None
    (next_,) = runs_of(actions)
    assert [got.epoch for got in sent(server.build(next_), m.Ready)] == [4], "the next one may be smaller"
    assert server.rooms[-1].reserved_nbytes == 10 + 100, "what failed takes nothing"
    assert set(server.machine.tenants) == {A, B, 4}
    assert server.values(A)[:8] == (-EIGHT).tolist()


def test_a_shard_is_asked_for_before_it_is_built_and_before_it_is_loaded() -> None:
    server = two_jobs()
    (run,) = runs_of(server.ask(3, name="c"))
    server.get(ticketed("worker", "u", "c", epoch=3), "u")
    (refused,) = sent(server.get(push(1, epoch=3), "u"), m.Error)
    assert refused.code == JobError.code
    assert "no shard of the job 'c' yet" in refused.text
    server.build(run)
    assert errors(server.get(push(1, epoch=3), "u")) == [JobError.code]
    server.load(3, "c")
    assert sent(server.get(push(1, epoch=3), "u"), m.Ack)


def test_a_server_has_room_for_so_many_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqps.core.server.orders.MAX_TENANTS", 2)
    server = two_jobs()
    (refused,) = sent(server.ask(3), m.Error, COORDINATOR)
    assert (refused.request, refused.code) == (3, LimitError.code)
    assert [got.epoch for got in sent(server.ask(B, SYNC, "b"), m.Ready)] == [B], "a repeated Assign is none more"
    server.get(m.Discard(A))
    assert len(runs_of(server.ask(4))) == 1


# --- the end of a job ---------------------------------------------------------------------------


def test_what_is_kept_of_a_job_is_freed_and_that_is_confirmed_however_often_it_is_asked_for() -> None:
    server = two_jobs()
    shard = weakref.ref(server.machine.tenants[A].built())
    for _ in range(3):
        assert sent(server.get(m.Discard(A)), m.Discarded, COORDINATOR) == [m.Discarded(A)]
    assert shard() is None
    assert set(server.machine.tenants) == {B}
    assert set(server.machine.counters()["jobs"]) == {"2"}
    assert server.machine.counters()["clients"] == 1
    assert sent(server.get(push(1, ONES, epoch=B, attempt=1), "w"), m.Ack)


@for_each("again", [False, True])
@for_each("message", [push(2, epoch=A), pull(epoch=A), m.Load(3, A, ((0, 0, ()),), (EIGHT,))])
def test_who_speaks_of_a_job_that_has_ended_is_told(message: Any, again: bool) -> None:
    server = two_jobs()
    server.get(push(1, epoch=A), "v")
    server.get(m.Discard(A))
    if again:
        assert errors(server.get(ticketed("worker", "v", "a", epoch=A), "v")) == [JobEndedError.code]
    (refused,) = sent(server.get(message, "v"), m.Error)
    error = from_wire(refused.code, refused.text, refused.facts)
    assert isinstance(error, JobEndedError)
    assert (refused.request, error.job, error.reason) == (message.request, "a", "its shards were freed")
    assert errors(server.get(replace(message, epoch=B), "v")) == [NotJoinedError.code]
    assert server.values(B) == [0.0] * 24


def test_who_waits_for_a_version_of_a_job_that_ends_is_told_and_others_wait_on() -> None:
    server = two_jobs()
    server.get(pull(epoch=A, version=9, request=5), "v")
    server.get(pull(epoch=A, version=9, request=6), "o")
    server.get(pull(epoch=B, version=1), "w")
    told = sent(actions := server.get(m.Discard(A)), m.Error)
    assert [(got.request, got.code) for got in told] == [(5, JobEndedError.code), (6, JobEndedError.code)]
    assert errors(actions, peer("w")) == []
    assert server.machine.tenants[B].counters()["parked"] == 1


@for_each("overtaken", [1, 2])
def test_an_assignment_that_was_overtaken_by_its_end_leaves_nothing_behind(overtaken: int) -> None:
    server = Host()
    for _ in range(overtaken):
        assert sent(server.get(m.Discard(1)), m.Discarded) == [m.Discarded(1)]
    for _ in range(2):
        assert server.ask(1) == [Send(COORDINATOR, m.Discarded(1))]
    assert server.machine.tenants == {}
    assert errors(server.get(ticketed("worker", "w"), "w")) == [JobEndedError.code]
    assert errors(server.get(push(1, epoch=1), "w")) == [JobEndedError.code]


def test_a_job_that_ends_while_its_shard_is_built_or_waits_for_that_leaves_nothing_behind() -> None:
    server = Host()
    (first,) = runs_of(server.ask(1))
    server.ask(2)
    server.ask(3)
    server.get(m.Discard(1))
    server.get(m.Discard(2))
    actions = server.build(first)
    assert sent(actions, m.Ready) == []
    (third,) = runs_of(actions)
    assert [got.epoch for got in sent(server.build(third), m.Ready)] == [3]
    assert set(server.machine.tenants) == {3}
    assert len(server.rooms) == 2, "the second was never begun"
    assert server.rooms[1].reserved_nbytes == 0


def test_the_next_job_of_a_name_begins_with_nothing_of_the_one_before() -> None:
    server = two_jobs()
    server.get(push(1, EIGHT, epoch=A), "v")
    server.get(m.Discard(A))
    server.begin(5, ASYNC, "a", "v")
    assert sent(server.get(push(1, ONES, epoch=5), "v"), m.Ack), "its sequence numbers are counted anew"
    assert server.values(5) == [*[-1.0] * 8, *[0.0] * 8]
    assert server.machine.counters()["jobs"]["5"].get("duplicates", 0) == 0


@for_each("next_is_there", [False, True])
def test_who_comes_for_the_next_job_is_not_forgotten_with_the_one_before(next_is_there: bool) -> None:
    server = Host()
    server.begin(A, ASYNC, "a", "v")
    server.get(push(1, EIGHT, epoch=A), "v")
    if next_is_there:  # the Discard was lost with a connection, and is said again
        server.begin(5, ASYNC, "a", "v", "new")
    server.get(m.Discard(A))
    assert server.machine.counters()["clients"] == (2 if next_is_there else 0)
    if next_is_there:
        assert sent(server.get(push(1, ONES, epoch=5), "v"), m.Ack)
        assert sent(server.get(push(1, ONES, epoch=5), "new"), m.Ack)


def test_a_commit_of_a_job_that_has_ended_is_refused_with_its_epoch() -> None:
    server = two_jobs()
    server.get(m.Discard(B))
    (refused,) = sent(server.get(m.Commit(B, 0, ())), m.Error, COORDINATOR)
    assert (refused.request, refused.code) == (B, JobEndedError.code)


def test_of_epochs_that_were_discarded_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zmqps.core.server.discarded.MAX_DISCARDED", 3)
    server = two_jobs()
    for epoch in range(10, 20):
        server.get(m.Discard(epoch))
    assert list(server.machine.discarded._names) == [17, 18, 19]
    assert errors(server.get(ticketed("worker", "u", epoch=10), "u")) == [StaleEpochError.code]
    assert errors(server.get(push(1, epoch=19), "v")) == [JobEndedError.code]
