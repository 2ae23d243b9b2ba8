"""Which slices have changed since a save that is built upon: never one too few."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from tests.core.machines import job, make_shard, placement
from tests.core.server.test_saves import WORKER, Server, stages
from zmqps.core.protocol.saving import FAILED, KEPT, WRITTEN
from zmqps.core.server.changes import Changes
from zmqps.core.server.shard import Shard


def shard(**options: object) -> Shard:
    spec = job("a", "b", "c", **options)  # type: ignore[arg-type]
    made = make_shard(spec, placement(spec), 0)
    made.load([(i, 0, ()) for i in range(3)], [np.zeros(8, np.float32)] * 3)
    return made


def push(to: Shard, *numbers: int) -> None:
    to.push([(i, 0, ()) for i in numbers], [np.ones(8, np.float32)] * len(numbers), "w")


def step(to: Shard, *numbers: int) -> None:
    number = to.version
    parts, payload = [(i, 0, ()) for i in numbers], [np.ones(8, np.float32)] * len(numbers)
    to.collect(parts, payload, (WORKER, number + 1), number, 1, "w")
    to.commit(number, ((WORKER, (number + 1,)),))


def changed(changes: Changes, of: Shard, base: int, epoch: int = 1) -> set[int]:
    unchanged = changes.unchanged(epoch, base, of.slices)
    assert unchanged is not None
    return {state.slice.index for state in of.slices} - set(unchanged)


def test_what_was_pushed_since_has_changed() -> None:
    changes, of = Changes(), shard()
    changes.note(1, 4, 0, of.slices)
    assert changed(changes, of, 4) == set()
    push(of, 1)
    assert changed(changes, of, 4) == {1}
    changes.note(1, 5, 4, of.slices)
    push(of, 2)
    assert changed(changes, of, 5) == {2}
    assert changed(changes, of, 4) == {1, 2}


def test_a_step_that_gives_all_a_new_version_has_changed_what_it_had_gradients_of() -> None:
    changes, of = Changes(), shard(staleness=0)
    changes.note(1, 1, 0, of.slices)
    step(of, 0)
    assert {state.version for state in of.slices} == {1}
    assert changed(changes, of, 1) == {0}
    unchanged = changes.unchanged(1, 1, of.slices)
    assert unchanged is not None
    assert unchanged[1] == (1, [0])


def test_upon_nothing_it_is_whole() -> None:
    changes, of = Changes(), shard()
    changes.note(1, 1, 0, of.slices)
    assert changes.unchanged(1, 0, of.slices) is None


@pytest.mark.parametrize(("epoch", "base"), [(1, 2), (2, 1)])
def test_since_a_save_that_is_not_known_all_has_changed(epoch: int, base: int) -> None:
    changes, of = Changes(), shard()
    changes.note(1, 1, 0, of.slices)
    assert changed(changes, of, base, epoch) == {0, 1, 2}


def test_two_saves_are_kept_and_none_of_a_shard_that_has_gone() -> None:
    changes, of = Changes(), shard()
    for number, base in ((1, 0), (2, 1), (3, 1), (4, 3)):
        changes.note(1, number, base, of.slices)
        changes.validate()
    push(of, 0)
    assert [changed(changes, of, base) for base in (1, 2, 3, 4)] == [{0, 1, 2}, {0, 1, 2}, {0}, {0}]
    changes.drop(1)
    assert changed(changes, of, 4) == {0, 1, 2}


# --- in the saves of a server ---------------------------------------------------------------------


def written(server: Server) -> set[int]:
    found, server.files.pieces = set(server.files.pieces), {}
    return found


def push_to(server: Server, numbers: Iterable[int]) -> None:
    to = server.tenants[0].shard
    assert to is not None
    push(to, *numbers)


def test_only_what_has_changed_is_kept_and_written() -> None:
    server = Server()
    server.ask(1)
    server.do_all()
    assert written(server) == {0, 1, 2}
    push_to(server, [2])
    assert stages(server.ask(2, base=1)) == [KEPT]
    push_to(server, [0])  # after that moment
    (said,) = server.do_all()
    assert (said.stage, said.facts["nbytes"]) == (WRITTEN, 32)
    assert written(server) == {2}
    assert server.files.unchanged == {0: (0, [0]), 1: (0, [0])}
    server.ask(3, base=2)
    server.do_all()
    assert written(server) == {0}
    assert server.untouched


def test_where_nothing_has_changed_nothing_is_written() -> None:
    server = Server()
    server.ask(1)
    server.do_all()
    written(server)
    server.ask(2, base=1)
    assert stages(server.do_all()) == [WRITTEN]
    assert written(server) == set()


def test_since_a_save_that_failed_nothing_is_counted() -> None:
    server = Server()
    server.ask(1)
    server.do_all()
    written(server)
    push_to(server, [0])
    server.files.fails = "write"
    server.ask(2, base=1)
    assert stages(server.do_all()) == [FAILED]
    server.files.fails = ""
    push_to(server, [1])
    server.ask(3, base=1)
    server.do_all()
    assert written(server) == {0, 1}


def test_a_shard_of_a_job_that_has_ended_is_forgotten() -> None:
    server = Server()
    server.ask(1)
    server.do_all()
    written(server)
    server.took(server.saves.end(1))
    server.ask(2, base=1)
    server.do_all()
    assert written(server) == {0, 1, 2}
