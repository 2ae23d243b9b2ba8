"""Jobs of one cluster: each with its own members, and what becomes of one when they go and come back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.core.machines import TIMEOUT, Coordinator, errors, exits_of, hello, job, logged, peer, receivers, sent
from tests.tables import for_each
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action
from zmqps.core.protocol.security.guard import join_guard
from zmqps.errors import (
    ConfigurationError,
    DeadlineError,
    IdentityError,
    JobError,
    JobMemoryError,
    JobMismatchError,
    PeerLostError,
    ProtocolError,
    from_wire,
)

ASYNC, SYNC = job("w", "b"), job("x", "y", "z", mode="sync")
DATA = m.Take(20, "data", 100, 10, 1, (), ())


def begin(coordinator: Coordinator, name: str, *workers: str, spec: Any) -> list[Action]:
    """Let workers begin a job and the servers do their part; return what the last server's word led to."""
    coordinator.init_all(spec, *workers)
    return coordinator.build(*[server.hello.name for server in coordinator.machine.servers], job=name)


def two_jobs(**options: Any) -> Coordinator:
    """Return a coordinator with an asynchronous job, ``default``, and a synchronous one, ``b``."""
    coordinator = Coordinator.joined("s0", "s1", "w0", "w1", "w2.b", "w3.b", servers=2, **options)
    begin(coordinator, "default", "w0", "w1", spec=ASYNC)
    begin(coordinator, "b", "w2.b", "w3.b", spec=SYNC)
    return coordinator


def train_alone(name: str = "w0", spec: Any = ASYNC, **options: Any) -> Coordinator:
    """Return a coordinator with one worker that trains."""
    coordinator = Coordinator.joined("s0", name, **options)
    begin(coordinator, name.partition(".")[2] or "default", name, spec=spec)
    return coordinator


def left_alone(*newcomers: str) -> Coordinator:
    """Return a coordinator whose only worker has left its job, to which these have come."""
    coordinator = train_alone()
    coordinator.take("w0", m.Leave("closed"))
    coordinator.join(*newcomers)
    return coordinator


# --- side by side -------------------------------------------------------------------------------


def test_two_jobs_are_placed_and_answered_apart() -> None:
    coordinator = Coordinator(servers=2)
    ranks = [w.rank for w in sent(coordinator.join("w0", "w1", "w2.b", "w3.b", "o0.b"), m.Welcome)]
    assert ranks == [0, 1, 0, 1, 0]
    assert sent(coordinator.init("w0", ASYNC), m.Assign) == sent(coordinator.init("w3.b", SYNC), m.Assign) == []
    coordinator.join("s0")
    placed = sent(coordinator.join("s1"), m.Assign)
    assert [(a.name, a.epoch, a.shard, a.num_workers, a.sharing) for a in placed] == [
        ("default", 1, 0, 2, 2), ("default", 2, 1, 2, 2), ("b", 3, 0, 2, 2), ("b", 4, 1, 2, 2),
    ]  # fmt: skip
    assert [a.job for a in placed] == [ASYNC.to_wire()] * 2 + [SYNC.to_wire()] * 2
    (load,) = sent(coordinator.ready("s0", "s1", job="b", loaded=False), m.Job)
    assert (load.load, load.epoch) == (1, 3)
    assert sent(coordinator.ready("s1", epoch=3), m.Job) == [], "that is the copy of another server"
    done = coordinator.ready("s0", "s1", job="b")
    assert receivers(done, m.Job) == [peer("w3.b")]
    (told,) = sent(done, m.Job)
    assert (told.epoch, told.job, told.num_workers, told.note) == (3, SYNC.to_wire(), 2, "")
    assert not coordinator.run().startup.ready
    assert receivers(coordinator.ready("s0", "s1"), m.Job) == [peer("w0")]


