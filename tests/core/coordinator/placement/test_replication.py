"""Backups at the coordinator: placed, promoted when a server is lost, and replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.core.machines import (
    MOVED,
    Coordinator,
    Trained,
    errors,
    hello,
    job,
    logged,
    of_heir,
    of_leader,
    peer,
    receivers,
    sent,
    sent_to,
    server_of,
)
from tests.tables import for_each
from zmqps.core.coordinator.placement.replication import RETRY_S
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action
from zmqps.errors import JobError, PeerLostError


class Cluster(Trained):
    """Three servers, whose shards have a backup each."""

    def __init__(self, servers: int = 3, replicas: int = 1, **options: Any) -> None:
        super().__init__(servers, replicas, **options)

    def degraded(self) -> list[str]:
        return list(self.status()["replicas"]["degraded"])


def without_s1() -> Cluster:
    """Return one whose second server is lost, and its backup has taken over."""
    cluster = Cluster()
    cluster.promoted(cluster.lose("s1"))
    return cluster


def test_each_shard_has_a_backup_on_the_next_server_which_its_leader_is_told() -> None:
    cluster = Coordinator.joined("s0", "s1", "s2", "w0", servers=3, replicas=1)
    placed = cluster.init("w0", job())
    assigned = sent(placed, m.Assign)
    assert receivers(placed, m.Assign) == [peer(f"s{n}") for n in (0, 1, 2, 1, 2, 0)]
    assert [(a.epoch, a.shard, a.backup) for a in assigned] == [
        (1, 0, 0), (2, 1, 0), (3, 2, 0), (4, 0, 1), (5, 1, 1), (6, 2, 1),
    ]  # fmt: skip
    assert [[row["epoch"] for row in a.backups.get("rows", [])] for a in assigned] == [[4], [5], [6], [], [], []]
    assert {a.sharing for a in assigned} == {3}, "servers, not copies, share the memory of a host"


def test_a_job_is_trained_when_its_backups_are_whole() -> None:
    cluster = Coordinator.joined("s0", "s1", "w0", servers=2, replicas=1)
    cluster.init("w0", job())
    cluster.ready("s0", "s1", loaded=False)
    for name, epoch in (("s0", 1), ("s1", 2)):
        assert sent(cluster.take(name, m.Ready(epoch, 1)), m.Job) == []
    assert "the backups to have the initial values" in cluster.run().startup.waiting_for(list(cluster.machine.servers))
    cluster.take("s1", m.Ready(3, 1))
    (told,) = sent(cluster.take("s0", m.Ready(4, 1)), m.Job)
    assert told.placement["replicas"] == 1
    assert [row["epoch"] for row in told.placement["servers"]] == [1, 2]
    assert cluster.run().replication.is_quiet
    assert not cluster.run().replication.shortages


def test_a_backup_takes_over_and_nobody_is_told_that_anything_is_lost() -> None:
    cluster = Cluster()
    lost = cluster.lose("s1")
    assert sent(lost, m.Lost) == []
    assert errors(lost) == []
    assert cluster.run().state == "training"
    assert [(to, got.epoch) for to, got in sent_to(lost, m.Lead, backups=of_heir)] == [("s2", 5)]
    assert {(got.shards, got.revision) for got in sent(lost, m.View, change=MOVED) if not got.placement} == {((1,), 1)}
    assert [(got.epoch, dict(got.backups)) for got in sent(lost, m.Lead, peer("s0"), backups=of_leader)] == [
        (1, {"rows": []})
    ]
    assert "its backups take over" in logged(lost)
    told = cluster.promoted(lost)
    assert receivers(told, m.View, change=MOVED) == [peer("w0"), peer("w1")]
    assert {(server_of(got)["epoch"], server_of(got)["name"]) for got in sent(told, m.View, change=MOVED)} == {
        (5, "s2")
    }
    cluster.follow(told)
    cluster.take("s0", m.Leading(1, 1, 0))
    assert not sent(cluster.wait(20.0, "s0", "s2", "w0", "w1"), m.View, change=MOVED)


def test_a_leader_that_has_other_backups_moves_nobody_whatever_its_step_and_however_often_it_says_so() -> None:
    cluster = Cluster()
    cluster.promoted(cluster.lose("s1"))
    for _ in range(2):
        assert cluster.take("s0", m.Leading(1, 1, 7)) == []
    assert cluster.run().state == "training"
    assert not cluster.run().startup.copies.by_epoch[1].order


def test_what_is_not_answered_is_said_again() -> None:
    cluster = Cluster()
    lost = cluster.lose("s1")
    again = cluster.wait(RETRY_S, "s0", "s2", "w0", "w1")
    assert receivers(again, m.Lead, backups=of_heir) == [peer("s2")]
    assert receivers(again, m.Lead, backups=of_leader) == [peer("s0")]
    told = cluster.promoted(lost)
    assert cluster.promoted(lost) == [], "said twice"
    assert receivers(cluster.wait(cluster.now + RETRY_S, "s0", "s2", "w0", "w1"), m.View, change=MOVED) == [
        peer("w0"),
        peer("w1"),
    ]
    cluster.follow(told)


def test_who_comes_later_is_told_where_the_shard_is_now() -> None:
    cluster = without_s1()
    (told,) = sent(cluster.attach("w2", job()), m.Job)
    assert [row["epoch"] for row in told.placement["servers"]] == [1, 5, 3]
    assert [row["name"] for row in told.placement["servers"]] == ["s0", "s2", "s2"]
    (told,) = sent(cluster.attach("o0", None), m.Job)
    assert [row["epoch"] for row in told.placement["servers"]] == [1, 5, 3]


def test_the_status_says_since_when_and_why_and_what_one_more_loss_would_cost() -> None:
    cluster = Cluster()
    assert cluster.degraded() == []
    cluster.promoted(cluster.lose("s1"))
    cluster.now += 3.0
    first, second = cluster.degraded()
    assert first.startswith("shard 0 has 0 backups of 1 since 3 s ago (server 1 (s1, host, pid 7) was lost): ")
    assert "if server 0 (s0, host, pid 7) were lost, its values would be lost, too" in first
    assert "if server 2 (s2" in second


def test_a_restarted_server_gets_the_backups_that_are_missing() -> None:
    cluster = without_s1()
    joined = cluster.join("s3")
    assert [(a.shard, a.backup) for a in sent(joined, m.Assign, peer("s3"))] == [(0, 1), (1, 1)]
    filled = {
        got.epoch: [row["name"] for row in got.backups["rows"]] for got in sent(joined, m.Lead, backups=of_leader)
    }
    assert filled == {1: ["s3"], 5: ["s3"]}
    assert "is being filled" in cluster.degraded()[0]
    for epoch, generation in ((1, 2), (5, 2)):
        cluster.take("s0" if epoch == 1 else "s2", m.Leading(epoch, generation, 0))
    done = cluster.ready("s3")
    assert "shard 0 has 1 backup again" in logged(done)
    assert [event.kind for event in cluster.machine.watching.events][-2:] == ["copied", "copied"]
    assert cluster.degraded() == []


def test_a_spare_that_is_there_gets_what_a_server_had_that_only_kept_copies() -> None:
    cluster = without_s1()
    cluster.join("s3", "s4")
    cluster.ready("s3")
    lost = cluster.lose("s3")
    assert {a.shard for a in sent(lost, m.Assign, peer("s4"))} == {0, 1}


def test_a_spare_that_is_there_from_the_first_gets_the_backups_that_there_were_too_few_servers_for() -> None:
    cluster = Coordinator.joined("s0", "s1", "w0", servers=1, replicas=1)
    cluster.init("w0", job())
    begun = cluster.build("s0")
    assert [(to, a.shard, a.backup) for to, a in sent_to(begun, m.Assign)] == [("s1", 0, 1)]
    assert len(sent(begun, m.Lead, peer("s0"), backups=of_leader)) == 1


@for_each("capabilities", [(), ("spare",)], ids=["restarted before the loss is noticed", "spare"])
def test_a_spare_joins_beyond_the_servers_that_are_awaited(capabilities: tuple[str, ...]) -> None:
    cluster = Cluster()
    joined = cluster.take("s7", replace(hello("server", "s7"), capabilities=capabilities))
    assert len(sent(joined, m.Welcome)) == 1
    assert sent(joined, m.Assign) == []
    lost = cluster.lose("s1")
    told = cluster.promoted(lost)
    assert {a.shard for a in sent([*lost, *told], m.Assign, peer("s7"))} == {0, 1}


def test_a_shard_without_a_whole_backup_is_lost_with_its_server() -> None:
    cluster = without_s1()
    lost = cluster.lose("s0")
    assert receivers(lost, m.Lost) == [peer("w0"), peer("w1")]
    assert str(cluster.run().lost_shard).startswith("lost server 0")
    assert errors(cluster.init("w0", job(), request=7)) == [PeerLostError.code]


def test_a_backup_that_cannot_be_kept_is_given_up_and_its_leader_goes_on_alone() -> None:
    cluster = without_s1()
    cluster.join("s3")
    (epoch, *_) = cluster.epochs("s3")
    failed = cluster.take("s3", m.Error.of(epoch, JobError("no memory")))
    assert sent(failed, m.Discard, peer("s3")) == [m.Discard(epoch)]
    assert [dict(got.backups) for got in sent(failed, m.Lead, backups=of_leader)] == [{"rows": []}]
    assert [a.epoch for a in sent(cluster.join("w5"), m.Assign)] == [], "not there again"


def backups(cluster: Cluster, shard: int = 1) -> list[tuple[str, int]]:
    """Return the servers of a shard's backups, and their numbers."""
    return [(copy.server.hello.name, copy.epoch) for copy in cluster.run().startup.copies.backups(shard)]


