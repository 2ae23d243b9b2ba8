"""Which rank a node gets that its launcher has numbered, and who gets the others."""

from __future__ import annotations

from dataclasses import replace

from tests.core.machines import INTERVAL, TIMEOUT, Coordinator, hello, identity, job, logged, peer, sent
from tests.tables import for_each
from zmqps.core.coordinator.members.membership import MAX_DOUBTS, MAX_MEMBERS, Roster
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.messages import Heartbeat, Hello, Job, Leave, Welcome
from zmqps.core.protocol.messages.hello import SPARE


def numbered(role: str, name: str, index: int, known_as: str = "", pid: int = 7) -> Hello:
    """Return what a process says; ``name``: of this one among those of a test."""
    who = identity(role, name)
    return replace(who, name=known_as or f"{role}-{index}", index=index, pid=pid).hello()


def rank(actions: list[Action]) -> int:
    (welcome,) = sent(actions, Welcome)
    return welcome.rank


def beat(coordinator: Coordinator, seconds: float, *living: str) -> None:
    """Let time pass in which some give signs of life."""
    ends_at = coordinator.now + seconds
    while coordinator.now < ends_at:
        coordinator.now += INTERVAL
        for name in living:
            coordinator.take(name, Heartbeat({}))
        coordinator.machine.on_deadline(coordinator.now)


@for_each("role", ["server", "worker"])
@for_each("order", [[2, 0, 1], [1, 2, 0], [2, 1, 0]])
def test_rank_is_number_in_whatever_order_nodes_come(role: str, order: list[int]) -> None:
    coordinator = Coordinator(servers=3, workers=3)
    found = [rank(coordinator.take(f"n{index}", numbered(role, f"n{index}", index))) for index in order]
    assert found == order
    members = coordinator.machine.status(0.0)["members"]
    assert [(m["rank"], m["name"]) for m in members] == [(n, f"{role}-{n}") for n in range(3)]


def test_one_that_is_started_again_has_its_number_again() -> None:
    coordinator = Coordinator(servers=3)
    for index in (2, 0, 1):
        coordinator.take(f"s{index}", numbered("server", f"s{index}", index))
    for index in (1, 2):
        coordinator.take(f"s{index}", Leave("finished"))
    assert rank(coordinator.take("hand", hello("server", "hand"))) == 3, "that may be started again"
    assert rank(coordinator.take("t2", numbered("server", "t2", 2))) == 2
    assert rank(coordinator.take("t1", numbered("server", "t1", 1))) == 1


def test_by_hand_a_node_gets_the_lowest_number_that_no_launcher_has_given() -> None:
    coordinator = Coordinator(servers=3, workers=4)
    coordinator.take("s2", numbered("server", "s2", 2))
    assert rank(coordinator.take("hand", hello("server", "hand"))) == 3, "0 and 1 are to come"
    assert rank(coordinator.take("s4", numbered("server", "s4", 4))) == 4
    assert rank(coordinator.take("more", hello("server", "more"))) == 5
    assert [rank(coordinator.take(f"w{n}", hello("worker", f"w{n}"))) for n in range(3)] == [0, 1, 2], "no launcher"


def test_a_spare_that_comes_first_leaves_the_numbers_of_those_that_are_awaited() -> None:
    coordinator = Coordinator(servers=2)
    spare = replace(hello("server", "spare"), capabilities=(SPARE,))
    assert rank(coordinator.take("spare", spare)) == 2
    assert [rank(coordinator.take(f"s{n}", numbered("server", f"s{n}", n))) for n in (1, 0)] == [1, 0]


def test_a_number_that_another_one_has_is_not_given_and_that_is_said() -> None:
    coordinator = Coordinator(servers=2)
    assert rank(coordinator.take("hand", hello("server", "hand"))) == 0
    actions = coordinator.take("s0", numbered("server", "s0", 0))
    assert rank(actions) == 2
    said = "server 2 (server-0, host, pid 7) is number 0 of its launcher, but that is server 0 (hand, host, pid 7)"
    assert said in logged(actions)


@for_each("role", ["server", "worker"])
def test_the_next_life_waits_until_the_one_before_is_lost(role: str) -> None:
    coordinator = Coordinator(servers=2, workers=2)
    for index in (1, 0):
        coordinator.take(f"n{index}", numbered(role, f"n{index}", index))
    again = numbered(role, "again", 1, pid=8)
    actions = coordinator.take("again", again)
    assert not sent(actions, Welcome)
    assert f"{role} 1 ({role}-1, host, pid 7) is looked for first" in logged(actions)
    assert coordinator.take("again", again) == [], "it is said once"
    beat(coordinator, TIMEOUT, "n0")
    assert rank(coordinator.take("again", again)) == 1


