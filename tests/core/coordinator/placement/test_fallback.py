"""A job of which nobody has a shard any more: which servers load it from which checkpoint, and who is told."""

from __future__ import annotations

from typing import Any

from tests.core.machines import REWOUND, Trained, errors, job, logged, of_leader, peer, receivers, sent, sent_to
from tests.modes import MODES
from tests.tables import for_each
from zmqps.core.coordinator.placement.fallback import RETRY_S, SHARE_S, STUCK_S
from zmqps.core.coordinator.placement.resumption import Resumption
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action
from zmqps.errors import CheckpointCorruptError, CheckpointStorageError, JobMemoryError, PeerLostError, PSError

NEWEST, OLDER = "/c/ckpt-20", "/c/ckpt-10"
CORRUPT = CheckpointCorruptError(path=NEWEST, what="it is not what was written", good="", advice="use another one")
DISK = CheckpointStorageError(path=NEWEST, what="the disk fails", good="", advice="try again")
MEMORY = JobMemoryError(server="s2", what="shard 1", needed_nbytes=9, free_nbytes=1)
DATA = [[["examples", 40, 10, 1, None], 0, 2, [1]]]


class Cluster(Trained):
    """Two servers and two workers that train, with two checkpoints to go back to."""

    def __init__(
        self, servers: int = 2, replicas: int = 0, *, steps: int = 0, saved: bool = True, **options: Any
    ) -> None:
        began = Resumption(path="/c/ckpt-1", job=job(**options), version=1)
        super().__init__(servers, replicas, {"default": began} if saved else {}, **options)
        self._request = 10
        for _ in range(steps):
            self.step()
        if saved:
            for path, version in ((OLDER, 10), (NEWEST, 20)):
                manifest = {"data": DATA, "state": {"epoch": version}}
                self.run().fallback.keep(path, "", min(version, self.run().steps.clock), manifest)

    def step(self, *workers: str) -> list[Action]:
        """Let workers make a step that all servers commit."""
        self._request += 1
        clock, done = self.run().steps.clock, list[Action]()
        for name in workers or ("w0", "w1"):
            done += self.take(name, m.Arrive(self._request, clock, (self._request,)))
        self.reply(done, m.Commit, lambda commit: m.Committed(commit.epoch, commit.step))
        return done

    def load(self, actions: list[Action]) -> list[Action]:
        """Let servers load what they were assigned."""
        return self.reply(actions, m.Assign, lambda assign: m.Ready(assign.epoch, 1))

    def fail(self, actions: list[Action], error: PSError) -> list[Action]:
        """Let servers say that they cannot load what they were assigned."""
        return self.reply(actions, m.Assign, lambda assign: m.Error.of(assign.epoch, error))

    def follow(self, actions: list[Action], lost: int = 0) -> list[Action]:
        """Let members go back."""
        sends = [(to, got) for to, got in sent_to(actions, m.View, change=REWOUND) if got.placement]
        return [action for to, got in sends for action in self.take(to, m.Followed(got.epoch, got.revision, lost))]

    def alive(self, seconds: float, *names: str) -> list[Action]:
        return self.wait(self.now + seconds, *names)


def targets(actions: list[Action]) -> dict[tuple[str, int], str]:
    """Return which server is to load which shard from where."""
    return {(to, assign.shard): assign.restore["path"] for to, assign in sent_to(actions, m.Assign)}


def rows(actions: list[Action]) -> list[tuple[str, tuple[int, ...], list[str]]]:
    """Return who is told that which shards are on which servers."""
    found = sent_to(actions, m.View, change=REWOUND)
    return [
        (to, tuple(got.shards), [row["name"] for row in got.placement["servers"]]) for to, got in found if got.placement
    ]


# --- where each push is applied on arrival -------------------------------------------------------


