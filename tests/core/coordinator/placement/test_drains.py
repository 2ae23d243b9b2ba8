"""Servers that are to go: what they have moves to others, and where it cannot, they stay."""

from __future__ import annotations

import pytest

from tests.core.machines import MOVED, Trained, errors, job, logged, of_heir, of_leader, peer, receivers, sent, sent_to
from tests.tables import for_each
from zmqps.core.coordinator.placement.drains import RETRY_S
from zmqps.core.coordinator.placement.transitions import PATIENCE_S
from zmqps.core.coordinator.saving.checkpoints import Checkpoints
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action, Stop
from zmqps.core.protocol.messages.resizing import DrainState
from zmqps.errors import DrainError, JobError, JobMemoryError

NONCE = b"n" * 16


class Cluster(Trained):
    def step(self, step: int, *names: str) -> list[Action]:
        """Let workers complete a step, and leaders apply it."""
        actions = [a for name in names for a in self.take(name, m.Arrive(10 + step, step, (step + 1,)))]
        return [*actions, *self.reply(actions, m.Commit, lambda commit: m.Committed(commit.epoch, step))]

    def drain(self, name: str = "s1", *, stay: int = 0, nonce: bytes = NONCE) -> list[Action]:
        """Somebody who has not joined asks for it."""
        return self.take("outsider", m.Drain(1, name, stay, nonce))

    def answer(self, actions: list[Action]) -> m.Draining:
        (message,) = sent(actions, m.Draining, peer("outsider"))
        return message

    def fill(self, actions: list[Action]) -> list[Action]:
        """Let servers that were given a copy have all its values, and leaders know their backups."""
        done = self.reply(actions, m.Lead, lambda got: m.Leading(got.epoch, got.generation, 0), backups=of_leader)
        built = self.reply(actions, m.Assign, lambda got: m.Ready(got.epoch, 0), lambda got: m.Ready(got.epoch, 1))
        return [*done, *built]

    def give_up(self, actions: list[Action], *, busy: int = 0) -> list[Action]:
        """Let the leaders that were asked to give up their places do so, or not for now."""
        copies = self.run().startup.copies

        def answer(asked: m.Yield) -> m.Yielded:
            backups = {str(copy.epoch): 7 for copy in copies.backups(copies.by_epoch[asked.epoch].shard)}
            return m.Yielded(asked.epoch, asked.generation, busy, {} if busy else backups)

        return self.reply(actions, m.Yield, answer)

    def take_over(self, actions: list[Action], step: int = 0) -> list[Action]:
        """Let copies that are to take over say that they have; members go there, and servers erase what has moved."""
        done = self.promoted(actions, step)
        return [*done, *self.settle(done)]

    def settle(self, actions: list[Action]) -> list[Action]:
        done = self.reply(actions, m.View, lambda moved: m.Followed(moved.epoch, moved.revision, 0), change=MOVED)
        return [*done, *self.reply(actions, m.Discard, lambda discard: m.Discarded(discard.epoch))]

    def moved(self, name: str = "s1") -> list[Action]:
        """Let all that a server has move elsewhere."""
        return self.take_over(self.give_up(self.fill(self.drain(name))))

    def places(self) -> dict[int, str]:
        return {shard: server.hello.name for shard, _, server in self.run().startup.leaders()}

    def again(self, *alive: str) -> list[Action]:
        return self.wait(self.now + RETRY_S, *(alive or (*self.names, "w0", "w1")))


# --- from the request to the end ----------------------------------------------------------------


