"""A worker follows a shard to its new server: nothing is lost or counts twice, and the open step is brought again."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.core.machines import CUT, MOVED, errors, logged, resolved, sent
from tests.core.worker.test_session import S0, S1, WELCOME, Attached, row
from zmqps.core.job.keyspace import Placement
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import COORDINATOR, Action, Connect, Connected, server_peer
from zmqps.core.worker.operations import Finish
from zmqps.errors import DeposedError, PeerLostError, StaleEpochError

S2 = server_peer(2)


class Following(Attached):
    """A worker of a job whose shards have a backup each; the second one moves to a third server."""

    def __init__(self, **options: Any) -> None:
        super().__init__({"replicas": 1}, **options)

    def moved(self, revision: int = 1, server: int = 2) -> list[Action]:
        return self.get(m.View(1, revision, MOVED, (1,), {"servers": [row(server, 7, rank=2)]}))

    def lost(self) -> list[Action]:
        return self.get(m.View(1, 1, MOVED, (1,), {}))

    def arrived(self) -> tuple[list[Action], list[Action]]:
        """Bring a whole step; return what was asked, and what comes of its acknowledgement."""
        asked = self.ask(self.transfer("push", value=3.0, whole=True))
        return asked, self.acknowledge(asked)


def test_what_is_not_acknowledged_is_sent_again_to_the_new_server_as_the_same_push() -> None:
    session = Following()
    push = session.transfer("push")
    asked = session.ask(push)
    session.acknowledge(asked, S0)
    before = sent(asked, m.Push, S1)
    session.lost()
    actions = session.moved()
    assert [a for a in actions if isinstance(a, Connect)] == [Connect(S2, "tcp://s2:1")]
    assert [got.epoch for got in sent(actions, m.Hello, S2)] == [7]
    assert sent(actions, m.Followed, COORDINATOR) == [m.Followed(1, 1, 0)]
    session.handle(Connected(S2))
    there = session.get(WELCOME, S2)
    assert [(got.seq, got.epoch) for got in sent(there, m.Push, S2)] == [(got.seq, 7) for got in before]
    assert {got.epoch for got in before} == {1}
    assert resolved(session.acknowledge(asked, S1)) == [], "what the old one says late counts no more"
    assert resolved(session.acknowledge(there, S2)) == [(push, None)]


def test_while_a_backup_takes_over_the_wait_says_so_and_nothing_fails() -> None:
    session = Following()
    pull = session.transfer("pull")
    asked = session.ask(pull)
    assert "its backup takes over" in logged(session.lost())
    for error in (
        DeposedError(job="default", generation=1),
        StaleEpochError(ours=3, theirs=1),
        PeerLostError(role="coordinator", name="the coordinator", silent_s=9.0, advice="start it again"),
    ):
        assert resolved(session.get(m.Error.of(0, error), S1)) == []
    for message in sent(asked, m.Pull, S1):
        assert resolved(session.get(m.Error.of(message.request, DeposedError(job="default", generation=1)), S1)) == []
    assert "which was lost: its backup takes over" in session.machine.transfers.waiting_for(pull.transfer, 0.0)  # type: ignore[arg-type]


def test_a_move_that_is_told_again_is_answered_again_and_changes_nothing() -> None:
    session = Following()
    session.moved()
    actions = session.moved()
    assert sent(actions, m.Hello) == []
    assert sent(actions, m.Followed) == [m.Followed(1, 1, 0)]
    assert session.moved(revision=0) == [], "an older one"
    assert session.get(m.View(99, 5, MOVED, (1,), {})) == [], "of another job"
    assert session.get(m.View(1, 5, MOVED, (99,), {})) == [], "of a shard that it does not have"


def test_a_shard_may_move_to_a_server_that_has_another_one_already() -> None:
    session = Following()
    actions = session.moved(server=0)
    assert [a for a in actions if isinstance(a, Connect)] == []
    assert [got.epoch for got in sent(actions, m.Hello, S0)] == [7]
    assert [link.server.peer for link in session.machine.links.by_shard] == [S0, S0]


# --- synchronous --------------------------------------------------------------------------------


def test_gradients_of_the_open_step_are_brought_again_as_the_same_attempt_and_only_then_it_has_followed() -> None:
    session = Following(mode="sync")
    push = session.transfer("push", value=3.0, whole=True)
    asked = session.ask(push)
    arrived = session.acknowledge(asked)
    assert len(sent(arrived, m.Arrive)) == 1
    for array in push.push.source.arrays:  # type: ignore[union-attr]
        array[:] = 99.0  # the user goes on with them
    actions = session.moved()
    assert sent(actions, m.Followed) == []
    assert sent(session.moved(), m.Followed) == [], "told again, it is still on its way"
    again = session.get(WELCOME, S2)
    pushes = sent(again, m.Push, S2)
    assert {(got.attempt, got.step) for got in pushes} == {(got.attempt, got.step) for got in sent(asked, m.Push, S1)}
    assert all((np.asarray(b) == 3.0).all() for got in pushes for b in got.payload)
    done = session.acknowledge(again, S2)
    assert sent(done, m.Followed) == [m.Followed(1, 1, 0)]
    assert sent(done, m.Arrive) == [], "it has arrived already"


def test_of_a_push_under_way_what_was_acknowledged_is_brought_again_too() -> None:
    session = Following(mode="sync")
    push = session.transfer("push", whole=True)
    asked = session.ask(push)
    session.acknowledge(asked, S1)  # but not by the first server
    session.moved()
    again = session.get(WELCOME, S2)
    assert {got.attempt for got in sent(again, m.Push, S2)} == {got.attempt for got in sent(asked, m.Push, S1)}
    assert sent(session.acknowledge(again, S2), m.Followed) == [m.Followed(1, 1, 0)]
    assert len(sent(session.acknowledge(asked, S0), m.Arrive)) == 1


def test_what_is_committed_is_not_brought_again() -> None:
    session = Following(mode="sync")
    _, arrived = session.arrived()
    session.get(m.Proceed(sent(arrived, m.Arrive)[0].request, 1, 1))
    assert sent(session.moved(), m.Followed) == [m.Followed(1, 1, 0)]
    assert sent(session.get(WELCOME, S2), m.Push) == []


def test_a_worker_that_finishes_stays_until_its_step_is_committed() -> None:
    session = Following(mode="sync")
    _, arrived = session.arrived()
    (arrive,) = sent(arrived, m.Arrive)
    finish = Finish(0.0)
    assert resolved(session.ask(finish)) == []
    assert session.machine.member.left is False
    session.get(m.Proceed(arrive.request, 1, 1))
    assert session.machine.transfers.pace.arrive is None


def test_values_of_a_pull_under_way_come_from_the_new_server() -> None:
    session = Following()
    pull = session.transfer("pull")
    asked = session.ask(pull)
    session.read(asked, {S0: 1})
    session.moved()
    done = session.read(session.get(WELCOME, S2), {S2: 1})
    assert [operation for operation, _ in resolved(done)] == [pull]
    assert errors(done) == []


def test_gradients_of_a_step_that_is_over_are_not_brought_to_shards_that_were_cut_since() -> None:
    session = Following(mode="sync")
    _, arrived = session.arrived()
    assert sent(arrived, m.Arrive)
    assert session.machine.attached is not None
    cuts = Placement.balance(session.machine.attached.placement.keyspace, 3, 32).to_wire()
    rows = [row(number, 10 + number) for number in range(3)]
    cut = session.get(m.View(1, 1, CUT, (), {**cuts, "servers": rows}))
    assert sent(cut, m.Followed, COORDINATOR) == [m.Followed(1, 1, 0)]
    there = {"servers": [{**rows[0], "epoch": 20}]}
    moved = session.get(m.View(1, 2, MOVED, (2,), there))  # what it was told before is not proceeded yet
    assert sent(moved, m.Followed, COORDINATOR) == [m.Followed(1, 2, 0)]
