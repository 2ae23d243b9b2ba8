"""Where a number of workers is expected: who counts, who is a spare, and what strangers cannot do to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.core.machines import Coordinator, errors, exits_of, hello, job, logged, peer, receivers, sent
from tests.tables import for_each
from zmqps.core.coordinator.members.places import MAX_KEPT
from zmqps.core.coordinator.training.waits import not_joined
from zmqps.core.protocol import exits
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action
from zmqps.errors import JobError, JobMismatchError, LimitError, PeerLostError, ProtocolError

SYNC = job(mode="sync")
DATA = m.Take(30, "data", 8, 4, 1, (), ())


def trained(*workers: str, spec: Any = SYNC, expected: int | None = 2, spare: str = "", **options: Any) -> Coordinator:
    """Return a coordinator that expects two workers, whose job these train, and perhaps a spare names."""
    coordinator = Coordinator.joined("s0", *workers, workers=expected, **options)
    for name in workers:
        coordinator.init(name, spec)
    coordinator.build("s0")
    if spare:
        coordinator.attach(spare, spec)
    return coordinator


def takes_ranges(coordinator: Coordinator) -> bool:
    """Whether the two workers have the job's ranges for themselves."""
    return [sent(coordinator.take(name, DATA), m.Range)[0].start for name in ("w0", "w1")] == [0, 4]


def step(coordinator: Coordinator, number: int, *names: str) -> list[Action]:
    """Let workers complete a step."""
    return [a for name in names for a in coordinator.take(name, m.Arrive(100 + number, number, (number + 1,)))]


def committed(actions: list[Action]) -> list[int]:
    """Return how many contributors the commits have."""
    return [len(commit.contributors) for commit in sent(actions, m.Commit)]


def lose(coordinator: Coordinator, *others: str) -> list[Action]:
    """Let time pass in which only these give signs of life."""
    return coordinator.wait(coordinator.now + 12.0, *others)


def idle(coordinator: Coordinator) -> str:
    return str(coordinator.machine.status(coordinator.now)["jobs"]["default"]["idle"])


# --- strangers ----------------------------------------------------------------------------------


@for_each("asked", [m.Arrive(9, 0, ()), m.Arrive(9, 0, (1,)), m.Enter(9, "mine"), DATA])
@for_each("attached", [False, True])
def test_who_has_not_named_the_job_takes_no_part_in_it(asked: m.Message, attached: bool) -> None:
    coordinator = trained("w0", "w1")
    coordinator.join("w7")
    if attached:
        coordinator.init("w7", None)
    (refused,) = sent(coordinator.take("w7", asked), m.Error)
    assert refused.code == JobError.code
    assert "the job 'default' expects 2 workers" in refused.text
    assert "call worker.init(...) first" in refused.text
    assert [committed(step(coordinator, number, "w0", "w1")) for number in range(3)] == [[2]] * 3
    coordinator.take("w0", m.Enter(9, "end"))
    assert len(sent(coordinator.take("w1", m.Enter(9, "end")), m.Released)) == 2
    assert takes_ranges(coordinator)
    coordinator.take("w0", replace(DATA, request=31, done=(0, 0)))
    used = sent(coordinator.take("w1", replace(DATA, request=31, done=(0, 1))), m.Range)
    assert used[-1].stop == 0, "all passes are done"
    assert idle(coordinator) == "worker 2 (w7, host, pid 7)"


def test_workers_that_meet_before_they_begin_a_job_count_until_it_is_named() -> None:
    coordinator = Coordinator.joined("s0", "w0", "w1", "w7", workers=2)
    assert sent(coordinator.take("w0", m.Enter(9, "start")), m.Waiting)[0].text == not_joined(1, 1)
    assert len(sent(coordinator.take("w1", m.Enter(9, "start")), m.Released)) == 2
    assert errors(coordinator.take("w7", m.Enter(9, "mine"))) == [JobError.code], "there are two already"
    coordinator.init("w0", SYNC)
    assert coordinator.run().num_missing == 1
    coordinator.init("w1", SYNC)
    assert coordinator.run().num_missing == 0


