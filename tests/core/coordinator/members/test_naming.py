"""Which member a name means, and what is said where it means several or none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.machines import hello, peer
from tests.tables import for_each
from zmqps.core.coordinator.members.membership import MemberInfo, Roster
from zmqps.core.coordinator.members.naming import find_named
from zmqps.errors import AmbiguousNodeError, JobError


def members(*names: str, role: str = "server", job: str = "default") -> list[MemberInfo]:
    """Return members with the ranks 0, 1, … in the order in which they are named."""
    roster = Roster()
    return [
        roster.enter(replace(hello(role, f"{job}{n}", job), name=name), peer(f"{job}{n}"), 0.0)
        for n, name in enumerate(names)
    ]


@for_each("name", ["server-1", "server 1", "1", "server-1@host-b"])
def test_name_and_number_mean_the_same_server(name: str) -> None:
    servers = members("server-0@host-a", "server-1@host-b")
    assert find_named(name, servers, "server") is servers[1]


@for_each("name", ["server-0", "0", "server-1", "1"])
def test_where_they_differ_each_of_them_asks(name: str) -> None:
    servers = members("server-1", "server-0")
    with pytest.raises(AmbiguousNodeError, match=r"'server 0'.*'server 1'"):
        find_named(name, servers, "server")
    assert [find_named(f"server {n}", servers, "server") for n in range(2)] == servers


def test_role_and_number_win_over_what_another_calls_itself() -> None:
    workers = members("worker 1", "b", role="worker")
    assert find_named("worker 1", workers) is workers[1]
    assert find_named("default/worker 0", workers) is workers[0]


def test_a_number_alone_means_nobody_where_any_role_may_be_meant() -> None:
    with pytest.raises(JobError, match="there is no node '0'; here are: default/a, default/b"):
        find_named("0", members("a", "b", role="worker"))
    with pytest.raises(JobError, match="there is no server 'x'; here are: none"):
        find_named("x", [], "server")


def test_several_of_one_name_are_told_apart_by_their_numbers() -> None:
    servers = members("s", "s", "t")
    with pytest.raises(AmbiguousNodeError, match=r"server 0 \(s, .*'server 0', server 1 \(s, .*'server 1'$|'server 1'"):
        find_named("s", servers, "server")
    assert find_named("1", servers, "server") is servers[1]


def test_of_several_jobs_the_job_is_named() -> None:
    both = members("worker-0", role="worker", job="a") + members("worker-0", role="worker", job="b")
    for name in ("worker-0", "worker 0"):
        with pytest.raises(AmbiguousNodeError, match=r"'a/worker 0'.*'b/worker 0'"):
            find_named(name, both)
    assert [find_named(f"{job}/worker-0", both) for job in "ab"] == both