def test_each_job_expects_the_workers_it_names_or_those_of_the_cluster() -> None:
    coordinator = Coordinator.joined("s0", "w0", "w1.b", workers=2)
    begin(coordinator, "default", "w0", spec=ASYNC)
    begin(coordinator, "b", "w1.b", spec=replace(SYNC, workers=3))
    acks = [sent(coordinator.take(name, m.Heartbeat({})), m.HeartbeatAck)[0] for name in ("w0", "w1.b", "s0")]
    assert [ack.num_workers for ack in acks] == [2, 3, 0]
    assert (coordinator.run().num_missing, coordinator.run("b").num_missing) == (1, 2)
    coordinator.join("w2.b", "w3.b", "w4.b")
    assert (coordinator.run().num_missing, coordinator.run("b").num_missing) == (1, 2), "they have only said hello"
    coordinator.init_all(replace(SYNC, workers=3), "w2.b", "w3.b", "w4.b")
    assert (coordinator.run().num_missing, coordinator.run("b").num_missing) == (1, 0)
    assert sent(coordinator.take("w4.b", m.Heartbeat({})), m.HeartbeatAck)[0].num_workers == 3, "one is a spare"


def come(coordinator: Coordinator, *names: str) -> None:
    """Let workers say hello, whatever their names."""
    for name in names:
        coordinator.take(name, hello("worker", name))


def ranks(coordinator: Coordinator, *names: str) -> list[int]:
    """Let workers name the job; return the rank that each of them is told."""
    told = {}
    for name in names:
        actions = coordinator.init(name, ASYNC)
        if not coordinator.run().startup.ready:
            actions += coordinator.build("s0")
        told |= {to: job.rank for to in receivers(actions, m.Job) for job in sent(actions, m.Job, to)}
    assert {peer(name): coordinator.machine.membership.find(peer(name)).rank for name in names} == told  # type: ignore[union-attr]
    return [told[peer(name)] for name in names]


@for_each(
    "names, init, expected",
    [
        (("w0", "w1"), ("w1", "w0"), [1, 0]),  # nobody else is there: as they came
        (("x", "w0", "w1"), ("w0", "w1"), [1, 0]),
        (("x", "w0", "w1"), ("w1", "w0"), [0, 1]),
        (("x", "y", "w0", "w1"), ("w1", "w0"), [0, 1]),
        (("w0", "x", "w1"), ("w1", "w0"), [0, 1]),
        (("w0", "w1", "x"), ("w0", "w1"), [0, 1]),
        (("w0", "w1", "w2"), ("w0", "w1", "w2"), [0, 1, 2]),  # more than are expected
    ],
)
def test_workers_that_name_the_job_have_the_ranks_below_as_many_as_are_expected(
    names: tuple[str, ...], init: tuple[str, ...], expected: list[int]
) -> None:
    coordinator = Coordinator.joined("s0", workers=2)
    come(coordinator, *names)
    assert ranks(coordinator, *init) == expected
    owner = coordinator.run().startup.owner
    assert owner == coordinator.machine.membership.find(peer(init[0])).title  # type: ignore[union-attr]


def test_a_rank_that_a_stranger_has_left_is_taken_and_each_is_somebodys_alone() -> None:
    coordinator = Coordinator.joined("s0", workers=2)
    come(coordinator, "x", "y", "w0", "w1")
    coordinator.take("x", m.Leave("closed"))
    assert ranks(coordinator, "w0", "w1") == [0, 1]
    coordinator.take("z", hello("worker", "z"))
    there = {worker.hello.name: worker.rank for worker in coordinator.run().workers}
    assert there == {"w0": 0, "w1": 1, "z": 2, "y": 3}


def test_who_only_takes_the_job_as_it_is_has_no_claim_to_a_rank() -> None:
    coordinator = Coordinator.joined("s0", workers=1)
    come(coordinator, "reader", "w0")
    assert ranks(coordinator, "w0") == [0]
    for request, spec in ((1, None), (2, ASYNC)):  # nor has one too many
        assert [job.rank for job in sent(coordinator.init("reader", spec, request), m.Job)] == [1]


def test_where_there_is_a_job_secret_a_stranger_has_no_rank_at_all() -> None:
    coordinator, secret = Coordinator(workers=1), b"known to all who join"
    coordinator.machine.identity = replace(coordinator.machine.identity, job_secret=secret)
    assert errors(coordinator.take("x", hello("worker", "x"))) == [IdentityError.code]
    assert not coordinator.machine.runs
    said = hello("worker", "w0")
    welcomes = sent(coordinator.take("w0", replace(said, guard=join_guard(secret, said))), m.Welcome)
    assert [welcome.rank for welcome in welcomes] == [0]


