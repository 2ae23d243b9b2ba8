"""A job is saved once more before it ends, and a cluster before it does; or it is said that it could not be."""

from __future__ import annotations

from typing import Any

from tests.core.coordinator.saving.test_checkpoints import SERVERS, WORKERS, Cluster, order, whys
from tests.core.machines import Action, errors, exits_of, hello, job, logged, peer, receivers, sent
from tests.tables import for_each
from zmqps.core.coordinator.saving.checkpoints import HOLD_S
from zmqps.core.coordinator.saving.making import TRIES, WAITS_S
from zmqps.core.protocol import exits
from zmqps.core.protocol import messages as m
from zmqps.core.protocol.events import Exit, Returned, Stop
from zmqps.core.protocol.messages.saving import SaveStage
from zmqps.errors import JobEndedError, JobError


class Ending(Cluster):
    """A cluster whose jobs are saved before they end."""

    def __init__(self, mode: str = "async", jobs: tuple[str, ...] = ("default",), **options: Any) -> None:
        super().__init__(mode, jobs, checkpoint_at_end=True, **options)

    def save(self, number: int = 1, job_name: str = "default") -> list[Action]:
        """Let what is to be saved be saved; return what is done at its end."""
        return self.complete(number, job_name)


def test_a_job_that_is_finished_is_saved_and_ends_then() -> None:
    cluster = Ending()
    cluster.finish()
    assert "default" in cluster.machine.runs
    text = logged(cluster.save())
    assert "last checkpoint of version 0, " in text
    assert "/default/ckpt" in text
    assert "its workers have finished" in text
    assert not cluster.machine.runs
    assert [manifest["consistent"] for manifest in cluster.store.manifests] == [True]


def test_a_cluster_that_is_there_for_one_job_ends_with_it_once_that_is_saved() -> None:
    cluster = Ending(once=True)
    assert not receivers(cluster.finish(), m.Shutdown)
    assert receivers(cluster.save(), m.Shutdown) == [peer(server) for server in SERVERS]


def test_a_cluster_that_is_to_end_saves_its_jobs_first() -> None:
    cluster = Ending(jobs=("default", "other"))
    asked = cluster.handle(Stop("SIGTERM"))
    assert "once what was trained is saved: SIGTERM" in logged(asked)
    cluster.save(1)
    assert not cluster.machine.ending
    ended = cluster.save(2, "other")
    assert len(receivers(ended, m.Shutdown)) == len(SERVERS) + 4
    assert len(cluster.store.manifests) == 2


def test_who_comes_to_a_cluster_that_is_about_to_end_is_told() -> None:
    cluster = Ending()
    cluster.handle(Stop("SIGTERM"))
    assert receivers(cluster.join("w9"), m.Shutdown) == [peer("w9")]
    again = cluster.take("w0", hello("worker", "w0"))
    assert not receivers(again, m.Shutdown), "it is here, and the job is being saved"


@for_each(
    "kind, mode",
    [(Cluster, "async"), (Cluster, "bounded"), (Cluster, "sync"), (Ending, "sync")],
    ids=["by option", "by option, bounded", "by option, synchronous", "for want of a step since the one before"],
)
def test_it_is_left_where_that_is_said_and_where_nothing_is_to_be_saved(kind: type[Cluster], mode: str) -> None:
    cluster = kind(mode)
    cluster.finish()
    assert not cluster.machine.runs
    assert not cluster.work


def test_what_a_script_gave_with_the_checkpoint_before_is_in_the_last_one() -> None:
    cluster = Ending()
    cluster.ask(state={"epoch": 3})
    cluster.save()
    cluster.finish()
    cluster.save(2)
    assert [manifest["state"] for manifest in cluster.store.manifests] == [{"epoch": 3}] * 2


def test_who_asks_for_the_end_of_a_job_is_answered_when_it_is_saved() -> None:
    cluster = Ending()
    question = m.EndJob(1, "default", b"n" * 16)
    assert not sent(cluster.take("x", question), m.JobEnded)
    assert not sent(cluster.take("x", question), m.JobEnded), "asked again"
    ended = cluster.save()
    assert receivers(ended, m.JobEnded) == [peer("x")]
    assert JobEndedError.code in errors(ended, peer("w0"))
    again = sent(cluster.take("x", question), m.JobEnded)
    assert again == sent(ended, m.JobEnded)


def test_the_end_of_a_job_waits_for_a_checkpoint_that_is_under_way() -> None:
    cluster = Ending()
    cluster.ask()
    cluster.take("x", m.EndJob(1, "default", b"n" * 16))
    assert receivers(cluster.save(), m.Checkpointed) == [peer("w0")]
    cluster.save(2)
    assert not cluster.machine.runs


