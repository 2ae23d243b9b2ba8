"""From the first init to a job everybody can train, seen from the coordinator."""

from __future__ import annotations

from dataclasses import replace

from tests.core.machines import Coordinator, error_of, errors, job, peer, receivers, sent
from tests.tables import for_each
from zmqps.core.protocol import messages as m
from zmqps.errors import (
    ConfigurationError,
    JobError,
    JobMemoryError,
    JobMismatchError,
    LimitError,
    OptimizerError,
    PeerLostError,
)


def begun(servers: int = 1) -> Coordinator:
    """Return a coordinator whose servers and two workers begin a job."""
    coordinator = Coordinator.joined(*[f"s{n}" for n in range(servers)], "w0", "w1", servers=servers)
    coordinator.init_all(job(), "w0", "w1")
    return coordinator


def fail_to_build(coordinator: Coordinator, server: str, epoch: int) -> list:  # type: ignore[type-arg]
    return coordinator.take(server, m.Error.of(epoch, OptimizerError("no such optimizer here")))


def test_placing_waits_for_all_servers() -> None:
    coordinator = Coordinator.joined("s0", "w0", servers=2)
    actions = coordinator.init("w0", job())
    assert sent(actions, m.Assign) == []
    assert "1 of 2 servers to join" in sent(actions, m.Waiting, peer("w0"))[-1].text
    assert receivers(coordinator.join("s1"), m.Assign) == [peer("s0"), peer("s1")]


def test_a_worker_uploads_the_values_once_all_shards_are_built_and_is_answered_once_all_are_loaded() -> None:
    coordinator = begun(servers=2)
    assert sent(coordinator.ready("s0", loaded=False), m.Job) == []
    (told,) = sent(coordinator.ready("s1", loaded=False), m.Job, peer("w0"))
    assert (told.load, told.request) == (1, 1)
    assert sent(coordinator.ready("s0"), m.Job) == []
    done = coordinator.ready("s1")
    assert receivers(done, m.Job) == [peer("w0"), peer("w1")]
    assert {message.load for message in sent(done, m.Job)} == {0}


def test_the_status_names_who_the_start_waits_for_at_each_of_its_stages() -> None:
    coordinator = Coordinator(servers=2)

    def waiting() -> list[str]:
        (status,) = sent(coordinator.take("w0", m.StatusRequest(9)), m.Status)
        return list(status.status["waiting"])

    coordinator.join("s0", "s1", "w0", "w1")
    coordinator.init("w0", job())
    servers = [f"server {rank} (s{rank}, host, pid 7)" for rank in range(2)]
    assert waiting() == [f"job 'default': init waits for {', '.join(servers)} to build their shards"]
    coordinator.ready("s0", loaded=False)
    assert waiting() == [f"job 'default': init waits for {servers[1]} to build its shard"]
    coordinator.ready("s1", loaded=False)
    assert waiting() == ["job 'default': init waits for worker 0 (w0, host, pid 7) to upload the initial values"]
    coordinator.ready("s0", "s1")
    assert waiting() == []


@for_each("goodbye", [m.Leave("closed"), m.Withdraw(1), None], ids=["leaves", "withdraws", "is lost"])
def test_a_loader_that_goes_is_replaced_by_another_worker(goodbye: m.Leave | m.Withdraw | None) -> None:
    coordinator = begun()
    coordinator.ready("s0", loaded=False)
    actions = coordinator.take("w0", goodbye) if goodbye else coordinator.wait(15.0, "s0", "w1")
    assert [got.load for got in sent(actions, m.Job, peer("w1"))] == [1]


def test_what_a_server_says_late_of_a_job_that_was_given_up_does_not_make_the_next_one_ready() -> None:
    coordinator = Coordinator.joined("s0", "w0")
    coordinator.init("w0", job())
    coordinator.take("w0", m.Withdraw(1))
    coordinator.take("s0", m.Ready(1, 0))
    coordinator.take("s0", m.Ready(1, 1))
    assert sent(coordinator.init("w0", job("a"), 2), m.Job) == [], "s0 has yet to build its shard"
    assert [got.load for got in sent(coordinator.ready("s0", loaded=False), m.Job, peer("w0"))] == [1]


