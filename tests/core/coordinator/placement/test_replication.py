"""Backups at the coordinator: placed, promoted when a server is lost, and replaced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.machines import Coordinator, errors, hello, job, logged, peer, receivers, sent, sent_to
from zmqps.core.coordinator.placement.replication import RETRY_S
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages import (
    Arrive,
    Assign,
    Commit,
    Committed,
    Discard,
    Error,
    Followed,
    Heartbeat,
    Job,
    Leave,
    Lost,
    Moved,
    Proceed,
    Promote,
    Promoted,
    Ready,
    Replicas,
    Replicating,
    Welcome,
)
from zmqps.errors import JobError, PeerLostError


class Cluster(Coordinator):
    """A coordinator of three servers whose shards have a backup each, and two workers that train."""

    def __init__(self, servers: int = 3, replicas: int = 1, **options: Any) -> None:
        super().__init__(servers=servers, replicas=replicas)
        self.names = [f"s{n}" for n in range(servers)]
        self.join(*self.names, "w0", "w1")
        for name in ("w0", "w1"):
            self.init(name, job(**options))
        self.ready(*self.names, loaded=False)
        self.done = self.ready(*self.names)

    def lose(self, name: str) -> list[Action]:
        return self.take(name, Leave("closed"))

    def degraded(self) -> list[str]:
        return list(self.machine.status(self.now)["jobs"]["default"]["replicas"]["degraded"])


def test_each_shard_has_a_backup_on_the_next_server_which_its_leader_is_told() -> None:
    cluster = Coordinator(servers=3, replicas=1)
    cluster.join("s0", "s1", "s2", "w0")
    placed = cluster.init("w0", job())
    assigned = sent(placed, Assign)
    assert receivers(placed, Assign) == [peer(f"s{n}") for n in (0, 1, 2, 1, 2, 0)]
    assert [(a.epoch, a.shard, a.backup) for a in assigned] == [
        (1, 0, 0), (2, 1, 0), (3, 2, 0), (4, 0, 1), (5, 1, 1), (6, 2, 1),
    ]  # fmt: skip
    assert [[row["epoch"] for row in a.backups.get("rows", [])] for a in assigned] == [[4], [5], [6], [], [], []]
    assert {a.sharing for a in assigned} == {3}, "servers, not copies, share the memory of a host"


def test_a_job_is_trained_when_its_backups_are_whole() -> None:
    cluster = Coordinator(servers=2, replicas=1)
    cluster.join("s0", "s1", "w0")
    cluster.init("w0", job())
    cluster.ready("s0", "s1", loaded=False)
    for name, epoch in (("s0", 1), ("s1", 2)):
        assert sent(cluster.take(name, Ready(epoch, 1)), Job) == []
    assert "the backups to have the initial values" in cluster.run().startup.waiting_for(list(cluster.machine.servers))
    cluster.take("s1", Ready(3, 1))
    (told,) = sent(cluster.take("s0", Ready(4, 1)), Job)
    assert told.placement["replicas"] == 1
    assert [row["epoch"] for row in told.placement["servers"]] == [1, 2]
    assert cluster.run().replication.is_quiet
    assert not cluster.run().replication.shortages


def test_a_backup_takes_over_and_nobody_is_told_that_anything_is_lost() -> None:
    cluster = Cluster()
    lost = cluster.lose("s1")
    assert sent(lost, Lost) == []
    assert errors(lost) == []
    assert cluster.run().state == "training"
    assert [(to, m.epoch) for to, m in sent_to(lost, Promote)] == [("s2", 5)]
    assert {(m.shard, m.revision) for m in sent(lost, Moved) if not m.server} == {(1, 1)}
    assert [(m.epoch, dict(m.backups)) for m in sent(lost, Replicas, peer("s0"))] == [(1, {})]
    assert "its backups take over" in logged(lost)
    told = cluster.promoted(lost)
    assert receivers(told, Moved) == [peer("w0"), peer("w1")]
    assert {(m.server["epoch"], m.server["name"]) for m in sent(told, Moved)} == {(5, "s2")}
    cluster.follow(told)
    cluster.take("s0", Replicating(1, 1))
    assert cluster.run().replication.next_deadline() is None or not sent(
        cluster.wait(20.0, "s0", "s2", "w0", "w1"), Moved
    )


def test_what_is_not_answered_is_said_again() -> None:
    cluster = Cluster()
    lost = cluster.lose("s1")
    again = cluster.wait(RETRY_S, "s0", "s2", "w0", "w1")
    assert receivers(again, Promote) == [peer("s2")]
    assert receivers(again, Replicas) == [peer("s0")]
    told = cluster.promoted(lost)
    assert cluster.promoted(lost) == [], "said twice"
    assert receivers(cluster.wait(cluster.now + RETRY_S, "s0", "s2", "w0", "w1"), Moved) == [peer("w0"), peer("w1")]
    cluster.follow(told)


def test_who_comes_later_is_told_where_the_shard_is_now() -> None:
    cluster = Cluster()
    cluster.promoted(cluster.lose("s1"))
    cluster.join("w2")
    (told,) = sent(cluster.init("w2", job()), Job)
    assert [row["epoch"] for row in told.placement["servers"]] == [1, 5, 3]
    assert [row["name"] for row in told.placement["servers"]] == ["s0", "s2", "s2"]
    cluster.join("o0")
    (told,) = sent(cluster.init("o0", None), Job)
    assert [row["epoch"] for row in told.placement["servers"]] == [1, 5, 3]


def test_the_status_says_since_when_and_why_and_what_one_more_loss_would_cost() -> None:
    cluster = Cluster()
    assert cluster.degraded() == []
    cluster.promoted(cluster.lose("s1"))
    cluster.now += 3.0
    first, second = cluster.degraded()
    assert first.startswith("shard 0 has 0 backups of 1 since 3 s ago (server 1 (s1, host, pid 7) was lost): ")
    assert "if server 0 (s0, host, pid 7) were lost, its values would be gone" in first
    assert "if server 2 (s2" in second


def test_a_restarted_server_gets_the_backups_that_are_missing() -> None:
    cluster = Cluster()
    cluster.promoted(cluster.lose("s1"))
    joined = cluster.join("s3")
    assert [(a.shard, a.backup) for a in sent(joined, Assign, peer("s3"))] == [(0, 1), (1, 1)]
    filled = {m.epoch: [row["name"] for row in m.backups["rows"]] for m in sent(joined, Replicas)}
    assert filled == {1: ["s3"], 5: ["s3"]}
    assert "is being filled" in cluster.degraded()[0]
    for epoch, generation in ((1, 2), (5, 2)):
        cluster.take("s0" if epoch == 1 else "s2", Replicating(epoch, generation))
    done = cluster.ready("s3")
    assert "shard 0 has 1 backup again" in logged(done)
    assert [event.kind for event in cluster.machine.watching.events][-2:] == ["copied", "copied"]
    assert cluster.degraded() == []


def test_a_spare_that_is_there_gets_what_a_server_had_that_only_kept_copies() -> None:
    cluster = Cluster()
    cluster.promoted(cluster.lose("s1"))
    cluster.join("s3", "s4")
    cluster.ready("s3")
    lost = cluster.lose("s3")
    assert {a.shard for a in sent(lost, Assign, peer("s4"))} == {0, 1}


def test_a_spare_that_is_there_from_the_first_gets_the_backups_that_there_were_too_few_servers_for() -> None:
    cluster = Coordinator(servers=1, replicas=1)
    cluster.join("s0", "s1", "w0")
    cluster.init("w0", job())
    cluster.ready("s0", loaded=False)
    begun = cluster.ready("s0")
    assert [(to, a.shard, a.backup) for to, a in sent_to(begun, Assign)] == [("s1", 0, 1)]
    assert len(sent(begun, Replicas, peer("s0"))) == 1


@pytest.mark.parametrize("capabilities", [(), ("spare",)], ids=["restarted before the loss is noticed", "spare"])
def test_a_spare_joins_beyond_the_servers_that_are_awaited(capabilities: tuple[str, ...]) -> None:
    cluster = Cluster()
    joined = cluster.take("s7", replace(hello("server", "s7"), capabilities=capabilities))
    assert len(sent(joined, Welcome)) == 1
    assert sent(joined, Assign) == []
    lost = cluster.lose("s1")
    told = cluster.promoted(lost)
    assert {a.shard for a in sent([*lost, *told], Assign, peer("s7"))} == {0, 1}


def test_a_shard_without_a_whole_backup_is_lost_with_its_server() -> None:
    cluster = Cluster()
    cluster.promoted(cluster.lose("s1"))
    lost = cluster.lose("s0")
    assert receivers(lost, Lost) == [peer("w0"), peer("w1")]
    assert str(cluster.run().lost_shard).startswith("lost server 0")
    assert errors(cluster.init("w0", job(), request=7)) == [PeerLostError.code]


def test_a_backup_that_cannot_be_kept_is_given_up_and_its_leader_goes_on_alone() -> None:
    cluster = Cluster()
    cluster.promoted(cluster.lose("s1"))
    cluster.join("s3")
    (epoch, *_) = cluster.epochs("s3")
    error = JobError("no memory")
    failed = cluster.take("s3", Error(epoch, error.code, str(error), error.facts()))
    assert sent(failed, Discard, peer("s3")) == [Discard(epoch)]
    assert [dict(m.backups) for m in sent(failed, Replicas)] == [{}]
    assert [a.epoch for a in sent(cluster.join("w5"), Assign)] == [], "not there again"


def backups(cluster: Cluster, shard: int = 1) -> list[tuple[str, int]]:
    """Return the servers of a shard's backups, and their numbers."""
    return [(copy.server.hello.name, copy.epoch) for copy in cluster.run().startup.copies.backups(shard)]