def test_a_job_that_could_not_be_started_does_not_decide_how_many_the_next_one_waits_for() -> None:
    coordinator = Coordinator.joined("s0", "w0")
    coordinator.init("w0", replace(SYNC, workers=1))
    coordinator.take("s0", m.Error(1, JobError.code, "no", {"reason": "no"}))
    coordinator.init("w0", replace(SYNC, workers=2), request=2)
    assert coordinator.run().num_missing == 1


def test_steps_of_one_job_wait_for_its_own_workers_and_are_committed_under_its_epoch() -> None:
    coordinator = two_jobs()
    waits = coordinator.take("w2.b", m.Arrive(9, 0, (1,)))
    assert ["worker 1 (w3.b" in got.text for got in sent(coordinator.wait(0.5), m.Waiting, peer("w2.b"))] == [True]
    assert sent(waits, m.Commit) == []
    actions = coordinator.take("w3.b", m.Arrive(9, 0, (1,)))
    assert [(c.epoch, c.step) for c in sent(actions, m.Commit)] == [(3, 0), (4, 0)]
    assert receivers(actions, m.Proceed) == [peer("w2.b"), peer("w3.b")]
    for server in ("s0", "s1"):
        coordinator.take(server, m.Committed(1, 0))  # of the other job: confirms nothing here
        coordinator.take(server, m.Committed(3, 0))  # … and for the other server: nothing either
    assert receivers(coordinator.wait(2.0, "s0", "s1", "w0"), m.Commit) == [peer("s1")]


def test_jobs_of_the_same_barriers_and_data_sets_do_not_meet() -> None:
    coordinator = two_jobs()
    text = sent(coordinator.take("w0", m.Enter(9, "end")), m.Waiting)[0].text
    assert "w1" in text
    assert "w3" not in text
    coordinator.take("w2.b", m.Enter(9, "end"))
    assert receivers(coordinator.take("w3.b", m.Enter(9, "end")), m.Released) == [peer("w2.b"), peer("w3.b")]
    assert receivers(coordinator.take("w1", m.Enter(9, "end")), m.Released) == [peer("w0"), peer("w1")]
    for name in ("w0", "w2.b"):
        assert [r.number for r in sent(coordinator.take(name, DATA), m.Range)] == [0]
    other = replace(DATA, num_examples=50, request=21)
    assert errors(coordinator.take("w1", other)) == [JobMismatchError.code]
    assert errors(coordinator.take("w4.c", other)) == [23], "who has not joined"
    coordinator.join("w4.c")
    assert [r.stop for r in sent(coordinator.take("w4.c", other), m.Range)] == [10]


def test_the_loss_of_a_worker_is_told_to_its_own_job_only() -> None:
    coordinator = two_jobs()
    coordinator.take("w0", m.Enter(9, "end"))
    coordinator.take("w2.b", m.Enter(9, "end"))
    actions = coordinator.wait(TIMEOUT + 1, "s0", "s1", "w0", "w1", "w2.b")
    assert receivers(actions, m.Departed)[:2] == [peer("s0"), peer("s1")]
    assert set(sent(actions, m.Departed)) == {m.Departed(hello("worker", "w3.b").incarnation, 1)}
    assert sent(actions, m.Lost) == []
    assert errors(actions, peer("w2.b")) == [PeerLostError.code]
    assert errors(actions, peer("w0")) == errors(actions, peer("w1")) == []
    assert receivers(coordinator.take("w1", m.Enter(9, "end")), m.Released) == [peer("w0"), peer("w1")]


def test_a_slow_step_of_one_job_fails_its_waits_only() -> None:
    coordinator = Coordinator.joined("s0", "w0", "w1", "w2.b", "w3.b")
    names = {"default": ("w0", "w1"), "b": ("w2.b", "w3.b")}
    for name, workers in names.items():
        begin(coordinator, name, *workers, spec=replace(SYNC, on_straggler="fail"))
    for step in range(12):
        for workers in names.values():
            for worker in workers:
                coordinator.take(worker, m.Arrive(50 + step, step, (1,)))
    coordinator.take("w0", m.Arrive(80, 12, (1,)))
    actions = coordinator.wait(60.0, "s0", "w0", "w1", "w2.b", "w3.b")
    assert [(e.request, e.code) for e in sent(actions, m.Error)] == [(80, DeadlineError.code)]
    assert receivers(actions, m.Error) == [peer("w0")]


