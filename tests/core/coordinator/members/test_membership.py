"""Who is there: ranks, signs of life, departures."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.core.machines import Coordinator, hello, job, logged, peer, receivers
from tests.tables import for_each
from zmqps.core.coordinator.members.membership import (
    MAX_GONE,
    MAX_GONE_COUNTERS_NBYTES,
    MAX_MEMBERS,
    MemberInfo,
    Membership,
    Reported,
    Roster,
)
from zmqps.core.protocol.messages import Assign, Heartbeat
from zmqps.core.protocol.messages.membership import DepartureCause
from zmqps.errors import EvictedError, LimitError, PSError


class Cluster(Membership):
    """A membership whose members are in the roster of their role."""

    def __init__(self) -> None:
        super().__init__(10.0)
        self.rosters = {role: Roster() for role in ("worker", "server", "observer")}

    def of(self, role: str) -> list[MemberInfo]:
        return list(self.rosters[role])


def joined(membership: Cluster, *names: str, role: str = "worker", now: float = 0.0) -> list[int]:
    return [membership.join(hello(role, name), peer(name), membership.rosters[role], now).rank for name in names]


def leave(
    membership: Cluster, name: str, how: str = "finished", now: float = 0.0, barred: PSError | None = None
) -> None:
    member = membership.find(peer(name))
    assert member is not None
    membership.remove(member, how, now, barred)


@for_each("reason", ["closed", "lost", "restarted", "SIGTERM", ""])
def test_a_member_that_leaves_is_closed_unless_it_says_that_it_has_finished_or_was_drained(reason: str) -> None:
    assert DepartureCause.said(reason) is DepartureCause.CLOSED
    for cause in (DepartureCause.FINISHED, DepartureCause.DRAINED):
        assert DepartureCause.said(cause.value) is cause


def test_ranks_are_the_lowest_free_of_the_role() -> None:
    membership = Cluster()
    assert joined(membership, "a", "b", "c") == [0, 1, 2]
    assert joined(membership, "s", role="server") == [0]
    leave(membership, "b")
    leave(membership, "a")
    assert joined(membership, "d", "e", "f") == [0, 1, 3]


def test_a_member_keeps_its_rank_when_its_connection_changes() -> None:
    membership = Cluster()
    joined(membership, "a", "b")
    again = membership.join(hello("worker", "b"), peer("b2"), membership.rosters["worker"], 1.0)
    assert again.rank == 1
    assert membership.find(peer("b")) is None
    assert membership.find(peer("b2")) is again
    membership.validate()


def test_who_is_silent_for_too_long_is_overdue() -> None:
    membership = Cluster()
    joined(membership, "a")
    joined(membership, "b", now=3.0)
    assert membership.next_deadline() == 10.0
    assert membership.overdue(9.9) == []
    assert [m.hello.name for m in membership.overdue(10.0)] == ["a"]
    a, b = membership.of("worker")
    membership.heard(a, 12.0)
    assert membership.next_deadline() == 13.0, "b is the most silent now"
    assert membership.overdue(13.0) == [b]
    membership.heard(b, 14.0)
    assert membership.next_deadline() == 22.0
    membership.validate()


def test_ranks_of_one_roster_are_not_touched_by_another() -> None:
    membership, another = Cluster(), Roster()
    joined(membership, "a", "b")
    first, second = (membership.join(hello("worker", name), peer(name), another, 0.0) for name in ("c", "d"))
    assert [first.rank, second.rank] == [0, 1]
    membership.remove(first, "finished", 1.0)
    assert [m.hello.name for m in membership.of("worker")] == ["a", "b"]
    assert [m.hello.name for m in another] == ["d"]
    membership.validate()


@for_each("barred", [EvictedError("silent"), None])
def test_only_who_was_barred_may_not_come_back_and_is_told_why(barred: PSError | None) -> None:
    membership = Cluster()
    joined(membership, "a")
    leave(membership, "a", "lost", barred=barred)
    for check in (lambda: membership.check_welcome(hello("worker", "a")), lambda: membership.check_known(peer("a"))):
        if barred is None:
            check()
        else:
            with pytest.raises(EvictedError) as caught:
                check()
            assert type(caught.value) is type(barred)
            assert str(caught.value) == str(barred)
            assert barred.__traceback__ is None, "it would keep the message that was refused"
    membership.check_welcome(hello("worker", "b"))
    membership.check_known(peer("b"))


def test_the_counters_of_those_who_have_gone_last_are_kept() -> None:
    membership = Cluster()
    nbytes = MAX_GONE_COUNTERS_NBYTES // 4
    for name in "abcdef":
        joined(membership, name)
        member = membership.members[hello("worker", name).incarnation]
        member.reported = Reported(counters='{"n": 1}', nbytes=nbytes, by_epoch={"1": {"n": 1}})
        leave(membership, name)
    kept = [(departure.member.reported.counters, departure.member.reported.nbytes) for departure in membership.gone]
    assert kept == 2 * [("{}", 0)] + 4 * [('{"n": 1}', nbytes)]
    assert [bool(departure.member.reported.by_epoch) for departure in membership.gone] == 2 * [False] + 4 * [True]


def test_what_is_remembered_of_the_gone_is_bounded() -> None:
    membership = Cluster()
    for i in range(MAX_MEMBERS + 10):
        joined(membership, f"{i}")
        leave(membership, f"{i}", "lost", barred=EvictedError("silent"))
    assert len(membership.gone) == MAX_GONE
    assert len(membership._barred) == MAX_MEMBERS
    with pytest.raises(EvictedError):
        membership.check_welcome(hello("worker", f"{MAX_MEMBERS + 9}"))
    membership.check_welcome(hello("worker", "0"))  # the oldest are forgotten


def test_a_member_that_has_gone_can_be_looked_for_among_those_that_are_here() -> None:
    membership = Cluster()
    joined(membership, "a", "b")
    gone = membership.find(peer("a"))
    assert gone is not None
    leave(membership, "a")
    assert gone not in list(membership.members.values())


def test_the_number_of_members_is_bounded() -> None:
    membership = Cluster()
    for i in range(MAX_MEMBERS):
        joined(membership, f"{i}", role=("observer", "server", "worker")[i % 3])
    for role in ("observer", "server", "worker"):
        with pytest.raises(LimitError):
            joined(membership, "one more", role=role)
    assert sum(map(len, membership.rosters.values())) == len(membership.members) == MAX_MEMBERS


class AnyOrder(RuleBasedStateMachine):
    """Members come, go and reconnect in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.membership = Cluster()

    names = st.sampled_from("abcdef")

    @rule(name=names, where=names)
    def join(self, name: str, where: str) -> None:
        holder = self.membership.find(peer(where))
        if holder is None or holder.hello.name == name:
            role = "server" if name in "ab" else "worker"
            self.membership.join(hello(role, name), peer(where), self.membership.rosters[role], 0.0)

    @rule(where=names, how=st.sampled_from(["lost", "finished"]))
    def go(self, where: str, how: str) -> None:
        member = self.membership.find(peer(where))
        if member is not None:
            self.membership.remove(member, how, 0.0)

    @invariant()
    def ranks_are_unique_and_dense_enough(self) -> None:
        self.membership.validate()
        for role in ("server", "worker"):
            assert all(m.rank < 6 for m in self.membership.of(role))


