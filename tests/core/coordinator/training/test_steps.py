"""Steps at the coordinator: the same commit for every server, an answer for every arrival, nobody forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.core.machines import TIMEOUT, Coordinator, errors, hello, job, logged, peer, receivers, sent
from tests.modes import MODES
from tests.tables import for_each
from zmqps.core.coordinator.consistency.synchronous import FLOOR_S, WARM_UP
from zmqps.core.coordinator.training.steps import COMMIT_RETRY_S
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Action
from zmqps.errors import DeadlineError, JobError, PeerLostError, ServerMemoryError


class Cluster(Coordinator):
    """A coordinator with a job in training; arrivals are numbered for each worker."""

    def __init__(self, *names: str, mode: str = "sync", expected: int | None = None, **options: Any) -> None:
        self.servers = [name for name in names if name[0] == "s"]
        super().__init__(servers=len(self.servers), workers=expected)
        self.spec = job(mode=mode, **options)
        self.requests: dict[str, int] = {}
        self.join(*names)
        self.init_all(self.spec, *[name for name in names if name[0] == "w"])
        self.build(*self.servers)
        assert self.run().startup.ready

    def arrive(self, name: str, step: int, attempts: Sequence[int] = (1,), *, again: bool = False) -> list[Action]:
        """Let a worker arrive; ``again`` with the request of the last time."""
        self.requests[name] = self.requests.get(name, 100) + (not again)
        return self.take(name, m.Arrive(self.requests[name], step, attempts))

    def confirm(self, step: int, *servers: str, epoch: int | None = None) -> None:
        for name in servers or self.servers:
            for number in self.epochs(name) if epoch is None else [epoch]:
                assert self.take(name, m.Committed(number, step)) == []

    def due(self) -> list[Action]:
        """Let time pass until the next deadline."""
        due = self.machine.next_deadline()
        assert due is not None
        self.now = max(self.now, due)
        actions = self.machine.on_deadline(self.now)
        self.machine.validate()
        return actions

    def warm_up(self) -> int:
        """Let w0 and w1 take steps until the coordinator knows how long they take; return the next one."""
        for step in range(WARM_UP):
            self.arrive("w0", step)
            self.arrive("w1", step)
            self.confirm(step)
        return WARM_UP


def straggling(what_to_do: str) -> tuple[Cluster, int]:
    """Return a cluster whose first worker waits in a step for the second, and that step."""
    cluster = Cluster("s0", "w0", "w1", on_straggler=what_to_do)
    step = cluster.warm_up()
    cluster.arrive("w0", step)
    return cluster, step


def proceeded(actions: list[Action]) -> dict[bytes, tuple[int, int]]:
    sends = zip(receivers(actions, m.Proceed), sent(actions, m.Proceed), strict=True)
    return {to: (message.version, message.counted) for to, message in sends}


# --- commits ------------------------------------------------------------------------------------


def test_every_server_commits_the_same_contributors_in_the_order_of_ranks() -> None:
    cluster = Cluster("s0", "s1", "w0", "w1", "w2")
    assert sent(cluster.arrive("w2", 0, (7, 8)), m.Commit) == []
    cluster.arrive("w0", 0, (5,))
    actions = cluster.arrive("w1", 0, (9,))
    commits = sent(actions, m.Commit)
    assert receivers(actions, m.Commit) == [peer("s0"), peer("s1")]
    ranks = [hello("worker", name).incarnation for name in ("w0", "w1", "w2")]
    contributors = ((ranks[0], (5,)), (ranks[1], (9,)), (ranks[2], (7, 8)))
    assert commits == [m.Commit(1, 0, contributors), m.Commit(2, 0, contributors)]
    assert proceeded(actions) == {peer(name): (1, 1) for name in ("w0", "w1", "w2")}


def test_nobody_begins_a_step_that_a_server_cannot_take_yet() -> None:
    cluster = Cluster("s0", "s1", "w0")
    assert proceeded(cluster.arrive("w0", 0)) == {peer("w0"): (1, 1)}
    assert proceeded(cluster.arrive("w0", 1)) == {}, "both have yet to commit the step before, and a third would follow"
    assert proceeded(cluster.take("s0", m.Committed(1, 0))) == {}
    assert proceeded(cluster.take("s1", m.Committed(2, 0))) == {peer("w0"): (2, 1)}


def test_a_commit_is_sent_again_until_its_server_confirms_it() -> None:
    cluster = Cluster("s0", "s1", "w0")
    cluster.arrive("w0", 0)
    cluster.confirm(0, "s0")
    cluster.arrive("w0", 1)
    again = cluster.wait(COMMIT_RETRY_S, "s0", "s1", "w0")
    assert [got.step for got in sent(again, m.Commit, peer("s0"))] == [1]
    assert [got.step for got in sent(again, m.Commit, peer("s1"))] == [0, 1], "in order"
    cluster.confirm(1, "s0")
    assert receivers(cluster.take("s1", m.Committed(2, 1)), m.Commit) == []
    assert sent(cluster.wait(20.0, "s0", "s1", "w0"), m.Commit) == []


def test_a_commit_for_which_a_server_lacked_the_memory_is_logged_and_sent_again() -> None:
    cluster = Cluster("s0", "s1", "w0")
    cluster.arrive("w0", 0)
    cluster.confirm(0, "s1")
    short = ServerMemoryError(server="s0", what="step 0", why="no more")
    for number in range(2):
        failed = cluster.take("s0", m.Error(1, short.code, str(short), short.facts()))
        assert ("lacks the memory for step 0 (no more)" in logged(failed)) == (number == 0), "it is logged once"
        again = cluster.wait(cluster.now + COMMIT_RETRY_S, "s0", "s1", "w0")
        assert [got.step for got in sent(again, m.Commit, peer("s0"))] == [0]
        assert sent(again, m.Commit, peer("s1")) == []
    cluster.confirm(0, "s0")
    assert cluster.run().state == "training", "nothing is lost by it"


def test_a_confirmation_of_another_epoch_confirms_nothing() -> None:
    cluster = Cluster("s0", "w0")
    cluster.arrive("w0", 0)
    cluster.confirm(0, epoch=7)
    assert len(sent(cluster.wait(COMMIT_RETRY_S, "s0", "w0"), m.Commit)) == 1


def test_a_server_that_is_gone_is_told_no_more() -> None:
    cluster = Cluster("s0", "s1", "w0")
    cluster.arrive("w0", 0)
    cluster.confirm(0, "s0")
    cluster.take("s1", m.Leave("closed"))
    assert sent(cluster.wait(5.0, "s0", "w0"), m.Commit) == []


@for_each("mode", ["sync", "bounded"])
def test_when_a_server_is_lost_no_step_is_committed_and_whoever_waits_is_told(mode: str) -> None:
    cluster = Cluster("s0", "s1", "w0", "w1", **MODES[mode])
    for step in range(1 + MODES[mode].get("staleness", 0)):
        waits = cluster.arrive("w0", step)
    assert sent(waits, m.Proceed) == []
    lost = cluster.take("s1", m.Leave("closed"))
    assert errors(lost, peer("w0")) == [PeerLostError.code]
    late = cluster.arrive("w1", 0)
    assert errors(late) == [PeerLostError.code]
    assert sent(late, m.Commit) == sent(late, m.Proceed) == []


# --- arrivals -----------------------------------------------------------------------------------


def test_an_arrival_sent_again_is_counted_once_and_answered_again() -> None:
    cluster = Cluster("s0", "w0", "w1")
    cluster.arrive("w0", 0, (1,))
    assert cluster.arrive("w0", 0, (1,), again=True) == []
    (commit,) = sent(cluster.arrive("w1", 0), m.Commit)
    assert [attempts for _, attempts in commit.contributors] == [(1,), (1,)]
    for _ in range(2):  # its Proceed was lost
        again = cluster.arrive("w0", 0, (1,), again=True)
        assert sent(again, m.Commit) == []
        assert proceeded(again) == {peer("w0"): (1, 1)}


def test_who_comes_after_the_commit_is_told_that_nothing_of_it_counts() -> None:
    cluster = Cluster("s0", "w0", "w1", "w2", aggregate=2)
    cluster.arrive("w0", 0)
    cluster.arrive("w1", 0)
    late = cluster.arrive("w2", 0)
    assert sent(late, m.Commit) == []
    assert proceeded(late) == {peer("w2"): (1, 0)}


def test_the_first_step_waits_for_all_even_if_one_was_restarted_meanwhile() -> None:
    cluster = Cluster("s0", "w0", expected=2)
    cluster.take("w0", m.Leave("closed"))
    again = replace(hello("worker", "w0"), incarnation=b"2" * 16)
    cluster.take("w0again", again)
    cluster.init("w0again", cluster.spec)
    assert sent(cluster.take("w0again", m.Arrive(9, 0, (1,))), m.Commit) == []
    assert sent(cluster.join("w1"), m.Commit) == [], "it is here, but does not train yet"
    cluster.init("w1", cluster.spec)
    assert len(sent(cluster.arrive("w1", 0), m.Commit)[0].contributors) == 2
    assert sent(cluster.join("w2"), m.Commit) == []
    cluster.take("w1", m.Leave("closed"))
    assert len(sent(cluster.take("w0again", m.Arrive(10, 1, (2,))), m.Commit)) == 1, "later ones for those who live"


@for_each(
    "names, expected, text",
    [
        (
            ("w1", "w0", "w2"),
            4,
            "worker 1 (w0, host, pid 7), worker 2 (w2, host, pid 7), 1 of 4 workers that has not joined the job "
            "(start it, or begin with those here: init(workers=3)): step 0 has the gradients of 1 worker, "
            "2 live workers are awaited, and waits for all",
        ),
        (
            ("w1",),
            3,
            "2 of 3 workers that have not joined the job (start them, or begin with the one here: init(workers=1)): "
            "step 0 has the gradients of 1 worker, and waits for all",
        ),
    ],
)
def test_who_waits_is_told_for_whom_and_what_to_do(names: tuple[str, ...], expected: int, text: str) -> None:
    cluster = Cluster("s0", *names, expected=expected)
    cluster.arrive("w1", 0)
    (waiting,) = sent(cluster.due(), m.Waiting)
    assert (waiting.request, waiting.text) == (cluster.requests["w1"], text)


def test_a_worker_that_is_lost_is_awaited_no_more_and_what_it_brought_counts() -> None:
    cluster = Cluster("s0", "w0", "w1", "w2")
    cluster.arrive("w0", 0)
    cluster.arrive("w1", 0)
    cluster.take("w1", m.Leave("closed"))
    actions = cluster.wait(2 * TIMEOUT, "s0", "w0")
    (commit,) = {commit.step: commit for commit in sent(actions, m.Commit)}.values()
    assert [who for who, _ in commit.contributors] == [hello("worker", name).incarnation for name in ("w0", "w1")]
    assert proceeded(actions) == {peer("w0"): (1, 1)}


def test_a_worker_that_finishes_before_the_others_lets_them_go_on() -> None:
    cluster = Cluster("s0", "w0", "w1")
    cluster.arrive("w0", 0)
    assert proceeded(cluster.take("w1", m.Leave("finished"))) == {peer("w0"): (1, 1)}


def test_a_late_worker_begins_at_the_step_the_others_are_at() -> None:
    cluster = Cluster("s0", "w0")
    for step in range(3):
        cluster.arrive("w0", step)
    cluster.join("w1")
    (answer,) = sent(cluster.take("w1", m.Init(1, {})), m.Job)
    assert answer.step == 3
    assert cluster.arrive("w0", 3) == [], "it is waited for from now on"
    assert len(sent(cluster.arrive("w1", 3), m.Commit)) == 1


def test_who_idles_in_a_job_of_so_many_workers_is_not_waited_for_and_does_not_end_it() -> None:
    coordinator = Coordinator.joined("s0", "w7", "w8", servers=1, workers=2)
    coordinator.join("w0")
    spec = job(mode="sync")
    coordinator.init("w0", spec)
    coordinator.build("s0")
    for name in ("w7", "w8"):  # strangers, who take the job as it is
        (told,) = sent(coordinator.init(name, None), m.Job)
        assert (told.step, told.num_workers) == (0, 2)
    run = coordinator.run()
    assert (run.num_workers, run.num_missing) == (2, 1)
    assert sent(coordinator.take("w0", m.Arrive(5, 0, (1,))), m.Commit) == [], "another is expected, and has not come"
    coordinator.take("w8", m.Leave("finished"))
    assert sent(coordinator.take("w0", m.Heartbeat({})), m.Commit) == []
    assert "w7" in coordinator.machine.status(0.0)["jobs"]["default"]["idle"]
    (told,) = sent(coordinator.attach("w1", spec), m.Job)
    assert told.num_workers == 2
    assert len(sent(coordinator.take("w1", m.Arrive(5, 0, (1,))), m.Commit)) == 1, "nobody waits for who idles"
    assert errors(coordinator.take("w7", m.Arrive(5, 1, (1,)))) == [JobError.code], "it has not named the job"
    coordinator.take("w0", m.Arrive(6, 1, (2,)))
    assert len(sent(coordinator.take("w1", m.Arrive(6, 1, (2,))), m.Commit)[0].contributors) == 2


def test_a_barrier_does_not_wait_for_who_idles_and_does_not_fail_when_it_is_lost() -> None:
    coordinator = Coordinator.joined("s0", "w7", servers=1, workers=2)
    coordinator.join("w0", "w1")
    coordinator.init_all(job(mode="sync"), "w0", "w1")
    coordinator.build("s0")
    coordinator.init("w7", None)
    (waiting,) = sent(coordinator.take("w0", m.Enter(8, "end")), m.Waiting)
    assert "w1" in waiting.text
    assert "w7" not in waiting.text
    for now in (4.0, 8.0, 12.0):  # the idle one says nothing
        for name in ("s0", "w0", "w1"):
            coordinator.take(name, m.Heartbeat({}))
        coordinator.now = now
        coordinator.machine.on_deadline(now)
    assert len(coordinator.run().workers) == 2
    assert len(sent(coordinator.take("w1", m.Enter(8, "end")), m.Released)) == 2


def test_strangers_that_finish_before_the_workers_have_come_do_not_end_the_job() -> None:
    coordinator = Coordinator.trains("s0", "w0", servers=1, workers=1)
    coordinator.join("w7", "w8")
    coordinator.init_all(None, "w7", "w8")
    coordinator.take("w0", m.Leave("closed"))  # it comes back
    for name in ("w7", "w8"):
        coordinator.take(name, m.Leave("finished"))
    assert "default" in coordinator.machine.runs


def test_an_arrival_before_there_is_a_job_is_left_without_an_answer() -> None:
    coordinator = Coordinator.joined("w0", servers=1)
    assert coordinator.take("w0", m.Arrive(5, 0, (1,))) == []


def test_no_step_waits_for_who_waits_at_a_barrier_and_it_goes_on_where_the_others_are() -> None:
    cluster, step = straggling("fail")
    actions = cluster.take("w1", m.Enter(51, "end of the pass"))  # it had fewer batches than the other
    assert proceeded(actions) == {peer("w0"): (step + 1, 1)}
    cluster.confirm(step)
    assert proceeded(cluster.arrive("w0", step + 1)) == {peer("w0"): (step + 2, 1)}
    actions = cluster.take("w0", m.Enter(51, "end of the pass"))
    assert sent(actions, m.Released) == [m.Released(51, step + 2)] * 2
    cluster.arrive("w0", step + 2)
    assert len(sent(cluster.arrive("w1", step + 2), m.Commit)[0].contributors) == 2, "both are waited for again"


def test_a_step_is_over_before_the_barrier_that_makes_it_complete() -> None:
    cluster = Cluster("s0", "w0", "w1", "w2")
    cluster.arrive("w0", 0)  # the others have had fewer batches
    cluster.take("w0", m.Enter(51, "end"))
    cluster.take("w1", m.Enter(51, "end"))
    actions = cluster.take("w2", m.Enter(51, "end"))
    assert [len(commit.contributors) for commit in sent(actions, m.Commit)] == [1]
    assert [released.step for released in sent(actions, m.Released)] == [1, 1, 1]


def test_what_a_worker_brought_before_it_entered_a_barrier_counts() -> None:
    cluster = Cluster("s0", "w0", "w1", "w2")
    cluster.arrive("w1", 0)
    cluster.take("w1", m.Enter(51, "x"))
    cluster.arrive("w0", 0)
    actions = cluster.arrive("w2", 0)
    assert len(sent(actions, m.Commit)[0].contributors) == 3
    assert set(proceeded(actions)) == {peer("w0"), peer("w1"), peer("w2")}


def test_who_gives_a_barrier_up_is_waited_for_again() -> None:
    cluster = Cluster("s0", "w0", "w1")
    cluster.take("w1", m.Enter(51, "x"))
    cluster.take("w1", m.Withdraw(51))
    assert sent(cluster.arrive("w0", 0), m.Commit) == []


def test_who_waits_for_two_things_is_waited_for_when_it_has_both() -> None:
    cluster = Cluster("s0", "w0", "w1")
    cluster.take("w0", m.Take(51, "data", 5, 5, 1, (), ()))  # the only range
    cluster.take("w1", m.Take(52, "data", 5, 5, 1, (), ()))
    cluster.take("w1", m.Enter(53, "x"))
    assert proceeded(cluster.arrive("w0", 0)) == {peer("w0"): (1, 1)}
    (over,) = sent(cluster.take("w0", m.Take(54, "data", 5, 5, 1, (), (0, 0))), m.Range, peer("w1"))
    assert over.step == 0, "it is still in the barrier"
    cluster.confirm(0)
    assert proceeded(cluster.arrive("w0", 1)) == {peer("w0"): (2, 1)}
    assert sent(cluster.take("w0", m.Enter(55, "x")), m.Released, peer("w1")) == [m.Released(53, 2)]


def test_a_bounded_worker_in_a_barrier_holds_up_nobody() -> None:
    cluster = Cluster("s0", "w0", "w1", mode="bounded", staleness=1)
    cluster.take("w1", m.Enter(51, "x"))
    for step in range(5):
        assert set(proceeded(cluster.arrive("w0", step))) == {peer("w0")}
    assert sent(cluster.take("w0", m.Enter(51, "x")), m.Released, peer("w1")) == [m.Released(51, 5)]


# --- stragglers ---------------------------------------------------------------------------------


def test_a_wait_that_fails_names_the_straggler_and_may_be_repeated() -> None:
    cluster = Cluster("s0", "w0", "w1", on_straggler="fail")
    step = cluster.warm_up()
    cluster.arrive("w0", step, (9,))
    actions = cluster.wait(cluster.now + 1.5 * FLOOR_S, "s0", "w0", "w1")
    (error,) = sent(actions, m.Error, peer("w0"))
    assert (error.request, error.code) == (cluster.requests["w0"], DeadlineError.code)
    assert "waiting for worker 1 (w1, host, pid 7): step 5 has the gradients of 1 worker," in error.text
    assert "worker 1" in logged(actions)
    assert errors(cluster.arrive("w0", step, ()), peer("w0")) == [], "it is given time anew"
    (commit,) = sent(cluster.arrive("w1", step, (4,)), m.Commit)
    assert [attempts for _, attempts in commit.contributors] == [(9,), (4,)]


def test_a_wait_repeated_after_the_step_was_committed_is_no_loss() -> None:
    cluster, step = straggling("fail")
    assert errors(cluster.wait(cluster.now + 1.5 * FLOOR_S, "s0", "w0", "w1"))
    commit = sent(cluster.arrive("w1", step), m.Commit)[0]
    assert len(commit.contributors) == 2
    assert proceeded(cluster.arrive("w0", step, ())) == {peer("w0"): (step + 1, 1)}
    assert cluster.run().steps.status(0, cluster.now)["dropped"] == 0


def test_a_wait_that_is_repeated_fails_again_when_its_time_is_over_again() -> None:
    cluster, step = straggling("fail")
    for _ in range(3):
        began = cluster.now
        actions = cluster.wait(began + 1.5 * FLOOR_S, "s0", "w0", "w1")
        assert errors(actions, peer("w0")) == [DeadlineError.code]
        cluster.arrive("w0", step, ())


def test_the_others_go_on_without_a_straggler_if_the_job_says_so() -> None:
    cluster, step = straggling("continue")
    actions = cluster.wait(cluster.now + 1.5 * FLOOR_S, "s0", "w0", "w1")
    assert [len(got.contributors) for got in sent(actions, m.Commit)] == [1]
    assert proceeded(cluster.arrive("w1", step)) == {peer("w1"): (step + 1, 0)}


# --- bounded staleness --------------------------------------------------------------------------


def test_nobody_runs_ahead_of_the_slowest_by_more_than_the_bound() -> None:
    cluster = Cluster("s0", "w0", "w1", mode="bounded", staleness=2)
    assert proceeded(cluster.arrive("w0", 0)) == {peer("w0"): (0, 1)}
    assert proceeded(cluster.arrive("w0", 1)) == {peer("w0"): (0, 1)}
    assert cluster.arrive("w0", 2) == []
    assert "worker 1 (w1, host, pid 7): the slowest worker is at clock 0" in sent(cluster.due(), m.Waiting)[0].text
    actions = cluster.arrive("w1", 0)
    assert set(proceeded(actions)) == {peer("w0"), peer("w1")}
    assert sent(actions, m.Commit) == []


# --- the rest -----------------------------------------------------------------------------------


def test_the_status_says_the_mode_the_step_and_who_is_awaited() -> None:
    cluster = Cluster("s0", "w0", "w1")
    cluster.arrive("w0", 0)
    cluster.now += 2.5
    (answer,) = sent(cluster.take("anybody", m.StatusRequest(1)), m.Status)
    steps = answer.status["jobs"]["default"]["steps"]
    assert (steps["mode"], steps["step"], steps["arrived"], steps["since_s"]) == ("sync", 0, 1, 2.5)
    assert "worker 1 (w1" in steps["waiting"]
    assert any("worker 1 (w1" in line for line in answer.status["waiting"])


def test_those_who_are_gone_are_forgotten() -> None:
    for mode in ("sync", "bounded"):
        cluster = Cluster("s0", "w0", **MODES[mode])
        for number in range(1, 30):
            name = f"w{number}"
            cluster.join(name)
            cluster.init(name, cluster.spec)
            cluster.take(name, m.Leave("closed"))
            cluster.arrive("w0", number - 1)
            cluster.confirm(number - 1)
        assert list(cluster.run().steps.trainees) == [hello("worker", "w0").incarnation]
