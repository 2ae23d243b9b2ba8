"""Endpoints as text: ``tcp://HOST:PORT``, ``tcp://[IPV6]:PORT``, ``ipc://PATH``; without asking the system."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address

from zmqps import checks
from zmqps.errors import ConfigurationError

MAX_PORT = (1 << 16) - 1
#: More ports than firewalls open for one host's nodes, and few enough to try them all.
MAX_PORTS = 1000
#: libzmq's notation for all IPv4 addresses of this host.
STAR = "*"
_TCP = "tcp://"


def split(endpoint: str) -> tuple[str, int]:
    """Return host and port of a ``tcp://`` endpoint; the host without brackets.

    Raises
    ------
    ConfigurationError
        It is not such an endpoint.
    """
    refusal = ConfigurationError(f"{endpoint!r:.200} is not an endpoint; write tcp://HOST:PORT or ipc://PATH")
    if not endpoint.startswith(_TCP):
        raise refusal
    rest = endpoint[len(_TCP) :]
    if rest.startswith("["):
        host, _, port = rest[1:].partition("]:")
        if not isinstance(ip_of(host), IPv6Address):
            raise refusal
    else:
        host, _, port = rest.rpartition(":")
        if ":" in host:
            raise ConfigurationError(
                f"{endpoint!r:.200} is not an endpoint; write an IPv6 address in brackets: tcp://[fd00::1]:5570"
            )
        if host != STAR and not (host and all(c.isascii() and (c.isalnum() or c in "-._") for c in host)):
            raise refusal
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= MAX_PORT):
        raise refusal
    return host, int(port)


def join(host: str, port: int) -> str:
    """Return the endpoint of a host and a port; an IPv6 address gets its brackets."""
    return f"{_TCP}[{host}]:{port}" if ":" in host else f"{_TCP}{host}:{port}"


def host_of(endpoint: str) -> str:
    """Return the host of an endpoint; empty if it is not a TCP one."""
    try:
        return split(endpoint)[0]
    except ConfigurationError:
        return ""


def host_named(authority: str) -> str:
    """Return the host in a Host header, without brackets and port; empty without one.

    It is read strictly: not ``[::1].example.com``, no user, no zone, no second host.
    """
    has_port = ":" in authority and not authority.endswith("]")
    try:
        host, _ = split(f"{_TCP}{authority}" if has_port else f"{_TCP}{authority}:0")
    except ConfigurationError:
        return ""
    return "" if "%" in host or host == STAR else host


def is_of(origin: str, authority: str) -> bool:
    """Whether an Origin header, as browsers send it for other sites, names the same site as a Host header."""
    return origin.lower() in (f"http://{authority}".lower(), f"https://{authority}".lower())


def ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return a host as an address, IPv4 mapped into IPv6 as IPv4; None for a name."""
    try:
        found = ip_address(host)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def is_loopback(host: str) -> bool:
    """Whether a host is this host: ``127.0.0.0/8``, ``::1``, ``localhost``. Other names are not resolved."""
    found = ip_of(host)
    name = host.lower().removesuffix(".")
    return found.is_loopback if found is not None else name == "localhost" or name.endswith(".localhost")


def is_wildcard(host: str) -> bool:
    """Whether a host means all addresses of this one: ``0.0.0.0``, ``::`` or ``*``."""
    found = ip_of(host)
    return host == STAR if found is None else found.is_unspecified


def parse_ports(text: str) -> range:
    """Return the ports of ``5571-5580``, or of ``5571``.

    Raises
    ------
    ConfigurationError
        It is neither, or too large a range.
    """
    first, dash, last = text.strip().partition("-")
    ends = [first, last if dash else first]
    if not all(end.strip().isascii() and end.strip().isdecimal() and len(end.strip()) <= 5 for end in ends):
        raise ConfigurationError(f"ports={text!r:.60} is neither a port nor a range; write 5571 or 5571-5580")
    low, high = int(ends[0]), int(ends[1])
    if not 1 <= low <= high <= MAX_PORT or high - low >= MAX_PORTS:
        raise ConfigurationError(
            f"ports={text!r:.60}: write the lower port first, both of them 1 to {MAX_PORT}, at most {MAX_PORTS} in all"
        )
    return range(low, high + 1)


def check_peer(endpoint: object) -> str:
    """Return an endpoint to connect to; raise `ConfigurationError` for any other."""
    endpoint = check_endpoint(endpoint)
    if endpoint.startswith("tcp://"):
        host, port = split(endpoint)
        if is_wildcard(host) or not port:
            raise ConfigurationError(f"{endpoint!r:.200} cannot be connected to; write the coordinator's host and port")
    return endpoint


def check_endpoint(endpoint: object) -> str:
    """Return an endpoint such as ``tcp://127.0.0.1:5570``; raise `ConfigurationError` for anything else."""
    if not isinstance(endpoint, str):
        raise ConfigurationError(
            f"{checks.shown(endpoint):.60} is not an endpoint; write tcp://HOST:PORT or ipc://PATH"
        )
    if not endpoint.startswith("ipc://") or endpoint == "ipc://":
        split(endpoint)
    return endpoint