def test_where_a_shard_has_two_backups_the_second_takes_over_if_the_first_is_lost_before_it_has() -> None:
    cluster = Cluster(4, 2)
    (first, number), (second, other) = backups(cluster)
    lost = cluster.lose("s1")
    assert (first, number) in [(to, m.epoch) for to, m in sent_to(lost, Promote)]
    again = cluster.lose(first)
    assert Promote(other, 2) in sent(again, Promote, peer(second))
    assert cluster.run().state == "training"
    assert cluster.take(second, Promoted(other, 1, 0, ())) == [], "of a promotion that it was not told"
    done = cluster.promoted(again)
    assert second in {m.server["name"] for m in sent(done, Moved) if m.server}
    assert cluster.run().state == "training"


def test_where_a_shard_has_two_backups_the_second_takes_over_if_the_first_cannot() -> None:
    cluster = Cluster(4, 2)
    (first, number), (second, other) = backups(cluster)
    cluster.lose("s1")
    error = JobError("it is not whole")
    failed = cluster.take(first, Error(number, error.code, str(error), error.facts()))
    assert sent(failed, Promote, peer(second)) == [Promote(other, 2)]
    assert sent(failed, Discard, peer(first)) == [Discard(number)]
    assert {m.server["name"] for m in sent(cluster.promoted(failed), Moved)} == {second}