def test_a_worker_that_comes_meanwhile_begins_the_next_job() -> None:
    cluster = Ending()
    cluster.finish()
    assert receivers(cluster.join("w2"), m.Welcome) == [peer("w2")]
    (waiting,) = sent(cluster.init("w2", job("other")), m.Waiting)
    assert "last checkpoint of the job 'default'" in waiting.text
    cluster.save()
    cluster.ready(*SERVERS, loaded=False)
    (worker,) = cluster.run().workers
    assert "starts again" in cluster.run().occupancy.note(worker, "worker 0 (w2, host, pid 7)")
    assert receivers(cluster.ready(*SERVERS), m.Job) or cluster.run().startup.job is not None
    assert [p.name for p in cluster.run().startup.job.parameters] == ["other"]  # type: ignore[union-attr]


def test_a_job_that_makes_way_for_another_is_saved_before() -> None:
    cluster = Ending()
    cluster.finish("closed")
    assert receivers(cluster.attach("w2", job("other")), m.Waiting) == [peer("w2")]
    cluster.save()
    assert len(cluster.store.manifests) == 1
    assert [p.name for p in cluster.run().startup.job.parameters] == ["other"]  # type: ignore[union-attr]


def test_a_job_whose_lease_is_over_is_saved_before() -> None:
    cluster = Ending(lease=5.0)
    cluster.finish("closed")
    cluster.wait(6.0, *SERVERS)
    assert cluster.work
    assert "no worker for 5 s" in logged(cluster.save())


def test_a_disk_that_fails_is_tried_again_and_then_the_job_ends_without() -> None:
    cluster = Ending()
    cluster.store.fails = "begin"
    cluster.finish()
    text = "".join(logged(cluster.do()) for _ in range(TRIES))
    assert text.count("its last checkpoint is tried once more: /: it is read-only") == TRIES - 1
    assert "it is read-only" in text
    assert not cluster.machine.runs


def test_workers_that_do_not_pause_are_not_waited_for_a_second_time() -> None:
    cluster = Ending("bounded")
    assert not receivers(cluster.handle(Stop("SIGTERM")), m.Hold, ends=0)
    assert receivers(cluster.do(), m.Hold, ends=0) == [peer(worker) for worker in WORKERS]
    text = logged(cluster.wait(HOLD_S + 0.5, *SERVERS, *WORKERS))
    assert "tried once more: worker 0" in text
    while cluster.work and not cluster.store.manifests:
        cluster.do()
        cluster.write(2)
    assert [manifest["consistent"] for manifest in cluster.store.manifests] == [False]
    assert cluster.machine.ending is not None


def test_a_server_that_is_lost_with_the_values_is_said() -> None:
    cluster = Ending()
    cluster.handle(Stop("SIGTERM"))
    cluster.do()
    text = logged(cluster.wait(15.0, "s0", *WORKERS))
    while cluster.work:
        text += logged(cluster.do())
    assert "job 'default' ends without a last checkpoint: " in text
    assert cluster.machine.ending is not None
    assert exits_of(cluster.wait(30.0)) == [exits.NOT_SAVED]


def test_a_cluster_whose_job_has_ended_without_its_last_checkpoint_says_so_when_it_ends() -> None:
    cluster = Ending()
    cluster.store.fails = "begin"
    cluster.finish()
    while cluster.work:
        cluster.do()
    cluster.store.fails = ""
    cluster.handle(Stop("SIGTERM"))
    (end,) = [action for action in cluster.wait(30.0) if isinstance(action, Exit)]
    assert end == Exit(exits.NOT_SAVED, "SIGTERM; job 'default' has ended without its last checkpoint")


def test_a_cluster_that_nobody_uses_says_so_too() -> None:
    cluster = Ending(idle_timeout=20.0, lease=5.0)
    cluster.store.fails = "publish"
    cluster.finish("closed")
    cluster.wait(6.0, *SERVERS)
    for number in range(1, 1 + TRIES):
        cluster.save(number)
        cluster.do()
    assert not cluster.machine.runs
    assert exits_of(cluster.wait(60.0, *SERVERS)) == [exits.NOT_SAVED]


def test_a_store_that_does_not_answer_does_not_keep_the_cluster() -> None:
    cluster = Ending()
    cluster.handle(Stop("SIGTERM"))
    tag = cluster.work.pop().tag
    cluster.wait(TRIES * WAITS_S + 5.0, *SERVERS, *WORKERS)
    assert cluster.machine.ending is not None
    cluster.handle(Returned(tag, "/late"))


def test_nobody_stays_paused_where_a_cluster_is_saved() -> None:
    cluster = Ending("bounded")
    cluster.handle(Stop("SIGTERM"))
    cluster.do()
    saves = cluster.hold()
    assert receivers(saves, m.Save) == [peer(server) for server in SERVERS]
    ended = cluster.write()
    assert receivers(ended, m.Hold, ends=1) == [peer(worker) for worker in WORKERS]
    cluster.do()