def test_a_server_without_the_memory_for_one_job_fails_its_inits_with_the_facts_and_no_others() -> None:
    coordinator = Coordinator.joined("s0", "s1", "w0", "w1.b", "w2.c", servers=2)
    begin(coordinator, "default", "w0", spec=ASYNC)
    coordinator.init("w1.b", SYNC)
    coordinator.init("w2.c", SYNC)
    small = JobMemoryError(server="s1", what="shard 1 of 2", needed_nbytes=100, free_nbytes=40)
    assert sent(coordinator.take("s0", m.Error.of(4, small)), m.Error) == [], "not its own"
    failed = coordinator.take("s1", m.Error.of(4, small))
    (message,) = sent(failed, m.Error)
    assert receivers(failed, m.Error) == [peer("w1.b")]
    error = from_wire(message.code, message.text, message.facts)
    assert isinstance(error, JobMemoryError)
    assert (error.server, error.needed_nbytes, error.free_nbytes) == ("s1", 100, 40)
    assert "end another job (zmqps jobs end NAME)" in str(error)
    assert receivers(failed, m.Discard) == [peer("s0"), peer("s1")], "the other server has built its shard of it"
    assert [got.epoch for got in sent(failed, m.Discard)] == [3, 4]
    assert coordinator.run().state == "training"
    assert receivers(begin(coordinator, "c", spec=SYNC), m.Job) == [peer("w2.c")]
    assert [a.epoch for a in sent(coordinator.init("w1.b", SYNC, request=2), m.Assign)] == [7, 8]


def test_a_server_that_is_lost_fails_the_jobs_it_has_shards_of_and_a_new_one_lets_them_begin_anew() -> None:
    coordinator = two_jobs(lease=0.0)
    coordinator.take("w2.b", m.Arrive(9, 0, (1,)))
    lost = coordinator.take("s1", m.Leave("closed"))
    assert receivers(lost, m.Lost) == [peer(name) for name in ("w0", "w1", "w2.b", "w3.b")]
    assert errors(lost, peer("w2.b")) == [PeerLostError.code]
    coordinator.join("s2", "w4.c")
    begin(coordinator, "c", "w4.c", spec=ASYNC)
    assert coordinator.run("c").state == "training", "on the servers there are now"
    assert errors(coordinator.init("w0", ASYNC, request=7)) == [PeerLostError.code]
    coordinator.take("w0", m.Leave("closed"))
    state = coordinator.machine.status(coordinator.now)["jobs"]["default"]["state"]
    assert state.startswith("failed: lost server 1 (s1"), "w1 has yet to notice"
    ended = coordinator.take("w1", m.Leave("closed"))
    assert receivers(ended, m.Discard) == [peer("s0")], "the other one's shard has gone with it"
    assert set(coordinator.machine.runs) == {"b", "c"}
    assert [(a.epoch, a.shard) for a in sent(coordinator.attach("w5", ASYNC), m.Assign)] == [(7, 0), (8, 1)]


def test_a_server_that_is_lost_ends_the_jobs_that_nobody_is_there_for() -> None:
    coordinator = two_jobs()
    for name in ("w0", "w1"):
        coordinator.take(name, m.Leave("closed"))
    assert coordinator.run().state == "idle"
    lost = coordinator.take("s1", m.Leave("closed"))
    assert (sent(lost, m.Discard), receivers(lost, m.Discard)) == ([m.Discard(1)], [peer("s0")])
    assert set(coordinator.machine.runs) == {"b"}
    coordinator.join("s2", "w5")
    assert errors(coordinator.init("w5", ASYNC)) == []


# --- idle, and back -----------------------------------------------------------------------------


def test_a_worker_that_comes_back_to_an_idle_job_goes_on_and_is_told() -> None:
    coordinator = train_alone()
    assert sent(coordinator.take("w0", m.Leave("closed")), m.Discard) == []
    assert coordinator.run().state == "idle"
    coordinator.join("w1", "w2")
    (first,) = sent(coordinator.init("w1", ASYNC), m.Job)
    (second,) = sent(coordinator.init("w2", ASYNC), m.Job)
    for answer in (first, second):  # it had come before anybody trained again
        assert (answer.epoch, answer.load) == (1, 0)
        assert "the job 'default' continues with what was trained before" in answer.note
        assert "zmqps jobs end default" in answer.note
    assert [got.note for got in sent(coordinator.attach("w3", ASYNC), m.Job)] == [""]
    assert [got.note for got in sent(coordinator.init("w1", ASYNC, request=9), m.Job)] == [""], "it was told"


