"""Whether a shard fits beside those of other jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.machines import job, placement
from tests.tables import for_each
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import JobSpec, Parameter
from zmqps.core.server.builds import Room, admit, described, required_nbytes
from zmqps.core.server.dense.stale import copies_nbytes
from zmqps.core.treatments import Compensate, Divide
from zmqps.errors import JobMemoryError

SPEC = job("a", "b")  # two of eight float32 each
VALUES = 64


@for_each(
    "spec, num_slots, num_workers, expected",
    [
        (SPEC, 0, 5, {"values": VALUES}),
        (SPEC, 2, 5, {"values": VALUES, "optimizer slots": 2 * VALUES}),
        (replace(SPEC, mode="sync", retain=3), 0, 5, {
            "values": VALUES, "kept versions": 3 * VALUES, "gradients of 5 workers": 5 * VALUES,
        }),
        (replace(SPEC, mode="bounded", staleness=4), 1, 5, {"values": VALUES, "optimizer slots": VALUES}),
        (replace(SPEC, treatment=Compensate(0.5).to_wire()), 0, 5, {
            "values": VALUES, "copies of what 5 workers read": 5 * VALUES,
        }),
        (replace(SPEC, treatment=Divide().to_wire()), 0, 5, {"values": VALUES}),
    ],
)  # fmt: skip
def test_a_shard_needs_what_its_job_keeps(
    spec: JobSpec, num_slots: int, num_workers: int, expected: dict[str, int]
) -> None:
    required = required_nbytes(placement(spec), 0, num_slots, spec, num_workers)
    required |= copies_nbytes(placement(spec), 0, spec, num_workers)
    assert {what: nbytes for what, nbytes in required.items() if nbytes} == expected


def test_who_is_told_nothing_of_the_room_has_all_of_it_for_one_worker() -> None:
    assert Room() == Room(reserved_nbytes=0, available_nbytes=1 << 62, num_workers=1)


def test_each_shard_needs_its_own_part() -> None:
    parameters = (Parameter("w", (10_000,), "float64"), Parameter("b", (100,), "float32"))
    spec = JobSpec(parameters=parameters, optimizer=SPEC.optimizer, mode="async")
    where = Placement.balance(KeySpace(parameters), 3, 1 << 12)
    needs = [required_nbytes(where, index, 0, spec, 1)["values"] for index in range(3)]
    assert needs == [where.nbytes(index) for index in range(3)]
    assert sum(needs) == 80_400


def test_a_shard_that_just_fits_is_admitted_and_one_byte_more_is_not() -> None:
    required = required_nbytes(placement(SPEC), 0, 1, SPEC, 1)
    assert admit("server-0", placement(SPEC), 0, required, 2 * VALUES) == 2 * VALUES
    with pytest.raises(JobMemoryError) as caught:
        admit("server-0", placement(SPEC), 0, required, 2 * VALUES - 1)
    assert caught.value.facts() == {
        "server": "server-0",
        "what": "shard 0 of 1 (values 64, optimizer slots 64)",
        "needed_nbytes": 128,
        "free_nbytes": 127,
    }
    assert isinstance(caught.value, MemoryError)
    assert "it needs 128 bytes, 127 are free; start more servers, end another job" in str(caught.value)


def test_where_more_is_reserved_than_there_is_nothing_is_free() -> None:
    with pytest.raises(JobMemoryError) as caught:
        admit("server-0", placement(SPEC), 0, {"values": VALUES}, -5)
    assert caught.value.free_nbytes == 0


def test_a_shard_of_nothing_is_described_without_zeros() -> None:
    assert described(placement(SPEC), 0, {"values": 1_234_567, "kept versions": 0}) == "shard 0 of 1 (values 1,234,567)"
