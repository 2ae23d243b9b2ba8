"""What each of many equal tasks runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps.errors import ConfigurationError
from zmqps.launch.ranks import num_workers, roles


@for_each(
    "size, servers, apart, plan",
    [
        (1, 1, False, [(1, 1)]),
        (4, 2, False, [(1, 1), (0, 1), (1, 1), (0, 1)]),  # with two tasks a host, each host has a server
        (2, 4, False, [(2, 1), (2, 1)]),
        (4, 2, True, [(1, 0), (0, 1), (1, 0), (0, 1)]),
    ],
)
def test_servers_are_spread_evenly(size: int, servers: int, apart: bool, plan: list[tuple[int, int]]) -> None:
    found = [roles(rank, size, servers, 1, apart=apart) for rank in range(size)]
    assert [(len(role.servers), len(role.workers)) for role in found] == plan
    assert [role.coordinator for role in found] == [True] + [False] * (size - 1)


@for_each(
    "size, servers, tasks, plan",
    [
        (4, 2, 2, [(1, 0), (1, 0), (0, 1), (0, 1)]),
        (3, 4, 2, [(2, 0), (2, 0), (0, 1)]),
        (3, 1, 2, [(1, 0), (0, 0), (0, 1)]),
    ],
)
def test_the_first_tasks_may_be_those_with_servers(
    size: int, servers: int, tasks: int, plan: list[tuple[int, int]]
) -> None:
    found = [roles(rank, size, servers, 1, server_tasks=tasks) for rank in range(size)]
    assert [(len(role.servers), len(role.workers)) for role in found] == plan
    assert [index for role in found for index in role.workers] == list(
        range(num_workers(size, servers, 1, server_tasks=tasks))
    )


def test_a_rank_that_is_none_and_servers_that_leave_no_workers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="there is no rank 3 of 3"):
        roles(3, 3, 1, 1, apart=False)
    with pytest.raises(ConfigurationError, match="leave none of 2 ranks for workers"):
        roles(0, 2, 2, 1, apart=True)
    with pytest.raises(ConfigurationError, match="2 tasks for servers leave none of 2 for workers"):
        roles(0, 2, 1, 1, server_tasks=2)


@given(st.integers(1, 20), st.integers(1, 30), st.integers(1, 4), st.booleans())
def test_all_tasks_together_run_each_server_and_worker_once(size: int, servers: int, each: int, apart: bool) -> None:
    try:
        found = [roles(rank, size, servers, each, apart=apart) for rank in range(size)]
    except ConfigurationError:
        assert apart
        return
    workers = [index for role in found for index in role.workers]
    assert [index for role in found for index in role.servers] == list(range(servers))
    assert workers == list(range(num_workers(size, servers, each, apart=apart)))
    if apart:
        assert not any(role.servers and role.workers for role in found)