def test_where_a_shard_has_two_backups_the_second_takes_over_if_the_first_is_lost_before_it_has() -> None:
    cluster = Cluster(4, 2)
    (first, number), (second, other) = backups(cluster)
    lost = cluster.lose("s1")
    assert (first, number) in [(to, got.epoch) for to, got in sent_to(lost, m.Lead, backups=of_heir)]
    again = cluster.lose(first)
    assert m.Lead(other, 2) in sent(again, m.Lead, peer(second), backups=of_heir)
    assert cluster.run().state == "training"
    assert cluster.take(second, m.Leading(other, 1, 0)) == [], "of a promotion that it was not told"
    done = cluster.promoted(again)
    assert second in {server_of(got)["name"] for got in sent(done, m.View, change=MOVED) if got.placement}
    assert cluster.run().state == "training"


def test_where_a_shard_has_two_backups_the_second_takes_over_if_the_first_cannot() -> None:
    cluster = Cluster(4, 2)
    (first, number), (second, other) = backups(cluster)
    cluster.lose("s1")
    failed = cluster.take(first, m.Error.of(number, JobError("it is not whole")))
    assert sent(failed, m.Lead, peer(second), backups=of_heir) == [m.Lead(other, 2)]
    assert sent(failed, m.Discard, peer(first)) == [m.Discard(number)]
    assert {server_of(got)["name"] for got in sent(cluster.promoted(failed), m.View, change=MOVED)} == {second}