def test_who_has_no_values_is_not_asked_to_upload_them() -> None:
    coordinator = Coordinator.joined("s0", "w0", "w1", "o0")
    coordinator.init("w0", job())
    coordinator.init("w1", None)
    coordinator.init("o0", None)
    coordinator.ready("s0", loaded=False)
    assert sent(coordinator.take("w0", m.Withdraw(1)), m.Job) == []
    assert [got.load for got in sent(coordinator.init("w0", job(), request=2), m.Job, peer("w0"))] == [1]


def test_a_job_that_is_asked_for_before_there_is_one_is_an_error() -> None:
    assert errors(Coordinator.joined("w0", "o0").init_all(None, "w0", "o0")) == [JobError.code] * 2


def test_a_server_that_cannot_build_its_shard_fails_the_init_and_a_better_one_works() -> None:
    coordinator = begun()
    failed = fail_to_build(coordinator, "s0", epoch=1)
    assert receivers(failed, m.Error) == [peer("w0"), peer("w1")]
    assert errors(failed) == [OptimizerError.code] * 2
    assert receivers(coordinator.init("w0", job(learning_rate=0.5), request=2), m.Assign) == [peer("s0")]
    assert [got.load for got in sent(coordinator.ready("s0", loaded=False), m.Job, peer("w0"))] == [1]


def test_a_server_that_fails_in_general_fails_the_inits_of_all_jobs_that_begin() -> None:
    coordinator = Coordinator.trains("s0", "w0", "w1.b")
    coordinator.join("w2.c", "w3.d")
    for worker in ("w2.c", "w3.d"):
        coordinator.init(worker, job())
    failed = coordinator.take("s0", m.Error.of(0, JobError("s0 is broken")))
    assert receivers(failed, m.Error) == [peer("w2.c"), peer("w3.d")], "what is trained already goes on"


def test_what_servers_say_of_a_job_that_failed_does_not_touch_the_next_one() -> None:
    coordinator = Coordinator.joined("s0", "s1", "s2", "w0", servers=3)
    coordinator.init("w0", job())
    fail_to_build(coordinator, "s0", epoch=1)
    coordinator.ready("s1", epoch=2, loaded=False)
    coordinator.init("w0", job(learning_rate=0.5), request=2)
    assert errors(fail_to_build(coordinator, "s2", epoch=3)) == [], "the second init is not to blame"
    assert sent(coordinator.ready("s0", "s2", loaded=False), m.Job) == [], "s1 is still building"
    assert [got.load for got in sent(coordinator.ready("s1", loaded=False), m.Job)] == [1]


def test_a_mismatch_names_both_sides() -> None:
    coordinator = Coordinator.joined("w0", "w1")
    coordinator.init("w0", job("w", "b"))
    error = error_of(coordinator.init("w1", job("w", "c")), JobMismatchError)
    assert (error.what, error.ours, error.theirs) == ("parameter 'b'", "no such parameter", "float32 (8,)")
    assert "worker 0 (w0" in error.owner


@for_each("servers", [(), ("s0",)], ids=["before placement", "while servers built"])
def test_a_job_that_everybody_withdrew_is_forgotten(servers: tuple[str, ...]) -> None:
    coordinator = Coordinator.joined(*servers, "w0", "w1")
    coordinator.init("w0", job("a"))
    coordinator.take("w0", m.Withdraw(1))
    actions = coordinator.init("w1", job("b"))
    assert errors(actions) == []
    assert [message.epoch for message in sent(actions, m.Assign)] == [2] * len(servers)
    assert all(sent(coordinator.ready(server, epoch=1, loaded=False), m.Job) == [] for server in servers)


def test_a_running_job_outlives_its_workers() -> None:
    coordinator = Coordinator.trains("s0", "w0")
    coordinator.take("w0", m.Leave("closed"))
    assert [got.load for got in sent(coordinator.attach("w1", job()), m.Job)] == [0]


def test_an_init_sent_twice_is_answered_and_parks_once() -> None:
    coordinator = Coordinator.joined("s0", "w0")
    coordinator.init_all(job(), "w0", "w0")
    assert len(sent(coordinator.build("s0"), m.Job, peer("w0"))) == 1


