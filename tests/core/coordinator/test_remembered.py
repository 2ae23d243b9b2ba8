"""A coordinator that was away knows again what it had decided, and goes on with its members."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.coordinator.kept import Kept
from tests.core.machines import errors, hello, job, logged, sent
from tests.tables import for_each
from zmqps.core.coordinator.consistency.bounded import Bounded
from zmqps.core.protocol import exits
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Exit, Stop
from zmqps.errors import EvictedError, IdentityError, JournalBehindError

DATA = ("examples", 40, 10, 1, ())


def training(**options: Any) -> Kept:
    """Return a coordinator whose two workers train on two servers."""
    kept = Kept.joined("s0", "s1", "w0", "w1", servers=2, workers=2)
    kept.init_all(job(**options), "w0", "w1")
    kept.ready("s0", "s1")
    return kept


def test_members_say_who_they_are_again_and_keep_their_ranks() -> None:
    kept = training()
    ranks = {got.hello.name: got.rank for got in kept.machine.membership.members.values()}
    told = kept.back()
    assert "is back with 4 members and 1 job from its journal; a member that does not return within" in logged(told)
    assert {got.hello.name: got.rank for got in kept.machine.membership.members.values()} == ranks
    actions = kept.come_back("w1", "s0", "w0", "s1")
    assert [got.rank for got in sent(actions, m.Welcome)] == [ranks[name] for name in ("w1", "s0", "w0", "s1")]
    assert {got.patience for got in sent(actions, m.Welcome)} == {600.0}
    assert not kept.pass_time(0.0)


def test_who_does_not_come_back_is_lost_but_not_before_a_whole_timeout() -> None:
    kept = training()
    kept.now += 500.0
    kept.return_with("s0", "s1", "w0")
    timeout = kept.machine.options.heartbeat_timeout
    for _ in range(9):
        kept.pass_time(timeout / 10)
        for name in ("s0", "s1", "w0"):
            kept.take(name, m.Heartbeat({}))
    assert len(kept.machine.membership.members) == 4
    assert "lost worker 1" in logged(kept.pass_time(timeout / 5))


def test_nobody_else_takes_the_place_of_a_member_that_is_not_back() -> None:
    kept = training()
    kept.back()
    thief = hello("worker", "w0")
    assert errors(kept.take("thief", m.Farewell(thief.incarnation, b"t" * 16, "finished"))) == [IdentityError.code]
    assert len(kept.machine.membership.members) == 4


def test_a_commit_that_was_decided_is_said_again_and_its_workers_hear_that_they_counted() -> None:
    kept = training(mode="sync")
    kept.take("w0", m.Arrive(2, 0, (1,)))
    commits = sent(kept.take("w1", m.Arrive(2, 0, (1,))), m.Commit)
    assert len(commits) == 2
    again = sent(kept.return_with("s0", "s1"), m.Commit)
    assert again == sorted(commits, key=lambda commit: commit.epoch)
    kept.come_back("w0", "w1")
    for name in ("w0", "w1"):
        assert sent(kept.take(name, m.Arrive(2, 0, (1,))), m.Proceed) == [m.Proceed(2, 1, 1)]
    assert not sent(kept.take("w0", m.Arrive(3, 1, (2,))), m.Commit)
    assert {commit.step for commit in sent(kept.take("w1", m.Arrive(3, 1, (2,))), m.Commit)} == {1}


def test_an_arrival_that_was_told_to_be_known_counts_though_its_worker_has_left() -> None:
    kept = training(mode="sync")
    kept.take("w0", m.Arrive(2, 0, (1,)))
    assert sent(kept.pass_time(0.2), m.Waiting)
    kept.return_with("s0", "s1", "w1")
    assert sent(kept.take("w0", m.Leave("finished")), m.Back)
    farewell = hello("worker", "w0")
    assert sent(kept.take("w0", m.Farewell(farewell.incarnation, farewell.secret, "finished")), m.Left)
    (commit, _) = sent(kept.take("w1", m.Arrive(2, 0, (1,))), m.Commit)
    assert {who for who, _ in commit.contributors} == {hello("worker", name).incarnation for name in ("w0", "w1")}


def test_a_barrier_that_was_released_stays_so_for_those_who_had_not_heard() -> None:
    kept = training()
    kept.take("w0", m.Enter(5, "b"))
    assert len(sent(kept.take("w1", m.Enter(5, "b")), m.Released)) == 2
    kept.return_with("s0", "s1", "w0", "w1")
    assert sent(kept.take("w0", m.Enter(5, "b")), m.Released) == [m.Released(5, 0)]
    assert not sent(kept.take("w0", m.Enter(6, "c")), m.Released)


def test_who_waits_asks_again() -> None:
    kept = training()
    kept.take("w0", m.Enter(5, "b"))
    kept.return_with("s0", "s1", "w0", "w1")
    kept.take("w0", m.Enter(5, "b"))
    assert len(sent(kept.take("w1", m.Enter(5, "b")), m.Released)) == 2


def test_a_range_is_the_same_workers_and_no_other_ones() -> None:
    kept = training()
    first = sent(kept.take("w0", m.Take(5, *DATA, ())), m.Range)[0]
    kept.return_with("s0", "s1", "w0", "w1")
    assert sent(kept.take("w1", m.Take(5, *DATA, ())), m.Range)[0].number == 1
    assert sent(kept.take("w0", m.Take(5, *DATA, ())), m.Range) == [first]
    assert sent(kept.take("w0", m.Take(6, *DATA, (0, first.number))), m.Range)[0].number == 2


def test_a_start_goes_on_where_it_was() -> None:
    kept = Kept.joined("s0", "s1", "w0", "w1", servers=2, workers=2)
    kept.init_all(job(), "w0", "w1")
    kept.ready("s0", "s1", loaded=False)
    assert kept.run().startup.loader is not None
    assigned = sent(kept.return_with("s0", "s1"), m.Assign)
    assert {assign.epoch for assign in assigned} == {1, 2}
    kept.come_back("w0", "w1")
    (load,) = sent(kept.init("w0", job()), m.Job)
    assert load.load
    kept.take("w0", m.Resumed(0))
    kept.init("w1", job())
    kept.take("w1", m.Resumed(0))
    assert {told.load for told in sent(kept.ready("s0", "s1"), m.Job)} == {0}
    assert kept.run().startup.epoch == 1


def test_an_init_that_is_not_asked_again_is_waited_for_no_more() -> None:
    kept = Kept.joined("s0", "s1", "w0", servers=2)
    kept.init("w0", job())
    kept.return_with("s0", "s1", "w0")
    kept.take("w0", m.Resumed(0))
    assert kept.run().startup.job is None
    assert "step/default" not in kept.journal, "what is known of its steps goes with the job"


def test_epochs_are_never_given_twice() -> None:
    kept = training()
    kept.return_with("s0", "s1", "w0", "w1")
    kept.attach("w2.other", job())
    assert set(kept.epochs("s0", "other") + kept.epochs("s1", "other")) == {3, 4}


def test_who_was_evicted_stays_out_and_servers_hear_of_it_until_they_confirm() -> None:
    kept = training()
    for _ in range(10):
        kept.pass_time(kept.machine.options.heartbeat_timeout / 5)
        for name in ("s0", "s1", "w0"):
            kept.take(name, m.Heartbeat({}))
    assert len(kept.machine.membership.members) == 3
    kept.back()
    who = hello("worker", "w1")
    assert {departed.incarnation for departed in sent(kept.come_back("s0"), m.Departed)} == {who.incarnation}
    assert errors(kept.take("w1", who)) == [EvictedError.code]


def test_the_journal_of_a_host_that_lost_its_power_is_behind() -> None:
    kept = training(mode="sync")
    kept.return_with("s0", "w0", "w1")
    (epoch,) = kept.epochs("s0")
    said = logged(kept.take("s0", m.Committed(epoch, 3)))
    assert "the journal 0, so the contributors of the others are unknown" in said
    assert errors(kept.take("w0", m.Arrive(2, 0, (1,)))) == [JournalBehindError.code]


def test_an_end_that_had_begun_goes_on() -> None:
    kept = training()
    kept.take("somebody", m.EndJob(1, "default"))
    assert "default" in kept.machine.ended.by_name
    kept.back()
    assert "default" in kept.machine.ended.by_name
    assert not kept.machine.runs


def test_a_cluster_that_was_ending_ends() -> None:
    kept = training(mode="sync")
    kept.machine.cluster_end.begin(Exit(0, "enough"), kept.now)
    kept._keep(kept.machine._recorded([], kept.now))
    kept.back()
    assert kept.machine.ending == Exit(0, "enough")
    assert kept.machine.checkpoints.waiting.closed, "nothing more is saved"
    assert sent(kept.take("w0", m.Heartbeat({})), m.Back)
    assert [got.reason for got in sent(kept.join("w0"), m.Shutdown)] == ["enough"]
    assert [action for action in kept.pass_time(10.0) if isinstance(action, Exit)]


def test_what_is_not_saved_is_not_forgotten() -> None:
    kept = training()
    kept.machine.checkpoints.on_unsaved("default")
    kept._keep(kept.machine._recorded([], kept.now))
    kept.back()
    kept.handle(Stop("SIGTERM"))
    assert kept.machine.ending is not None
    assert kept.machine.ending.code == exits.NOT_SAVED


def test_one_that_begins_anew_knows_nobody() -> None:
    kept = Kept()
    assert not kept.machine.is_back
    assert errors(kept.take("w0", m.Heartbeat({})))
    assert sent(kept.take("w0", m.Leave("closed")), m.Left)


@for_each("mode", [{"mode": "async"}, {"mode": "bounded", "staleness": 2}, {"mode": "sync"}])
def test_it_may_go_away_at_any_event(mode: dict[str, Any]) -> None:
    kept = Kept(servers=2, workers=2)
    everybody = ["s0", "s1", "w0", "w1"]
    for number, name in enumerate(everybody, 1):
        kept.join(name)
        kept.return_with(*everybody[:number])
    for name in ("w0", "w1"):
        kept.init(name, job(**mode))
        kept.return_with(*everybody)
        for other in ("w0", "w1")[: 1 + (name == "w1")]:
            kept.init(other, job(**mode))
    for name in ("s0", "s1"):
        kept.ready(name, loaded=True)
        kept.return_with(*everybody)
    for other in ("w0", "w1"):
        assert sent(kept.init(other, job(**mode)), m.Job)
    assert kept.run().startup.ready
    assert sent(kept.take("s0", m.Ready(1, 1)), m.Job) == []


def begins_after_all_others_are_lost() -> int:
    """Let a coordinator be away while its only worker, at clock 3, dies; return the clock that the next one gets."""
    kept = Kept.joined("s0", "w0", servers=1)
    kept.init("w0", job(mode="bounded", staleness=2))
    kept.ready("s0")
    for clock in range(3):
        kept.take("w0", m.Arrive(2 + clock, clock, (1 + clock,)))
    kept.return_with("s0")
    for _ in range(12):
        kept.pass_time(kept.machine.options.heartbeat_timeout / 10)
        kept.take("s0", m.Heartbeat({}))
    (told,) = sent(kept.attach("w1", job(mode="bounded", staleness=2)), m.Job)
    return told.step


def test_a_worker_that_comes_when_all_others_are_gone_begins_where_they_were() -> None:
    assert begins_after_all_others_are_lost() == 3


def test_a_coordinator_that_forgets_the_slowest_clock_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bounded, "dump", lambda self: [0, []])
    assert begins_after_all_others_are_lost() != 3