def test_the_other_backups_are_filled_anew_when_one_has_taken_over() -> None:
    cluster = Cluster(4, 2)
    (first, _), (second, other) = backups(cluster)
    lost = cluster.lose("s1")
    assert Discard(other) not in sent(lost, Discard, peer(second))
    done = cluster.promoted(lost)
    assert Discard(other) in sent(done, Discard, peer(second))
    assert (1, 1) in {(a.shard, a.backup) for a in sent(done, Assign, peer(second))}
    assert len(sent(done, Replicas, peer(first))) >= 1


# --- synchronous --------------------------------------------------------------------------------


def arrive(cluster: Cluster, *names: str, step: int = 0) -> list[Action]:
    return [action for name in names for action in cluster.take(name, Arrive(100 + step, step, (1 + step,)))]


def confirm(cluster: Cluster, *shards: int, step: int = 0) -> list[Action]:
    copies = [cluster.run().startup.copies.leader(shard) for shard in shards]
    return [a for copy in copies for a in cluster.take(copy.server.hello.name, Committed(copy.epoch, step))]


def test_workers_proceed_when_all_shards_and_their_backups_have_the_step() -> None:
    cluster = Cluster(staleness=0)
    committed = arrive(cluster, "w0", "w1")
    assert len(sent(committed, Commit)) == 3
    assert sent(committed, Proceed) == []
    assert sent(confirm(cluster, 0, 1), Proceed) == []
    assert receivers(confirm(cluster, 2), Proceed) == [peer("w0"), peer("w1")]


def test_a_step_under_way_is_committed_at_the_new_leader_when_all_have_brought_their_gradients_again() -> None:
    cluster = Cluster(staleness=0)
    arrive(cluster, "w0", "w1")
    confirm(cluster, 0, 2)
    told = cluster.promoted(cluster.lose("s1"))
    assert sent(told, Commit) == []
    first, second = (Followed(1, sent(told, Moved)[0].revision, 0) for _ in range(2))
    assert sent(cluster.take("w0", first), Commit) == []
    (commit,) = sent(cluster.take("w1", second), Commit)
    assert (commit.epoch, commit.step, len(commit.contributors)) == (5, 0, 2)
    assert receivers(confirm(cluster, 1), Proceed) == [peer("w0"), peer("w1")]


def test_a_step_that_the_backup_has_already_is_not_committed_again() -> None:
    cluster = Cluster(staleness=0)
    arrive(cluster, "w0", "w1")
    confirm(cluster, 0, 2)
    told = cluster.promoted(cluster.lose("s1"), step=1)
    assert sent(cluster.follow(told), Commit) == []


def test_a_step_is_not_complete_before_its_gradients_are_at_the_new_leader() -> None:
    cluster = Cluster(staleness=0)
    arrive(cluster, "w0")
    told = cluster.promoted(cluster.lose("s1"))
    assert sent(arrive(cluster, "w1"), Commit) == []
    assert len(sent(cluster.follow(told), Commit)) == 3


