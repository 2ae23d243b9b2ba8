"""What the status says of members: bounded by member and in sum, and it always fits into a message."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.core.machines import Coordinator, errors, hello, identity, job, peer, sent
from tests.tables import for_each
from zmqps.core.coordinator.jobs import MAX_JOBS
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.members.membership import MAX_GONE, MAX_MEMBERS
from zmqps.core.coordinator.options import CoordinatorOptions
from zmqps.core.coordinator.watching.status import (
    BURST_S,
    MAX_COUNTED_JOBS,
    MAX_COUNTERS,
    MAX_COUNTERS_NBYTES,
    MAX_LISTED,
    SPACING_S,
    Inquiries,
    by_epoch,
    nbytes_of,
    packed,
    presentable,
)
from zmqps.core.protocol.events import Received
from zmqps.core.protocol.messages import Heartbeat, Init, Leave, Message, Status, StatusRequest, Take
from zmqps.core.protocol.messages.hello import MAX_ENDPOINT_CHARS, MAX_JOB_NAME_CHARS, MAX_NAME_CHARS
from zmqps.core.protocol.wire import decode, encode
from zmqps.errors import LimitError


@for_each(
    "counters, shown",
    [
        ({"pushes": 3, "ratio": 0.5, "whole": True, "device": "cpu"}, {"pushes", "ratio", "whole", "device"}),
        ({"nan": float("nan"), "inf": float("inf"), "nil": None, "list": [1], "map": {"a": 1}, "n": 1}, {"n"}),
        ({f"c{i}": i for i in range(2 * MAX_COUNTERS)}, {f"c{i}" for i in range(MAX_COUNTERS)}),
    ],
)
def test_counters_are_numbers_and_short_texts_and_not_too_many(counters: dict[str, Any], shown: set[str]) -> None:
    found, nbytes = presentable(counters)
    assert set(found) == shown
    assert nbytes == nbytes_of(found) <= MAX_COUNTERS_NBYTES
    assert packed(counters) == (json.dumps(found), nbytes)


def test_counters_are_cut_to_what_a_member_may_say() -> None:
    found, nbytes = presentable({f"{i}" + "é" * 1000: "x" * 1000 for i in range(MAX_COUNTERS)})
    assert all(len(name) <= 64 and len(text) == 200 for name, text in found.items())
    assert MAX_COUNTERS_NBYTES / 2 < nbytes == nbytes_of(found) <= MAX_COUNTERS_NBYTES
    of_jobs = by_epoch({"jobs": {str(epoch): {"n": epoch, "x": []} for epoch in range(2 * MAX_COUNTED_JOBS)}})
    assert of_jobs == {str(epoch): {"n": epoch} for epoch in range(MAX_COUNTED_JOBS)}
    assert by_epoch({"jobs": "none"}) == by_epoch({}) == {}


@pytest.mark.repeats
def test_thousands_with_long_names_and_counters_make_a_status_that_fits_and_says_what_it_leaves_out() -> None:
    machine = CoordinatorMachine(identity("coordinator"), CoordinatorOptions())
    machine.start(0.0)
    name, endpoint = "é" * MAX_NAME_CHARS, "é" * MAX_ENDPOINT_CHARS
    counters = {f"{i}" + "c" * 64: "é" * 200 for i in range(MAX_COUNTERS)}
    job_names = [f"{i:03}" + "é" * (MAX_JOB_NAME_CHARS - 3) for i in range(MAX_JOBS)]

    def take(who: str, *messages: Message) -> None:
        for message in messages:
            machine.handle(Received(peer(who), message), 0.0)

    take("s0", hello("server", "s0"))
    for i in range(MAX_MEMBERS - 1 + MAX_GONE):
        greeting = hello("worker", f"m{i}", job_names[i % MAX_JOBS])
        take(f"m{i}", replace(greeting, name=name, host=name, endpoint=endpoint), Heartbeat(counters))
        if i < MAX_GONE:
            take(f"m{i}", Leave("closed"))
    ranges = [Take(k, f"{k:04}" + "é" * 196, 1000, 1, 1, (), ()) for k in range(100)]
    for i in range(MAX_GONE, MAX_GONE + MAX_JOBS):
        take(f"m{i}", Init(1, job(*(f"{k}" + "é" * 500 for k in range(3))).to_wire()), *ranges)
    status = machine.status(1.0)
    assert len(machine.membership.members) == MAX_MEMBERS
    assert len(status["jobs"]) == MAX_JOBS
    message = Status(1, status)
    assert decode([bytes(frame) for frame in encode(message)]) == message
    assert 0 < len(status["members"]) <= MAX_LISTED
    more = f"{MAX_MEMBERS - len(status['members'])} of {MAX_MEMBERS} members"
    assert more in status["left_out"]
    assert any(text.startswith("data of the job '000") for text in status["left_out"])


def test_a_status_of_few_leaves_nothing_out() -> None:
    coordinator = Coordinator.trains("s0", "w0")
    coordinator.take("w0", Heartbeat({"bytes_sent": "x", "pushes": 2}))
    status = coordinator.machine.status(0.0)
    assert status["left_out"] == []
    assert status["members"][1]["counters"] == {"bytes_sent": "x", "pushes": 2}
    assert [len(coordinator.run().startup.status()["placement"]), status["jobs"]["default"]["job"]["ready"]] == [
        1,
        True,
    ]


def test_who_asks_for_the_status_again_and_again_is_refused_until_there_is_time_again() -> None:
    inquiries = Inquiries()
    told = 1 + int(BURST_S / (100 * SPACING_S))
    for _ in range(told):
        inquiries.check(99, 5.0)
    with pytest.raises(LimitError) as caught:
        inquiries.check(99, 5.0)
    assert caught.value.limit == told
    inquiries.check(99, 5.0 + 2 * 100 * SPACING_S)
    coordinator = Coordinator()
    for _ in range(30_000):
        if errors(coordinator.take("x", StatusRequest(1))):
            break
    assert errors(coordinator.take("x", StatusRequest(1))) == [LimitError.code]
    coordinator.now += 1.0
    assert len(sent(coordinator.take("x", StatusRequest(1)), Status)) == 1
