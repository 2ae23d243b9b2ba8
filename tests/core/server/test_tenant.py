"""What a server keeps of one job."""

from __future__ import annotations

import numpy as np
import pytest

from tests.core.machines import assign, job, make_shard, placement
from tests.simulator.jobs.training import ReferenceRules
from tests.tables import for_each
from zmqps.core.protocol.messages import Pull
from zmqps.core.server.dense.buffers import GRANT_NBYTES, LEAST_NBYTES, Beside
from zmqps.core.server.dense.stale import treated
from zmqps.core.server.measured import in_all
from zmqps.core.server.shard import Shard
from zmqps.core.server.tenant import Tenant
from zmqps.core.treatments import Compensate
from zmqps.errors import JobError
from zmqps.optim import sgd

SPEC = job("a", "b", mode="sync")
WORKER, OTHER = b"w" * 16, b"o" * 16


class Reading:
    done = False


def tenant(*, built: bool = True, loaded: bool = True) -> Tenant:
    """Return a job called resnet of two slices."""
    tenant = Tenant(assign(SPEC, placement(SPEC), name="resnet"))
    if built:
        tenant.shard = make_shard(SPEC, placement(SPEC), 0)
        for slice_ in range(2 if loaded else 1):
            tenant.shard.dense.load([(slice_, 0, ())], [np.zeros(8, np.float32)])
    tenant.validate([])
    return tenant


@for_each(
    "state, built, ready",
    [
        ({"built": False}, "no shard of the job 'resnet' yet; call worker.init", "no shard of the job 'resnet' yet"),
        ({"loaded": False}, None, "this shard has no initial values yet; wait for worker.init"),
        ({}, None, None),
    ],
)
def test_a_shard_is_there_once_it_is_built_and_ready_once_it_has_its_values(
    state: dict[str, bool], built: str | None, ready: str | None
) -> None:
    one = tenant(**state)
    assert one.loaded is (ready is None)
    for get, expected in ((one.built, built), (one.ready, ready)):
        if expected is None:
            assert get() is one.shard
        else:
            with pytest.raises(JobError, match=expected.replace("(", r"\(")):
                get()


def test_memory_of_gradients_and_of_copies_is_touched_once_it_is_there() -> None:
    one = tenant()
    shard = one.built()
    shard.required_nbytes = 1_000
    assert one.untouched_nbytes == 1_000 - 64
    shard.dense.collect([(0, 0, ())], [np.zeros(8, np.float32)], (WORKER, 1), 0, 1, "w")
    assert one.untouched_nbytes == 1_000 - 64 - 32
    assert one.untouched_nbytes == 1_000 - 64 - 32


def test_memory_of_what_a_worker_has_read_is_touched_once_it_is_there() -> None:
    one = tenant(built=False)
    shard = one.shard = Shard(placement(SPEC), 0, ReferenceRules(sgd(1.0)), dense=treated(Compensate(1.0)))
    shard.required_nbytes = 1_000
    before = one.untouched_nbytes
    shard.dense.pull([(0, 0, ())], puller=WORKER)
    assert one.untouched_nbytes == before - 32


def test_kept_versions_are_touched_once_they_are_there_and_what_slow_readers_need_was_not_admitted() -> None:
    one = tenant()
    shard = one.shard = Shard(placement(SPEC), 0, ReferenceRules(sgd(1.0)), synchronous=True, retain=2)
    shard.dense.load([(0, 0, ()), (1, 0, ())], [np.zeros(16, np.float32)])
    shard.required_nbytes = 1_000
    found = []
    for step in range(6):
        held = 64 + shard.steps.stage.nbytes if shard.steps else 0
        assert one.untouched_nbytes == 1_000 - held - min(step, 2) * 64
        for readers in shard.dense.pull([(0, 0, ()), (1, 0, ())])[2]:
            readers.append(reader := Reading())
            found.append(reader)
        shard.dense.collect([(0, 0, ()), (1, 0, ())], [np.zeros(16, np.float32)], (WORKER, step), step, 1, "w")
        shard.commit(step, [(WORKER, (step,))])
    assert shard.counters["spare_nbytes"] > 2 * 64


def test_what_was_granted_since_is_reserved_and_untouched_until_it_is_there() -> None:
    one = tenant()
    shard = one.shard = Shard(placement(SPEC), 0, ReferenceRules(sgd(1.0)), beside=Beside(0))
    shard.dense.load([(0, 0, ()), (1, 0, ())], [np.zeros(16, np.float32)])
    shard.required_nbytes = 64
    assert (one.reserved_nbytes, one.untouched_nbytes) == (64, 0)
    shard.dense.beside.fits(LEAST_NBYTES, 1)
    assert (one.reserved_nbytes, one.untouched_nbytes) == (64 + GRANT_NBYTES, GRANT_NBYTES)
    [readers] = shard.dense.pull([(0, 0, ())])[2]
    readers.append(Reading())
    shard.dense.push([(0, 0, ())], [np.zeros(8, np.float32)], "w")
    assert one.untouched_nbytes == GRANT_NBYTES - 32


def test_a_worker_has_one_ledger() -> None:
    one = tenant()
    ledger = one.ledgers[WORKER]
    ledger.record(1, ((1,), (0,)))
    assert one.ledgers[WORKER] is ledger
    assert one.ledgers[OTHER].look_up(1) is None


def test_of_who_has_gone_nothing_is_kept() -> None:
    one = tenant()
    for who, request in ((WORKER, 1), (WORKER, 2), (OTHER, 1)):
        one.parked.add(who, Pull(request, 1, 9, 0, "raw", ((0, 0, ()),)), 1, [(0, 9)])
    one.ledgers[WORKER]
    one.ledgers[OTHER]
    one.forget(WORKER)
    assert set(one.parked) == {(OTHER, 1)}
    assert set(one.ledgers) == {OTHER}
    one.forget(b"?" * 16)
    assert set(one.ledgers) == {OTHER}


def test_the_counters_of_a_job_without_a_shard_are_the_same_ones() -> None:
    built, unbuilt = tenant().counters(), tenant(built=False).counters()
    assert set(unbuilt) <= set(built)
    assert {name: unbuilt[name] for name in ("loaded", "parked", "version", "arena_nbytes")} == {
        "loaded": False, "parked": 0, "version": 0, "arena_nbytes": 0,
    }  # fmt: skip
    assert (built["loaded"], built["arena_nbytes"] >= 64) == (True, True)


def test_counters_of_several_jobs_are_summed_but_for_versions_and_words() -> None:
    one = {"pushes": 2, "loaded": True, "version": 7, "parked": 1, "device": "cuda:0"}
    other = {"pushes": 3, "loaded": True, "version": 4, "parked": 0, "late": 5, "device": "cuda:0"}
    assert in_all([one, other]) == {
        "pushes": 5, "loaded": True, "version": 7, "parked": 1, "late": 5, "device": "cuda:0",
    }  # fmt: skip
    assert in_all([one, {**other, "loaded": False}])["loaded"] is False
    assert in_all([]) == {"loaded": True, "version": 0}