@for_each("asked", [m.Arrive(9, 0, ()), m.Enter(9, "mine"), replace(DATA, num_examples=99)])
def test_a_stranger_that_asks_before_there_is_a_job_has_no_place_in_it(asked: m.Message) -> None:
    coordinator = Coordinator.joined("s0", "w7", "w0", "w1", workers=2)
    coordinator.take("w7", asked)
    coordinator.init_all(SYNC, "w0", "w1")
    coordinator.build("s0")
    assert idle(coordinator) == "worker 2 (w7, host, pid 7)"
    assert committed(step(coordinator, 0, "w0", "w1")) == [2]
    assert takes_ranges(coordinator)


def test_who_names_the_job_when_all_places_are_taken_is_a_spare_and_is_told() -> None:
    coordinator = trained("w0", "w1")
    (told,) = sent(coordinator.attach("w7", None), m.Job)
    actions = coordinator.take("w7", m.Init(2, told.job))
    (told,) = sent(actions, m.Job)
    assert "the job 'default' has the workers that it expects (2): this one is a spare" in told.note
    assert told.num_workers == 2
    assert "worker 2 (w7, host, pid 7) is a spare: job 'default' has the workers that it expects" in logged(actions)
    assert logged(coordinator.init("w7", SYNC, request=3)) == "", "once"
    assert idle(coordinator) == "spare worker 2 (w7, host, pid 7)"
    assert sent(coordinator.take("w0", m.Heartbeat({})), m.HeartbeatAck) == [m.HeartbeatAck(2, 1)]
    assert [committed(step(coordinator, number, "w0", "w1")) for number in range(3)] == [[2]] * 3


@for_each("asked", [m.Arrive(9, 0, (1,)), m.Enter(9, "end"), DATA])
def test_what_a_spare_asks_for_waits_and_nobody_waits_for_it(asked: Any) -> None:
    coordinator = trained("w0", "w1", spare="w7")
    for _ in range(2):
        (waiting,) = sent(coordinator.take("w7", asked), m.Waiting)
        assert waiting.request == asked.request
        assert waiting.text == "a place among the 2 workers that the job expects: it is a spare"
    assert [committed(step(coordinator, number, "w0", "w1")) for number in range(3)] == [[2]] * 3
    coordinator.take("w0", m.Enter(9, "end"))
    released = coordinator.take("w1", m.Enter(9, "end"))
    assert receivers(released, m.Released) == [peer("w0"), peer("w1")]
    assert takes_ranges(coordinator)
    assert (peer("w7"), asked.request, waiting.text) in [
        (got.peer, n, say()) for got, n, say in coordinator.run().waits._waiters()
    ]


def test_a_place_of_a_job_that_could_not_be_started_is_none_of_the_next_one() -> None:
    coordinator = Coordinator.joined("s0", "w7", workers=2)
    coordinator.init("w7", job("another", mode="sync"))
    coordinator.take("w7", m.Take(20, "data", 99, 1, 1, (), ()))
    coordinator.take("w7", m.Enter(21, "end"))
    coordinator.take("w7", m.Withdraw(1))
    coordinator.join("w0", "w1")
    assert errors(coordinator.init("w0", SYNC), peer("w7")) == [JobError.code], "it waited at a barrier"
    coordinator.init("w1", SYNC)
    coordinator.build("s0")
    assert committed(step(coordinator, 0, "w0", "w1")) == [2]
    assert errors(coordinator.take("w7", m.Enter(22, "end"))) == [JobError.code]
    assert takes_ranges(coordinator)