@for_each("how", ["closed", "lost"])
def test_a_worker_that_comes_alone_to_an_idle_job_with_another_model_replaces_it(how: str) -> None:
    coordinator = train_alone()
    if how == "closed":
        coordinator.take("w0", m.Leave("closed"))
    else:
        coordinator.wait(TIMEOUT + 1, "s0")
    actions = coordinator.attach("w1", SYNC)
    assert [got.epoch for got in sent(actions, m.Discard, peer("s0"))] == [1]
    assert [(got.epoch, got.name) for got in sent(actions, m.Assign, peer("s0"))] == [(2, "default")]
    order = [type(a.message) for a in actions if getattr(a, "peer", b"") == peer("s0")]
    assert order == [m.Discard, m.Assign], "so that there is room"
    assert errors(actions) == []
    done = begin(coordinator, "default", spec=SYNC)
    (answer,) = sent(done, m.Job)
    assert answer.job == SYNC.to_wire()
    assert answer.note.startswith("the job 'default' starts again from the initial values given; the one before: left")
    assert coordinator.run().attendance.num_joined == 1


def test_all_workers_that_came_to_an_idle_job_move_to_the_one_that_replaces_it() -> None:
    coordinator = left_alone("w1", "w2")
    assert [got.epoch for got in sent(coordinator.init("w2", SYNC), m.Discard)] == [1]
    assert errors(coordinator.init("w1", SYNC)) == []
    answers = sent(begin(coordinator, "default", spec=SYNC), m.Job)
    assert [(got.epoch, got.job) for got in answers if not got.load] == [(2, SYNC.to_wire())] * 2
    assert [member.hello.name for member in coordinator.run().workers] == ["w1", "w2"]


def test_no_step_is_committed_on_the_servers_that_are_left_when_one_is_lost() -> None:
    coordinator = two_jobs()
    coordinator.take("w2.b", m.Arrive(9, 0, (1,)))
    coordinator.take("s1", m.Leave("closed"))
    left = coordinator.take("w3.b", m.Leave("finished"))  # the only one that was awaited
    assert sent(left, m.Commit) == []


def test_a_job_that_has_lost_a_shard_is_not_called_finished() -> None:
    coordinator = train_alone()
    coordinator.wait(TIMEOUT + 1, "w0")
    assert errors(coordinator.take("w0", m.Leave("finished"))) == []
    (ended,) = coordinator.machine.status(0.0)["ended"]
    assert "the values of its shard are lost" in ended["how"]


def test_workers_that_move_keep_the_ranks_they_were_told() -> None:
    coordinator = left_alone("w1", "w2")
    coordinator.take("w1", m.Leave("closed"))
    coordinator.init("w2", SYNC)
    assert [(member.hello.name, member.rank) for member in coordinator.run().workers] == [("w2", 1)]
    assert [welcome.rank for welcome in sent(coordinator.join("w3"), m.Welcome)] == [0]


@for_each(
    "there, uses",
    [("w2", m.Init(1, ASYNC.to_wire())), ("o0", m.Init(1, {})), ("w2", m.Enter(5, "together"))],
    ids=["trains it", "reads it", "waits in a barrier"],
)
def test_an_idle_job_is_not_replaced_once_somebody_uses_it(there: str, uses: m.Message) -> None:
    coordinator = left_alone("w1", there)
    coordinator.take(there, uses)
    assert errors(coordinator.init("w1", SYNC)) == [JobMismatchError.code]
    assert coordinator.run().startup.epoch == 1


def test_a_worker_that_trains_does_not_replace_its_job() -> None:
    coordinator = train_alone()
    assert errors(coordinator.init("w0", SYNC, request=2)) == [JobMismatchError.code]
    coordinator.take("w0", m.Leave("closed"))
    coordinator.attach("w1", ASYNC)
    assert errors(coordinator.init("w1", SYNC, request=2)) == [JobMismatchError.code], "it has gone on with the old one"
    assert coordinator.run().startup.epoch == 1


