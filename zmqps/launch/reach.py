"""By which address a host is reached from the others."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Mapping

from zmqps.errors import ConfigurationError

SIOCGIFADDR = 0x8915


def own_address(
    address: str, interface: str, name: str, *, is_local: bool, environment: Mapping[str, str] | None = None
) -> str:
    """Return the address that this host's nodes bind; empty where only the way to another host can tell.

    Parameters
    ----------
    address, interface
        What the user has said, if anything.
    name
        How the user calls this host.
    is_local
        Whether the launcher runs here, without ssh.
    environment
        Where ssh says by which address it was reached; by default this process's.

    Raises
    ------
    ConfigurationError
        There is no such interface, or nothing tells the address.
    """
    if address:
        return resolved(address)
    if interface:
        return address_of_interface(interface)
    if is_local:
        return ""
    words = (os.environ if environment is None else environment).get("SSH_CONNECTION", "").split()
    if len(words) == 4:
        return words[2]
    return resolved(name)


def resolved(name: str) -> str:
    """Return the address of a name; raise `ConfigurationError` if it has none here."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigurationError(
            f"{name!r} has no address here ({error}); write address= or interface= behind it in the hostfile"
        ) from None
    return str(found[0][4][0])


def route_towards(address: str) -> str:
    """Return the address by which this host reaches another one; nothing is sent."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigurationError(f"there is no way from here to {address} ({error.strerror or error})") from None


def address_of_interface(name: str) -> str:
    """Return the first address of a network interface, IPv4 if it has one."""
    request = struct.pack("256s", name.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        answer = array.array("B", request)
        fcntl.ioctl(probe, SIOCGIFADDR, answer)
        return socket.inet_ntoa(answer.tobytes()[20:24])
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as file:
        for line in file:
            digits, *_, scope, _, interface = line.split()
            if interface == name and scope == "00":  # a global one
                return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
    names = ", ".join(interface for _, interface in socket.if_nameindex())
    raise ConfigurationError(f"there is no interface {name!r} with an address on this host; there are {names}")