def test_the_other_backups_are_filled_anew_when_one_has_taken_over() -> None:
    cluster = Cluster(4, 2)
    (first, _), (second, other) = backups(cluster)
    lost = cluster.lose("s1")
    assert m.Discard(other) not in sent(lost, m.Discard, peer(second))
    done = cluster.promoted(lost)
    assert m.Discard(other) in sent(done, m.Discard, peer(second))
    assert (1, 1) in {(a.shard, a.backup) for a in sent(done, m.Assign, peer(second))}
    assert len(sent(done, m.Lead, peer(first), backups=of_leader)) >= 1


# --- synchronous --------------------------------------------------------------------------------


def arrive(cluster: Cluster, *names: str, step: int = 0) -> list[Action]:
    return [action for name in names for action in cluster.take(name, m.Arrive(100 + step, step, (1 + step,)))]


def confirm(cluster: Cluster, *shards: int, step: int = 0) -> list[Action]:
    copies = [cluster.run().startup.copies.leader(shard) for shard in shards]
    return [a for copy in copies for a in cluster.take(copy.server.hello.name, m.Committed(copy.epoch, step))]


def confirmed_but_by_s1() -> Cluster:
    """Return one whose step all but the second server have committed."""
    cluster = Cluster(mode="sync")
    arrive(cluster, "w0", "w1")
    confirm(cluster, 0, 2)
    return cluster


def test_workers_proceed_when_all_shards_and_their_backups_have_the_step() -> None:
    cluster = Cluster(mode="sync")
    committed = arrive(cluster, "w0", "w1")
    assert len(sent(committed, m.Commit)) == 3
    assert sent(committed, m.Proceed) == []
    assert sent(confirm(cluster, 0, 1), m.Proceed) == []
    assert receivers(confirm(cluster, 2), m.Proceed) == [peer("w0"), peer("w1")]


def test_a_step_under_way_is_committed_at_the_new_leader_when_all_have_brought_their_gradients_again() -> None:
    cluster = confirmed_but_by_s1()
    told = cluster.promoted(cluster.lose("s1"))
    assert sent(told, m.Commit) == []
    first, second = (m.Followed(1, sent(told, m.View, change=MOVED)[0].revision, 0) for _ in range(2))
    assert sent(cluster.take("w0", first), m.Commit) == []
    (commit,) = sent(cluster.take("w1", second), m.Commit)
    assert (commit.epoch, commit.step, len(commit.contributors)) == (5, 0, 2)
    assert receivers(confirm(cluster, 1), m.Proceed) == [peer("w0"), peer("w1")]


def test_a_step_that_the_backup_has_already_is_not_committed_again() -> None:
    cluster = confirmed_but_by_s1()
    told = cluster.promoted(cluster.lose("s1"), step=1)
    assert sent(cluster.follow(told), m.Commit) == []


def test_a_step_is_not_complete_before_its_gradients_are_at_the_new_leader() -> None:
    cluster = Cluster(mode="sync")
    arrive(cluster, "w0")
    told = cluster.promoted(cluster.lose("s1"))
    assert sent(arrive(cluster, "w1"), m.Commit) == []
    assert len(sent(cluster.follow(told), m.Commit)) == 3