def test_who_entered_a_barrier_before_the_job_said_how_many_it_expects_does_not_count() -> None:
    coordinator = Coordinator.joined("s0", "w7", "w0", "w1")
    coordinator.take("w7", m.Enter(9, "mine"))
    spec = replace(SYNC, workers=2)
    assert errors(coordinator.init("w0", spec), peer("w7")) == [JobError.code]
    coordinator.init("w1", spec)
    coordinator.build("s0")
    assert committed(step(coordinator, 0, "w0", "w1")) == [2]


@for_each("spec", [None, SYNC])
def test_a_stranger_that_is_lost_is_no_loss_of_the_job(spec: Any) -> None:
    coordinator = trained("w0", "w1", once=True)
    coordinator.attach("w7", spec)
    coordinator.take("w7", m.Arrive(9, 0, (1,)))
    lose(coordinator, "s0", "w0", "w1")
    run = coordinator.run()
    assert (run.losses.text, run.num_workers) == ("", 2)


def test_a_stranger_makes_good_for_no_worker_that_was_lost() -> None:
    coordinator = trained("w0", "w1")
    lose(coordinator, "s0", "w0")
    coordinator.take("w7", replace(hello("worker", "w7"), name="w1"))
    coordinator.init("w7", None)
    assert "(w1, host, pid 7) was lost" in coordinator.run().losses.text
    coordinator.init("w7", SYNC, request=2)
    assert coordinator.run().losses.text == "", "who names the job takes the place"


# --- a place becomes free -----------------------------------------------------------------------


def test_who_comes_in_the_place_of_one_that_was_lost_counts_at_once() -> None:
    coordinator = trained("w0", "w1")
    lose(coordinator, "s0", "w0")
    (told,) = sent(coordinator.attach("w2", SYNC), m.Job)
    assert (told.note, told.rank, told.num_workers) == ("", 1, 2)
    assert idle(coordinator) == ""
    assert committed(step(coordinator, 0, "w0")) == []
    assert committed(step(coordinator, 0, "w2")) == [2]


@for_each("how", ["closed", "finished", "lost"])
def test_spares_take_the_places_of_those_who_go_in_the_order_in_which_they_came(how: str) -> None:
    coordinator = trained("w0", "w1")
    coordinator.attach("w2", SYNC)
    coordinator.attach("w3", SYNC)
    coordinator.take("w3", m.Arrive(100, 0, (1,)))
    gone = lose(coordinator, "s0", "w0", "w2", "w3") if how == "lost" else coordinator.take("w1", m.Leave(how))
    assert "worker 2 (w2, host, pid 7) is no longer a spare: it counts in job 'default'" in logged(gone)
    assert idle(coordinator) == "spare worker 3 (w3, host, pid 7)"
    assert coordinator.run().losses.text == "", "somebody came instead"
    assert committed(step(coordinator, 0, "w0")) == []
    assert committed(step(coordinator, 0, "w2")) == [2]


def test_what_a_spare_has_asked_for_is_done_when_it_counts() -> None:
    coordinator = trained("w0", "w1", spare="w2")
    for message in (m.Arrive(100, 0, (7,)), DATA, m.Enter(40, "end"), m.Enter(41, "other")):
        coordinator.take("w2", message)
    coordinator.take("w2", m.Withdraw(41))
    coordinator.take("w0", m.Enter(40, "end"))
    actions = coordinator.take("w1", m.Leave("closed"))
    assert [r.number for r in sent(actions, m.Range, peer("w2"))] == [0]
    assert receivers(actions, m.Released) == [peer("w0"), peer("w2")]
    assert set(receivers(actions, m.Proceed)) == {peer("w2")}
    assert committed(actions) == [1]
    assert coordinator.run().barriers.by_name == {}
    assert committed(step(coordinator, 1, "w0", "w2")) == [2]


