"""Without a coordinator a transfer goes on as long as servers answer something of it now and then."""

from __future__ import annotations

from tests.core.machines import identity
from zmqps.core.node.member import Member
from zmqps.core.worker.operations import Advance, EnterBarrier, Exchange, Finish
from zmqps.core.worker.pace import Pace
from zmqps.core.worker.transfer import PullTransfer, Target
from zmqps.core.worker.waits import LOOK_S, PATIENCE_S, Orphaned


def orphan(mode: str = "async", heard_at: float = 0.0) -> Orphaned:
    member, pace = Member(identity("worker"), "tcp://c:1", dict), Pace()
    member.heard_at = heard_at
    pace.attach(mode, 0)
    return Orphaned(member, pace)


def pulling(remaining: int) -> Exchange:
    operation = Exchange()
    operation.transfer = PullTransfer(cargoes=(), target=Target(arrays=[]))
    operation.transfer.remaining = remaining
    return operation


def test_what_is_not_answered_for_too_long_waits_in_vain() -> None:
    orphaned, pull = orphan(), pulling(3)
    assert orphaned.look([pull], 10.0) == []
    assert orphaned.due == 10.0 + LOOK_S
    assert orphaned.look([pull], 10.0 + 0.9 * PATIENCE_S) == []
    assert orphaned.look([pull], 10.0 + PATIENCE_S) == [pull]


def test_an_answer_buys_time() -> None:
    orphaned, pull, other = orphan(), pulling(2), pulling(1)
    orphaned.look([pull, other], 10.0)
    pull.transfer.remaining = 1  # type: ignore[union-attr]
    assert orphaned.look([pull, other], 13.0) == []
    assert orphaned.look([pull, other], 10.0 + PATIENCE_S) == [other]
    assert orphaned.look([pull], 13.0 + PATIENCE_S) == [pull]


def test_without_transfers_there_is_nothing_to_look_at() -> None:
    orphaned, pull = orphan(), pulling(1)
    orphaned.look([pull], 10.0)
    assert orphaned.look([EnterBarrier(0.0, barrier="x")], 11.0) == []
    assert orphaned.due is None
    assert orphaned.look([pull], 100.0) == [], "its time begins anew"


def test_with_the_coordinator_ends_what_only_it_can_answer_but_no_goodbye() -> None:
    orphaned, pull, barrier = orphan(), pulling(1), EnterBarrier(0.0, barrier="x")
    assert [type(o) for o in orphaned.begin([pull, barrier, Advance(), Finish()], 10.0)] == [EnterBarrier, Advance]
    assert orphaned.due == 10.0


def test_a_step_that_nobody_commits_is_not_waited_for() -> None:
    orphaned, old, new = orphan("sync", heard_at=5.0), pulling(1), pulling(1)
    old.started_at, new.started_at = 4.0, 6.0
    assert orphaned.begin([old, new], 10.0) == [old], "a server that had it would have answered since"
    new.pull = PullTransfer(cargoes=(), target=Target(arrays=[]), version=1)
    assert orphaned.is_ahead(new)
    assert orphaned.begin([new], 10.0) == [new]


def test_what_begins_later_is_looked_at_at_once_unless_a_look_is_due() -> None:
    orphaned = orphan()
    orphaned.add(3.0)
    orphaned.add(4.0)
    assert orphaned.due == 3.0
