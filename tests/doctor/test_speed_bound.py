"""The bound of a step: what each wire carries, and which one is the limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.doctor.hosts import A, B, C, findings, rates, texts
from tests.tables import for_each
from zmqps.doctor.facts import Host, Model
from zmqps.doctor.speed import bound, judge_bound, traffic

RESNET = Model(name="resnet50", nbytes=102_228_128)


def placed(*numbers: tuple[int, int]) -> list[Host]:
    """Return hosts with so many servers and workers each."""
    return [Host(name=f"host-{'abcdefgh'[i]}", servers=s, workers=w) for i, (s, w) in enumerate(numbers)]


@for_each(
    "numbers, expected",
    [
        ([(1, 0), (1, 0), (0, 1), (0, 1), (0, 1), (0, 1)], [200, 200, 100, 100, 100, 100]),  # nM/k and M
        ([(1, 0), (0, 4)], [400, 400]),  # workers share a wire
        ([(1, 1), (1, 1)], [100, 100]),  # half of each stays on its host
        ([(1, 4)], [0]),
        ([(1, 0), (0, 1), (0, 0)], [100, 100, 0]),
    ],
)
def test_a_wire_carries_what_does_not_stay_on_its_host(numbers: list[tuple[int, int]], expected: list[float]) -> None:
    hosts = placed(*numbers)
    assert [traffic(host, hosts, 100) for host in hosts] == expected


def test_the_slowest_wire_for_what_it_carries_is_the_limit() -> None:
    hosts = placed((1, 0), (1, 0), (0, 2), (0, 2))
    found = findings(hosts)
    slow = [replace(r, nbytes_per_s=50e6) if "host-b" in (r.source, r.target) else r for r in found.rates]
    limit = bound(replace(found, rates=slow), 100_000_000, encrypted=False)
    assert limit is not None
    assert limit.wire == "the wire of host-b"
    assert limit.seconds == pytest.approx(200 / 50)


def test_one_slow_way_can_be_the_limit_although_both_wires_are_quick() -> None:
    hosts = placed((1, 0), (0, 1), (0, 1))
    found = findings(hosts)
    slow = [replace(r, nbytes_per_s=10e6) if (r.source, r.target) == ("host-c", "host-a") else r for r in found.rates]
    limit = bound(replace(found, rates=slow), 100_000_000, encrypted=False)
    assert limit is not None
    assert limit.wire == "the way from host-c to host-a"
    assert limit.seconds == pytest.approx(10)


def test_the_sentence_names_model_nodes_limit_and_what_bf16_gives() -> None:
    hosts = placed((2, 0), (0, 4))
    found = findings(hosts, model=RESNET)
    encrypted = rates("host-a", "host-b", 50e6, 50e6, encrypted=True)
    assert texts(judge_bound(replace(found, rates=[*found.rates, *encrypted]))) == [
        "all hosts | step | good | ResNet-50 with 4 workers and 2 servers: at best 3.49 s a step, encrypted 8.18 s; "
        "the wire of host-a is the limit; bf16 would give 1.75 s"
    ]


def test_one_host_is_held_against_wires_one_may_have() -> None:
    [row] = judge_bound(findings((replace(A, servers=2, workers=4),), model=RESNET))
    assert row.found == (
        "ResNet-50 with 4 workers and 2 servers: nothing crosses a wire here; with a host for each, at best "
        "1.64 s a step at 1 Gbit/s, 164 ms at 10"
    )


def test_nothing_is_said_without_a_model_nodes_or_measurements() -> None:
    assert list(judge_bound(findings(placed((1, 0), (0, 1))))) == []
    assert list(judge_bound(findings((A, B, C), model=RESNET))) == []
    assert list(judge_bound(findings(placed((1, 0), (0, 1)), model=RESNET, rates=[]))) == []
