"""Shards that are cut anew, and go back to a checkpoint: before, meanwhile and afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.core.coordinator.placement.test_fallback import NEWEST, Cluster, rows
from tests.core.machines import CUT, REWOUND, peer, receivers, sent
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action

ANSWERS: dict[type[m.Message], Callable[[Any], m.Message]] = {
    m.Hold: lambda got: m.Holding(got.number),
    m.Yield: lambda got: m.Yielded(got.epoch, got.generation, 0, {str(copy): 0 for copy in range(64)}),
    m.Cut: lambda got: m.Ready(got.epoch, 1),
    m.Lead: lambda got: m.Leading(got.epoch, got.generation, 0),
}


def answered(cluster: Cluster, actions: list[Action]) -> list[Action]:
    """Let servers and workers do what they are told, until members are told of other shards; return all of it."""
    done = list(actions)
    for action in done:  # which grows
        if (message := getattr(action, "message", None)) is None:
            continue
        name = action.peer[1:].decode()  # type: ignore[union-attr]
        if isinstance(message, m.Assign):
            done += cluster.take(name, m.Ready(message.epoch, 0))
            done += [] if message.restore.get("cut") else cluster.take(name, m.Ready(message.epoch, 1))
        elif type(message) in ANSWERS:
            done += cluster.take(name, ANSWERS[type(message)](message))
    return done


def scale(cluster: Cluster, servers: int) -> list[Action]:
    return answered(cluster, cluster.take("outsider", m.Scale(1, servers, bytes([servers]) * 16)))


def followed(cluster: Cluster, actions: list[Action]) -> list[Action]:
    return cluster.reply(actions, m.View, lambda recut: m.Followed(recut.epoch, recut.revision, 0), change=CUT)


def test_shards_are_not_cut_before_all_members_have_gone_back() -> None:
    cluster = Cluster()
    cluster.lose("s1")
    back = cluster.load(cluster.join("s2"))
    assert not sent(scale(cluster, 1), m.Hold, ends=0)
    assert "its members must learn its placement" in " ".join(cluster.machine.status(cluster.now)["waiting"])
    again = cluster.alive(6.0, "s0", "s2", "w0", "w1")
    assert rows(again), "told again where the shard is"
    assert sent(answered(cluster, cluster.follow(back)), m.View, change=CUT)


def test_a_checkpoint_of_before_a_cut_knows_nothing_of_pushes_since() -> None:
    cluster = Cluster.joined("s2")
    for servers in (3, 2):
        followed(cluster, scale(cluster, servers))
        followed(cluster, answered(cluster, cluster.alive(2.0, "s0", "s1", "s2", "w0", "w1")))
    assert cluster.run().startup.num_shards == 2
    assert cluster.run().fallback.is_outdated
    lost = cluster.lose("s1")
    (assign,) = sent([*lost, *cluster.join("s3")], m.Assign)
    assert (assign.restore["path"], assign.restore["ledgers"], assign.restore["anew"]) == (NEWEST, True, True)
    cluster.take("s3", m.Ready(assign.epoch, 1))
    assert cluster.run().fallback.is_outdated
    cluster.run().fallback.keep("/c/ckpt-30", "", 0, {"data": [], "state": {}})
    assert not cluster.run().fallback.is_outdated
    cluster.lose("s3")
    (assign,) = sent(cluster.join("s4"), m.Assign)
    assert (assign.restore["path"], assign.restore["anew"]) == ("/c/ckpt-30", False)


def test_a_member_that_goes_by_the_shards_before_is_told_first_of_those_that_there_are() -> None:
    cluster = Cluster.joined("s2")
    cut = scale(cluster, 3)
    (told,) = sent(cut, m.View, peer("w0"), change=CUT)
    cluster.take("w0", m.Followed(told.epoch, told.revision, 0))
    lost = cluster.lose("s1")
    assert receivers(lost, m.View, change=REWOUND) == [peer("w0")]
    away = cluster.alive(2.0, "s0", "s2", "w0", "w1")
    assert not sent(away, m.View, change=CUT), "a shard is nowhere"
    back = cluster.load(cluster.join("s3"))
    assert [to for to, *_ in rows(back)] == ["w0"]
    cluster.follow(back)
    assert receivers(cluster.alive(2.0, "s0", "s2", "s3", "w0", "w1"), m.View, change=CUT) == [peer("w1")] * 2
    assert [to for to, *_ in rows(cluster.take("w1", m.Followed(told.epoch, told.revision, 0)))] == ["w1"]
