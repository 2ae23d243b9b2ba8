"""What a checkpoint may build upon: one that is published, by the same copies, and not for ever."""

from __future__ import annotations

from typing import Any

from tests.checkpoint.test_rows import spec_of
from tests.core.coordinator.saving.test_checkpoints import SERVERS, Cluster
from tests.core.machines import logged, peer, sent
from tests.tables import for_each
from zmqps.core.coordinator.saving.checkpoints import STUCK_S
from zmqps.core.coordinator.saving.making import ChainLink, Chains
from zmqps.core.job.tables import TableSpec
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages import Checkpointed, Error, Holding, Save
from zmqps.core.protocol.messages.saving import SaveStage

SHARDS = {7: 0, 8: 1}


def published(chains: Chains, number: int, nbytes: int, shards: dict[int, int] = SHARDS) -> ChainLink | None:
    """Publish the next one; return what it builds upon."""
    base = chains.base("job", shards)
    chains.published("job", number, f"/{number}", shards, nbytes, base)
    chains.validate(["job"])
    return base


def numbers(chains: Chains, *sizes: int) -> list[int]:
    found = [published(chains, number, nbytes) for number, nbytes in enumerate(sizes, 1)]
    return [base.number if base is not None else 0 for base in found]


def test_every_so_many_th_is_whole() -> None:
    assert numbers(Chains(3), 100, 1, 1, 100, 1, 1, 100) == [0, 1, 2, 0, 4, 5, 0]


def test_by_default_all_are_whole_and_nothing_is_kept() -> None:
    chains = Chains()
    assert numbers(chains, 100, 100) == [0, 0]
    assert not chains._links


def test_it_is_whole_once_what_has_changed_takes_more_room() -> None:
    assert numbers(Chains(50), 100, 60, 30, 10, 100, 100, 100) == [0, 1, 2, 3, 0, 5, 0]


def test_other_copies_begin_with_a_whole_one_and_another_job_is_none_of_it() -> None:
    chains = Chains(9)
    published(chains, 1, 100)
    assert chains.base("other", SHARDS) is None
    assert published(chains, 2, 100, {7: 0, 9: 1}) is None
    assert published(chains, 3, 100, {7: 0, 9: 1}) is not None
    assert chains.base("job", SHARDS) is None


# --- in a coordinator -----------------------------------------------------------------------------


class Chained(Cluster):
    """A cluster of a job with a table, whose every fourth checkpoint is whole."""

    def __init__(self, mode: str = "async", *, tables: tuple[TableSpec, ...] = (spec_of("items"),)) -> None:
        super().__init__(mode, checkpoint_full_every=4, tables=tables)
        self.number = 0

    def begin(self) -> list[Save]:
        """Let one begin; return what servers are told."""
        self.number += 1
        self.ask(request=100 + self.number)
        return sent(self.do(), Save)

    def make(self) -> tuple[set[int], Any]:
        """Make a checkpoint; return what servers are told to build upon, and what the manifest says."""
        told = self.begin()
        self.publish(self.number)
        return {message.base for message in told}, self.store.manifests[-1]["base"]


def begun_second() -> Chained:
    """Return a cluster that has made a checkpoint, and has begun one that builds upon it."""
    cluster = Chained()
    cluster.make()
    assert {message.base for message in cluster.begin()} == {1}
    return cluster


def test_servers_and_the_manifest_are_told_of_the_same_one() -> None:
    cluster = Chained()
    assert [cluster.make() for _ in range(5)] == [
        ({0}, None), ({1}, "/default/ckpt"), ({2}, "/default/ckpt"), ({3}, "/default/ckpt"), ({0}, None)
    ]  # fmt: skip


def test_without_tables_all_are_whole() -> None:
    cluster = Chained(tables=())
    assert [cluster.make() for _ in range(3)] == [({0}, None)] * 3
    assert not cluster.machine.checkpoints._chains._links


def test_the_status_and_the_log_say_what_it_builds_upon() -> None:
    cluster = Chained()
    cluster.make()
    assert "base" not in cluster.status()["last"]
    cluster.begin()
    cluster.write(2)
    assert "with the rows that have changed since /default/ckpt" in logged(cluster.do())
    assert cluster.status()["last"]["base"] == "/default/ckpt"


@for_each("stage", ["begun", "kept", "written in part"])
def test_one_that_has_failed_is_never_built_upon(stage: str) -> None:
    cluster = begun_second()
    if stage != "begun":
        for server in SERVERS:
            cluster.say(server, SaveStage.KEPT, 2)
    if stage == "written in part":
        cluster.say(SERVERS[0], SaveStage.WRITTEN, 2, nbytes=1)
    cluster.say(SERVERS[1], SaveStage.FAILED, 2, why="the disk is full")
    while cluster.work:
        cluster.do()
    assert cluster.make() == ({1}, "/default/ckpt")


def failing_once(cluster: Chained) -> list[Action]:
    """Let the store fail to publish the checkpoint that is written."""
    cluster.store.fails = "publish"
    actions = cluster.do()
    cluster.store.fails = ""
    return actions


def test_what_cannot_be_published_upon_another_is_made_anew_as_a_whole_at_once() -> None:
    cluster = begun_second()
    cluster.write(2)
    actions = failing_once(cluster)
    assert "is made again as a whole" in logged(actions)
    assert not sent(actions, Error)
    told: list[Action] = []
    while cluster.work:
        told += cluster.do()
    assert {(message.number, message.base) for message in sent(told, Save)} == {(3, 0)}
    (answer,) = sent(cluster.publish(3), Checkpointed, peer("w0"))
    assert answer.request == 102
    assert cluster.store.manifests[-1]["base"] is None
    cluster.number = 3
    assert cluster.make() == ({3}, "/default/ckpt")


def test_a_whole_one_that_cannot_be_published_fails_and_the_next_one_is_whole() -> None:
    cluster = Chained()
    cluster.begin()
    cluster.write(1)
    assert sent(failing_once(cluster), Error, peer("w0"))
    while cluster.work:
        cluster.do()
    assert cluster.make() == ({0}, None)


def test_after_a_disk_that_has_not_answered_the_next_one_is_whole() -> None:
    cluster = begun_second()
    cluster.write(2)
    cluster.wait(cluster.now + STUCK_S + 1)
    cluster.work = [run for run in cluster.work if "publish" not in repr(run.tag)]
    while cluster.work:
        cluster.do()
    assert cluster.make() == ({0}, None)


def test_a_cut_that_is_made_again_builds_upon_the_same_one() -> None:
    cluster = Chained("bounded")
    cluster.ask(request=50)
    cluster.do()
    cluster.hold(1)
    cluster.write(1)
    cluster.do()
    cluster.ask(request=51)
    cluster.do()
    told = cluster.take("w0", Holding(2)) + cluster.take("w1", Holding(2))
    assert {message.base for message in sent(told, Save)} == {1}


def test_who_is_asked_again_is_told_the_same() -> None:
    cluster = begun_second()
    told = sent(cluster.wait(cluster.now + 3.0), Save)
    assert told
    assert {message.base for message in told} == {1}


def test_nothing_is_kept_of_a_job_that_has_ended() -> None:
    cluster = Chained()
    cluster.make()
    cluster.machine.checkpoints.ended(cluster.run(), cluster.now)
    assert not cluster.machine.checkpoints._chains._links