def test_a_shard_is_copied_given_up_taken_over_and_then_the_server_goes() -> None:
    cluster = Cluster()
    asked = cluster.drain()
    assert cluster.answer(asked).state == DrainState.GOING
    assert "shard 1 to s0, 0%" in cluster.answer(asked).text
    (assign,) = sent(asked, m.Assign)
    assert (assign.shard, assign.backup, assign.epoch) == (1, 1, 4)
    assert [row["epoch"] for row in sent(asked, m.Lead, peer("s1"), backups=of_leader)[0].backups["rows"]] == [4]
    whole = cluster.fill(asked)
    assert receivers(whole, m.Yield) == [peer("s1")]
    given_up = cluster.give_up(whole)
    (promote,) = sent(given_up, m.Lead, peer("s0"), backups=of_heir)
    assert promote.generation == sent(whole, m.Yield)[0].generation + 1
    assert sent(given_up, m.View, change=MOVED) == [], "nobody is told before the copy has taken over"
    done = cluster.take("s0", m.Leading(promote.epoch, promote.generation, 0))
    assert receivers(done, m.View, change=MOVED) == [peer("w0"), peer("w1")]
    assert [(d.epoch, d.moved) for d in sent(done, m.Discard, peer("s1"))] == [(2, 1)]
    assert cluster.places() == {0: "s0", 1: "s0", 2: "s2"}
    gone = cluster.settle(done)
    assert [got.state for got in sent(gone, m.Draining, peer("s1"))] == [DrainState.GONE]
    left = cluster.take("s1", m.Leave("drained"))
    assert "s1 is empty: 1 shard moved" in logged(left)
    assert sent(left, m.Lost) == []
    assert cluster.run().state == "training"
    assert cluster.answer(cluster.drain()).state == DrainState.GONE, "who has asked hears how it has ended"


def test_what_is_not_answered_is_said_again() -> None:
    cluster = Cluster()
    whole = cluster.fill(cluster.drain())
    assert receivers(cluster.again(), m.Yield) == [peer("s1")]
    given_up = cluster.give_up(whole)
    assert receivers(cluster.again(), m.Lead, backups=of_heir) == [peer("s0")]
    cluster.take_over(given_up)
    assert receivers(cluster.again(), m.Draining) == [peer("s1")]


def test_a_server_that_asks_for_itself_is_told_how_far_it_is() -> None:
    cluster = Cluster()
    (answer,) = sent(cluster.take("s2", m.Drain(1, "", 0)), m.Draining, peer("s2"))
    assert (answer.state, answer.request) == (DrainState.GOING, 1)
    assert "shard 2 to s0" in answer.text


def test_a_server_that_has_nothing_goes_at_once() -> None:
    cluster = Cluster.joined("s3")
    told = sent(cluster.take("s3", m.Drain(1, "", 0)), m.Draining, peer("s3"))
    assert [got.state for got in told] == [DrainState.GONE, DrainState.GOING]


def test_a_spare_gets_it_first_then_who_has_least() -> None:
    cluster = Cluster.joined("s3")
    assert receivers(cluster.drain("s0"), m.Assign) == [peer("s3")]
    assert receivers(cluster.drain("s1", nonce=b"m" * 16), m.Assign) == [peer("s2")]


def test_new_jobs_are_placed_on_those_that_stay() -> None:
    cluster = Cluster()
    cluster.drain()
    placed = cluster.attach("w2.other", job())
    assert {a.name for a in sent(placed, m.Assign)} == {"other"}
    assert receivers(placed, m.Assign) == [peer("s0"), peer("s2")]


def test_when_another_server_has_come_a_new_job_gets_that_too() -> None:
    cluster = Cluster()
    cluster.moved()
    cluster.take("s1", m.Leave("drained"))
    assert cluster.machine.status(0.0)["servers"] == 2
    cluster.join("s3")
    assert cluster.machine.status(0.0)["servers"] == 3


def test_the_status_says_who_goes_and_how_far_that_is() -> None:
    cluster = Cluster()
    cluster.drain()
    status = cluster.machine.status(cluster.now)
    assert [row["server"] for row in status["draining"]] == ["s1"]
    assert "s1 is being drained: shard 1 to s0, 0%" in status["waiting"]
    assert not any("server" in text and "waiting for" in text for text in status["waiting"]), "none is missing"


# --- where it cannot be -------------------------------------------------------------------------


def test_the_only_server_stays() -> None:
    cluster = Cluster(servers=1)
    assert errors(cluster.drain("s0"), peer("outsider")) == [DrainError.code]
    (answer,) = sent(cluster.take("s0", m.Drain(1, "", 0)), m.Draining, peer("s0"))
    assert answer.state == DrainState.STAYS
    assert "zmqps server --spare" in answer.text


def test_a_server_whose_shard_nobody_has_the_memory_for_stays_and_the_error_says_what_to_do() -> None:
    cluster = Cluster()
    asked = cluster.drain()
    short = JobMemoryError(server="s", what="a shard", needed_nbytes=9, free_nbytes=1)
    for name in ("s0", "s2"):
        (assign,) = sent(asked, m.Assign, peer(name))
        asked = cluster.take(name, m.Error.of(assign.epoch, short))
    assert [got.state for got in sent(asked, m.Draining, peer("s1"))] == [DrainState.STAYS]
    refused = cluster.drain()
    assert errors(refused, peer("outsider")) == [DrainError.code]
    (error,) = sent(refused, m.Error, peer("outsider"))
    assert "9 bytes" in error.text
    assert "--spare" in error.text
    assert cluster.run().state == "training"
    assert len(cluster.run().startup.copies) == 3
    assert receivers(cluster.drain(nonce=b"m" * 16), m.Assign) == [], "who could not take it is not asked again"


