"""Reachability: the addresses that servers advertise, the hosts that members come from, and reports of members."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from zmqps.core.coordinator.members.membership import MemberInfo
from zmqps.core.protocol.endpoints import host_of, is_loopback, is_wildcard, split
from zmqps.core.protocol.messages import Hello
from zmqps.errors import UnreachableAddressError, printable

#: The counter in which a worker names unreachable servers; see `zmqps.core.worker.connections.links`.
UNREACHED = "unreached"
MAX_UNREACHED_CHARS = 600
#: The most members to name that cannot reach a server.
MOST_NAMED = 8


def check_advertised(hello: Hello, origin: str) -> None:
    """Raise `UnreachableAddressError` for a server that others cannot reach.

    ``origin`` is the address of the other host that it comes from; empty: the coordinator's.
    """
    if hello.role != "server":
        return
    endpoints = hello.endpoint.split()
    node = f"server {hello.name} ({hello.host}, pid {hello.pid})"
    for endpoint in endpoints:
        if endpoint.startswith("tcp://"):
            host = host_of(endpoint)
            if not host or is_wildcard(host) or not split(endpoint)[1]:
                raise UnreachableAddressError(
                    node=node,
                    endpoint=endpoint,
                    why="to which no other node can connect",
                    advice="start it with --advertise HOST, by which workers reach its host, or without --address",
                )
    if origin and _only_here(endpoints):
        raise UnreachableAddressError(
            node=node,
            endpoint=endpoints[0],
            why=f"where only its own host can reach it, and it is not on the coordinator's: it comes from {origin}",
            advice=f"start it without --address, or with --advertise {origin}; a name that is a loopback address there "
            "(see its /etc/hosts) is of no use either",
        )


def check_in_reach(role: str, origin: str, servers: Iterable[MemberInfo]) -> None:
    """Raise `UnreachableAddressError` for a worker or observer that cannot reach a server's host."""
    for server in servers if origin else ():
        endpoints = server.hello.endpoint.split()
        if _only_here(endpoints):
            raise UnreachableAddressError(
                node=server.title,
                endpoint=endpoints[0],
                why=f"where only its own host can reach it, and this {role} is on another one ({origin})",
                advice="start coordinator and servers at an address of their host that others can reach: --address "
                "tcp://HOST:PORT",
            )


def _only_here(endpoints: list[str]) -> bool:
    """Whether endpoints can be reached from one host only."""
    remote = [endpoint for endpoint in endpoints if not endpoint.startswith("ipc://")]
    return bool(endpoints) and all(is_loopback(host_of(endpoint)) for endpoint in remote)


def unreached(counters: Mapping[str, Any]) -> str:
    """Return the servers that a worker reports as unreachable; empty for none."""
    text = counters.get(UNREACHED, "")
    return printable(text[:MAX_UNREACHED_CHARS]) if isinstance(text, str) else ""


def complaints(members: Iterable[MemberInfo]) -> Iterator[str]:
    """Yield which members cannot reach which servers, and since when, in words."""
    found = [
        f"{member.title} cannot reach {member.reported.unreached}" for member in members if member.reported.unreached
    ]
    yield from found[:MOST_NAMED]
    if len(found) > MOST_NAMED:
        yield f"{len(found) - MOST_NAMED} more members cannot reach servers"
