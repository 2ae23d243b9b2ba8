"""A worker goes back with shards that do: what it had begun goes on or is over, and it says what is lost."""

from __future__ import annotations

from typing import Any

from tests.core.machines import CUT, REWOUND, failed, logged, resolved, sent
from tests.core.worker.test_session import LOST, S0, S1, WELCOME, Attached, row
from tests.modes import MODES
from tests.tables import for_each
from zmqps.core.job.keyspace import Placement
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import COORDINATOR, Action, Connected, Notify, server_peer
from zmqps.core.worker.layout.rollbacks import Rollback
from zmqps.core.worker.operations import Advance
from zmqps.errors import DeposedError, JobError, PeerLostError, StaleEpochError, VersionError

S2, S3 = server_peer(2), server_peer(3)
RESTORED = {"path": "/c/ckpt-7", "version": 7, "state": {"epoch": 3}}


class Going(Attached):
    """A worker of a job that may go back to a checkpoint; both servers know it."""

    def __init__(self, **options: Any) -> None:
        super().__init__({"falls_back": 1}, **options)

    def go_back(self, *shards: int, number: int = 2, version: int = 7, lost: int = 0) -> list[Action]:
        """Let the coordinator say that shards are on other servers now, from ``s2`` on."""
        rows = [row(2 + i, 10 * number + shard) for i, shard in enumerate(shards)]
        restored = {**RESTORED, "version": version}
        return self.get(m.View(1, number, REWOUND, shards, {"servers": rows}, restored, lost))

    def welcome_both(self) -> list[Action]:
        """Let the servers that have both shards now answer."""
        return [*self.welcome(S2), *self.welcome(S3)]

    def gone_back(self) -> list[Action]:
        """Let both shards go back, to servers that answer."""
        return [*self.go_back(0, 1), *self.welcome_both()]

    def welcome(self, peer: bytes, recalled: m.Recalled | None = None) -> list[Action]:
        done = self.handle(Connected(peer)) if peer in (S2, S3) else []
        done += self.get(WELCOME, peer)
        return [*done, *(self.get(recalled, peer) if recalled is not None else [])]


def told(actions: list[Action]) -> list[Rollback]:
    return [action.event for action in actions if isinstance(action, Notify)]


# --- where each push is applied on arrival -------------------------------------------------------


def test_what_is_not_acknowledged_is_sent_again_and_what_the_checkpoint_lacks_is_counted() -> None:
    session = Going()
    pushes = [session.transfer("push") for _ in range(4)]
    asked = [session.ask(push) for push in pushes]
    for actions in asked[:3]:
        session.acknowledge(actions)
    session.acknowledge(asked[3], S0)
    about = session.get(m.View(1, 1, REWOUND, (1,), {}, {"path": "/c/ckpt-7"}))
    assert "goes back to the checkpoint /c/ckpt-7" in logged(about)
    assert "which was lost: its shard goes back to" in session.machine.transfers.waiting_for(pushes[3].transfer, 0.0)  # type: ignore[arg-type]
    back = session.go_back(1)
    assert sent(back, m.Followed) == [], "it is yet to hear what the checkpoint has"
    assert [got.epoch for got in sent(back, m.Hello, S2)] == [21]
    before = sent(asked[3], m.Push, S1)
    per_push = len(before)
    done = session.welcome(S2, m.Recalled(21, per_push, ()))
    again = sent(done, m.Push, S2)
    assert [(got.seq, got.epoch) for got in again] == [(got.seq, 21) for got in before]
    (event,) = told(done)
    assert event == Rollback(version=7, shards=(1,), lost=2, state={"epoch": 3}, path="/c/ckpt-7")
    assert sent(done, m.Followed, COORDINATOR) == [m.Followed(1, 2, 2)]
    assert resolved(session.acknowledge(done, S2)) == [(pushes[3], None)]