def test_there_must_be_such_a_server() -> None:
    cluster = Cluster()
    assert errors(cluster.drain("nobody")) == [JobError.code]
    assert cluster.answer(cluster.drain("2")).state == DrainState.GOING


def test_a_server_may_stay_after_all() -> None:
    cluster = Cluster()
    asked = cluster.drain()
    assert cluster.answer(cluster.drain(stay=1, nonce=b"m" * 16)).state == DrainState.STAYS
    assert cluster.fill(asked) == [], "its copy is given up"
    assert len(cluster.run().startup.copies) == 3
    assert errors(cluster.drain()) == [DrainError.code]


def test_one_that_leaves_with_something_left_is_lost() -> None:
    cluster = Cluster()
    cluster.drain()
    assert sent(cluster.take("s1", m.Leave("drained")), m.Lost) != []
    assert cluster.run().lost_shard is not None


# --- what happens on the way --------------------------------------------------------------------


def test_if_the_target_is_lost_another_one_takes_it() -> None:
    cluster = Cluster.joined("s3")
    asked = cluster.drain()
    assert receivers(asked, m.Assign) == [peer("s3")]
    lost = cluster.take("s3", m.Leave("closed"))
    assert receivers(lost, m.Assign) == [peer("s0")]
    assert cluster.take_over(cluster.give_up(cluster.fill(lost))) != []
    assert cluster.places()[1] == "s0"


@for_each("given_up", [False, True])
def test_if_the_target_is_lost_when_it_was_to_take_over_the_leader_keeps_its_place(given_up: bool) -> None:
    cluster = Cluster.joined("s3")
    whole = cluster.fill(cluster.drain())
    if given_up:
        assert sent(cluster.give_up(whole), m.Lead, backups=of_heir) != []
    lost = cluster.take("s3", m.Leave("closed"))
    generations = [got.generation for got in sent(lost, m.Lead, peer("s1"), backups=of_leader)]
    assert max(generations) > sent(whole, m.Yield)[0].generation
    assert cluster.places()[1] == "s1"
    assert cluster.run().state == "training"


def test_if_the_drained_server_is_lost_the_copy_that_is_whole_takes_over() -> None:
    cluster = Cluster()
    cluster.fill(cluster.drain())
    lost = cluster.take("s1", m.Leave("closed"))
    assert receivers(lost, m.Lead, backups=of_heir) == [peer("s0")]
    assert cluster.run().lost_shard is None
    assert errors(cluster.drain()) == [DrainError.code]


def test_without_backups_no_copy_takes_over_in_mid_step_for_it_lacks_its_gradients() -> None:
    cluster = Cluster(mode="sync")
    cluster.fill(cluster.drain())
    cluster.take("s1", m.Leave("closed"))
    assert cluster.run().lost_shard is not None


def test_a_leader_that_does_not_answer_keeps_its_place_and_is_asked_again_later() -> None:
    cluster = Cluster()
    whole = cluster.fill(cluster.drain())
    late = cluster.wait(PATIENCE_S + 1.0, *cluster.names, "w0", "w1")
    assert "does not answer, so shard 1 stays for now" in logged(late)
    (kept, *_) = sent(late, m.Lead, peer("s1"), backups=of_leader)
    assert kept.generation > sent(whole, m.Yield)[0].generation
    cluster.take("s1", m.Leading(kept.epoch, kept.generation, 0))
    assert receivers(cluster.wait(2 * PATIENCE_S, *cluster.names, "w0", "w1"), m.Yield)[:1] == [peer("s1")]


def test_what_leaders_say_of_earlier_requests_counts_no_more() -> None:
    cluster = Cluster()
    whole = cluster.fill(cluster.drain())
    (asked,) = sent(whole, m.Yield)
    assert cluster.take("s1", m.Yielded(asked.epoch, asked.generation - 1, 0, {"4": 1})) == []
    given_up = cluster.give_up(whole)
    assert cluster.give_up(whole) == [], "said twice"
    (promote,) = sent(given_up, m.Lead, backups=of_heir)
    assert sent(cluster.take("s0", m.Leading(promote.epoch, promote.generation - 1, 0)), m.View, change=MOVED) == []