def test_gradients_of_a_worker_that_goes_before_it_could_bring_them_again_do_not_count() -> None:
    cluster = Cluster(staleness=0)
    arrive(cluster, "w0")
    told = cluster.promoted(cluster.lose("s1"))
    cluster.take("w0", Leave("closed"))
    cluster.take("w1", Followed(1, sent(told, Moved)[0].revision, 0))
    commits = sent(arrive(cluster, "w1"), Commit)
    assert {len(commit.contributors) for commit in commits} == {1}


def test_where_a_worker_and_a_server_are_missed_at_once_the_step_waits_for_what_was_lost_with_the_server() -> None:
    cluster = Cluster(staleness=0)
    arrive(cluster, "w0")
    cluster.now += 1.0
    cluster.take("s1", Heartbeat({}))  # it falls silent after w1
    cluster.now += 20.0  # this coordinator stood still
    for name in ("s0", "s2", "w0"):
        cluster.take(name, Heartbeat({}))
    told = cluster.machine.on_deadline(cluster.now)
    assert "lost server 1" in logged(told)
    assert "lost worker 1" in logged(told)
    assert sent(told, Commit) == []
    commits = sent(cluster.follow(cluster.promoted(told)), Commit)
    assert {len(commit.contributors) for commit in commits} == {1}


def test_where_other_shards_have_the_step_already_the_job_has_failed() -> None:
    cluster = Cluster(staleness=0)
    arrive(cluster, "w0", "w1")
    confirm(cluster, 0, 2)
    cluster.promoted(cluster.lose("s1"))
    failed = cluster.take("w0", Leave("closed"))
    assert errors(failed, peer("w1")) == [JobError.code]
    assert "can no longer bring its gradients" in str(cluster.run().lost_shard)
    assert sent(cluster.wait(5.0, "s0", "s2", "w1"), Commit) == [], "said again without the gradients"


def spread(cluster: Cluster, shard: int, name: str) -> None:
    """Let a server have one more copy of a shard than there are to be, as while jobs are scaled."""
    replication, copies = cluster.run().replication, cluster.run().startup.copies
    (server,) = (server for server in cluster.machine.servers if server.hello.name == name)
    replication.spread({shard: [server]}, cluster.now)
    (number,) = (copy.epoch for copy in copies.of(server) if copy.shard == shard)
    for loaded in (0, 1):
        cluster.take(name, Ready(number, loaded))


def test_a_shard_that_has_all_its_backups_is_not_degraded_by_the_loss_of_one_more() -> None:
    cluster = Cluster()
    cluster.join("s3")
    spread(cluster, 0, "s3")
    cluster.lose("s3")
    assert cluster.degraded() == []
    cluster.machine.validate()


def test_a_shard_that_has_all_its_backups_is_not_degraded_by_one_more_that_cannot_be_kept() -> None:
    cluster = Cluster()
    cluster.join("s3")
    replication = cluster.run().replication
    spread(cluster, 0, "s3")
    (extra,) = (copy for copy in cluster.run().startup.copies.backups(0) if copy.server.hello.name == "s3")
    cluster.machine.touched.add("default")
    replication.handovers._give_up(extra, "it is not wanted", cluster.now)
    assert cluster.degraded() == []
    cluster.machine.validate()


def test_a_copy_too_many_that_was_kept_while_a_server_was_silent_goes_when_that_is_heard_again() -> None:
    cluster = Cluster()
    cluster.join("s3")
    spread(cluster, 0, "s3")
    assert len(backups(cluster, 0)) == 2
    cluster.now = 5.0
    said = [cluster.take(name, Heartbeat({})) for name in ("s1", "s2", "s3")]
    assert not [sent(actions, Discard) for actions in said if sent(actions, Discard)], "s0 may be lost"
    gone = cluster.take("s0", Heartbeat({}))
    assert len(sent(gone, Discard)) == 1
    assert len(backups(cluster, 0)) == 1
    assert sent(cluster.take("s0", Heartbeat({})), Discard) == []


def test_since_when_a_shard_is_degraded_is_not_that_of_an_earlier_loss() -> None:
    cluster = Cluster()
    cluster.join("s3")
    spread(cluster, 0, "s3")
    cluster.lose("s3")
    cluster.now += 5.0
    cluster.promoted(cluster.lose("s1"))
    assert "since 0 s ago (server 1" in cluster.degraded()[0]


def test_a_job_that_is_placed_again_is_judged_by_the_copies_that_it_has_then() -> None:
    cluster = Coordinator(servers=3, replicas=1)
    cluster.join("s0", "s1", "s2", "w0")
    cluster.init("w0", job())
    cluster.take("s1", Leave("closed"))
    cluster.join("s3")
    cluster.init("w0", job(), 2)
    names = ("s0", "s2", "s3")
    cluster.ready(*names, loaded=False)
    cluster.ready(*names)
    assert cluster.run().startup.ready
    assert cluster.machine.status(cluster.now)["jobs"]["default"]["replicas"]["degraded"] == []
