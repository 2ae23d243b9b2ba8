"""In whose place a worker comes back, and to which rank."""

from __future__ import annotations

from dataclasses import replace

from tests.core.machines import TIMEOUT, Coordinator, errors, hello, identity, job, logged, peer, receivers, sent
from tests.tables import for_each
from zmqps.core.coordinator.members.membership import Roster
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action, Received
from zmqps.core.protocol.security.keys import claim_of
from zmqps.core.protocol.security.roles import KeyHolder
from zmqps.errors import EvictedError

TOKEN = b"the token of w1."


def life(name: str, number: int, known_as: str = "", token: bytes = TOKEN, role: str = "worker") -> m.Hello:
    """Return what a life of a task says; ``name``: of this process among those of a test."""
    who = identity(role, name, "default")
    return replace(who, name=known_as or name.partition("'")[0], token=token, life=number).hello()


def joins(coordinator: Coordinator, name: str, number: int, **facts: object) -> list[Action]:
    return coordinator.take(name, life(name, number, **facts))  # type: ignore[arg-type]


def rank(actions: list[Action]) -> int:
    (welcome,) = sent(actions, m.Welcome)
    return welcome.rank


def trained(*names: str, expected: int | None = 2, **options: object) -> Coordinator:
    """Return a coordinator whose workers, tasks of a supervisor in their first life, train."""
    coordinator = Coordinator.joined("s0", workers=expected)
    for name in names:
        joins(coordinator, name, 0, token=name.encode().ljust(16, b"."))
    coordinator.init_all(job(**options), *names)
    coordinator.build("s0")
    return coordinator


def back(coordinator: Coordinator, name: str, number: int = 1) -> list[Action]:
    """Let the next life of a worker join; it is called as the one before and a stroke."""
    return joins(coordinator, f"{name}'", number, token=name.encode().ljust(16, b"."))


def loses(coordinator: Coordinator, name: str, living: tuple[str, ...]) -> None:
    """Let a worker be silent until it is lost, and others not."""
    for _ in range(2):
        coordinator.now += TIMEOUT / 2
        for other in living:
            coordinator.take(other, m.Heartbeat({}))
        coordinator.machine.on_deadline(coordinator.now)
    assert name in {gone["name"] for gone in coordinator.machine.status(coordinator.now)["gone"]}


# --- a predecessor that seems to live -------------------------------------------------------------


def test_the_next_life_takes_rank_and_place_at_once() -> None:
    coordinator = trained("w0", "w1", "w2", expected=3)
    actions = back(coordinator, "w1")
    assert rank(actions) == 1
    assert [got.hello.name for got in coordinator.run().workers] == ["w0", "w1", "w2"]
    assert coordinator.run().attendance.spares == {}
    assert receivers(actions, m.Departed) == [peer("s0")]
    assert "worker 1 (w1, host, pid 7) had died and was started again (restart 1)" in logged(actions)
    (gone,) = coordinator.machine.status(0.0)["gone"]
    assert (gone["name"], gone["rank"], gone["how"]) == ("w1", 1, "restarted")
    assert rank(back(coordinator, "w1")) == 1, "said again"
    assert len(coordinator.machine.status(0.0)["gone"]) == 1
    coordinator.init("w1'", job())
    assert coordinator.run().losses.text == ""
    assert coordinator.run().num_workers == 3


def test_the_old_life_is_taken_back_no_more() -> None:
    coordinator = trained("w0", "w1")
    back(coordinator, "w1")
    for late in (m.Heartbeat({}), life("w1", 0, token=b"w1".ljust(16, b"."))):
        actions = coordinator.take("w1", late)
        assert errors(actions) == [EvictedError.code]
        assert "was started again" in sent(actions, m.Error)[0].text


def test_an_echo_of_an_earlier_life_is_refused() -> None:
    coordinator = trained("w0", "w1")
    back(coordinator, "w1", 2)
    actions = joins(coordinator, "w1''", 1, token=b"w1".ljust(16, b"."))
    assert errors(actions) == [EvictedError.code]
    assert "worker 1 (w1, host, pid 7) has its place" in sent(actions, m.Error)[0].text
    assert len(coordinator.run().workers) == 2


def test_a_spare_does_not_get_the_place_of_one_that_comes_back() -> None:
    coordinator = trained("w0", "w1", "w2")
    (spare,) = coordinator.run().attendance.spares.values()
    assert spare.hello.name == "w2"
    back(coordinator, "w1")
    assert [got.hello.name for got in coordinator.run().attendance.spares.values()] == ["w2"]
    coordinator.init("w1'", job())
    assert {got.hello.name for got in coordinator.run().attendance} == {"w0", "w1"}


