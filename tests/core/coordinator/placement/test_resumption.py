"""Jobs that begin from a checkpoint: who may begin which, where its clocks and data sets stand, and what goes wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.coordinator.training.test_data import SPEC, got, position, take
from tests.core.machines import Coordinator, errors, job, peer, receivers, sent
from tests.modes import MODES
from tests.tables import for_each
from zmqps.core.coordinator.placement.resumption import Resumption
from zmqps.core.job.spec import JobSpec
from zmqps.core.protocol.messages import Arrive, Assign, Commit, Discard, EndJob, Error, Job, Leave
from zmqps.errors import JobError, JobMismatchError, PSError
from zmqps.optim import adam


def resumption(spec: JobSpec | None = None, **options: Any) -> Resumption:
    return Resumption(path="/c/ckpt-7", job=spec or job(), **{"version": 7, **options})


def restored(spec: JobSpec | None = None, workers: int | None = None, **options: Any) -> Coordinator:
    """Return a coordinator whose default job begins from a checkpoint; one server."""
    coordinator = Coordinator(resumptions={"default": resumption(spec, **options)}, workers=workers)
    coordinator.join("s0")
    return coordinator


def begin(coordinator: Coordinator, *workers: str, spec: JobSpec | None = None) -> list[Any]:
    """Let workers join and train; return what each is told."""
    coordinator.join(*workers)
    return sent([*coordinator.init_all(spec, *workers), *coordinator.ready("s0")], Job)


# --- who may begin what -----------------------------------------------------------------------------


def test_a_worker_takes_it_as_it_is_and_uploads_nothing() -> None:
    coordinator = restored(state={"epoch": 3})
    (assign,) = sent(coordinator.attach("w0", None), Assign)
    assert assign.restore == {"path": "/c/ckpt-7", "version": 7, "optimizer": True, "names": {}}
    assert JobSpec.from_wire(assign.job) == job()
    (told,) = sent(coordinator.ready("s0"), Job, peer("w0"))
    assert not told.load
    assert told.restored == {"path": "/c/ckpt-7", "version": 7, "state": {"epoch": 3}}


@for_each(
    "change, text",
    [
        ({"parameters": job("w").parameters}, "parameter"),
        ({"parameters": job(size=9).parameters}, "float32 (9,)"),
        ({"optimizer": adam(0.1).to_wire()}, "restore_values_only=True"),
        ({"optimizer": job(learning_rate=0.5).optimizer}, "optimizer"),
    ],
)
def test_another_model_or_optimizer_is_refused_and_says_what_differs(change: Any, text: str) -> None:
    coordinator = restored()
    actions = coordinator.attach("w0", replace(job(), **change))
    assert errors(actions) == [JobMismatchError.code]
    assert text in sent(actions, Error)[0].text
    assert "/c/ckpt-7" in sent(actions, Error)[0].text
    assert len(begin(coordinator, "w1", spec=job())) == 1


@for_each("mode", ["async", "sync", "bounded"])
def test_how_it_is_synchronised_may_differ(mode: str) -> None:
    coordinator = restored()
    (told,) = begin(coordinator, "w0", spec=replace(job(), **MODES[mode]))
    assert not told.load
    assert told.step == (0 if mode == "async" else 7)


def test_another_optimizer_may_begin_where_slots_are_not_wanted_and_must_be_named() -> None:
    coordinator = restored(optimizer=False)
    coordinator.join("w0", "w1")
    assert errors(coordinator.init("w0", None)) == [JobError.code]
    other = replace(job(), optimizer=adam(0.1).to_wire())
    (assign,) = sent(coordinator.init("w1", other), Assign)
    assert assign.restore["optimizer"] is False
    assert assign.job["optimizer"] == other.optimizer


def test_names_of_parameters_may_be_mapped() -> None:
    found = resumption(job("a", "b"), names={"w": "a"})
    offered = found.offered()
    assert offered is not None
    assert [p.name for p in offered.parameters] == ["w", "b"]
    found.check(job("w", "b"))
    with pytest.raises(PSError):
        found.check(job("a", "b"))
    assert found.source()["names"] == {"w": "a"}


def test_only_the_job_that_was_saved_begins_from_it_and_only_once() -> None:
    coordinator = restored()
    (assign,) = sent(coordinator.attach("w0.other", job()), Assign)
    assert assign.restore == {}
    begin(coordinator, "w1")
    coordinator.take("x", EndJob(1, "default", b"n" * 16))
    (assign,) = sent(coordinator.attach("w2", job()), Assign)
    assert assign.restore == {}, "what was saved has been trained on"


def test_who_takes_it_as_it_is_counts_where_so_many_are_expected() -> None:
    coordinator = restored(replace(job(), mode="sync"), workers=2)
    assert len(begin(coordinator, "w0", "w1")) == 2
    for worker in ("w0", "w1"):
        actions = coordinator.take(worker, Arrive(5, 7, (1,)))
        assert not errors(actions)
    assert [commit.step for commit in sent(actions, Commit)] == [7]


# --- a start that fails -----------------------------------------------------------------------------


def test_a_first_start_that_fails_is_tried_again_from_the_checkpoint() -> None:
    coordinator = restored(replace(job(), mode="sync"), data=[[["data", 10, 4, 1, None], 0, 2, []]])
    coordinator.attach("w0", None)
    failed = coordinator.take("s0", Error.of(1, JobError("the disk cannot be read")))
    assert errors(failed, peer("w0")) == [JobError.code]
    assert receivers(failed, Discard) == [peer("s0")]
    (assign,) = sent(coordinator.init("w0", None, request=2), Assign)
    assert assign.epoch == 2
    assert assign.restore["path"] == "/c/ckpt-7"
    (told,) = sent(coordinator.ready("s0"), Job)
    assert told.step == 7
    assert position(got(take(coordinator, "w0", 3), "w0")) == (0, 8, 10)


def test_one_that_everybody_gave_up_is_tried_again_from_the_checkpoint() -> None:
    coordinator = restored()
    coordinator.attach("w0", None)
    coordinator.take("w0", Leave("closed"))
    (assign,) = sent(coordinator.attach("w1", None), Assign)
    assert assign.restore["path"] == "/c/ckpt-7"


def test_an_observer_may_ask_for_it_first() -> None:
    coordinator = restored()
    assert len(sent(coordinator.attach("o0", None), Assign)) == 1
    assert receivers(coordinator.ready("s0"), Job) == [peer("o0")]


# --- clocks -----------------------------------------------------------------------------------------


def test_a_synchronous_job_goes_on_with_its_step() -> None:
    coordinator = restored()
    (told,) = begin(coordinator, "w0", spec=replace(job(), mode="sync"))
    assert told.step == 7
    (commit,) = sent(coordinator.take("w0", Arrive(3, 7, (1,))), Commit)
    assert commit.step == 7
    assert coordinator.run().steps.clock == 8


def test_a_bounded_job_begins_at_the_clock_of_the_slowest() -> None:
    coordinator = restored()
    spec = replace(job(), mode="bounded", staleness=1)
    told = begin(coordinator, "w0", "w1", spec=spec)
    assert {job.step for job in told} == {7}
    coordinator.take("w0", Arrive(3, 7, (1,)))
    (late,) = sent(coordinator.attach("w2", spec), Job)
    assert late.step == 7


# --- data sets --------------------------------------------------------------------------------------

#: In the second of two passes: two of three ranges were handed out, one of them used.
STANDS = [["data", 10, 4, 2, None], 1, 2, [0]]
TWICE = replace(SPEC, passes=2)


def test_data_sets_go_on_where_they_stood() -> None:
    coordinator = restored(data=[STANDS])
    begin(coordinator, "w0")
    first = got(take(coordinator, "w0", 2, spec=TWICE), "w0")
    assert position(first) == (1, 0, 4), "what was handed out and not used"
    second = got(take(coordinator, "w0", 3, first, spec=TWICE), "w0")
    assert position(second) == (1, 8, 10)
    over = got(take(coordinator, "w0", 4, second, spec=TWICE), "w0")
    assert over.start == over.stop


def test_a_data_set_that_is_described_otherwise_is_refused_and_stays_where_it_stood() -> None:
    coordinator = restored(data=[STANDS])
    begin(coordinator, "w0")
    assert errors(take(coordinator, "w0", 2, spec=replace(TWICE, num_examples=11))) == [JobMismatchError.code]
    assert position(got(take(coordinator, "w0", 3, spec=TWICE), "w0")) == (1, 0, 4)


def test_what_nobody_has_asked_for_since_is_saved_as_it_stood() -> None:
    coordinator = restored(data=[STANDS, [["other", 5, 5, 1, 3], 0, 0, []]])
    begin(coordinator, "w0")
    take(coordinator, "w0", 2, spec=TWICE)
    saved = {entry[0][0]: entry for entry in coordinator.run().saved()["data"]}
    assert saved == {"data": STANDS, "other": [["other", 5, 5, 1, 3], 0, 0, []]}


def test_a_stranger_that_asks_for_a_data_set_and_leaves_takes_nothing_along() -> None:
    coordinator = restored(data=[STANDS], workers=1)
    begin(coordinator, "w0")
    coordinator.attach("w1", None)
    data = coordinator.run().data
    take(coordinator, "w1", 2, spec=TWICE)
    assert [entry[0][0] for entry in data.saved()] == ["data"]
    coordinator.take("w1", Leave("closed"))
    assert position(got(take(coordinator, "w0", 3, spec=TWICE), "w0")) == (1, 0, 4)


@for_each("used", range(4))
def test_saved_and_resumed_each_range_is_used_once_a_pass(used: int) -> None:
    before = restored()
    begin(before, "w0", "w1")
    done = []
    found = got(take(before, "w0", 2, spec=TWICE), "w0")
    take(before, "w1", 2, spec=TWICE)  # it never uses it
    for number in range(used):
        done.append(position(found))
        actions = take(before, "w0", 3 + number, found, spec=TWICE)
        if not sent(actions, type(found)):
            break
        found = got(actions, "w0")
    after = restored(data=before.run().saved()["data"])
    begin(after, "w0")
    request, found = 2, got(take(after, "w0", 2, spec=TWICE), "w0")
    while found.start < found.stop:
        done.append(position(found))
        request += 1
        found = got(take(after, "w0", request, found, spec=TWICE), "w0")
    assert sorted(done) == [(p, a, b) for p in range(2) for a, b in ((0, 4), (4, 8), (8, 10))]