def test_a_shard_that_is_lost_alone_is_loaded_by_the_first_server_that_comes() -> None:
    cluster = Cluster()
    lost = cluster.lose("s1")
    assert sent(lost, m.Lost) == []
    assert errors(lost) == []
    assert sent(lost, m.Assign) == []
    assert [(to, list(got.shards), got.placement) for to, got in sent_to(lost, m.View, change=REWOUND)] == [
        ("w0", [1], {}),
        ("w1", [1], {}),
    ]
    assert cluster.run().state == "going back"
    assert "no server is free for shard 1: start one with zmqps server --spare" in " ".join(cluster.status()["waiting"])
    joined = cluster.join("s2")
    assert targets(joined) == {("s2", 1): NEWEST}
    (assign,) = sent(joined, m.Assign)
    assert assign.restore["ledgers"] is True
    told = cluster.load(joined)
    assert rows(told) == [("w0", (1,), ["s2"]), ("w1", (1,), ["s2"])]
    for back in sent(told, m.View, change=REWOUND):
        assert (back.restored["path"], back.restored["state"]["epoch"]) == (NEWEST, 20)
    assert sent(told, m.Discard) == [], "the other shard stays as it is"
    done = cluster.follow(told, lost=3)
    assert "6 pushes that had been acknowledged after the checkpoint are lost from shard 1" in logged(done)
    assert cluster.run().state == "training"
    assert [event.kind for event in cluster.machine.watching.events][-4:] == ["lost", "fallback", "joined", "restored"]
    last = cluster.status()["fallback"]["last"]
    assert (last["lost"], last["unit"], last["exact"], last["shards"]) == (6, "pushes", True, [1])


def test_after_a_while_a_server_that_has_a_shard_takes_another_one() -> None:
    cluster = Cluster()
    cluster.lose("s1")
    assert sent(cluster.alive(SHARE_S - 2, "s0", "w0", "w1"), m.Assign) == []
    actions = cluster.alive(4, "s0", "w0", "w1")
    assert targets(actions) == {("s0", 1): NEWEST}
    cluster.follow(cluster.load(actions))
    assert cluster.run().state == "training"


def test_what_is_not_answered_is_said_again() -> None:
    cluster = Cluster.joined("s2")
    cluster.lose("s1")
    again = cluster.alive(2.5 * RETRY_S, "s0", "s2", "w0", "w1")
    assert len(sent(again, m.Assign)) >= 2
    told = cluster.load(again)
    again = cluster.alive(2.5 * RETRY_S, "s0", "s2", "w0", "w1")
    assert len(sent(again, m.View, change=REWOUND)) >= 4
    cluster.follow(told)
    assert sent(cluster.alive(3.0, "s0", "s2", "w0", "w1"), m.View, change=REWOUND) == []


def test_a_worker_that_comes_meanwhile_waits_until_all_is_there() -> None:
    cluster = Cluster()
    cluster.lose("s1")
    waits = cluster.attach("w2", None)
    assert sent(waits, m.Job) == []
    assert "goes back to the checkpoint" in sent(waits, m.Waiting)[0].text
    told = cluster.load(cluster.join("s2"))
    (found,) = sent(told, m.Job)
    assert [row["name"] for row in found.placement["servers"]] == ["s0", "s2"]
    assert found.placement["falls_back"] == 1
    assert peer("w2") not in receivers(told, m.View, change=REWOUND)


def test_a_second_server_that_is_lost_meanwhile_goes_back_with_it() -> None:
    cluster = Cluster()
    cluster.lose("s1")
    again = cluster.lose("s0")
    assert {tuple(got.shards) for got in sent(again, m.View, change=REWOUND)} == {(0, 1)}
    joined = cluster.join("s2", "s3")
    assert sorted(targets(joined)) == [("s2", 0), ("s3", 1)]
    told = cluster.load(joined)
    assert {shards for _, shards, _ in rows(told)} == {(0,), (1,)}, "each as soon as it is there"
    cluster.follow(told)
    assert cluster.run().state == "training"


def test_a_spare_that_dies_as_it_loads_is_replaced() -> None:
    cluster = Cluster.joined("s2")
    assert targets(cluster.lose("s1")) == {("s2", 1): NEWEST}, "at once, for it is there"
    cluster.lose("s2")
    assert cluster.run().state == "going back"
    cluster.follow(cluster.load(cluster.join("s3")))
    assert cluster.run().state == "training"


def test_a_shard_that_is_lost_again_before_all_have_gone_back_counts_what_the_others_said() -> None:
    cluster = Cluster.joined("s2")
    told = cluster.load(cluster.lose("s1"))
    number = sent(told, m.View, change=REWOUND)[0].revision
    cluster.take("w0", m.Followed(1, number, 5))
    cluster.lose("s2")
    told = cluster.load(cluster.join("s3"))
    assert "7 pushes" in logged(cluster.follow(told, lost=1))
    assert cluster.status()["fallback"]["last"]["lost"] == 7