def test_one_that_dies_again_before_it_has_begun_is_missed() -> None:
    coordinator = trained("w0", "w1")
    back(coordinator, "w1")
    loses(coordinator, "w1", living=("s0", "w0"))
    assert "worker 1 (w1, host, pid 7) was lost, and none came instead" in coordinator.run().losses.text


def test_a_synchronous_step_goes_on_without_the_old_life_and_waits_for_the_new_one() -> None:
    coordinator = trained("w0", "w1", mode="sync")
    coordinator.take("w0", m.Arrive(2, 0, (1,)))
    assert not sent(coordinator.take("w0", m.Heartbeat({})), m.Commit)
    actions = back(coordinator, "w1")
    (commit,) = sent(actions, m.Commit)
    assert [who for who, _ in commit.contributors] == [hello("worker", "w0").incarnation]
    assert [type(a.message) for a in actions if getattr(a, "peer", b"") == peer("s0")] == [m.Departed, m.Commit]  # type: ignore[union-attr]
    assert sent(actions, m.Proceed, peer("w0"))
    (told,) = sent(coordinator.init("w1'", job(mode="sync")), m.Job)
    assert (told.step, told.rank) == (1, 1)
    assert not sent(coordinator.take("w0", m.Arrive(3, 1, (2,))), m.Commit)
    assert sent(coordinator.take("w1'", m.Arrive(2, 1, (1,))), m.Commit)


def test_a_barrier_waits_for_the_next_life() -> None:
    coordinator = trained("w0", "w1")
    coordinator.take("w0", m.Enter(5, "end"))
    actions = back(coordinator, "w1")
    assert not errors(actions, peer("w0"))
    assert errors(actions, peer("w1")) == [EvictedError.code], "should it still be there"
    assert not sent(actions, m.Released)
    coordinator.init("w1'", job())
    released = coordinator.take("w1'", m.Enter(5, "end"))
    assert receivers(released, m.Released) == [peer("w0"), peer("w1'")]


@for_each("expected", [2, None])
def test_who_had_entered_a_barrier_has_to_enter_again(expected: int | None) -> None:
    coordinator = trained("w0", "w1", expected=expected)
    coordinator.take("w1", m.Enter(5, "end"))
    assert not sent(back(coordinator, "w1"), m.Released)
    coordinator.init("w1'", job())
    assert not sent(coordinator.take("w0", m.Enter(5, "end")), m.Released)
    assert len(sent(coordinator.take("w1'", m.Enter(5, "end")), m.Released)) == 2


def test_the_range_of_the_old_life_is_handed_out_again() -> None:
    coordinator = trained("w0", "w1")
    take = m.Take(4, "data", 30, 10, 1, (), ())
    (first,) = sent(coordinator.take("w1", take), m.Range)
    back(coordinator, "w1")
    coordinator.init("w1'", job())
    (again,) = sent(coordinator.take("w1'", take), m.Range)
    assert again.number == first.number == 0


def test_a_job_of_one_worker_stays_when_that_comes_back() -> None:
    coordinator = trained("w0", expected=1)
    epoch = coordinator.run().startup.epoch
    assert rank(back(coordinator, "w0")) == 0
    assert coordinator.run().startup.epoch == epoch
    (told,) = sent(coordinator.init("w0'", job()), m.Job)
    assert "continues with what was trained" in told.note


def test_a_process_may_join_more_than_once_and_its_next_life_as_often() -> None:
    coordinator = Coordinator()
    assert [rank(joins(coordinator, name, 0, known_as="w")) for name in ("wa", "wb")] == [0, 1]
    assert [rank(joins(coordinator, name, 1, known_as="w")) for name in ("wc", "wd")] == [0, 1]
    assert len(coordinator.run().workers) == 2
    assert rank(joins(coordinator, "we", 1, known_as="w")) == 2


def test_an_observer_comes_back_too() -> None:
    coordinator = Coordinator()
    joins(coordinator, "o0", 0, role="observer")
    joins(coordinator, "o0'", 1, role="observer")
    assert len(coordinator.run().observers) == 1


# --- thieves --------------------------------------------------------------------------------------


@for_each("token", [b"", b"another's token."], ids=["none", "another"])
def test_a_name_alone_takes_nobodys_place(token: bytes) -> None:
    coordinator = trained("w0", "w1")
    assert rank(joins(coordinator, "w1'", 9, token=token)) == 2
    assert not coordinator.machine.status(0.0)["gone"]


def test_a_claim_counts_with_the_key_of_the_one_before_only() -> None:
    roster = Roster()
    own, other = KeyHolder("worker", "a"), KeyHolder("worker", "mallory")
    member = roster.enter(life("w1", 0), peer("w1"), 0.0, own)
    assert roster.predecessor(life("w1'", 1), other) is None
    assert roster.predecessor(life("w1'", 1), None) is None
    assert roster.predecessor(life("w1'", 1), own) is member
    thief = roster.enter(life("w1'", 7), peer("x"), 0.0, other)
    assert roster.predecessor(life("w1''", 1), own) is member, "a later life of a thief is nobody's"
    assert thief.rank == 1