def test_a_step_that_waits_for_a_lost_worker_takes_what_the_spare_has_brought() -> None:
    coordinator = trained("w0", "w1")
    assert committed(step(coordinator, 0, "w0", "w1")) == [2]
    again = replace(hello("worker", "w2"), name="w1")  # restarted under its name before anybody has noticed
    coordinator.take("w2", again)
    (told,) = sent(coordinator.init("w2", SYNC), m.Job)
    assert told.step == 1
    coordinator.take("s0", m.Committed(1, 0))
    step(coordinator, 1, "w2", "w0")
    actions = lose(coordinator, "s0", "w0", "w2")
    assert set(committed(actions)) == {2}
    assert {peer("w0"), peer("w2")} == set(receivers(actions, m.Proceed))
    assert coordinator.run().losses.text == "", "it has come back by its name"


def test_a_restart_that_has_taken_anothers_place_does_not_make_good_for_its_own_first_life() -> None:
    coordinator = trained("w0", "w1", "w2", spec=replace(SYNC, workers=3), expected=3, once=True)
    coordinator.take("w9", replace(hello("worker", "w9"), name="w0"))
    coordinator.init("w9", replace(SYNC, workers=3))
    lose(coordinator, "s0", "w0", "w2", "w9")
    lost = "worker 1 (w1, host, pid 7) was lost, and none came instead"
    assert coordinator.run().losses.text == lost, "w9 has its place, and is w0"
    lose(coordinator, "s0", "w2", "w9")
    assert coordinator.run().losses.text == lost, "w0 has come back by its name"
    coordinator.take("w9", m.Leave("finished"))
    assert exits_of([*coordinator.take("w2", m.Leave("finished")), *coordinator.wait(coordinator.now + 5.0)]) == [7]


def again(coordinator: Coordinator, life: str, name: str) -> None:
    """Start a worker again under its name."""
    coordinator.take(life, replace(hello("worker", life), name=name))
    coordinator.init(life, replace(SYNC, workers=3))


def test_of_three_places_two_lives_of_a_worker_fill_one() -> None:
    coordinator = trained("w0", "w1", "w2", spec=replace(SYNC, workers=3), expected=3, once=True)
    again(coordinator, "w8", "w0")
    again(coordinator, "w9", "w0")  # both before the first one is missed
    lose(coordinator, "s0", "w0", "w2", "w8", "w9")
    coordinator.take("w2", m.Leave("finished"))
    lose(coordinator, "s0", "w8", "w9")
    coordinator.take("w9", m.Leave("finished"))
    actions = [*lose(coordinator, "s0"), *coordinator.wait(coordinator.now + 5.0)]
    assert exits_of(actions) == [exits.WORKERS_FAILED], "w1 was lost, and in its place w8"


def test_whoever_comes_back_while_a_restart_of_another_has_its_place_makes_the_end_a_success() -> None:
    coordinator = trained("w0", "w1", "w2", spec=replace(SYNC, workers=3), expected=3, once=True)
    again(coordinator, "w8", "w0")
    lose(coordinator, "s0", "w0", "w2", "w8")
    again(coordinator, "w9", "w1")
    lose(coordinator, "s0", "w2", "w8", "w9")
    assert not coordinator.run().losses, "each is there by its name"
    for who in ("w8", "w9"):
        coordinator.take(who, m.Leave("finished"))
    actions = coordinator.take("w2", m.Leave("finished"))
    assert exits_of([*actions, *coordinator.wait(coordinator.now + 5.0)]) == [exits.OK]


def test_a_spare_is_late_with_a_step_that_was_committed_meanwhile_and_goes_on_with_the_others() -> None:
    coordinator = trained("w0", "w1", spare="w2")
    step(coordinator, 0, "w2", "w0", "w1")
    actions = coordinator.take("w1", m.Leave("finished"))
    assert sent(actions, m.Proceed, peer("w2")) == [m.Proceed(100, 1, 0)]
    assert committed(step(coordinator, 1, "w0", "w2")) == [2]