def test_a_copy_that_lacks_something_after_all_does_not_take_over() -> None:
    cluster = Cluster()
    (asked,) = sent(cluster.fill(cluster.drain()), m.Yield)
    kept = cluster.take("s1", m.Yielded(asked.epoch, asked.generation, 0, {}))
    assert sent(kept, m.Lead, backups=of_heir) == []
    assert [got.generation > asked.generation for got in sent(kept, m.Lead, peer("s1"), backups=of_leader)] == [True]


# --- steps --------------------------------------------------------------------------------------


def test_between_two_steps_a_leader_gives_up_its_place_and_then_workers_go_on() -> None:
    cluster = Cluster(mode="sync")
    cluster.take("w0", m.Arrive(10, 0, (1,)))
    whole = cluster.fill(cluster.drain())
    assert sent(whole, m.Yield) == [], "the step is open"
    done = cluster.step(0, "w1")
    assert receivers(done, m.Yield) == [peer("s1")]
    assert sent(done, m.Proceed) == []
    assert "shards to move to other servers" in cluster.run().steps.waiting_for(0)
    gone_on = cluster.take_over(cluster.give_up(done), step=1)
    assert receivers(gone_on, m.Proceed) == [peer("w0"), peer("w1")]
    assert receivers(cluster.step(1, "w0", "w1"), m.Commit) == [peer("s0"), peer("s2"), peer("s0")]


def test_a_leader_with_gradients_of_the_step_keeps_its_place_until_that_is_over() -> None:
    cluster = Cluster(mode="sync")
    asked = cluster.fill(cluster.drain())
    assert receivers(asked, m.Yield) == [peer("s1")], "nobody has arrived: the server knows whether it has gradients"
    cluster.give_up(asked, busy=1)
    cluster.take("w0", m.Arrive(10, 0, (1,)))
    assert sent(cluster.again(), m.Yield) == [], "the step is open"
    step = cluster.step(0, "w1")
    assert receivers(step, m.Yield) == [peer("s1")]
    assert sent(step, m.Proceed) == [], "nobody begins the next one"
    assert receivers(cluster.take_over(cluster.give_up(step), 1), m.Proceed) == [peer("w0"), peer("w1")]


def test_a_step_that_all_have_brought_is_committed_when_a_leader_keeps_its_place() -> None:
    cluster = Cluster(mode="sync")
    asked = cluster.fill(cluster.drain())
    for name in ("w0", "w1"):
        assert sent(cluster.take(name, m.Arrive(10, 0, (1,))), m.Commit) == [], "the leader may have given up its place"
    assert len(sent(cluster.give_up(asked, busy=1), m.Commit)) == 3


