"""Every two hosts meet once, and nobody is in two places at a time."""

from __future__ import annotations

from itertools import combinations

from zmqps.doctor.examine import rounds


def test_all_pairs_meet_once_and_no_host_twice_in_a_round() -> None:
    for number in range(2, 12):
        names = [f"h{i}" for i in range(number)]
        plan = rounds(names, 100)
        assert len(plan) == number - 1 + number % 2
        assert all(len({host for pair in pairs for host in pair}) == 2 * len(pairs) for pairs in plan)
        met = sorted(tuple(sorted(pair)) for pairs in plan for pair in pairs)
        assert met == sorted(tuple(sorted(pair)) for pair in combinations(names, 2))


def test_a_host_alone_is_measured_with_itself() -> None:
    assert rounds(["a"], 5) == [[("a", "a")]]


def test_of_many_hosts_some_pairs_are_left_out() -> None:
    assert len(rounds([f"h{i}" for i in range(50)], 31)) == 31