def test_what_workers_have_lost_that_have_left_nobody_counts() -> None:
    cluster = Cluster.joined("s2")
    told = cluster.load(cluster.lose("s1"))
    cluster.take("w0", m.Leave("closed"))
    done = cluster.take("w1", m.Followed(1, sent(told, m.View, change=REWOUND)[0].revision, 2))
    assert "and what 1 worker pushed that left since" in logged(done)
    assert cluster.status()["fallback"]["last"]["exact"] is False


def test_a_checkpoint_that_cannot_be_read_is_passed_over_for_the_one_before() -> None:
    cluster = Cluster.joined("s2")
    failed = cluster.fail(cluster.lose("s1"), CORRUPT)
    assert f"{NEWEST} cannot be used" in logged(failed)
    assert targets(failed) == {("s2", 1): OLDER}
    told = cluster.load(failed)
    assert {got.restored["path"] for got in sent(told, m.View, change=REWOUND)} == {OLDER}
    assert sent(failed, m.Discard, peer("s2")) != [], "what was begun of the other one is freed"


def test_a_disk_that_fails_is_asked_again_and_a_server_that_lacks_the_memory_is_not() -> None:
    cluster = Cluster.joined("s2")
    assert sent(cluster.fail(cluster.lose("s1"), DISK), m.Assign) == []
    again = cluster.alive(3 * RETRY_S, "s0", "s2", "w0", "w1")
    assert targets(again)[("s2", 1)] == NEWEST
    first = again[next(i for i, a in enumerate(again) if isinstance(getattr(a, "message", None), m.Assign))]
    assert sent(cluster.fail([first], MEMORY), m.Assign) == []
    assert targets(cluster.join("s3")) == {("s3", 1): NEWEST}


def test_a_server_that_never_gets_done_is_not_waited_for() -> None:
    cluster = Cluster.joined("s2")
    cluster.lose("s1")
    later = cluster.alive(STUCK_S + 25.0, "s0", "s2", "w0", "w1")
    assert ("s0", 1) in targets(later)


# --- what is the end -------------------------------------------------------------------------------


@for_each("mode", ["async", "sync"])
def test_where_no_server_comes_the_job_fails_and_says_what_to_do(mode: str) -> None:
    cluster = Cluster(servers=1, **MODES[mode])
    cluster.lose("s0")
    waits = cluster.init("w0", None, request=9)
    assert errors(waits) == []
    failed = cluster.alive(302.0, "w0", "w1")
    assert len(sent(failed, m.Lost)) == 2
    assert "no server has loaded shard 0 in 300 s" in logged(failed)
    assert errors(failed, peer("w0")) == [PeerLostError.code]
    assert str(cluster.run().lost_shard).startswith("lost server 0")


def test_without_a_checkpoint_the_job_fails_at_once_and_the_error_says_what_would_have_helped() -> None:
    cluster = Cluster(saved=False)
    lost = cluster.lose("s1")
    assert len(sent(lost, m.Lost)) == 2
    assert "--checkpoint DIR" in logged(lost)
    assert cluster.done
    assert {got.placement["falls_back"] for got in sent(cluster.done, m.Job)} == {0}


def test_where_all_checkpoints_are_damaged_the_job_fails() -> None:
    cluster = Cluster.joined("s2")
    assigned = cluster.lose("s1")
    for _ in range(3):
        assigned = cluster.fail(assigned, CORRUPT)
    assert "no checkpoint can be used" in str(cluster.run().lost_shard)
    assert len(sent(assigned, m.Lost)) == 2


def test_a_job_that_fails_with_nobody_there_ends() -> None:
    cluster = Cluster(servers=1)
    cluster.lose("s0")
    for name in ("w0", "w1"):
        cluster.take(name, m.Leave("closed"))
    cluster.alive(302.0)
    assert "default" not in cluster.machine.runs


# --- where a step is one for all -------------------------------------------------------------------


