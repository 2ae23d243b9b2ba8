"""What each of many equal tasks runs: the coordinator, servers, workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zmqps.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Roles:
    """What a task runs: maybe the coordinator, and the numbers of its servers and workers."""

    coordinator: bool
    servers: tuple[int, ...]
    workers: tuple[int, ...]


def roles(
    rank: int, size: int, servers: int, workers_each: int, *, apart: bool = False, server_tasks: int | None = None
) -> Roles:
    """Return what a task runs.

    Rank 0 has the coordinator. Servers are spread evenly over the ranks, and so over the hosts where neighbours share
    one. Each rank has workers, or with ``apart`` each that has no server. With ``server_tasks`` that many ranks, the
    first, have the servers, and the others the workers.

    Raises
    ------
    ConfigurationError
        There is no such rank, or none is left for workers.
    """
    if not 0 <= rank < size:
        raise ConfigurationError(f"there is no rank {rank} of {size}: ranks go from 0 to {size - 1}")
    spread = min(server_tasks or size, size)
    at = [index * spread // servers for index in range(servers)]
    mine = tuple(index for index in range(servers) if at[index] == rank)
    if server_tasks:
        others: Sequence[int] = range(server_tasks, size)
        if not others:
            raise ConfigurationError(
                f"{server_tasks} tasks for servers leave none of {size} for workers: start more tasks"
            )
    elif apart:
        others = [number for number in range(size) if number not in at]
        if not others:
            raise ConfigurationError(
                f"{servers} separate servers leave none of {size} ranks for workers: start more tasks"
            )
    else:
        others = range(size)
    first = others.index(rank) * workers_each if rank in others else 0
    number = workers_each if rank in others else 0
    return Roles(rank == 0, mine, tuple(range(first, first + number)))


def num_workers(
    size: int, servers: int, workers_each: int, *, apart: bool = False, server_tasks: int | None = None
) -> int:
    """Return how many workers all tasks have together."""
    each = (roles(rank, size, servers, workers_each, apart=apart, server_tasks=server_tasks) for rank in range(size))
    return sum(len(role.workers) for role in each)
