"""Without a coordinator a transfer goes on as long as servers answer something of it now and then."""

from __future__ import annotations

from zmqps.core.worker.operations import Enter, Exchange
from zmqps.core.worker.orphaned import LOOK_S, PATIENCE_S, Orphaned
from zmqps.core.worker.transfer import Pull, Target


def pulling(remaining: int) -> Exchange:
    operation = Exchange()
    operation.transfer = Pull(cargoes=(), target=Target(arrays=[]))
    operation.transfer.remaining = remaining
    return operation


def test_what_is_not_answered_for_too_long_waits_in_vain() -> None:
    orphaned, pull = Orphaned(), pulling(3)
    assert orphaned.look([pull], 10.0) == []
    assert orphaned.due == 10.0 + LOOK_S
    assert orphaned.look([pull], 10.0 + 0.9 * PATIENCE_S) == []
    assert orphaned.look([pull], 10.0 + PATIENCE_S) == [pull]


def test_an_answer_buys_time() -> None:
    orphaned, pull, other = Orphaned(), pulling(2), pulling(1)
    orphaned.look([pull, other], 10.0)
    pull.transfer.remaining = 1  # type: ignore[union-attr]
    assert orphaned.look([pull, other], 13.0) == []
    assert orphaned.look([pull, other], 10.0 + PATIENCE_S) == [other]
    assert orphaned.look([pull], 13.0 + PATIENCE_S) == [pull]


def test_without_transfers_there_is_nothing_to_look_at() -> None:
    orphaned, pull = Orphaned(), pulling(1)
    orphaned.look([pull], 10.0)
    assert orphaned.look([Enter(0.0, barrier="x")], 11.0) == []
    assert orphaned.due is None
    assert orphaned.look([pull], 100.0) == [], "its time begins anew"
