"""Members are told where shards are now, until each of them follows."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any, cast

from tests.core.machines import CUT, MOVED, REWOUND, hello, peer, receivers, sent, server_of
from zmqps.core.coordinator.members.membership import MemberInfo, Roster
from zmqps.core.coordinator.placement.copies import ReplicaSet
from zmqps.core.coordinator.placement.startup import Startup
from zmqps.core.coordinator.placement.views import RETRY_S, MemberViews
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages import ChangeKind, Followed, View

CHECKPOINT: dict[str, Any] = {"path": "c/9", "version": 9, "state": {}}


class Job:
    """A job of two workers and two shards."""

    def __init__(self) -> None:
        roster, servers, numbers = Roster(), Roster(), count(1)
        self.workers = {name: roster.enter(hello("worker", name), peer(name), 0.0) for name in "vw"}
        self.members: dict[bytes, MemberInfo] = {w.incarnation: w for w in self.workers.values()}
        copies = ReplicaSet(b"r" * 16, lambda: next(numbers))
        copies.place([servers.enter(hello("server", name), peer(name), 0.0) for name in "ab"])
        self.startup = SimpleNamespace(
            copies=copies, epoch=1, told=set(self.members), held="", num_shards=2,
            leaders=lambda: [copy for copy in copies if not copy.backup], where=lambda member: {"cut": 3},
        )  # fmt: skip
        self.views = self.anew()

    def anew(self) -> MemberViews:
        return MemberViews(cast("Startup", self.startup), self.members)

    def begin(self, kind: ChangeKind = MOVED, *shards: int, **more: Any) -> list[Action]:
        _, actions = self.views.begin(kind, shards or (0,), 0.0, **more)
        self.views.validate()
        return actions

    def followed(self, name: str, revision: int = 1, lost: int = 0, epoch: int = 1) -> bool:
        change = self.views.followed(self.workers[name], Followed(epoch, revision, lost))
        self.views.validate()
        return change is not None

    def go(self, name: str) -> list[ChangeKind]:
        left = self.views.leave(self.workers[name])
        del self.members[self.workers[name].incarnation]
        self.views.validate()
        return [change.kind for change in left]


def test_everybody_is_told_with_a_ticket_of_its_own_and_again_until_it_has_followed() -> None:
    job = Job()
    told = sent(job.begin(), View, change=MOVED)
    assert {(m.epoch, m.shards, m.revision) for m in told} == {(1, (0,), 1)}
    assert len({server_of(m)["ticket"] for m in told}) == 2
    assert {server_of(m)["epoch"] for m in told} == {1}
    assert job.views.on_deadline(0.5 * RETRY_S) == []
    assert job.followed("v")
    assert receivers(job.views.on_deadline(RETRY_S), View, change=MOVED) == [peer("w")]
    assert receivers(job.views.again(job.workers["w"]), View, change=MOVED) == [peer("w")]
    assert job.views.again(job.workers["v"]) == []
    assert job.followed("w")
    assert job.views.all_followed
    assert job.views.next_deadline() is None
    assert job.views.on_deadline(10.0) == []


def test_who_follows_an_earlier_move_or_twice_or_in_another_job_is_no_news() -> None:
    job = Job()
    job.begin()
    job.begin()
    assert not job.followed("v", 1)
    assert not job.followed("v", 2, epoch=2)
    assert job.followed("v", 2)
    assert not job.followed("v", 2)
    assert receivers(job.views.on_deadline(RETRY_S), View, change=MOVED) == [peer("w")]


def test_moves_of_two_shards_are_followed_one_by_one() -> None:
    job = Job()
    job.begin(MOVED, 0)
    job.begin(MOVED, 1)
    assert job.followed("v", 2)
    assert {(m.shards, m.revision) for m in sent(job.views.again(job.workers["v"]), View, change=MOVED)} == {((0,), 1)}


def test_nobody_waits_for_a_member_that_has_gone() -> None:
    job = Job()
    job.begin()
    assert job.go("v") == [MOVED]
    assert receivers(job.views.on_deadline(RETRY_S), View, change=MOVED) == [peer("w")]
    assert job.go("w") == [MOVED]
    assert job.views.all_followed


def test_that_a_server_takes_over_is_said_before_it_has_and_once() -> None:
    job = Job()
    assert sent(job.views.announce(MOVED, [0]), View) == [View(1, 1, MOVED, (0,), {})] * 2
    assert job.views.all_followed
    assert {m.revision for m in sent(job.begin(), View, change=MOVED)} == {2}


def test_shards_that_are_cut_anew_are_told_before_anything_else() -> None:
    job = Job()
    told = sent(job.begin(CUT), View, change=CUT)
    assert {(m.epoch, m.revision, m.placement["cut"]) for m in told} == {(1, 1, 3)}
    assert job.followed("v")
    assert receivers(job.begin(), View, change=MOVED) == [peer("v")]
    assert receivers(job.views.announce(MOVED, [1]), View, change=MOVED) == [peer("v")]
    again = job.views.on_deadline(RETRY_S)
    assert (receivers(again, View, change=CUT), receivers(again, View, change=MOVED)) == ([peer("w")], [peer("v")])
    assert job.followed("w")
    assert receivers(job.views.again(job.workers["w"]), View, change=MOVED) == [peer("w")]


def test_a_cut_is_told_once_all_its_shards_are_somewhere() -> None:
    job = Job()
    job.startup.held = "a shard goes back"
    assert job.begin(CUT) == []
    job.startup.held = ""
    assert receivers(job.views.on_deadline(RETRY_S), View, change=CUT) == [peer("v"), peer("w")]


def test_pushes_that_are_lost_are_counted_and_steps_are_known() -> None:
    job = Job()
    told = sent(job.begin(REWOUND, 0, 1, restored=CHECKPOINT), View, change=REWOUND)
    assert {(m.revision, m.shards, m.restored["version"], m.lost) for m in told} == {(1, (0, 1), 9, 0)}
    assert [row["epoch"] for row in told[0].placement["servers"]] == [1, 2]
    assert job.views.awaits(REWOUND, job.workers["v"])
    job.followed("v", lost=4)
    assert not job.views.awaits(REWOUND, job.workers["v"])
    assert not job.views.awaits(MOVED, job.workers["w"])
    assert job.views.forget(MOVED, 0) == 0
    assert job.views.forget(REWOUND, 1) == 4
    assert job.views.all_followed
    steps = sent(job.begin(REWOUND, 0, 1, restored=CHECKPOINT, lost=3, whole=True), View, change=REWOUND)
    assert {m.lost for m in steps} == {3}
    job.followed("v", 2, lost=100)
    assert job.views.forget(REWOUND, 0) == 3


def test_what_is_kept_goes_on_with_the_next_revision() -> None:
    job = Job()
    assert job.views.dump() is None
    job.begin(CUT)
    job.begin(REWOUND, 0, restored=CHECKPOINT)
    job.followed("v", 1)
    job.followed("v", 2, lost=5)
    kept = job.views.dump()
    job.views = job.anew()
    job.views.restore(kept, 100.0)
    assert job.views.dump() == kept
    assert job.views.next_deadline() == 100.0 + RETRY_S
    assert receivers(job.views.on_deadline(101.0), View, change=CUT) == [peer("w")]
    assert job.views.new_revision() == 3
    assert job.views.forget(REWOUND, 0) == 5
    job.views.clear()
    assert job.views.all_followed