def test_a_bounded_spare_goes_on_when_it_counts() -> None:
    coordinator = trained("w0", "w1", spec=job(mode="bounded", staleness=1))
    coordinator.attach("w2", job(mode="bounded", staleness=1))
    assert sent(step(coordinator, 0, "w2"), m.Proceed) == []
    actions = coordinator.take("w1", m.Leave("closed"))
    assert receivers(actions, m.Proceed) == [peer("w2")]


def test_nobody_waits_for_a_bounded_spare_to_catch_up_when_it_counts() -> None:
    coordinator = trained("w0", "w1", spec=job(mode="bounded", staleness=1))
    assert sent(coordinator.attach("w2", job(mode="bounded", staleness=1)), m.Job)[0].step == 0
    for number in range(5):
        step(coordinator, number, "w0", "w1")
    step(coordinator, 0, "w2")
    coordinator.take("w1", m.Leave("closed"))
    for number in (5, 6):
        assert len(sent(step(coordinator, number, "w0"), m.Proceed)) == 1
    assert sent(step(coordinator, 7, "w0"), m.Proceed) == [], "now it waits for the spare's second step"
    assert set(receivers(step(coordinator, 1, "w2"), m.Proceed)) >= {peer("w0")}


def test_what_cannot_be_is_refused_of_a_spare_and_so_is_too_much() -> None:
    coordinator = trained("w0", "w1", spare="w7")
    assert errors(coordinator.take("w7", m.Enter(20, "a\nb"))) == [ProtocolError.code]
    assert len(errors(coordinator.take("w7", replace(DATA, name="x" * 201)))) == 1
    for number in range(MAX_KEPT):
        assert errors(coordinator.take("w7", m.Enter(100 + number, f"barrier {number}"))) == []
    assert errors(coordinator.take("w7", m.Enter(99, "one more"))) == [LimitError.code]
    assert errors(coordinator.take("w7", m.Enter(100, "barrier 0"))) == [], "asked again"
    coordinator.take("w7", m.Withdraw(100))
    for number in range(3):
        assert errors(coordinator.take("w7", m.Arrive(200 + number, number, (1,)))) == [], "the last one counts"
    failed = coordinator.take("w1", m.Leave("closed"))  # it may wait at fewer barriers than are kept
    assert set(errors(failed, peer("w7"))) == {LimitError.code}


def test_what_a_spare_asks_for_that_cannot_be_is_refused_when_it_counts() -> None:
    coordinator = trained("w0", "w1", spare="w2")
    coordinator.take("w0", DATA)
    coordinator.take("w2", replace(DATA, num_examples=9))
    assert errors(coordinator.take("w1", m.Leave("closed")), peer("w2")) == [JobMismatchError.code]


def test_a_spare_that_goes_leaves_nothing_behind() -> None:
    coordinator = trained("w0", "w1", spare="w7")
    coordinator.take("w7", m.Enter(20, "end"))
    coordinator.take("w7", m.Leave("finished"))
    assert len(coordinator.run().spares) == 0
    for name in ("w0", "w1"):
        coordinator.take(name, m.Leave("closed"))
    assert coordinator.run().state == "idle", "nobody has finished that counts"


def test_a_spare_whose_step_waits_is_told_that_a_server_is_lost() -> None:
    coordinator = trained("w0", "w1", spare="w7")
    step(coordinator, 0, "w7")
    coordinator.take("w7", m.Enter(20, "end"))
    lost = coordinator.take("s0", m.Leave("closed"))
    assert [(got.request, got.code) for got in sent(lost, m.Error, peer("w7"))] == [(100, PeerLostError.code)]
    assert len(coordinator.run().spares) == 1, "a barrier needs no server"


def test_where_no_number_is_expected_whoever_joins_counts() -> None:
    coordinator = trained("w0", "w1", expected=None)
    coordinator.attach("w7", None)
    assert committed(step(coordinator, 0, "w0", "w1")) == []
    assert committed(step(coordinator, 0, "w7")) == [3]
    coordinator.join("w8")
    assert errors(coordinator.take("w8", m.Enter(9, "end"))) == []
