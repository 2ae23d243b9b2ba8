"""Another number of servers: what is refused, and what is to be done next follows from where a job lies."""

from __future__ import annotations

from tests.core.coordinator.test_drains import Cluster
from tests.core.machines import errors, peer, receivers, sent
from zmqps.core.coordinator.scales import plan
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages import (
    Assign,
    Cut,
    Discard,
    Draining,
    Followed,
    GoOn,
    Hold,
    Holding,
    Leave,
    Ready,
    Recut,
    Replicas,
    Replicating,
    Scale,
    Yielded,
)
from zmqps.core.protocol.resizing import GOING
from zmqps.errors import ScaleError

NONCE = b"n" * 16


def scale(cluster: Cluster, servers: int, nonce: bytes = NONCE) -> list[Action]:
    return cluster.take("outsider", Scale(1, servers, nonce))


def built(cluster: Cluster, actions: list[Action]) -> list[Action]:
    done: list[Action] = []
    for to, assign in zip(receivers(actions, Assign), sent(actions, Assign), strict=True):
        done += cluster.take(to[1:].decode(), Ready(assign.epoch, 0))
    return done


def held(cluster: Cluster, actions: list[Action]) -> list[Action]:
    done: list[Action] = []
    for to, hold in zip(receivers(actions, Hold), sent(actions, Hold), strict=True):
        done += cluster.take(to[1:].decode(), Holding(hold.number))
    return done


def filled(cluster: Cluster, actions: list[Action]) -> list[Action]:
    done: list[Action] = []
    for to, cut in zip(receivers(actions, Cut), sent(actions, Cut), strict=True):
        done += cluster.take(to[1:].decode(), Ready(cut.epoch, 1))
    return done


def test_too_few_servers_are_refused_with_how_many_are_missing() -> None:
    cluster = Cluster(2)
    assert errors(scale(cluster, 4), peer("outsider")) == [ScaleError.code]
    assert not cluster.machine.scales.is_active
    assert cluster.machine.servers.wanted == 2


def test_shards_that_have_copies_are_not_cut() -> None:
    cluster = Cluster(3, replicas=1)
    assert errors(scale(cluster, 2), peer("outsider")) == [ScaleError.code]


def test_what_workers_read_cannot_be_cut() -> None:
    cluster = Cluster(2, treatment={"name": "compensate", "lambda": 0.5})
    assert errors(scale(cluster, 1), peer("outsider")) == [ScaleError.code]


def test_shards_are_cut_once_no_push_is_under_way_and_members_are_told() -> None:
    cluster = Cluster(2)
    cluster.join("s2", "s3")
    asked = scale(cluster, 4)
    assert sent(asked, Draining, peer("outsider"))[0].state == GOING
    assert {bool(assign.restore["cut"]) for assign in sent(asked, Assign)} == {True}
    pausing = built(cluster, asked)
    assert set(receivers(pausing, Hold)) == {peer("w0"), peer("w1")}
    assert not sent(pausing, Cut)
    cutting = held(cluster, pausing)
    old = set(cluster.run().startup.copies.by_epoch)
    done = filled(cluster, cutting)
    assert set(receivers(done, Recut)) == {peer("w0"), peer("w1")}
    assert {discard.epoch for discard in sent(done, Discard)} == old
    placement = cluster.run().startup.placement
    assert placement is not None
    for worker in ("w0", "w1"):
        (told,) = sent(done, Recut, peer(worker))
        assert len(told.placement["servers"]) == placement.num_shards
        cluster.take(worker, Followed(told.epoch, told.number))
    assert not cluster.run().replication.recuts.is_cutting


def test_a_cut_that_a_server_cannot_make_is_taken_back() -> None:
    cluster = Cluster(2)
    cluster.join("s2")
    cutting = held(cluster, built(cluster, scale(cluster, 3)))
    (first, *_), (to, *_) = sent(cutting, Cut), receivers(cutting, Cut)
    parent, generation = next(iter(first.parents.items()))
    back = cluster.take(to[1:].decode(), Yielded(int(parent), generation, 1))
    assert set(receivers(back, GoOn)) == {peer("w0"), peer("w1")}
    assert {replicas.generation for replicas in sent(back, Replicas)} == {generation + 1}
    assert not cluster.run().startup.copies.coming
    for to, replicas in zip(receivers(back, Replicas), sent(back, Replicas), strict=True):
        cluster.take(to[1:].decode(), Replicating(replicas.epoch, replicas.generation))
    assert cluster.machine.scales.is_active  # and it is tried again


def test_a_server_that_is_lost_ends_what_needs_it() -> None:
    cluster = Cluster(2)
    cluster.join("s2", "s3")
    scale(cluster, 4)
    cluster.take("s3", Leave("closed"))
    assert errors(scale(cluster, 4), peer("outsider")) == [ScaleError.code]
    assert not cluster.run().startup.copies.coming


def test_a_job_that_lies_as_it_is_to_has_nothing_to_be_done() -> None:
    cluster = Cluster(2)
    to_do = plan(cluster.run(), list(cluster.machine.servers))
    assert to_do.cut is None
    assert not to_do.moves


def test_each_shard_that_is_to_be_has_a_server_of_its_own() -> None:
    cluster = Cluster(2)
    cluster.join("s2")
    to_do = plan(cluster.run(), list(cluster.machine.servers))
    assert to_do.cut is not None
    assert len(to_do.servers) == to_do.cut.num_shards
    assert {server.hello.name for server in to_do.servers} <= {"s0", "s1", "s2"}