@pytest.mark.parametrize("saving", [False, True])
def test_workers_are_not_held_for_long(saving: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(mode="sync")
    cluster.take("w0", m.Arrive(10, 0, (1,)))
    cluster.fill(cluster.drain())
    done = cluster.take("w1", m.Arrive(10, 0, (1,)))
    for name, commit in sent_to(done, m.Commit)[:2]:  # the third does not say that it has the step
        cluster.take(name, m.Committed(commit.epoch, 0))
    monkeypatch.setattr(Checkpoints, "is_saving", lambda self, run: saving)
    late = cluster.wait(PATIENCE_S + 1.0, *cluster.names, "w0", "w1")
    assert receivers(late, m.Proceed) == [peer("w0"), peer("w1")]
    assert (cluster.machine.next_deadline() or 0.0) > cluster.now


# --- replicas -----------------------------------------------------------------------------------


def test_a_backup_moves_without_a_word_to_workers() -> None:
    cluster = Cluster(servers=4, replicas=1)
    asked = cluster.drain("s1")
    backups = [a for a in sent(asked, m.Assign) if a.shard == 0]
    assert [a.backup for a in backups] == [1]
    whole = cluster.fill(asked)
    assert "the backup of shard 0 is on server" in logged(whole)
    assert {d.epoch for d in sent(whole, m.Discard, peer("s1"))} == {5}
    assert sent(whole, m.View, change=MOVED) == []


def test_the_other_backups_of_a_shard_that_moves_stay_as_they_are() -> None:
    cluster = Cluster(servers=4, replicas=1)
    whole = cluster.fill(cluster.drain("s1"))
    (asked,) = sent(whole, m.Yield)
    (backup,) = [c for c in cluster.run().startup.copies.backups(1) if c.server.hello.name == "s2"]
    (promote,) = sent(cluster.give_up(whole), m.Lead, backups=of_heir)
    assert [(row["epoch"], row["number"]) for row in promote.backups["rows"]] == [(backup.epoch, 7)]
    heir = cluster.run().startup.copies.by_epoch[promote.epoch].server.hello.name
    done = cluster.take(heir, m.Leading(promote.epoch, promote.generation, 0))
    assert backup in cluster.run().startup.copies.backups(1)
    assert cluster.machine.status(0.0)["jobs"]["default"]["replicas"]["degraded"] == []
    assert {d.epoch for d in sent(done, m.Discard)} == {asked.epoch}


def test_a_leader_that_has_given_up_its_place_is_told_of_no_other_backups_or_it_would_keep_it() -> None:
    cluster = Cluster(servers=4, replicas=1)
    whole = cluster.fill(cluster.drain("s1"))
    (promote,) = sent(cluster.give_up(whole), m.Lead, backups=of_heir)
    lost = cluster.take("s2", m.Leave("closed"))  # which has the other backup of the shard that moves
    assert [got for got in sent(lost, m.Lead, peer("s1"), backups=of_leader) if got.epoch == 2] == []
    heir = cluster.run().startup.copies.by_epoch[promote.epoch].server.hello.name
    done = cluster.take(heir, m.Leading(promote.epoch, promote.generation, 0))
    (told,) = [got for got in sent(done, m.Lead, peer(heir), backups=of_leader) if got.epoch == promote.epoch]
    assert told.generation > promote.generation, "it waits for the one that was lost no more"


def test_with_a_copy_on_every_server_one_stays_unless_it_goes_in_any_case() -> None:
    cluster = Cluster(servers=2, replicas=1)
    assert errors(cluster.drain("s1"), peer("outsider")) == [DrainError.code]
    going = cluster.take("s1", m.Drain(1, "", 0))
    assert {d.epoch for d in sent(going, m.Discard, peer("s1"))} == {3}, "the backup that it had"
    assert receivers(going, m.Yield) == [peer("s1")], "of its own shard"
    given_up = cluster.give_up(going)
    assert receivers(given_up, m.Lead, backups=of_heir) == [peer("s0")], "the backup that there is takes over"
    cluster.take_over(given_up)
    assert cluster.places() == {0: "s0", 1: "s0"}
    assert len(cluster.machine.status(0.0)["jobs"]["default"]["replicas"]["degraded"]) == 2


def test_a_copy_that_was_to_move_once_more_stays_as_long_as_it_is_the_only_backup() -> None:
    cluster = Cluster(servers=4, replicas=1)
    cluster.take("s2", m.Leave("closed"))  # the backup of shard 1 was there
    asked = cluster.drain("s1")
    ((to, assign),) = [(to, assign) for to, assign in sent_to(asked, m.Assign) if assign.shard == 1]
    for loaded in (0, 1):  # s1 has not said that it knows this backup, and so is not asked to give up its place yet
        cluster.take(to, m.Ready(assign.epoch, loaded))
    discarded = sent(cluster.take(to, m.Drain(1, "", 0)), m.Discard)
    assert assign.epoch not in {discard.epoch for discard in discarded}
    assert any(copy.epoch == assign.epoch for copy in cluster.run().startup.copies.backups(1))


def test_steps_are_held_for_no_shard_that_moves_once_the_cluster_is_to_end() -> None:
    cluster = Cluster(mode="sync")
    whole = cluster.fill(cluster.drain("s1"))
    (asked,) = sent(whole, m.Yield)
    assert cluster.run().steps.pauses.closed == {1}
    cluster.machine.cluster_end.is_saving = lambda: True  # what was trained, before it ends
    ended = cluster.handle(Stop("SIGTERM"))
    assert not cluster.run().steps.pauses.closed
    (told,) = sent(ended, m.Lead, peer("s1"), backups=of_leader)
    assert (told.epoch, told.generation) == (asked.epoch, asked.generation + 1), "it keeps its place"
    assert sent(cluster.step(0, "w0", "w1"), m.Commit)