def test_gradients_of_a_worker_that_goes_before_it_could_bring_them_again_do_not_count() -> None:
    cluster = Cluster(mode="sync")
    arrive(cluster, "w0")
    told = cluster.promoted(cluster.lose("s1"))
    cluster.take("w0", m.Leave("closed"))
    cluster.take("w1", m.Followed(1, sent(told, m.View, change=MOVED)[0].revision, 0))
    commits = sent(arrive(cluster, "w1"), m.Commit)
    assert {len(commit.contributors) for commit in commits} == {1}


def test_where_a_worker_and_a_server_are_missed_at_once_the_step_waits_for_what_was_lost_with_the_server() -> None:
    cluster = Cluster(mode="sync")
    arrive(cluster, "w0")
    cluster.now += 1.0
    cluster.take("s1", m.Heartbeat({}))  # it falls silent after w1
    cluster.now += 20.0  # this coordinator stood still
    for name in ("s0", "s2", "w0"):
        cluster.take(name, m.Heartbeat({}))
    told = cluster.machine.on_deadline(cluster.now)
    assert "lost server 1" in logged(told)
    assert "lost worker 1" in logged(told)
    assert sent(told, m.Commit) == []
    commits = sent(cluster.follow(cluster.promoted(told)), m.Commit)
    assert {len(commit.contributors) for commit in commits} == {1}


def test_where_other_shards_have_the_step_already_the_job_has_failed() -> None:
    cluster = confirmed_but_by_s1()
    cluster.promoted(cluster.lose("s1"))
    failed = cluster.take("w0", m.Leave("closed"))
    assert errors(failed, peer("w1")) == [JobError.code]
    assert "can no longer bring its gradients" in str(cluster.run().lost_shard)
    assert sent(cluster.wait(5.0, "s0", "s2", "w1"), m.Commit) == [], "said again without the gradients"


def spread() -> Cluster:
    """Return one whose fourth server has one more copy of a shard than there are to be, as while jobs are scaled."""
    cluster = Cluster.joined("s3")
    replication, copies = cluster.run().replication, cluster.run().startup.copies
    (server,) = (server for server in cluster.machine.servers if server.hello.name == "s3")
    replication.spread({0: [server]}, cluster.now)
    (number,) = (copy.epoch for copy in copies.of(server) if copy.shard == 0)
    for loaded in (0, 1):
        cluster.take("s3", m.Ready(number, loaded))
    return cluster


def test_a_shard_that_has_all_its_backups_is_not_degraded_by_the_loss_of_one_more() -> None:
    cluster = spread()
    cluster.lose("s3")
    assert cluster.degraded() == []
    cluster.machine.validate()


def test_a_shard_that_has_all_its_backups_is_not_degraded_by_one_more_that_cannot_be_kept() -> None:
    cluster = spread()
    replication = cluster.run().replication
    (extra,) = (copy for copy in cluster.run().startup.copies.backups(0) if copy.server.hello.name == "s3")
    cluster.machine.touched.add("default")
    replication.handovers._give_up(extra, "it is not wanted", cluster.now)
    assert cluster.degraded() == []
    cluster.machine.validate()


def test_a_copy_too_many_that_was_kept_while_a_server_was_silent_goes_when_that_is_heard_again() -> None:
    cluster = spread()
    assert len(backups(cluster, 0)) == 2
    cluster.now = 5.0
    said = [cluster.take(name, m.Heartbeat({})) for name in ("s1", "s2", "s3")]
    assert not [sent(actions, m.Discard) for actions in said if sent(actions, m.Discard)], "s0 may be lost"
    gone = cluster.take("s0", m.Heartbeat({}))
    assert len(sent(gone, m.Discard)) == 1
    assert len(backups(cluster, 0)) == 1
    assert sent(cluster.take("s0", m.Heartbeat({})), m.Discard) == []


def test_since_when_a_shard_is_degraded_is_not_that_of_an_earlier_loss() -> None:
    cluster = spread()
    cluster.lose("s3")
    cluster.now += 5.0
    cluster.promoted(cluster.lose("s1"))
    assert "since 0 s ago (server 1" in cluster.degraded()[0]


def test_a_job_that_is_placed_again_is_judged_by_the_copies_that_it_has_then() -> None:
    cluster = Coordinator.joined("s0", "s1", "s2", "w0", servers=3, replicas=1)
    cluster.init("w0", job())
    cluster.take("s1", m.Leave("closed"))
    cluster.join("s3")
    cluster.init("w0", job(), 2)
    names = ("s0", "s2", "s3")
    cluster.build(*names)
    assert cluster.run().startup.ready
    assert cluster.machine.status(cluster.now)["jobs"]["default"]["replicas"]["degraded"] == []
