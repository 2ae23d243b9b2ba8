"""Where a node listens, and the address that it advertises."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from zmqps.core.protocol.endpoints import check_endpoint
from zmqps.errors import AddressInUseError, ConfigurationError, UnresolvedNameError
from zmqps.net.system.addresses import (
    LOOPBACK,
    address_of_interface,
    family_of,
    host_of,
    interfaces,
    ip_of,
    is_wildcard,
    join,
    local_address_towards,
    outward_address,
    parse_ports,
    split,
    usable_addresses,
)

#: Between two attempts to find a name that does not resolve: it may be that of a host that is just starting.
AGAIN_S = 2.0
ALL_IPV4, ALL_IPV6 = "0.0.0.0", "::"


@dataclass(frozen=True, slots=True)
class Place:
    """What the user has said of where a node listens; what is empty follows from the rest.

    Parameters
    ----------
    address
        The endpoint to bind.
    advertise
        The host, or host and port, to advertise.
    interface
        The network interface to listen on, and whose address to advertise.
    ports
        A range such as ``5571-5580``, the first free one of which is taken where the address leaves it open.
    """

    address: str = ""
    advertise: str = ""
    interface: str = ""
    ports: str = ""

    def check(self) -> None:
        """Raise `ConfigurationError` for impossible options, as far as that is known without asking the system."""
        if self.address:
            check_endpoint(self.address)
        if self.advertise:
            _target(self.advertise, 1)
        if self.ports:
            parse_ports(self.ports)
            if self.address.startswith("tcp://") and split(self.address)[1]:
                raise ConfigurationError(f"{self.address} has a port already; leave out --ports, or write port 0")
        if self.interface and self.address.startswith("tcp://"):
            host = split(self.address)[0]
            if not is_wildcard(host) and host != self.interface:
                raise ConfigurationError(
                    f"--address {self.address} and --interface {self.interface} both say where to listen; leave out one"
                )

    def binds(self, port: int, towards: str = "") -> str:
        """Return the endpoint to bind.

        Parameters
        ----------
        port
            Which, unless the address says so.
        towards
            The coordinator's endpoint; for the coordinator itself empty.

        Raises
        ------
        ConfigurationError
            This host has no such interface, or no way to the coordinator.
        """
        if self.address:
            return self.address
        if self.interface:
            return join(address_of_interface(self.interface, self._family(towards)), port)
        if self.advertise:
            host = split(_target(self.advertise, 1))[0]
            if any(host in addresses for addresses in interfaces().values()):
                return join(host, port)
            return join(ALL_IPV6 if ":" in host else ALL_IPV4, port)
        return join(local_address_towards(towards) if towards else LOOPBACK, port)

    def advertises(self, bound: str, towards: str = "") -> str:
        """Return the endpoint by which others reach a node that has bound one.

        Raises
        ------
        ConfigurationError
            Nothing says by which address they do.
        """
        if not bound.startswith("tcp://"):
            return bound
        host, port = split(bound)
        if self.advertise:
            return _target(self.advertise, port)
        if not is_wildcard(host):
            return bound
        if self.interface:
            return join(address_of_interface(self.interface, self._family(towards)), port)
        found = local_address_towards(towards) if towards else outward_address()
        if ":" in found and host != ALL_IPV6:
            raise ConfigurationError(
                f"{bound} takes IPv4 only, and the way to {towards or 'others'} is over IPv6; bind tcp://[::]:{port}, "
                "or say with --advertise how others reach this node"
            )
        return join(found, port)

    def _family(self, towards: str) -> int:
        """Return which addresses of an interface to take: those of the coordinator's kind, where it has any."""
        family = family_of(local_address_towards(towards)) if towards else 0
        return family if any(family_of(a) == family for a in interfaces().get(self.interface, ())) else 0

    def bind(self, bind: Callable[[str], str], endpoint: str) -> str:
        """Bind an endpoint, on the first free port of the range where there is one; return what was bound.

        Raises
        ------
        AddressInUseError
            The port is in use, or all of them are.
        """
        if not self.ports or not endpoint.startswith("tcp://"):
            return bind(endpoint)
        taken = []
        for port in parse_ports(self.ports):
            try:
                return bind(join(split(endpoint)[0], port))
            except AddressInUseError as error:
                taken.append(error)
        if len(taken) == 1:
            raise taken[0].again()
        owners = ", ".join(f"{error.port} by {error.owner}" for error in taken[:4])
        raise ConfigurationError(
            f"all ports of {self.ports} are in use on {host_of(endpoint)}: {owners}{' …' if len(taken) > 4 else ''}; "
            "name more with --ports, and open them in the firewall"
        )


async def resolved(find: Callable[[], str], parent_fd: int | None, log: logging.Logger) -> str | None:
    """Return what is found once the name that it needs resolves; None if the parent process ends before."""
    gone, loop, said = asyncio.Event(), asyncio.get_running_loop(), ""
    if parent_fd is not None:
        loop.add_reader(parent_fd, gone.set)
    try:
        while not gone.is_set():
            try:
                return await asyncio.to_thread(find)
            except UnresolvedNameError as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("%s; trying again every %.0f s", said, AGAIN_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(gone.wait(), AGAIN_S)
    finally:
        if parent_fd is not None:
            loop.remove_reader(parent_fd)
    return None


def other_addresses(bound: str, advertised: str) -> list[str]:
    """Return by which other addresses a node that listens on all of them can be reached."""
    if not bound.startswith("tcp://") or not is_wildcard(host_of(bound)):
        return []
    both = host_of(bound) == ALL_IPV6
    return [a for a in usable_addresses() if (both or ":" not in a) and a != host_of(advertised)]


def _target(advertise: str, port: int) -> str:
    """Return the endpoint that ``--advertise`` means: a host, or a host and a port."""
    text = advertise.removeprefix("tcp://")
    if ip_of(text) is not None:
        text = join(text, port)
    elif ":" not in text.rpartition("]")[2]:
        text = f"tcp://{text}:{port}"
    else:
        text = f"tcp://{text}"
    try:
        host, found = split(text)
    except ConfigurationError:
        host, found = "", 0
    if not host or not found or is_wildcard(host):
        raise ConfigurationError(
            f"advertise={advertise!r:.200} cannot be connected to; give a host's name or address, HOST or HOST:PORT"
        )
    return text
