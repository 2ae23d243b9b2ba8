"""Checkpoints of jobs: one at a time, whole or not at all, and training goes on whatever becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.core.machines import Coordinator, error_of, errors, job, logged, peer, receivers, sent
from tests.modes import MODES
from tests.tables import for_each
from zmqps.core.coordinator.saving.checkpoints import AGAIN_S, HOLD_S, STUCK_S
from zmqps.core.coordinator.saving.making import BURST, EVERY_S, MAX_WAITING, Storing
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action, Returned, Run
from zmqps.core.protocol.messages.saving import SaveStage
from zmqps.errors import (
    CheckpointFailedError,
    CheckpointStorageError,
    CheckpointTooSoonError,
    ConfigurationError,
    JobError,
    LimitError,
    PeerLostError,
)

SERVERS, WORKERS = ("s0", "s1"), ("w0", "w1")
EVERYBODY = (*SERVERS, *WORKERS)


class Store:
    """A place for checkpoints that may fail."""

    serves = False

    def __init__(self) -> None:
        self.fails = ""
        self.said: list[str] = []
        self.manifests: list[Mapping[str, Any]] = []

    def begin(self, job: str, version: int) -> str:
        return str(self._do("begin", f"/{job}"))

    def publish(self, path: str, manifest: Mapping[str, Any]) -> tuple[str, int, int]:
        self._do("publish", None)
        self.manifests.append(manifest)
        return f"{path}/ckpt", 1000 if manifest["base"] is None else 10, manifest["version"]

    def read_at(self, path: str) -> str:
        return f"there:{path}"

    def abandon(self, path: str) -> None:
        self.said.append("abandon")

    def _do(self, what: str, value: Any) -> Any:
        self.said.append(what)
        if what == self.fails:
            raise CheckpointStorageError(path="/", what="it is read-only", good="", advice="mount it otherwise")
        return value


class Cluster(Coordinator):
    """A coordinator with a store, two servers and two workers that train; what the store is to do waits in ``work``."""

    def __init__(
        self, mode: str = "async", jobs: tuple[str, ...] = ("default",), *, tables: Any = (), **options: Any
    ) -> None:
        self.store = Store()
        super().__init__(self.store, **{"servers": 2, "checkpoint_at_end": False, **options})
        self.work: list[Run] = []
        self.join(*SERVERS)
        for name in jobs:
            workers = [worker if name == "default" else f"{worker}.{name}" for worker in WORKERS]
            self.join(*workers)
            self.init_all(job(**MODES[mode], tables=tables), *workers)
            self.build(*SERVERS, job=name)

    def handle(self, event: Any) -> list[Action]:
        return self.seen(super().handle(event))

    def seen(self, actions: list[Action]) -> list[Action]:
        self.work += [action for action in actions if isinstance(action, Run)]
        return actions

    def ask(self, who: str = "w0", request: int = 9, *, consistent: int = 0, state: Any = None) -> list[Action]:
        return self.take(who, m.Checkpoint(request, "", consistent, state or {}))

    def do(self) -> list[Action]:
        """Let the store do one thing."""
        run = self.work.pop(0)
        try:
            value = run.work()
        except Exception as error:
            value = error
        return self.handle(Returned(run.tag, value))

    def say(self, server: str, stage: int, number: int = 1, job_name: str = "default", **facts: Any) -> list[Action]:
        copies = {who.hello.name: epoch for _, epoch, who in self.run(job_name).startup.leaders()}
        return self.take(server, m.Saved(copies[server], number, stage, facts))

    def write(self, number: int = 1, job_name: str = "default") -> list[Action]:
        """Let servers keep and write all."""
        actions = [a for s in SERVERS for a in self.say(s, SaveStage.KEPT, number, job_name)]
        for server in SERVERS:
            actions += self.say(server, SaveStage.WRITTEN, number, job_name, nbytes=10, files=[server])
        return actions

    def publish(self, number: int = 1, job_name: str = "default") -> list[Action]:
        """Let servers write all, and the store publish it."""
        self.write(number, job_name)
        return self.do()

    def complete(self, number: int = 1, job_name: str = "default") -> list[Action]:
        """Make a checkpoint that has begun, and return what follows."""
        self.do()
        return self.publish(number, job_name)

    def hold(self, number: int = 1, *names: str) -> list[Action]:
        return [action for name in names or WORKERS for action in self.take(name, m.Holding(number))]

    def wait(self, until: float, *alive: str) -> list[Action]:
        return self.seen_twice(super().wait(until, *(alive or EVERYBODY)))

    def seen_twice(self, actions: list[Action]) -> list[Action]:
        self.work += [action for action in actions if isinstance(action, Run) and action not in self.work]
        return actions

    def finish(self, how: str = "finished") -> list[Action]:
        """Let all workers leave."""
        return [action for worker in WORKERS for action in self.take(worker, m.Leave(how))]

    def is_free(self) -> bool:
        """Whether the next checkpoint can be made at once."""
        return self.machine.checkpoints._making is None and not self.machine.checkpoints.waiting

    def status(self) -> Any:
        return self.machine.checkpoints.status(self.run(), self.now)


def saving(mode: str = "async", **options: Any) -> Cluster:
    """Return one of which a worker has asked for a checkpoint, whose place is made."""
    cluster = Cluster(mode, **options)
    cluster.ask()
    cluster.do()
    return cluster


def whys(actions: list[Action], to: str = "w0") -> str:
    return "; ".join(message.text for message in sent(actions, m.Error, peer(to)))


# --- one that is made -----------------------------------------------------------------------------


@for_each("mode", ["async", "sync"])
def test_it_is_kept_written_published_and_answered(mode: str) -> None:
    cluster = Cluster(mode)
    assert cluster.ask(state={"epoch": 3}) == cluster.work
    told = cluster.do()
    assert [got.path for got in sent(told, m.Save)] == ["/default"] * 2
    assert {got.exact for got in sent(told, m.Save)} == {int(mode == "sync")}
    assert not sent(told, m.Hold, ends=0)
    cluster.now = 2.0
    assert not sent(cluster.write(), m.Checkpointed)
    told = cluster.do()
    assert sent(told, m.Checkpointed, peer("w0")) == [m.Checkpointed(9, "/default/ckpt", 0, 2.0, 1000)]
    (manifest,) = cluster.store.manifests
    assert manifest["state"] == {"epoch": 3}
    assert manifest["consistent"] == (mode == "sync")
    assert [shard["files"] for shard in manifest["shards"]] == [["s0"], ["s1"]]
    assert cluster.status()["last"]["version"] == 0
    assert cluster.is_free()


def test_the_synchronous_mode_saves_the_version_after_the_last_step() -> None:
    cluster = Cluster("sync")
    for worker in WORKERS:
        cluster.take(worker, m.Arrive(2, 0, (1,)))
    cluster.ask()
    assert {got.version for got in sent(cluster.do(), m.Save)} == {1}


def test_who_asks_again_hears_of_the_same_one_and_of_its_end_again() -> None:
    cluster = Cluster()
    cluster.ask()
    assert cluster.ask() == []
    cluster.do()
    assert cluster.ask() == []
    cluster.write()
    assert cluster.ask() == []
    (answer,) = sent(cluster.do(), m.Checkpointed)
    assert sent(cluster.ask(), m.Checkpointed, peer("w0")) == [answer]
    assert not cluster.work


def test_somebody_who_has_not_joined_may_ask_and_ask_again() -> None:
    cluster = Cluster()
    message = m.Checkpoint(4, "default", 0, {}, b"n" * 16)
    cluster.take("x", message)
    (answer,) = sent(cluster.complete(), m.Checkpointed, peer("x"))
    assert sent(cluster.take("x", message), m.Checkpointed, peer("x")) == [answer]
    assert not cluster.work


def test_one_is_made_at_a_time_and_each_has_its_turn() -> None:
    cluster = Cluster(jobs=("default", "other"))
    cluster.ask("w0")
    cluster.ask("w1.other", 5)
    assert len(cluster.work) == 1
    told = cluster.complete()
    assert receivers(told, m.Checkpointed) == [peer("w0")]
    assert [run.tag for run in cluster.work] == [Storing(2, "begin")]
    assert receivers(cluster.complete(2, "other"), m.Checkpointed) == [peer("w1.other")]


# --- what is refused ------------------------------------------------------------------------------


def test_without_a_place_or_a_job_there_is_none() -> None:
    nowhere = Coordinator.trains("s0", "w0")
    assert errors(nowhere.take("w0", m.Checkpoint(9, "", 0, {}))) == [ConfigurationError.code]
    cluster = Cluster()
    assert errors(cluster.take("x", m.Checkpoint(1, "none", 0, {}, b"n" * 16))) == [JobError.code]
    cluster.join("w2.young")
    assert errors(cluster.ask("w2.young")) == [JobError.code]


def test_of_a_job_that_has_lost_a_shard_there_is_none() -> None:
    cluster = Cluster()
    cluster.wait(30.0, "s0", *WORKERS)
    assert errors(cluster.ask()) == [PeerLostError.code]


def order(number: int, job_name: str = "default") -> m.Checkpoint:
    """Return what an operator asks for."""
    return m.Checkpoint(number, job_name, 0, {}, number.to_bytes(16))


def test_of_operators_so_many_wait_and_no_more() -> None:
    cluster = Cluster()
    for number in range(MAX_WAITING + 1):
        assert not errors(cluster.take("x", order(number)))
    assert errors(cluster.take("x", order(MAX_WAITING + 1))) == [LimitError.code]


def test_workers_ask_for_so_many_at_once_and_are_told_when_they_may_ask_for_the_next() -> None:
    cluster = Cluster()
    for number in range(BURST):  # of both together: a key may join as many workers as it likes
        assert not errors(cluster.ask(WORKERS[number % 2], 10 + number))
        cluster.complete(number + 1)
    error = error_of(cluster.ask(request=100), CheckpointTooSoonError)
    assert (error.job, error.seconds, error.every) == ("default", EVERY_S, EVERY_S)
    assert "they may request the next one in 2.0 s" in str(error)
    assert not cluster.work
    cluster.now += error.seconds
    assert not errors(cluster.ask(request=100))
    assert errors(cluster.ask(request=101)) == [CheckpointTooSoonError.code]
    cluster.complete(BURST + 1)
    cluster.now += BURST * EVERY_S
    assert not errors(cluster.ask(request=102)), "what was not asked for may be asked for later"


def test_what_is_asked_again_counts_once() -> None:
    cluster = Cluster()
    for _ in range(3 * BURST):
        assert not errors(cluster.ask())
    cluster.complete(1)
    for request in range(BURST - 1):
        assert not errors(cluster.ask(request=20 + request))


def test_workers_of_a_job_keep_neither_operators_nor_other_jobs_from_theirs() -> None:
    cluster = Cluster(jobs=("default", "other"))
    for number in range(2 * BURST):
        cluster.ask(request=10 + number)
        cluster.now += EVERY_S * 0.9
    assert errors(cluster.ask(request=100)) == [LimitError.code], "one is made, and eight wait"
    assert not errors(cluster.ask("w1.other", 5))
    assert not errors(cluster.take("x", order(1)))
    assert not errors(cluster.take("y", order(2, "other")))
    cluster.complete(1)
    assert receivers(cluster.complete(2), m.Checkpointed) == [peer("x")], "before those of workers"
    assert receivers(cluster.complete(3, "other"), m.Checkpointed) == [peer("y")]
    assert receivers(cluster.complete(4), m.Checkpointed) == [peer("w0")]


# --- cuts -----------------------------------------------------------------------------------------


@for_each("mode, consistent", [("bounded", 0), ("async", 1)])
def test_a_cut_is_made_while_all_workers_hold_and_no_longer(mode: str, consistent: int) -> None:
    cluster = Cluster(mode)
    cluster.ask(consistent=consistent)
    assert receivers(cluster.do(), m.Hold, ends=0) == [peer("w0"), peer("w1")]
    assert not sent(cluster.hold(1, "w0", "w0"), m.Save)
    assert len(sent(cluster.hold(1, "w1"), m.Save)) == 2
    assert not sent(cluster.hold(1), m.Hold, ends=1), "before all servers keep what they have"
    assert not sent(cluster.say("s0", SaveStage.KEPT), m.Hold, ends=1)
    assert not sent(cluster.say("s0", SaveStage.WRITTEN), m.Hold, ends=1)
    assert receivers(cluster.say("s1", SaveStage.KEPT), m.Hold, ends=1) == [peer("w0"), peer("w1")]
    cluster.say("s1", SaveStage.WRITTEN)
    assert sent(cluster.do(), m.Checkpointed)
    assert cluster.store.manifests[0]["consistent"]


def test_what_is_not_held_any_more_goes_on() -> None:
    cluster = Cluster()
    assert sent(cluster.hold(7, "w0"), m.Hold, ends=1) == [m.Hold(7, 1)]
    cluster.ask()
    cluster.do()
    assert sent(cluster.hold(1, "w0"), m.Hold, ends=1) == [m.Hold(1, 1)]


def test_a_hold_or_a_save_that_was_lost_is_said_again() -> None:
    cluster = saving("bounded")
    cluster.hold(1, "w0")
    again = cluster.wait(AGAIN_S + 0.1)
    assert set(receivers(again, m.Hold, ends=0)) == {peer("w1")}
    cluster.hold(1, "w1")
    cluster.say("s0", SaveStage.KEPT)
    again = cluster.wait(cluster.now + AGAIN_S + 0.1)
    assert peer("s1") in receivers(again, m.Save)


def test_a_worker_that_does_not_hold_in_time_fails_it_and_the_others_go_on() -> None:
    cluster = saving("bounded")
    cluster.hold(1, "w0")
    actions = cluster.wait(HOLD_S + 0.1)
    assert set(receivers(actions, m.Hold, ends=1)) == {peer("w0"), peer("w1")}
    assert "worker 1 (w1" in whys(actions)
    assert errors(actions, peer("w0")) == [CheckpointFailedError.code]
    assert not sent(actions, m.Save)
    assert cluster.work[-1].tag == Storing(0, "abandon")
    assert cluster.is_free()
    impatient = saving("bounded", heartbeat_timeout=3.0)
    assert "did not pause for it in 3 s" in whys(impatient.wait(3.1)), "no longer than they wait for the coordinator"


def test_a_server_that_does_not_keep_in_time_fails_it_for_workers_would_go_on() -> None:
    cluster = saving("bounded")
    cluster.hold()
    cluster.say("s0", SaveStage.KEPT)
    actions = cluster.wait(HOLD_S + 0.1)
    assert "server 1 (s1" in whys(actions)
    assert set(receivers(actions, m.Unsave)) == {peer("s0"), peer("s1")}
    assert set(receivers(actions, m.Hold, ends=1)) == {peer("w0"), peer("w1")}


def test_a_worker_that_comes_before_all_hold_is_held_as_well() -> None:
    cluster = saving("bounded")
    cluster.attach("w2", job(**MODES["bounded"]))
    actions = cluster.hold()
    assert receivers(actions, m.Hold, ends=0) == [peer("w2")]
    assert not sent(actions, m.Save)
    assert len(sent(cluster.hold(1, "w2"), m.Save)) == 2


def test_one_that_comes_before_all_servers_keep_makes_it_begin_anew() -> None:
    cluster = saving("bounded")
    cluster.hold()
    cluster.attach("w2", job(**MODES["bounded"]))
    cluster.say("s0", SaveStage.KEPT)
    actions = cluster.say("s1", SaveStage.KEPT)
    assert len(sent(actions, m.Unsave)) == 2
    assert set(receivers(actions, m.Hold, ends=1)) == {peer("w0"), peer("w1")}
    assert not errors(actions)
    assert {run.tag for run in cluster.work} == {Storing(0, "abandon"), Storing(2, "begin")}
    cluster.do()
    assert len(sent(cluster.do(), m.Hold, ends=0)) == 3
    cluster.hold(2, "w0", "w1", "w2")
    assert receivers(cluster.publish(2), m.Checkpointed) == [peer("w0")]
    gone = saving("bounded")
    gone.hold()
    gone.attach("w2", job(**MODES["bounded"]))
    assert len(sent(gone.take("w2", m.Leave("finished")), m.Unsave)) == 2, "though it has gone again"


def test_a_worker_that_goes_while_it_is_awaited_is_not_waited_for() -> None:
    cluster = saving("bounded")
    cluster.hold(1, "w0")
    actions = cluster.take("w1", m.Leave("closed"))
    assert len(sent(actions, m.Save)) == 2
    assert not sent(actions, m.Hold, ends=0)


def test_where_no_worker_is_there_is_nobody_to_hold() -> None:
    cluster = Cluster("bounded")
    cluster.join("o0")
    cluster.finish("closed")
    cluster.take("operator", m.Checkpoint(1, "default", 1, {}, b"n" * 16))
    assert len(sent(cluster.do(), m.Save)) == 2


# --- what goes wrong ------------------------------------------------------------------------------


@for_each("what", ["begin", "publish"])
def test_a_store_that_fails_fails_it_and_the_status_says_why(what: str) -> None:
    cluster = Cluster()
    cluster.store.fails = what
    cluster.ask()
    actions = cluster.do()
    if what == "publish":
        actions = cluster.publish()
        assert cluster.work[-1].tag == Storing(0, "abandon")
    assert "read-only" in whys(actions)
    assert "read-only" in logged(actions)
    assert "read-only" in cluster.status()["failed"]
    cluster.work.clear()
    cluster.store.fails = ""
    cluster.ask(request=10)
    assert sent(cluster.complete(2), m.Checkpointed)
    assert "failed" not in cluster.status()


@for_each("before", [[], [SaveStage.KEPT], [SaveStage.KEPT, SaveStage.WRITING]])
def test_a_server_that_fails_fails_it_and_the_others_keep_nothing(before: list[int]) -> None:
    cluster = saving()
    for stage in before:
        cluster.say("s0", stage)
    cluster.say("s1", SaveStage.WRITTEN)
    actions = cluster.say("s0", SaveStage.FAILED, why="the disk is full")
    assert "server 0 (s0" in whys(actions)
    assert "the disk is full" in whys(actions)
    assert set(receivers(actions, m.Unsave)) == {peer("s0"), peer("s1")}
    assert cluster.is_free()
    assert sent(cluster.say("s1", SaveStage.WRITTEN), m.Unsave), "what comes late is not kept"
    assert not cluster.say("s1", SaveStage.FAILED)


@for_each("stage", ["opened", "held", "saved"])
def test_a_server_that_is_lost_fails_it_at_every_stage(stage: str) -> None:
    cluster = Cluster("bounded" if stage == "held" else "async")
    cluster.ask()
    if stage != "opened":
        cluster.do()
    if stage == "held":
        cluster.hold(1, "w0")
    actions = cluster.take("s1", m.Leave("closed"))
    assert "server 1 (s1" in whys(actions)
    assert cluster.is_free()
    while cluster.work:
        assert not sent(cluster.do(), m.Save)


def test_a_server_that_goes_when_its_part_is_written_is_not_missed() -> None:
    cluster = saving()
    cluster.say("s1", SaveStage.KEPT)
    cluster.say("s1", SaveStage.WRITTEN)
    cluster.take("s1", m.Leave("closed"))
    cluster.say("s0", SaveStage.KEPT)
    cluster.say("s0", SaveStage.WRITTEN)
    assert sent(cluster.do(), m.Checkpointed)


def test_a_server_that_gets_no_further_is_not_waited_for_forever_though_it_answers() -> None:
    cluster = saving()
    cluster.say("s0", SaveStage.KEPT)
    cluster.say("s0", SaveStage.WRITTEN)
    actions: list[Action] = []
    while cluster.now < STUCK_S + 3 * AGAIN_S and not errors(actions):
        cluster.say("s1", SaveStage.KEPT, nbytes=5)
        actions = cluster.wait(cluster.now + AGAIN_S)
    assert cluster.now >= STUCK_S
    assert "server 1 (s1" in whys(actions)


def test_a_store_that_never_answers_is_not_waited_for_forever() -> None:
    cluster = Cluster()
    cluster.ask()
    run = cluster.work.pop()
    assert "has not answered" in whys(cluster.wait(STUCK_S + 1.0))
    late = cluster.handle(Returned(run.tag, "/late"))
    assert [action.tag for action in late if isinstance(action, Run)] == [Storing(0, "abandon")]


@for_each("steps", range(4))
def test_a_job_that_ends_meanwhile_takes_its_checkpoints_along(steps: int) -> None:
    cluster = Cluster("bounded")
    cluster.ask()
    cluster.ask("w1", 3)
    if steps > 0:
        cluster.do()
    if steps > 1:
        cluster.hold()
    if steps > 2:
        cluster.say("s0", SaveStage.KEPT)
    ended = cluster.take("x", m.EndJob(1, "default", b"n" * 16))
    assert CheckpointFailedError.code in errors(ended, peer("w0"))
    assert JobError.code in errors(ended, peer("w1"))
    assert cluster.is_free()
    while cluster.work:
        cluster.do()
    assert not cluster.store.manifests
    assert not cluster.machine.checkpoints._saves


def test_what_is_written_is_published_though_the_job_has_ended() -> None:
    cluster = saving()
    cluster.write()
    cluster.take("x", m.EndJob(1, "default", b"n" * 16))
    cluster.do()
    assert len(cluster.store.manifests) == 1
    assert "abandon" not in cluster.store.said
    assert not cluster.machine.checkpoints._saves
    assert cluster.is_free()


def test_who_has_asked_and_gone_is_not_answered() -> None:
    cluster = Cluster()
    cluster.ask("w0")
    cluster.do()
    cluster.take("w0", m.Leave("closed"))
    assert not sent(cluster.publish(), m.Checkpointed)
    assert len(cluster.store.manifests) == 1


# --- by itself ------------------------------------------------------------------------------------


def test_jobs_are_saved_every_so_many_seconds() -> None:
    cluster = Cluster(checkpoint_seconds=20.0)
    for number in (1, 2, 3):
        assert not errors(cluster.wait(cluster.now + 26.0))
        assert [run.tag for run in cluster.work] == [Storing(number, "begin")]
        cluster.complete(number)
    assert len(cluster.store.manifests) == 3


@for_each("checkpoint_seconds", [None, 1e6])
def test_the_next_one_is_made_at_once_where_the_shards_are_others(checkpoint_seconds: float | None) -> None:
    cluster = Cluster(checkpoint_seconds=checkpoint_seconds)
    cluster.wait(1.0)
    cluster.machine.checkpoints.soon("default")
    cluster.wait(2.0)
    assert cluster.is_free() == (checkpoint_seconds is None)


def test_jobs_are_saved_every_so_many_steps() -> None:
    cluster = Cluster("sync", checkpoint_steps=2)
    begun = []
    for step in range(5):
        actions = [a for w in WORKERS for a in cluster.take(w, m.Arrive(step + 2, step, (step + 1,)))]
        assert sent(actions, m.Commit)
        for server in SERVERS:
            cluster.take(server, m.Committed(1, step))
        if cluster.work:
            begun.append(step + 1)
            (save, _) = sent(cluster.do(), m.Save)
            assert save.version == step + 1
            cluster.write(len(begun))
            cluster.do()
    assert begun == [3, 5]  # the first look was after the first step


def test_in_the_asynchronous_mode_pushes_are_steps_though_who_has_made_them_goes() -> None:
    cluster = Cluster(checkpoint_steps=10)
    cluster.take("w0", m.Heartbeat({"pushes": 50}))
    cluster.take("w1", m.Heartbeat({"pushes": 5}))
    assert not cluster.work, "counted is from the first look"
    cluster.take("w0", m.Heartbeat({"pushes": 55}))
    assert [run.tag for run in cluster.work] == [Storing(1, "begin")]
    cluster.complete()
    cluster.take("w0", m.Leave("finished"))
    cluster.take("w1", m.Heartbeat({"pushes": 6}))
    assert not cluster.work
    cluster.take("w1", m.Heartbeat({"pushes": 16}))
    assert [run.tag for run in cluster.work] == [Storing(2, "begin")]


def test_a_job_that_nobody_trains_is_not_saved_by_itself() -> None:
    cluster = Cluster(checkpoint_seconds=5.0)
    cluster.finish("closed")
    cluster.wait(60.0, *SERVERS)
    assert not cluster.work


def test_the_status_says_how_far_it_is() -> None:
    cluster = Cluster("bounded")
    assert cluster.status() == {}
    cluster.ask()
    cluster.do()
    assert cluster.status()["under_way"]["stage"] == "waiting for 2 workers to pause"
    cluster.hold()
    cluster.say("s0", SaveStage.WRITING, nbytes=7)
    cluster.say("s1", SaveStage.WRITING, nbytes=4)
    assert cluster.status()["under_way"]["nbytes"] == 11
