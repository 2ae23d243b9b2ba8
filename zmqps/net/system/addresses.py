"""Addresses of this host and of others: names, interfaces, routes, ranges of ports, owners of ports."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence

from zmqps.core.protocol.endpoints import (
    MAX_PORT,
    STAR,
    host_of,
    ip_of,
    is_loopback,
    is_wildcard,
    join,
    parse_ports,
    split,
)
from zmqps.errors import ConfigurationError, UnresolvedNameError

__all__ = (
    "address_of_interface",
    "family_of",
    "host_of",
    "interfaces",
    "ip_of",
    "ipv4_first",
    "is_link_local",
    "is_loopback",
    "is_wildcard",
    "join",
    "local_address_towards",
    "outward_address",
    "parse_ports",
    "places",
    "resolve",
    "split",
    "usable_addresses",
)

#: The system's resolver asks each of its servers for 5 seconds; a caller wants an answer before.
RESOLVE_TIMEOUT = 4.0
LOOPBACK = "127.0.0.1"
#: Networks for documentation (RFC 5737, RFC 3849): unassigned, so their route is the default route.
FAR_AWAY = ("tcp://192.0.2.1:9", "tcp://[2001:db8::1]:9")


def resolve(host: str, timeout: float = RESOLVE_TIMEOUT) -> list[str]:
    """Return the addresses of a host, in the system's order of preference; for an address itself.

    Parameters
    ----------
    host
        A name or an address, without brackets.
    timeout
        Seconds to wait for the system's resolver, which may take tens of seconds.

    Raises
    ------
    UnresolvedNameError
        It has no address, or the resolver has not answered in time.
    """
    if ip_of(host) is not None:
        return [host]
    found: list[str] = []
    reason = [f"no answer within {timeout:.0f} s"]

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            reason[0] = getattr(error, "strerror", None) or str(error)
        else:
            found.extend(dict.fromkeys(str(answer[4][0]) for answer in answers))

    asking = threading.Thread(target=ask, name="zmqps-resolve", daemon=True)  # the resolver cannot be interrupted
    asking.start()
    asking.join(timeout)
    if found:
        return list(found)
    raise UnresolvedNameError(name=host[:255], host=socket.gethostname(), why=reason[0])


def local_address_towards(endpoint: str, timeout: float = RESOLVE_TIMEOUT) -> str:
    """Return this host's address on the route to an endpoint; sends nothing.

    Raises
    ------
    UnresolvedNameError
        The endpoint's name has no address.
    ConfigurationError
        There is no route to it.
    """
    if not endpoint.startswith("tcp://"):
        return LOOPBACK
    host, port = split(endpoint)
    reasons = []
    for address in resolve(LOOPBACK if host == STAR else host, timeout):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(socket.getaddrinfo(address, port or MAX_PORT, family, socket.SOCK_DGRAM)[0][4])
                return str(probe.getsockname()[0])
        except OSError as error:
            reasons.append(f"{address}: {error.strerror or error}")
    raise ConfigurationError(
        f"there is no way from {socket.gethostname()} to {endpoint} ({'; '.join(reasons)}); "
        "check its address and this host's network, or say with --advertise how others reach this node"
    )


def outward_address() -> str:
    """Return the address by which others most likely reach this host; a loopback one without any other."""
    for endpoint in FAR_AWAY:
        with contextlib.suppress(ConfigurationError):
            return local_address_towards(endpoint)
    usable = usable_addresses()  # no default route: an isolated network
    return usable[0] if usable else LOOPBACK


def usable_addresses() -> list[str]:
    """Return the addresses of this host that others can use, IPv4 first."""
    found = [a for addresses in interfaces().values() for a in addresses if not is_loopback(a) and not is_link_local(a)]
    return sorted(found, key=lambda address: family_of(address) == socket.AF_INET6)


def places(endpoint: str) -> list[str]:
    """Return the endpoints to bind for one, with addresses instead of names, IPv4 first.

    A name may be that of a network interface.

    Raises
    ------
    ConfigurationError
        The name is unknown.
    """
    if not endpoint.startswith("tcp://"):
        return [endpoint]
    host, port = split(endpoint)
    if host == STAR or ip_of(host) is not None:
        return [endpoint]
    found = [address_of_interface(host)] if host in interfaces() else resolve(host)
    return [join(address, port) for address in ipv4_first(found)]


def ipv4_first(addresses: Sequence[str]) -> list[str]:
    """Return addresses in order, but those of IPv6 last: if a name has both, all nodes use the same."""
    return sorted(addresses, key=lambda address: family_of(address) == socket.AF_INET6)


def interfaces() -> dict[str, list[str]]:
    """Return the addresses of each network interface of this host, IPv4 first."""
    import psutil

    found: dict[str, list[str]] = {}
    for name, entries in psutil.net_if_addrs().items():
        addresses = [e.address for family in (socket.AF_INET, socket.AF_INET6) for e in entries if e.family == family]
        found[name] = addresses
    return found


def address_of_interface(name: str, family: int = socket.AF_UNSPEC) -> str:
    """Return an address of a network interface, one that other hosts can use if it has any.

    Parameters
    ----------
    name
        Of the interface, such as ``eth1``.
    family
        ``socket.AF_INET`` or ``socket.AF_INET6``; by default IPv4 if the interface has it.

    Raises
    ------
    ConfigurationError
        This host has no such interface, or it has no such address; names the existing ones.
    """
    known = interfaces()
    addresses = [a for a in known.get(name, ()) if family in (socket.AF_UNSPEC, family_of(a))]
    if addresses:
        # a link-local one means nothing without the name of the user's interface
        return next((a for a in addresses if not is_link_local(a)), addresses[0])
    there = ", ".join(f"{n} ({', '.join(known[n]) or 'no address'})" for n in sorted(known)) or "none"
    kind = {socket.AF_INET: "IPv4 ", socket.AF_INET6: "IPv6 "}.get(socket.AddressFamily(family), "")
    what = f"the interface {name!r:.60} has no {kind}address" if name in known else f"no interface {name!r:.60}"
    raise ConfigurationError(f"{what} on {socket.gethostname()}; there are {there}")


def family_of(address: str) -> socket.AddressFamily:
    """Return ``AF_INET6`` for an address of IPv6, ``AF_INET`` for any other and for names."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def is_link_local(host: str) -> bool:
    """Whether an address is valid only on its link."""
    found = ip_of(host)
    return found is not None and found.is_link_local


def owner_of(port: int) -> str:
    """Return the listener on a port, as far as this user may know."""
    import psutil

    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:  # not Linux: only root may ask
        connections = []
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            return f"{_name_of(connection.pid)} (pid {connection.pid})"
    return "another process"


def _name_of(pid: int) -> str:
    import psutil

    try:
        return psutil.Process(pid).name() or "a process"
    except psutil.Error:  # it has just ended
        return "a process"