AnyOrder.TestCase.settings = settings(max_examples=20, stateful_step_count=20)
TestAnyOrder = AnyOrder.TestCase


def test_a_server_beyond_those_of_the_cluster_is_a_spare() -> None:
    coordinator = Coordinator.joined("s0", "s1", servers=2)
    assert "server 2 (s2, host, pid 7) joined as a spare" in logged(coordinator.join("s2"))


def test_a_job_is_placed_on_servers_that_are_heard_and_last_on_spares() -> None:
    coordinator = Coordinator.joined("s0", "s1", servers=2)
    coordinator.wait(4.0, "s0")  # s1 has ended perhaps, and s2 is its restart
    coordinator.join("s2")
    assert receivers(coordinator.attach("w0", job()), Assign) == [peer("s0"), peer("s2")]


@for_each("once, says", [(True, "ends with its job"), (False, "the cluster stays: start another")])
def test_when_a_server_is_lost_the_log_says_what_becomes_of_the_cluster(once: bool, says: str) -> None:
    coordinator = Coordinator.trains("s0", "w0", once=once)
    assert says in logged(coordinator.wait(12.0, "w0"))


def test_who_has_gone_is_still_called_by_its_name_where_it_is_refused() -> None:
    coordinator = Coordinator.trains("s0", "w0", "w1")
    coordinator.wait(12.0, "s0", "w0")
    said = logged(coordinator.take("w1", Heartbeat({})))
    assert said.startswith("refused a request of worker 1 (w1, host, pid 7), lost: ")
    assert logged(coordinator.take("w9", Heartbeat({}))).startswith("refused a request of peer ")