def test_all_shards_go_back_to_one_version_and_steps_with_them() -> None:
    cluster = Cluster(steps=5, mode="sync")
    assert cluster.run().steps.clock == 6
    cluster.run().fallback.good[-1] = Resumption(path=NEWEST, job=job(mode="sync"), version=3, state={"epoch": 3})
    waits = cluster.take("w0", m.Arrive(90, 6, (90,)))
    lost = cluster.lose("s1")
    assert targets(lost) == {("s0", 0): NEWEST}, "it loads its own shard anew"
    assert [got.moved for got in sent(lost, m.Discard, peer("s0"))] == [1]
    assert {tuple(got.shards) for got in sent(lost, m.View, change=REWOUND)} == {(0, 1)}
    assert cluster.load(lost) == [], "not before all are there"
    assert sent(waits, m.Proceed) == []
    assert "all shards go back with it" in cluster.run().steps.waiting_for(0)
    told = cluster.load(cluster.join("s2"))
    assert rows(told) == [("w0", (0, 1), ["s0", "s2"]), ("w1", (0, 1), ["s0", "s2"])]
    assert {(got.restored["version"], got.lost) for got in sent(told, m.View, change=REWOUND)} == {(3, 3)}
    assert cluster.run().steps.clock == 3
    assert not cluster.run().steps.trainees.waiting


def test_what_a_worker_says_of_steps_counts_when_it_has_gone_back() -> None:
    cluster = Cluster(steps=2, mode="sync")
    cluster.run().fallback.good[-1] = Resumption(path=NEWEST, job=job(mode="sync"), version=3)
    cluster.join("s2")
    told = cluster.load(cluster.lose("s1"))
    assert cluster.run().steps.clock == 3, "as it was: the open step has the same number"
    assert cluster.take("w0", m.Arrive(90, 3, (90,))) == []
    assert not cluster.run().steps.trainees.waiting
    cluster.follow(told)
    done = cluster.step()
    assert [len(commit.contributors) for commit in sent(done, m.Commit)] == [2, 2]
    assert sorted(receivers(done, m.Commit)) == [peer("s0"), peer("s2")]


def test_data_sets_stand_where_they_stood() -> None:
    cluster = Cluster(steps=1, mode="sync")

    def take(name: str, request: int, done: tuple[int, ...] = ()) -> list[int]:
        taken = cluster.take(name, m.Take(request, "examples", 40, 10, 1, (), done))
        return [got.number for got in sent(taken, m.Range)]

    assert take("w0", 50) == [0]
    assert take("w1", 51) == [1]
    assert take("w0", 52, (0, 0)) == [2]
    cluster.join("s2")
    cluster.follow(cluster.load(cluster.lose("s1")))
    assert take("w0", 53, (0, 2)) == [1], "it was out at the checkpoint, and what is said of another range is of before"
    assert take("w1", 54, (0, 1)) == [2]
    assert take("w0", 54, (0, 1)) == [3]


def test_a_server_lost_before_the_others_have_loaded_begins_no_second_rollback() -> None:
    cluster = Cluster(steps=1, mode="sync")
    first = cluster.lose("s1")
    cluster.lose("s0")
    assert sent(first, m.Assign) != []
    told = cluster.load(cluster.join("s2", "s3"))
    assert len(rows(told)) == 2
    assert cluster.run().fallback.times == 1


# --- replicas ------------------------------------------------------------------------------------


def test_a_shard_whose_copies_are_all_gone_goes_back_and_gets_a_backup_again() -> None:
    cluster = Cluster(servers=3, replicas=1)
    promoted = cluster.lose("s1")
    assert sent(promoted, m.View, change=REWOUND) == [], "its backup takes over"
    lost = cluster.lose("s2")
    assert {tuple(got.shards) for got in sent(lost, m.View, change=REWOUND)} == {(1,)}, (
        "the backup of the other one takes over"
    )
    joined = cluster.join("s3")
    assert ("s3", 1) in {(to, assign.shard) for to, assign in sent_to(joined, m.Assign)}
    (assign,) = [a for a in sent(joined, m.Assign, peer("s3")) if a.restore]
    told = cluster.take("s3", m.Ready(assign.epoch, 1))
    assert [names for _, _, names in rows(told)] == [["s3"], ["s3"]]
    assert sent(told, m.Lead, peer("s3"), backups=of_leader) != []
