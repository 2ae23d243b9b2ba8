"""The way between two hosts beside what their interfaces can."""

from __future__ import annotations

from dataclasses import replace

from tests.doctor.hosts import A, findings, rates, reach, texts, well
from zmqps.doctor.facts import Host, Interface, Rate, Reach
from zmqps.doctor.speed import judge_wires

GOOD = "host-a ⇄ host-b | bandwidth | good | 100 µs, 117 MB/s; the interface can 125 MB/s"


def test_a_wire_that_is_filled_is_good() -> None:
    assert texts(judge_wires(findings())) == [GOOD]


def test_both_directions_and_what_encryption_leaves_are_shown() -> None:
    found = [*rates("host-a", "host-b", 117e6, 95e6), *rates("host-a", "host-b", 110e6, 109e6, encrypted=True)]
    assert texts(judge_wires(findings(rates=found))) == [
        "host-a ⇄ host-b | bandwidth | good | 100 µs, 117 MB/s and 95 MB/s, encrypted 109 MB/s; "
        "the interface can 125 MB/s"
    ]


def test_a_wire_that_carries_a_fraction_of_what_it_can_is_a_warning() -> None:
    [row] = judge_wires(findings(rates=rates("host-a", "host-b", 12e6, 117e6)))
    assert row.verdict == "warning"
    assert "ethtool" in row.advice


def test_where_no_interface_says_its_speed_the_two_directions_are_compared() -> None:
    unknown = {"eth0": Interface(addresses=["10.0.0.1"], speed_mbit=0, mtu=1500, up=True)}
    facts = {"host-a": replace(well(1), interfaces=unknown), "host-b": replace(well(2), interfaces={})}
    [row] = judge_wires(findings(facts=facts, rates=rates("host-a", "host-b", 12e6, 117e6)))
    assert texts([row]) == ["host-a ⇄ host-b | bandwidth | warning | 100 µs, 12 MB/s and 117 MB/s"]
    assert "duplex" in row.advice


def test_a_connection_through_which_nothing_comes_is_wrong() -> None:
    stuck = Rate(source="host-a", target="host-b", encrypted=False, problem="no answer")
    [row] = judge_wires(findings(rates=[stuck]))
    assert row.verdict == "wrong"
    assert "MTU" in row.advice


def test_what_is_far_away_is_no_lan() -> None:
    [row] = judge_wires(findings(reaches=[reach("host-a", "host-b", latency_s=0.02)]))
    assert (row.check, row.verdict) == ("latency", "warning")


def test_interfaces_of_different_mtu_are_a_warning() -> None:
    jumbo = {"eth0": Interface(addresses=["10.0.0.2"], speed_mbit=1000, mtu=9000, up=True)}
    facts = {"host-a": well(1), "host-b": replace(well(2), interfaces=jumbo)}
    [row] = judge_wires(findings(facts=facts))
    assert (row.check, row.verdict) == ("MTU", "warning")
    assert "MTU 1500 and 9000" in row.found


def test_many_good_pairs_share_a_row_and_the_others_do_not() -> None:
    hosts = [Host(name=f"host-{letter}") for letter in "abcdef"]
    found = findings(hosts)
    slow = [replace(rate, nbytes_per_s=1e6) if rate.source == "host-f" else rate for rate in found.rates]
    rows = list(judge_wires(replace(found, rates=slow, unmeasured=3)))
    assert [row.verdict for row in rows].count("warning") == 6
    assert rows[-1].found == "3 pairs of many were not measured"
    [row] = judge_wires(found)
    assert row.found == "15 pairs; the slowest: 117 MB/s from host-a to host-b"


def test_a_host_alone_is_measured_with_itself() -> None:
    alone = Rate(source="host-a", target="host-a", encrypted=False, nbytes_per_s=3e9)
    itself = Reach(source="host-a", target="host-a", port=0, latency_s=2e-5, near="127.0.0.1", far="127.0.0.1")
    found = findings((A,), rates=[alone], reaches=[itself])
    assert texts(judge_wires(found)) == ["host-a | bandwidth | good | 20 µs, 3 GB/s"]