def test_a_claim_is_of_a_role_a_job_and_a_name() -> None:
    claims = {
        claim_of(TOKEN, *facts)
        for facts in (("worker", "a", "b"), ("observer", "a", "b"), ("worker", "b", "a"), ("worker", "a", "bb"))
    }
    assert len(claims) == 4
    assert claim_of(b"", "worker", "a", "b") == b""


def test_servers_hear_of_no_claim() -> None:
    who = replace(identity("worker", "w1"), token=TOKEN, life=3)
    assert who.hello().claim
    assert (who.hello(b"t" * 16, 1).claim, who.hello(b"t" * 16, 1).life) == (b"", 0)


# --- a rank that is free --------------------------------------------------------------------------


def test_who_comes_back_under_its_name_gets_its_rank() -> None:
    roster = Roster()
    members = {name: roster.enter(hello("worker", name), peer(name), 0.0) for name in "abc"}
    for name in "abc":
        roster.leave(members[name])
        roster.validate()
    assert [roster.enter(hello("worker", name), peer(name), 0.0).rank for name in "cbda"] == [2, 1, 0, 3]
    roster.validate()


def test_a_rank_that_somebody_else_has_taken_is_nobodys_any_more() -> None:
    roster = Roster()
    roster.enter(hello("worker", "a"), peer("a"), 0.0)
    roster.leave(roster.enter(hello("worker", "b"), peer("b"), 0.0))
    other = roster.enter(hello("worker", "c"), peer("c"), 0.0)
    assert other.rank == 1
    assert roster.enter(hello("worker", "b"), peer("b"), 0.0).rank == 2
    roster.leave(other)
    roster.validate()


def test_a_job_does_not_end_while_a_worker_that_is_lost_may_be_started_again() -> None:
    coordinator = trained("w0", "w1")
    coordinator.take("w0", m.Leave("finished"))
    loses(coordinator, "w1", living=("s0",))
    assert coordinator.run().state == "idle"
    assert "worker 1 (w1, host, pid 7) was lost" in coordinator.run().losses.text
    assert rank(back(coordinator, "w1")) == 1, "it is started again after it was missed"
    coordinator.init("w1'", job())
    assert coordinator.run().losses.text == ""
    actions = coordinator.take("w1'", m.Leave("finished"))
    assert "job 'default' has ended: its workers have finished" in logged(actions)


def test_a_job_ends_with_its_lease_where_nobody_is_started_again() -> None:
    coordinator = trained("w0", "w1")
    coordinator.take("w0", m.Leave("finished"))
    loses(coordinator, "w1", living=("s0",))
    lease = coordinator.machine.options.lease
    while coordinator.now < TIMEOUT + lease - 1.0:
        assert coordinator.run().state == "idle"
        coordinator.now += TIMEOUT / 2
        coordinator.take("s0", m.Heartbeat({}))
        coordinator.machine.on_deadline(coordinator.now)
    coordinator.now += 1.0
    coordinator.machine.on_deadline(coordinator.now)
    assert not coordinator.machine.runs


def test_of_several_with_one_name_the_lowest_rank_is_taken_first_but_for_that_of_one_with_a_claim() -> None:
    roster = Roster()
    for member in [roster.enter(life("w", 0, "w", token=b""), peer(str(i)), 0.0) for i in range(3)]:
        roster.leave(member)
    assert [roster.enter(life("w", 0, "w", token=b""), peer(str(i)), 0.0).rank for i in range(3)] == [0, 1, 2]
    roster = Roster()
    first, second = (roster.enter(life(name, 0, token=TOKEN), peer(name), 0.0) for name in ("w0", "w1"))
    roster.leave(second)
    roster.leave(first)
    assert roster.enter(life("w1", 0, token=b""), peer("x"), 0.0).rank == 0, "the lowest"
    assert roster.enter(life("w1", 1, token=TOKEN), peer("y"), 0.0).rank == 1


def test_drained_is_not_lost_and_its_range_is_handed_out_again() -> None:
    coordinator = trained("w0", "w1")
    coordinator.take("w1", m.Take(4, "data", 30, 10, 1, (), ()))
    actions = coordinator.handle(Received(peer("w1"), m.Leave("drained")))
    assert "worker 1 (w1, host, pid 7) drained" in logged(actions)
    assert coordinator.run().losses.text == ""
    assert coordinator.machine.status(0.0)["gone"][0]["how"] == "drained"
    (again,) = sent(coordinator.take("w0", m.Take(4, "data", 30, 10, 1, (), ())), m.Range)
    assert again.number == 0