def test_who_asks_again_first_makes_the_coordinator_repeat_what_may_have_been_lost() -> None:
    coordinator = begun(servers=2)
    assert receivers(coordinator.init("w0", job()), m.Assign) == [peer("s0"), peer("s1")]
    assert receivers(coordinator.init("w1", job()), m.Assign) == []
    coordinator.ready("s0", loaded=False)
    coordinator.ready("s1", loaded=False)
    again = coordinator.init("w0", job())
    assert receivers(again, m.Assign) == [peer("s0"), peer("s1")]  # it answers with what it has
    assert [(got.load, got.request) for got in sent(again, m.Job, peer("w0"))] == [(1, 1)]
    coordinator.ready("s0")
    assert receivers(coordinator.init("w0", job()), m.Assign) == [peer("s1")]
    coordinator.ready("s1")
    assert receivers(coordinator.init("w0", job()), m.Assign) == []


def test_a_deterministic_job_must_know_how_many_workers_to_wait_for() -> None:
    deterministic = replace(job(), mode="sync", deterministic=True)
    coordinator = Coordinator.joined("s0", "w0")
    (refused,) = sent(coordinator.init("w0", deterministic), m.Error, peer("w0"))
    assert refused.code == ConfigurationError.code
    assert "init(..., workers=4), or start the cluster with --workers" in refused.text
    assert sent(coordinator.init("w0", job(), request=2), m.Assign)  # and another job is none the worse for it

    for expected, workers in ((1, None), (None, 1)):  # the cluster says how many, or the job itself
        coordinator = Coordinator.joined("s0", "w0", workers=expected)
        assert sent(coordinator.init("w0", replace(deterministic, workers=workers)), m.Assign)


def test_a_deterministic_job_hands_out_no_ranges() -> None:
    coordinator = Coordinator.joined("s0", "w0", workers=1)
    coordinator.init("w0", replace(job(), mode="sync", deterministic=True))
    assert errors(coordinator.take("w0", m.Take(2, "data", 100, 10, 1, (), ()))) == [ConfigurationError.code]


def test_a_job_whose_server_is_lost_before_it_has_values_begins_again_on_a_spare() -> None:
    coordinator = Coordinator.joined("s0", "s1", "s2", "w0", servers=2)
    coordinator.init("w0", job())
    coordinator.ready("s0", loaded=False)
    before = coordinator.epochs("s0")
    again = coordinator.take("s1", m.Leave("closed"))
    assert receivers(again, m.Assign) == [peer("s0"), peer("s2")]
    assert not errors(again)
    assert sent(again, m.Discard, peer("s0")) == [m.Discard(before[0])]
    coordinator.build("s0", "s2")
    assert coordinator.run().startup.ready


def test_a_job_whose_server_is_lost_while_values_are_brought_fails() -> None:
    coordinator = Coordinator.joined("s0", "s1", "s2", "w0", servers=2)
    coordinator.init("w0", job())
    coordinator.ready("s0", "s1", loaded=False)
    assert errors(coordinator.take("s1", m.Leave("closed")), peer("w0")) == [PeerLostError.code]


# --- sizes --------------------------------------------------------------------------------------


def test_a_job_larger_than_the_memory_of_all_servers_is_refused_before_a_server_is_asked() -> None:
    coordinator = Coordinator.joined("s0", "s1", "w0", "w1", servers=2, replicas=1)
    for server in ("s0", "s1"):
        coordinator.take(server, m.Heartbeat({"memory_nbytes": 1 << 20}))
    large = job("w", size=(1 << 20) // 4 + 1)
    error = error_of(coordinator.init("w0", large), JobMemoryError, peer("w0"))
    assert (error.needed_nbytes, error.free_nbytes) == (2 * ((1 << 20) + 4), 2 << 20)
    assert "the cluster's 2 servers" in str(error)
    assert "2 copies of each (the largest is 'w', float32 (262145,))" in str(error)
    actions = coordinator.init("w1", job("w", size=(1 << 20) // 4), request=2)
    assert len(receivers(actions, m.Assign)) == 4, "this one fits, just so"


def test_a_job_of_a_size_that_nobody_can_refuse_yet_is_the_servers_to_refuse() -> None:
    coordinator = Coordinator.joined("s0", "s1", "w0", servers=2)
    coordinator.take("s0", m.Heartbeat({"memory_nbytes": 1 << 20}))
    assert len(sent(coordinator.init("w0", job("w", size=1 << 43)), m.Assign)) == 2


def test_a_job_of_more_slices_than_anybody_makes_is_refused_and_another_one_may_begin() -> None:
    coordinator = Coordinator.joined("s0", "w0", slice_size=4)
    assert errors(coordinator.init("w0", job("w", size=(1 << 24) + 1))) == [LimitError.code]
    assert sent(coordinator.init("w0", job(), request=2), m.Assign)