def test_what_is_trained_after_the_cut_of_the_last_checkpoint_is_in_another_one() -> None:
    cluster = Ending()
    cluster.handle(Stop("SIGTERM"))
    cluster.do()
    for server in SERVERS:
        cluster.say(server, SaveStage.KEPT)
    cluster.finish()
    for server in SERVERS:
        cluster.say(server, SaveStage.WRITTEN, nbytes=10, files=[server])
    assert not cluster.machine.ending
    cluster.do()
    cluster.save(2)
    assert len(cluster.store.manifests) == 2
    assert cluster.machine.ending is not None


def test_the_clock_of_a_bounded_job_does_not_fall_back_when_all_have_left() -> None:
    cluster = Ending("bounded")
    for worker in WORKERS:
        cluster.take(worker, m.Arrive(7, 0, (1,)))
    cluster.finish()
    cluster.save()
    assert [manifest["version"] for manifest in cluster.store.manifests] == [1]


# --- nothing else is saved after it ---------------------------------------------------------------


def goodbye(cluster: Ending) -> list[Action]:
    """Let servers leave a cluster that ends, and the store do all that it still has to."""
    actions = [action for server in SERVERS for action in cluster.take(server, m.Leave("finished"))]
    while cluster.work:
        actions += cluster.do()
    return actions


def test_a_checkpoint_that_waits_behind_the_last_one_is_not_begun_and_is_answered() -> None:
    cluster = Ending()
    cluster.ask("w0")
    cluster.handle(Stop("SIGTERM"))
    cluster.ask("w1")
    assert receivers(cluster.save(1), m.Checkpointed) == [peer("w0")]
    ended = cluster.save(2)
    assert errors(ended, peer("w1")) == [JobError.code]
    why = "no checkpoint of the job 'default' was begun: the job is ending, and its last one has begun"
    assert why in whys(ended, "w1")
    assert receivers(ended, m.Shutdown)[0] == peer("s0")
    assert not cluster.work
    assert logged(goodbye(cluster)).count("checkpoint") == 0


def test_who_asks_once_the_last_one_has_begun_is_refused() -> None:
    cluster = Ending(jobs=("default", "other"))
    cluster.handle(Stop("SIGTERM"))
    assert errors(cluster.ask("w0")) == [JobError.code]
    assert not errors(cluster.take("y", order(1, "other"))), "the last one of that has not begun"
    assert errors(cluster.take("x", order(2))) == [JobError.code]
    cluster.save(1)
    assert errors(cluster.take("x", order(3))) == [JobError.code], "the other job is yet to be saved"
    assert receivers(cluster.save(2, "other"), m.Checkpointed) == [peer("y")]
    assert receivers(cluster.save(3, "other"), m.Shutdown)


def test_a_job_is_not_saved_by_time_once_its_last_checkpoint_has_begun() -> None:
    cluster = Ending(jobs=("default", "other"), checkpoint_seconds=5.0)
    everybody = [*SERVERS, *(worker + suffix for worker in WORKERS for suffix in ("", ".other"))]
    cluster.handle(Stop("SIGTERM"))
    cluster.save(1)
    cluster.do()
    cluster.wait(8.0, *everybody)
    cluster.write(2, "other")
    cluster.do()
    assert [manifest["version"] for manifest in cluster.store.manifests] == [0, 0]
    assert not cluster.work
    assert cluster.machine.ending is not None


def test_what_is_being_saved_when_a_cluster_ends_is_given_up_before_servers_leave() -> None:
    cluster = Ending("sync")
    cluster.ask("w0")
    cluster.ask("w1")
    cluster.do()
    ended = cluster.handle(Stop("SIGTERM"))  # no step was made: there is nothing to save before
    assert "no checkpoint of the job 'default' was made: the cluster is ending" in whys(ended, "w0")
    assert "no checkpoint of the job 'default' was begun: the cluster is ending" in whys(ended, "w1")
    assert receivers(ended, m.Unsave) == [peer(server) for server in SERVERS]
    assert errors(cluster.ask("w0", 10)) == [JobError.code]
    assert "no checkpoint of the job" not in logged(goodbye(cluster))
    assert cluster.store.said == ["begin", "abandon"]


def test_a_job_that_ends_while_its_last_checkpoint_is_made_begins_no_other() -> None:
    cluster = Ending()
    cluster.finish()
    cluster.do()
    run = cluster.run()
    ended = cluster.machine.jobs.end(run, "it is enough", cluster.now)
    cluster.machine.validate()
    assert "job 'default' ends without a last checkpoint: it has ended" in logged(ended)
    assert "tried once more" not in logged(ended)