def test_what_is_told_again_is_answered_again_and_happens_once() -> None:
    session = Going()
    session.go_back(1)
    session.welcome(S2, m.Recalled(21, 0, ()))
    again = session.go_back(1)
    assert sent(again, m.Followed) == [m.Followed(1, 2, 0)]
    assert told(again) == []
    assert session.get(m.Recalled(21, 0, ()), S2) == []
    assert session.go_back(1, number=1) == [], "that is older"


def test_a_shard_that_is_lost_twice_counts_what_is_lost_once() -> None:
    session = Going()
    asked = session.ask(session.transfer("push"))
    session.acknowledge(asked)
    session.go_back(1)
    assert told(session.welcome(S2, m.Recalled(21, 0, ())))[0].lost == 1
    asked = session.ask(session.transfer("push"))
    session.acknowledge(asked, S0, S2)
    session.go_back(0, 1, number=3)
    done = session.welcome(S2, m.Recalled(30, 0, ()))
    assert told(done) == []
    done = session.welcome(S3, m.Recalled(31, 0, ()))
    assert told(done)[0].lost == 2 + 1, "two of the first shard, one more of the second"


def test_errors_of_servers_are_not_the_end_where_the_coordinator_has_a_say() -> None:
    session = Going()
    push = session.transfer("push")
    asked = session.ask(push)
    assert resolved(session.get(m.Error.of(0, StaleEpochError(ours=3, theirs=1)), S1)) == []
    assert resolved(session.get(m.Error.of(0, JobError("no shard yet")), S1)) == []
    for message in sent(asked, m.Push, S1):
        assert resolved(session.get(m.Error.of(message.request, DeposedError(job="default", generation=0)), S1)) == []
    failed(session.get(LOST), PeerLostError, push)  # nothing to go back to


# --- where a step is one for all -------------------------------------------------------------------


def synchronous(clock: int = 0) -> Going:
    session = Going(mode="sync")
    session.machine.transfers.pace.attach("sync", clock)
    return session


def test_a_push_under_way_is_over_without_having_counted() -> None:
    session = synchronous(9)
    push = session.transfer("push", whole=True)
    session.acknowledge(session.ask(push), S0)
    back = session.go_back(0, 1, lost=2)
    assert resolved(back) == [(push, None)]
    assert told(back)[0].lost == 2
    assert sent(back, m.Followed) == [m.Followed(1, 2, 2)]
    assert session.machine.statistics().dropped == 1
    assert session.machine.statistics().clock == 7
    done = session.welcome_both()
    assert sent(done, m.Push) == []
    pushed = session.ask(session.transfer("push", whole=True))
    assert {got.step for got in sent(pushed, m.Push)} == {7}, "the next one counts: one step's gradients were dropped"


def test_a_pull_under_way_returns_the_values_of_the_checkpoint_whatever_version_it_had_asked_for() -> None:
    session = synchronous(9)
    pull = session.transfer("pull", version=10)
    session.read(session.ask(pull), {S0: 9})
    back = session.go_back(0, 1)
    assert resolved(back) == []
    asked = back + session.welcome_both()
    assert {got.version for got in sent(asked, m.Pull)} == {7}
    done = session.read(asked, {S2: 7, S3: 7})
    assert resolved(done) == [(pull, None)]
    assert set(pull.pull.target.versions.values()) == {7}  # type: ignore[union-attr]


def test_a_push_pull_goes_on_with_the_pull() -> None:
    session = synchronous(9)
    both = session.transfer("push_pull", whole=True)
    session.ask(both)
    back = session.go_back(0, 1)
    assert resolved(back) == []
    asked = back + session.welcome_both()
    assert sent(asked, m.Push) == []
    assert resolved(session.read(asked, {S2: 7, S3: 7})) == [(both, None)]


def test_a_worker_that_waits_for_the_end_of_a_step_asks_for_it_no_more() -> None:
    session = synchronous(9)
    actions = session.ask(session.transfer("push", whole=True))
    (arrive,) = sent(session.acknowledge(actions), m.Arrive)
    pull = session.transfer("pull")
    session.ask(pull, timeout=60.0)
    asked = session.gone_back()
    assert {got.version for got in sent(asked, m.Pull)} == {7}
    assert session.get(m.Proceed(arrive.request, 10, 1)) == []
    assert sent(session.wait(20.0, hear=True), m.Arrive) == []
    assert session.machine.statistics().clock == 7


