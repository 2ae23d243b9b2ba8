"""Members are told where a shard is now, until each of them talks to that server."""

from __future__ import annotations

from itertools import count

from tests.core.machines import hello, peer, receivers, sent
from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.coordinator.members.roster import Roster
from zmqps.core.coordinator.placement.copies import Replica, ReplicaSet
from zmqps.core.coordinator.placement.moves import RETRY_S, Moves
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages import Moved, Retargeted


class Job:
    """A job of two workers whose first shard moves."""

    def __init__(self) -> None:
        roster, servers, numbers = Roster(), Roster(), count(1)
        self.workers = {name: roster.enter(hello("worker", name), peer(name), 0.0) for name in "vw"}
        self.members: dict[bytes, MemberInfo] = {w.incarnation: w for w in self.workers.values()}
        self.copies = ReplicaSet(b"r" * 16, lambda: next(numbers))
        a, b = (servers.enter(hello("server", name), peer(name), 0.0) for name in "ab")
        self.copies.place([a, b])
        self.moves = Moves(self.members, lambda who: True)

    def begin(self, generation: int = 1) -> list[Action]:
        copy: Replica = self.copies.by_epoch[1]
        copy.generation = generation
        actions = self.moves.begin(1, self.copies, copy, list(self.members), 0.0, version=7)
        self.moves.validate()
        return actions

    def followed(self, name: str, generation: int = 1, shard: int = 0) -> bool:
        news = self.moves.followed(self.workers[name], Retargeted(1, shard, generation))
        self.moves.validate()
        return news

    def again(self, now: float) -> list[Action]:
        return self.moves.on_deadline(1, self.copies, now)


def test_everybody_is_told_with_a_ticket_of_its_own_and_again_until_it_has_followed() -> None:
    job = Job()
    told = sent(job.begin(), Moved)
    assert {(m.epoch, m.shard, m.generation, m.version, m.lost) for m in told} == {(1, 0, 1, 7, 0)}
    assert len({m.server["ticket"] for m in told}) == 2
    assert {m.server["epoch"] for m in told} == {1}
    assert job.again(0.5 * RETRY_S) == []
    assert job.followed("v")
    assert receivers(job.again(RETRY_S), Moved) == [peer("w")]
    assert job.followed("w")
    assert job.moves.next_deadline() is None
    assert job.again(10.0) == []


def test_who_follows_an_earlier_move_or_twice_is_no_news() -> None:
    job = Job()
    job.begin(1)
    job.begin(2)
    assert not job.followed("v", 1)
    assert not job.followed("v", 2, shard=1)
    assert job.followed("v", 2)
    assert not job.followed("v", 2)
    assert receivers(job.again(RETRY_S), Moved) == [peer("w")]


def test_nobody_waits_for_a_member_that_has_gone() -> None:
    job = Job()
    job.begin()
    job.moves.leave(job.workers["v"])
    del job.members[job.workers["v"].incarnation]
    job.moves.validate()
    assert receivers(job.again(RETRY_S), Moved) == [peer("w")]
    job.moves.leave(job.workers["w"])
    assert job.moves.next_deadline() is None


def test_that_a_server_takes_over_is_said_before_it_has() -> None:
    job = Job()
    copy = job.copies.by_epoch[1]
    (first, second) = sent(job.moves.announce(1, copy, list(job.members)), Moved)
    assert first == second == Moved(1, 0, 0, {}, 0, 0)
    assert job.moves.next_deadline() is None
