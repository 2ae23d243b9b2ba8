"""The commits that servers have not confirmed, and the norm of a step that all of them have to measure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from zmqps.core.coordinator.placement.copies import Replica
from zmqps.core.coordinator.training.steps import Commits
from zmqps.core.protocol.events import Action, Send
from zmqps.core.protocol.messages import Commit

WHO = b"w" * 16
CONTRIBUTORS = ((WHO, (1,)),)


def copy(shard: int, epoch: int, *, backup: bool = False) -> Replica:
    server: Any = SimpleNamespace(peer=b"s%d" % epoch)
    return Replica(shard=shard, epoch=epoch, server=server, backup=backup)


def started() -> Commits:
    commits = Commits()
    commits.start([copy(0, 1), copy(1, 2), copy(0, 3, backup=True)])
    return commits


def add(commits: Commits, step: int, terms: tuple[float, ...] = (), *, measure: bool = False) -> list[Action]:
    return commits.add(Commit(0, step, CONTRIBUTORS, terms, int(measure)), 1.0)


def unconfirmed(commits: Commits) -> list[list[Commit]]:
    return [leader.unconfirmed for leader in commits.leaders.values()]


def test_the_leaders_are_asked_before_a_step_is_applied() -> None:
    commits = started()
    made = add(commits, 7, (1.0, 0.5), measure=True)
    assert made == [Send(b"s%d" % n, Commit(n, 7, CONTRIBUTORS, (1.0, 0.5), 1)) for n in (1, 2)]
    assert commits.measuring
    assert commits.measured(1, 7, 4.0) is None
    assert commits.measured(1, 7, 4.0) is None, "the same server has answered twice"
    assert commits.measured(2, 7, 5.0) == 9.0
    commits.set_terms((0.25, 0.5))
    assert not commits.measuring
    [[first], [second]] = unconfirmed(commits)
    assert (first.measure, first.terms, second.terms) == (0, (0.25, 0.5), (0.25, 0.5))
    assert commits.measured(2, 7, 5.0) is None, "it is settled"


def test_what_is_said_of_another_step_or_copy_does_not_count() -> None:
    commits = started()
    add(commits, 7, measure=True)
    assert commits.measured(1, 6, 1.0) is commits.measured(3, 7, 1.0) is commits.measured(9, 7, 1.0) is None
    assert [commits.measured(1, 7, 1.0), commits.measured(2, 7, 2.0)] == [None, 3.0]


def test_what_a_lost_leader_has_measured_counts_for_its_heir() -> None:
    commits = started()
    add(commits, 7, measure=True)
    assert commits.measured(1, 7, 4.0) is None
    commits.move(1, copy(0, 3))
    assert commits.measured(2, 7, 5.0) == 9.0
    [heir] = commits.leaders[3].unconfirmed
    assert (heir.epoch, heir.measure) == (3, 1)


def test_a_step_that_nobody_can_measure_any_more_is_dropped() -> None:
    commits = started()
    add(commits, 6)
    add(commits, 7, measure=True)
    commits.stop()
    assert not commits.measuring
    assert [[commit.step for commit in queue] for queue in unconfirmed(commits)] == [[6], [6]]


def test_a_coordinator_that_comes_back_asks_again() -> None:
    commits = started()
    add(commits, 6, (0.5, 0.1))
    commits.confirmed_before(2, 7)
    add(commits, 7, (1.0, 0.2), measure=True)
    again = started()
    again.restore(commits.dump(), 1.0)
    assert unconfirmed(again) == unconfirmed(commits)
    assert again.measuring
    assert [again.measured(2, 7, 1.0), again.measured(1, 7, 2.0)] == [None, 3.0]