def test_gradients_of_values_that_are_gone_are_dropped_until_values_are_read_again() -> None:
    session = synchronous(9)
    session.gone_back()
    push = session.transfer("push", whole=True)
    dropped = session.ask(push)
    assert resolved(dropped) == [(push, None)]
    assert sent(dropped, m.Push) == []
    assert session.machine.statistics().dropped == 1
    assert sent(session.ask(session.transfer("push", whole=True)), m.Push) != [], "one step's, and no more"


def test_a_pull_after_it_reads_what_there_is_though_it_asks_for_what_there_was() -> None:
    session = synchronous(9)
    session.gone_back()
    pull = session.transfer("pull", version=10)
    asked = session.ask(pull)
    assert {got.version for got in sent(asked, m.Pull)} == {7}
    session.read(asked, {S2: 7, S3: 7})
    assert sent(session.ask(session.transfer("push", whole=True)), m.Push) != []


def test_a_step_of_several_pushes_is_dropped_as_a_whole() -> None:
    session = synchronous(9)
    half = session.transfer("push")
    session.acknowledge(session.ask(half))
    session.gone_back()
    other, advance = session.transfer("push"), Advance(0.0)
    assert resolved(session.ask(other)) == [(other, None)]
    assert resolved(session.ask(advance)) == [(advance, None)]
    assert sent(session.ask(session.transfer("push")), m.Push) != []


@for_each("whole", [False, True])
def test_a_range_in_hand_is_to_do_again_so_its_gradients_do_not_count(whole: bool) -> None:
    session = synchronous(9)
    session.machine.rollbacks.took(some=True)
    session.gone_back()
    session.read(session.ask(session.transfer("pull")), {S2: 7, S3: 7})
    if whole:
        session.machine.rollbacks.took(some=True)
    assert bool(sent(session.ask(session.transfer("push", whole=True)), m.Push)) is whole


@for_each("mode", ["async", "sync"])
def test_who_hears_late_of_a_cut_goes_back_to_what_it_was_told_with_it(mode: str) -> None:
    session = Going(**MODES[mode])
    session.go_back(0, 1, number=2)
    assert session.machine.attached is not None
    cuts = Placement.balance(session.machine.attached.placement.keyspace, 2, 32).to_wire()
    rows = [row(2 + n, 40 + n) for n in (0, 1)]
    session.get(m.View(1, 3, CUT, (), {**cuts, "servers": rows}))
    assert session.go_back(0, 1, number=2) == [], "of shards that there are no more"
    done = session.go_back(0, 1, number=4, version=3)  # on the servers where the job lies, as it knows
    for shard, peer in enumerate((S2, S3)):
        done += session.welcome(peer, m.Recalled(40 + shard, 0, []))
    assert [back.version for back in told(done)] == [3]
    assert sent(done, m.Followed) == [m.Followed(1, 4, 0)]
    assert sent(session.go_back(0, 1, number=4, version=3), m.Followed) == [m.Followed(1, 4, 0)], "told again"
    if mode == "sync":
        assert session.machine.transfers.pace.clock == 3


@for_each("held", [False, True])
@for_each("version, ends", [(8, True), (9, True), (10, False), (7, False)])
def test_a_version_that_is_gone_is_not_waited_for_by_who_has_to_make_it_again(
    version: int, ends: bool, held: bool
) -> None:
    session = synchronous(9)
    if held:
        session.get(m.Hold(5))
    pull = session.transfer("pull", version=version, exact=True)
    session.ask(pull)
    done = resolved(session.go_back(0, 1, version=7))
    assert [(operation, type(value)) for operation, value in done] == ([(pull, VersionError)] if ends else [])