@for_each(
    "wrong, code",
    [
        ({"parameters": []}, ConfigurationError.code),
        ({"nonfinite": 7}, ProtocolError.code),
        ({"mode": "bounded", "staleness": -1}, ConfigurationError.code),
        ({"mode": "sync", "deterministic": True}, ConfigurationError.code),
    ],
)
def test_an_init_that_cannot_be_never_ends_an_idle_job(wrong: dict[str, Any], code: int) -> None:
    coordinator = left_alone("w1")
    actions = coordinator.take("w1", m.Init(1, {**ASYNC.to_wire(), **wrong}))
    assert errors(actions) == [code]
    assert sent(actions, m.Discard) == []
    assert [got.epoch for got in sent(coordinator.init("w1", ASYNC, request=2), m.Job)] == [1]


def test_who_only_asks_for_the_job_does_not_replace_it() -> None:
    coordinator = left_alone("o0")
    (answer,) = sent(coordinator.init("o0", None), m.Job)
    assert (answer.epoch, answer.note) == (1, "")
    (answer,) = sent(coordinator.attach("w1", None), m.Job)
    assert answer.epoch == 1
    assert answer.note.startswith("the job 'default' continues"), "the observer has trained nothing meanwhile"


# --- the end ------------------------------------------------------------------------------------


def test_a_job_ends_when_its_last_member_has_left_and_a_worker_has_finished() -> None:
    coordinator = two_jobs()
    assert sent(coordinator.take("w0", m.Leave("finished")), m.Discard) == []
    ended = coordinator.take("w1", m.Leave("closed"))
    assert receivers(ended, m.Discard) == [peer("s0"), peer("s1")]
    assert {got.epoch for got in sent(ended, m.Discard)} == {1, 2}
    assert "job 'default' has ended: its workers have finished" in logged(ended)
    assert set(coordinator.machine.runs) == {"b"}
    assert coordinator.run("b").state == "training"
    assert exits_of(ended) == []


def test_a_job_waits_for_workers_that_are_expected_and_never_came() -> None:
    coordinator = train_alone(spec=replace(ASYNC, workers=2))
    coordinator.take("w0", m.Leave("finished"))
    assert coordinator.run().state == "idle"
    coordinator.attach("w1", replace(ASYNC, workers=2))
    assert len(sent(coordinator.take("w1", m.Leave("closed")), m.Discard)) == 1


def test_an_observer_keeps_a_finished_job_until_it_leaves() -> None:
    coordinator = train_alone(lease=60.0)
    coordinator.join("o0")
    coordinator.take("w0", m.Leave("finished"))
    assert sent(coordinator.wait(100.0, "s0", "o0"), m.Discard) == [], "nor does its lease run"
    assert [got.epoch for got in sent(coordinator.init("o0", None), m.Job)] == [1]
    assert sent(coordinator.take("o0", m.Leave("closed")), m.Discard) == [m.Discard(1)]
    assert coordinator.machine.runs == {}


def test_a_job_ends_with_its_lease_which_begins_when_the_last_has_gone() -> None:
    coordinator = two_jobs(lease=60.0)
    coordinator.wait(50.0, "s0", "s1", "w0", "w1", "w2.b", "w3.b")
    for name in ("w0", "w1"):
        coordinator.take(name, m.Leave("closed"))
    assert sent(coordinator.wait(109.0, "s0", "s1", "w2.b", "w3.b"), m.Discard) == []
    coordinator.join("w4")
    coordinator.take("w4", m.Leave("closed"))
    assert sent(coordinator.wait(168.0, "s0", "s1", "w2.b", "w3.b"), m.Discard) == [], "it was renewed"
    ended = coordinator.wait(170.0, "s0", "s1", "w2.b", "w3.b")
    assert {got.epoch for got in sent(ended, m.Discard)} == {1, 2}
    assert "job 'default' has ended: no worker for 60 s" in logged(ended)
    assert set(coordinator.machine.runs) == {"b"}


def test_without_a_lease_an_idle_job_is_kept() -> None:
    coordinator = train_alone(lease=0.0)
    coordinator.take("w0", m.Leave("closed"))
    assert sent(coordinator.wait(200.0, "s0"), m.Discard) == []
    assert coordinator.run().state == "idle"


