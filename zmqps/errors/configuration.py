"""Errors of what the user has set: options, files, names of hosts, addresses and ports."""

from __future__ import annotations

from zmqps.errors.base import PSError


class ConfigurationError(PSError, ValueError):
    """A flag, environment variable, file entry or option that cannot be used."""

    code = 2


class UnsafeFileError(ConfigurationError):
    """A file or directory that this process must not write to, or believe: another user may have put it there."""

    code = 13
    text = "{path} is not safe to use: {why}; {advice}"
    path: str
    why: str
    advice: str


class UnresolvedNameError(ConfigurationError):
    """A host's name stands for no address, at the moment or at all."""

    code = 15
    text = "the name {name!r} does not resolve on {host} ({why}); check its spelling, or write the address"
    name: str
    host: str
    why: str


class UnreachableAddressError(ConfigurationError):
    """A server tells others an address by which they cannot reach it."""

    code = 17
    text = "{node} advertises {endpoint}, {why}; {advice}"
    node: str
    endpoint: str
    why: str
    advice: str


class AddressInUseError(PSError, OSError):
    """The endpoint cannot be bound because somebody holds its port."""

    code = 3
    text = "cannot bind {endpoint}: port {port} is in use by {owner}; choose another port, or 0 for a free one"
    endpoint: str
    port: int
    owner: str
