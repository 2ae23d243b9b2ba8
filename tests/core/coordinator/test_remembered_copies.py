"""A coordinator that was away knows again which server has which copy, and goes on with what was to become of them."""

from __future__ import annotations

from typing import Any

from tests.core.coordinator.kept import Kept
from tests.core.machines import MOVED, job, logged, of_heir, of_leader, peer, receivers, sent, server_of
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action
from zmqps.errors import JobEndedError, JournalBehindError

SERVERS = ("s0", "s1", "s2")
WORKERS = ("w0", "w1")


def training(servers: int = 3, **options: Any) -> Kept:
    """Return a coordinator of servers whose shards have a backup each, and of two workers that train."""
    kept = Kept(servers=servers, workers=2, replicas=1)
    names = [f"s{n}" for n in range(servers)]
    kept.join(*names, *WORKERS)
    for name in WORKERS:
        kept.init(name, job(**options))
    kept.ready(*names, loaded=False)
    kept.ready(*names)
    assert kept.run().startup.ready
    return kept


def test_a_promotion_that_was_decided_is_gone_on_with() -> None:
    kept = training()
    asked = sent(kept.take("s1", m.Leave("closed")), m.Lead, backups=of_heir)
    assert [message.generation for message in asked] == [1]
    assert sent(kept.return_with("s0"), m.Lead, backups=of_heir) == []
    back = kept.come_back("s2", *WORKERS)
    assert sent(back, m.Lead, backups=of_heir) == asked, "said again at once"
    told = kept.promoted(back)
    assert sorted(receivers(told, m.View, change=MOVED)) == [peer("w0"), peer("w1")]
    kept.follow(told)
    kept.take("s0", m.Leading(1, 1, 0))
    assert kept.run().replication.views.all_followed


def test_the_backups_of_a_leader_are_said_again() -> None:
    kept = training()
    (before,) = sent(kept.take("s1", m.Leave("closed")), m.Lead, peer("s0"), backups=of_leader)
    assert sent(kept.return_with("s0"), m.Lead, backups=of_leader) == [before]


def test_a_server_that_was_lost_meanwhile_is_noticed_and_its_backup_takes_over() -> None:
    kept = training()
    kept.back()
    there = ("s0", "s2", *WORKERS)
    kept.come_back(*there)
    timeout, actions = kept.machine.options.heartbeat_timeout, list[Action]()
    for _ in range(12):
        actions += kept.pass_time(timeout / 10)
        for name in there:
            kept.take(name, m.Heartbeat({}))
    assert "its backups take over" in logged(actions)
    first = sent(actions, m.Lead, backups=of_heir)[0]
    assert (first.epoch, first.generation) == (5, 1)
    assert receivers(actions, m.Lead, backups=of_heir)[0] == peer("s2")
    assert kept.run().lost_shard is None


def test_members_that_had_not_followed_are_told_again_and_no_others() -> None:
    kept = training()
    told = kept.promoted(kept.take("s1", m.Leave("closed")))
    (move,) = sent(told, m.View, peer("w0"), change=MOVED)
    kept.take("w0", m.Followed(move.epoch, move.revision, 0))
    kept.return_with("s0", "s2", *WORKERS)
    assert sent(kept.take("w0", m.Resumed(0)), m.View, change=MOVED) == []
    again = sent(kept.take("w1", m.Resumed(0)), m.View, change=MOVED)
    assert [(got.shards, got.revision, server_of(got)["epoch"]) for got in again] == [((1,), move.revision, 5)]
    kept.take("w1", m.Followed(again[0].epoch, again[0].revision, 0))
    assert sent(kept.pass_time(3.0), m.View, change=MOVED) == []


def test_no_step_counts_on_gradients_that_are_still_to_be_brought_again() -> None:
    kept = training(mode="sync")
    told = kept.promoted(kept.take("s1", m.Leave("closed")))
    kept.return_with("s0", "s2", *WORKERS)
    waiting = [action for name in WORKERS for action in kept.take(name, m.Arrive(2, 0, (1,)))]
    assert sent(waiting, m.Commit) == []
    done = kept.follow(told)
    assert {commit.step for commit in sent(done, m.Commit)} == {0}


def test_a_worker_proceeds_when_the_backups_have_its_step_also_if_that_was_decided_before() -> None:
    kept = training(mode="sync")
    kept.take("w0", m.Arrive(2, 0, (1,)))
    commits = sent(kept.take("w1", m.Arrive(2, 0, (1,))), m.Commit)
    kept.return_with(*SERVERS, *WORKERS)
    for name in WORKERS:
        assert sent(kept.take(name, m.Arrive(2, 0, (1,))), m.Proceed) == []
    confirmed = [kept.take(f"s{commit.epoch - 1}", m.Committed(commit.epoch, 0)) for commit in commits]
    assert [len(sent(actions, m.Proceed)) for actions in confirmed] == [0, 0, 2]


def test_a_new_backup_is_asked_for_again_until_it_is_whole_and_the_shard_is_degraded_until_then() -> None:
    kept = training()
    kept.promoted(kept.take("s1", m.Leave("closed")))
    filling = kept.join("s3")
    new = [assign.epoch for assign in sent(filling, m.Assign, peer("s3"))]
    assert len(new) == 2
    kept.take("s3", m.Ready(new[0], 0))
    degraded = list(kept.run().replication.shortages.texts(kept.now))
    kept.back()
    assert list(kept.run().replication.shortages.texts(kept.now)) == degraded
    assert [assign.epoch for assign in sent(kept.come_back("s3"), m.Assign)] == new, "or what it has said is lost"
    for epoch in new:
        kept.take("s3", m.Ready(epoch, 1))
    kept.back()
    assert list(kept.run().replication.shortages.texts(kept.now)) == []


def test_a_new_copy_gets_a_number_that_none_before_has_had() -> None:
    kept = training()
    kept.promoted(kept.take("s1", m.Leave("closed")))
    kept.return_with("s0", "s2", *WORKERS)
    known = set(kept.run().startup.copies.by_epoch)
    new = {assign.epoch for assign in sent(kept.join("s3"), m.Assign, peer("s3"))}
    assert len(new) == 2
    assert min(new) > max(known)


def test_what_a_server_is_to_free_it_is_told_again() -> None:
    kept = training(servers=3)
    kept.take("s1", m.Leave("closed"))
    job_ends = kept.machine.jobs.end(kept.run(), "enough", kept.now)
    kept._keep([*kept.machine._recorded([], kept.now), *job_ends])
    assert {message.epoch for message in sent(kept.return_with("s0", "s2"), m.Discard)} == {1, 3, 5, 6}


def test_a_journal_that_is_behind_a_promoted_server_ends_the_job() -> None:
    kept = training(mode="sync")
    lost = kept.take("s1", m.Leave("closed"))
    kept.promoted(lost, step=3)
    assert isinstance(kept.run().lost_shard, JournalBehindError)


def test_members_of_a_job_that_fails_with_its_servers_there_are_told() -> None:
    kept = training(mode="sync")
    kept.promoted(kept.take("s1", m.Leave("closed")), step=3)
    assert isinstance(kept.run().lost_shard, JournalBehindError)
    due = kept.machine.next_deadline()
    assert due is not None
    assert due <= kept.now, "they may wait for servers, and ask nobody"
    told = [message for message in sent(kept.pass_time(0.0), m.Error) if message.code == JobEndedError.code]
    assert len(told) == len(WORKERS)
    assert "the journal 0" in told[0].text
    assert not kept.machine.runs