def test_a_job_that_was_never_placed_is_gone_with_its_last_member() -> None:
    coordinator = Coordinator.joined("w0.x", "o0.x")
    coordinator.init("w0.x", ASYNC)
    coordinator.take("w0.x", m.Leave("closed"))
    assert coordinator.run("x").state == "starting"
    coordinator.take("o0.x", m.Leave("closed"))
    assert coordinator.machine.runs == {}
    assert coordinator.machine.status(0.0)["ended"] == []


def test_what_everybody_withdrew_from_is_freed_on_the_servers() -> None:
    coordinator = Coordinator.joined("s0", "w0")
    coordinator.init("w0", ASYNC)
    assert sent(coordinator.take("w0", m.Withdraw(1)), m.Discard) == [m.Discard(1)]
    assert [a.epoch for a in sent(coordinator.init("w0", SYNC, request=2), m.Assign)] == [2]


def test_a_name_that_is_used_again_begins_another_job_and_says_how_the_one_before_ended() -> None:
    coordinator = train_alone()
    coordinator.take("w0", m.Leave("finished"))
    actions = coordinator.attach("w1", SYNC)
    assert [(a.epoch, a.job) for a in sent(actions, m.Assign)] == [(2, SYNC.to_wire())]
    assert sent(coordinator.ready("s0", epoch=1), m.Job) == [], "what is said of the old one is of no use"
    (answer,) = sent(begin(coordinator, "default", spec=SYNC), m.Job)
    assert answer.note == (
        "the job 'default' starts again from the initial values given; the one before: its workers have finished"
    )
    assert [got.note for got in sent(coordinator.attach("w2", SYNC), m.Job)] == [""], "it has given no values"
    coordinator.attach("w3.x", ASYNC)
    assert [got.note for got in sent(begin(coordinator, "x", spec=ASYNC), m.Job)] == [""], "another name"


def test_the_status_shows_every_job_and_those_that_have_ended() -> None:
    coordinator = two_jobs()
    coordinator.take("s0", m.Heartbeat({"pushes": 9, "jobs": {"1": {"pushes": 7}, "3": {"pushes": 2}, "x": 1}}))
    coordinator.take("w0", m.Leave("closed"))
    coordinator.take("w1", m.Leave("closed"))
    coordinator.join("w4.c")
    coordinator.now += 2.0
    status = coordinator.machine.status(coordinator.now)
    jobs = status["jobs"]
    states = {"default": "idle", "b": "training", "c": "starting"}
    assert {name: shown["state"] for name, shown in jobs.items()} == states
    assert {name: shown["mode"] for name, shown in jobs.items()} == {"default": "async", "b": "sync", "c": ""}
    assert {name: shown["idle_s"] for name, shown in jobs.items()} == {"default": 2.0, "b": 0.0, "c": 0.0}
    assert {name: shown["servers"]["s0"] for name, shown in jobs.items()} == {
        "default": {"pushes": 7}, "b": {"pushes": 2}, "c": {},
    }  # fmt: skip
    assert status["waiting"] == ["job 'c': waiting for a worker's init"]
    assert [(got["name"], got["job"]) for got in status["members"]] == [
        ("s0", ""), ("s1", ""), ("w2.b", "b"), ("w3.b", "b"), ("w4.c", "c"),
    ]  # fmt: skip
    for name in ("w2.b", "w3.b"):
        coordinator.take(name, m.Leave("finished"))
    coordinator.now += 1.0
    status = coordinator.machine.status(coordinator.now)
    assert status["ended"] == [{"job": "b", "how": "its workers have finished", "ago_s": 1.0}]
    assert coordinator.take("x", m.StatusRequest(1)) != []


def test_a_job_that_is_only_looked_at_waits_for_nobody() -> None:
    coordinator = Coordinator.joined("s0", "o1.x", servers=1)
    assert coordinator.machine.status(0.0)["waiting"] == ["waiting for a worker's init"], "once, and of no job"
    coordinator.join("w0.b")
    begin(coordinator, "b", "w0.b", spec=ASYNC)
    assert coordinator.machine.status(0.0)["waiting"] == []
    coordinator.join("w8.x")
    assert coordinator.machine.status(0.0)["waiting"] == ["job 'x': waiting for a worker's init"]
