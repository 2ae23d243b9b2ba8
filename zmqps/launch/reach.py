"""By which address a host is reached from the others."""

from __future__ import annotations

import os
from collections.abc import Mapping

from zmqps.errors import ConfigurationError, UnresolvedNameError
from zmqps.net.system.addresses import address_of_interface, is_loopback, join, local_address_towards, resolve


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


def undecided(addresses: Mapping[str, str]) -> tuple[list[str], str]:
    """Return the hosts whose address only the route to another host shows, and that host's address, empty if none.

    They are the launcher's host, which needed no ssh, and, where others have their own addresses, those that were
    reached by loopback: on Debian a host's own name is 127.0.1.1.
    """
    known = [address for address in addresses.values() if address]
    far = [address for address in known if not is_loopback(address)]
    return [name for name, address in addresses.items() if not address or (far and is_loopback(address))], next(
        iter(far or known), ""
    )


def resolved(name: str) -> str:
    """Return the address of a name; raise `ConfigurationError` if it has none here."""
    try:
        return resolve(name)[0]
    except UnresolvedNameError as error:
        raise ConfigurationError(
            f"{name!r} has no address here ({error.why}); write address= or interface= behind it in the hostfile"
        ) from None


def route_towards(address: str) -> str:
    """Return the address by which this host reaches another one; nothing is sent."""
    return local_address_towards(join(address, 0))