def test_two_of_one_name_and_number_that_both_live_have_two_ranks() -> None:
    coordinator = Coordinator(workers=2)
    coordinator.take("w0", numbered("worker", "w0", 0))
    other = numbered("worker", "other", 0, pid=8)
    assert not sent(coordinator.take("other", other), Welcome)
    coordinator.now += 0.1 * INTERVAL
    coordinator.take("w0", Heartbeat({}))  # it may have said that before it died
    assert not sent(coordinator.take("other", other), Welcome)
    beat(coordinator, 2 * INTERVAL, "w0")
    assert rank(coordinator.take("other", other)) == 2, "1 is to come"


def test_one_of_another_name_does_not_wait_for_a_number_that_is_taken() -> None:
    coordinator = Coordinator(workers=2)
    coordinator.take("w0", numbered("worker", "w0", 0))
    stranger = numbered("worker", "other", 0, known_as="other", pid=8)
    assert rank(coordinator.take("other", stranger)) == 2


def test_a_process_that_joins_twice_waits_for_nothing() -> None:
    coordinator = Coordinator(workers=2)
    found = [rank(coordinator.take(name, numbered("worker", name, 0))) for name in ("first", "second")]
    assert found == [0, 2]


def test_no_more_than_a_few_wait_for_one() -> None:
    coordinator = Coordinator(workers=2)
    coordinator.take("w0", numbered("worker", "w0", 0))
    for n in range(MAX_DOUBTS):
        assert not sent(coordinator.take(f"n{n}", numbered("worker", f"n{n}", 0, pid=8 + n)), Welcome)
    assert rank(coordinator.take("more", numbered("worker", "more", 0, pid=99))) == 2


@for_each("come_back", [True, False])
def test_those_who_have_waited_before_keep_nobody_from_waiting(come_back: bool) -> None:
    coordinator = Coordinator(workers=2)
    coordinator.take("w0", numbered("worker", "w0", 0))
    for n in range(MAX_DOUBTS):
        other = numbered("worker", f"n{n}", 0, pid=8 + n)
        assert not sent(coordinator.take(f"n{n}", other), Welcome)
        beat(coordinator, 2 * INTERVAL, "w0")
        if come_back:
            assert rank(coordinator.take(f"n{n}", other)) == 2
            coordinator.take(f"n{n}", Leave("closed"))
    again = numbered("worker", "again", 0, pid=99)
    assert not sent(coordinator.take("again", again), Welcome)
    beat(coordinator, TIMEOUT)
    assert rank(coordinator.take("again", again)) == 0


@for_each("wish", [MAX_MEMBERS + 1, 2**32 - 1])
def test_a_number_beyond_all_ranks_is_none(wish: int) -> None:
    coordinator = Coordinator(workers=2)
    assert rank(coordinator.take("w", replace(hello("worker", "w"), wish=wish))) == 0


@for_each("workers", [10 * MAX_MEMBERS, 2**62])
def test_ranks_are_small_however_many_workers_a_job_expects(workers: int) -> None:
    coordinator = Coordinator(workers=None)
    coordinator.take("w0", numbered("worker", "w0", 0))
    coordinator.init("w0", job(workers=workers))
    assert rank(coordinator.take("hand", hello("worker", "hand"))) == MAX_MEMBERS
    coordinator.init("hand", job(workers=workers))


def test_workers_of_another_job_have_ranks_below_its_number_of_workers() -> None:
    coordinator = Coordinator.joined("s0", workers=4)
    for index in (3, 2):
        coordinator.take(f"w{index}", numbered("worker", f"w{index}", index))
    coordinator.init_all(job(workers=2), "w3", "w2")
    told = sent(coordinator.build("s0"), Job)
    assert sorted(message.rank for message in told) == [0, 1]


def test_who_counts_takes_the_number_of_one_that_is_yet_to_come_before_that_of_one_that_is_here() -> None:
    roster = Roster(lambda: 3)
    first = roster.enter(numbered("worker", "w0", 0), peer("w0"), 0.0)
    hand = roster.enter(hello("worker", "h"), peer("h"), 0.0)
    assert (first.rank, hand.rank) == (0, 3)
    roster.promote(hand, 3, set())
    assert (first.rank, hand.rank) == (0, 1)
    roster.validate()


def test_numbers_are_known_after_a_coordinator_has_come_back() -> None:
    roster, other = Roster(lambda: 2), Roster(lambda: 2)
    members = [roster.enter(numbered("worker", f"w{n}", n), peer(f"w{n}"), 0.0) for n in (4, 1)]
    roster.leave(members[0])
    other.restore(roster.dump(), {member.incarnation: member for member in members})
    assert [other.enter(hello("worker", name), peer(name), 0.0).rank for name in "abc"] == [2, 3, 5]
    assert other.enter(numbered("worker", "again", 4), peer("again"), 0.0).rank == 4
    other.validate()
