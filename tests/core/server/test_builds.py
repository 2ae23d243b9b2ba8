"""Shards are built one at a time; each is told what those before it have taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.core.machines import assign, job, make_shard, placement
from tests.tables import for_each
from zmqps.core.job.keyspace import Placement
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.events import Action, Run
from zmqps.core.protocol.messages import Assign
from zmqps.core.server.builds import Builds, Room, build_error
from zmqps.core.server.extensions import begin_from
from zmqps.core.server.shard import Shard
from zmqps.core.server.tenant import Tenant
from zmqps.errors import JobError, JobMemoryError, ProtocolError, PSError

SPEC = job("a", "b")


class Host:
    """Memory and the jobs on it; each shard needs 100 bytes more than it has touched."""

    def __init__(self, available: int = 1000, files: Any = None) -> None:
        self.tenants: dict[int, Tenant] = {}
        self.builds = Builds(self.tenants, self.make, lambda: available, partial(begin_from, files))
        self.rooms: list[Room] = []

    def make(self, spec: JobSpec, where: Placement, index: int, room: Room) -> Shard:
        self.rooms.append(room)
        return make_shard(spec, where, index)

    def add(self, epoch: int, **options: Any) -> list[int]:
        """Take an assignment; return the epochs of what is to be built now."""
        return epochs(self.take(replace(assign(SPEC, placement(SPEC), epoch=epoch), **options)))

    def take(self, message: Assign) -> Sequence[Action]:
        self.tenants[message.epoch] = self.builds.new_tenant(message)
        return self.builds.add(message)

    def build(self, epoch: int, actions: Sequence[Action] = (), required: int = 500) -> None:
        """Do what `Builds` has asked for."""
        for action in actions:
            assert isinstance(action, Run)
            self.tenants[epoch].shard = action.work().shard
        shard = self.tenants[epoch].shard or make_shard(SPEC, placement(SPEC), 0)
        shard.required_nbytes = required
        self.tenants[epoch].shard = shard


def epochs(actions: Sequence[Action]) -> list[int]:
    assert all(isinstance(action, Run) and isinstance(action.tag, Assign) for action in actions)
    return [action.tag.epoch for action in actions]  # type: ignore[union-attr]


def done(actions: Sequence[Action]) -> Any:
    """Return what comes of the only thing to do."""
    (run,) = actions
    assert isinstance(run, Run)
    return run.work()


def test_one_is_built_at_a_time_in_the_order_of_the_assignments() -> None:
    host = Host()
    assert [host.add(epoch) for epoch in (1, 2, 3)] == [[1], [], []]
    assert [epochs(host.builds.next()) for _ in range(3)] == [[2], [3], []]
    assert host.add(4) == [4]


def test_what_was_discarded_before_its_turn_is_not_built() -> None:
    host = Host()
    for epoch in (1, 2, 3, 4):
        host.add(epoch)
    del host.tenants[2], host.tenants[3]
    assert epochs(host.builds.next()) == [4]
    del host.tenants[4]
    assert epochs(host.builds.next()) == []
    assert host.add(5) == [5]


def test_a_shard_has_its_share_of_what_is_free_less_what_others_will_touch_yet() -> None:
    host = Host(available=1200)
    message = assign(SPEC, placement(SPEC))
    assert host.builds.new_tenant(replace(message, sharing=3)).free.nbytes == 400
    assert host.builds.new_tenant(replace(message, sharing=0)).free.nbytes == 1200
    host.add(1)
    host.build(1)
    untouched = host.tenants[1].untouched_nbytes
    assert 0 < untouched <= 500
    assert host.builds.new_tenant(replace(message, epoch=2, sharing=2)).free.nbytes == (1200 - untouched) // 2


def test_what_was_built_since_it_was_assigned_is_taken_off_and_what_was_there_before_is_not() -> None:
    host = Host()
    host.add(1)
    host.build(1, required=100)
    host.builds.next()
    host.add(2)
    host.add(3, num_workers=5)
    free = host.tenants[3].free.nbytes
    host.build(2, required=30)
    done(host.builds.next())
    assert host.rooms == [Room(reserved_nbytes=130, available_nbytes=free - 30, num_workers=5)]


@for_each("change, error", [({"shard": 1}, ProtocolError), ({"job": {}}, PSError), ({"placement": {}}, PSError)])
def test_an_assignment_that_is_not_valid_is_refused_aside(change: dict[str, Any], error: type[PSError]) -> None:
    host = Host()
    with pytest.raises(error):
        done(host.take(replace(assign(SPEC, placement(SPEC), epoch=1), **change)))
    assert host.rooms == [], "nothing was built"


@for_each(
    "error, text",
    [
        (MemoryError("8 bytes"), r"s lacks the memory for shard 0 \(8 bytes\); start more servers"),
        (ZeroDivisionError("by zero"), r"s cannot build shard 0 of the job 'default': ZeroDivisionError\('by zero'\)"),
    ],
)
def test_what_keeps_a_shard_from_being_built_is_said(error: Exception, text: str) -> None:
    with pytest.raises(JobError, match=text):
        raise build_error("s", assign(SPEC, placement(SPEC)), error)
    ours = JobMemoryError(server="s", what="shard 0", needed_nbytes=2, free_nbytes=1)
    assert build_error("s", assign(SPEC, placement(SPEC)), ours) is ours


# --- from a checkpoint ------------------------------------------------------------------------------

SOURCE = {"path": "/c", "version": 7, "optimizer": True, "names": {}}


class Saved:
    """Files that have twos for every slice."""

    def read(self, shard: Shard, job: JobSpec, source: Any) -> dict[str, Any]:
        for state in shard.slices:
            twos = np.full(state.size, 2.0, state.value.dtype)
            shard.dense.restore(state.slice.index, twos, (), [3] * len(state.steps), source["version"])
        return {"ledgers": {"aa" * 16: [7, []]}}

    def open(self, *_: Any) -> Any:
        raise NotImplementedError


@for_each(
    "more, ledgers", [({}, None), ({"ledgers": True}, {"aa" * 16: [7, []]}), ({"ledgers": True, "anew": True}, {})]
)
def test_who_goes_on_with_a_checkpoint_is_known_unless_shards_were_cut_since(more: Any, ledgers: Any) -> None:
    spec = job("a", size=8)
    message = replace(assign(spec, placement(spec)), restore={**SOURCE, **more})
    assert done(Host(1 << 20, Saved()).take(message)).ledgers == ledgers


@for_each("index", [0, 1])
def test_a_shard_begins_from_a_checkpoint_with_its_step_though_it_may_have_no_slice(index: int) -> None:
    spec = replace(job("a", size=8), mode="sync")
    where = Placement(placement(spec).keyspace, ((0, 8, 8),), 32)
    shard, ledgers = done(Host(1 << 20, Saved()).take(replace(assign(spec, where, shard=index), restore=SOURCE)))
    assert ledgers is None, "those who go on with it are others"
    assert shard.loaded
    assert shard.version == 7
    assert len(shard.slices) == 1 - index
    assert all((state.value == 2.0).all() and state.version == 7 for state in shard.slices)
    shard.validate()


def test_a_server_without_a_place_for_checkpoints_restores_none() -> None:
    with pytest.raises(JobError, match="cannot restore"):
        done(Host().take(replace(assign(SPEC, placement(SPEC)), restore=SOURCE)))
