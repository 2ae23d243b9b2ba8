"""Errors of what the user has set: options, files, names of hosts, addresses and ports."""

from __future__ import annotations

from zmqps.errors.base import PSError


class ConfigurationError(PSError, ValueError):
    """A flag, environment variable, file entry or option that cannot be used.

    Nothing has been started or changed: it was looked at first.

    What to do next
    ---------------
    - Change what the text names. `zmqps COMMAND --help` has the options of a command, docs/operations.md the variables
      and the file.
    - A variable that is set somewhere counts too: `env | grep ZMQPS` shows them.
    """

    code = 2


class UnsafeFileError(ConfigurationError):
    """A file or directory that this process must not write to, or believe: another user may have put it there.

    Whoever may write to a directory can put a link or a file there before a command runs, so such files are neither
    read nor written.

    What to do next
    ---------------
    - Do what the text says: remove what is there, `chmod` it, or name another directory with `--directory`.
    - If you have not put it there, find out who has before you go on.
    """

    code = 13
    text = "{path} is not safe to use: {why}; {advice}"
    path: str
    why: str
    advice: str


class UnresolvedNameError(ConfigurationError):
    """A host's name stands for no address, at the moment or at all.

    What to do next
    ---------------
    - Look for a slip in the name, and whether `getent hosts NAME` knows it on the host that the text names.
    - If the host is only being set up, as in Kubernetes, start again in a moment; nodes with `--patience` wait by
      themselves.
    - Write the address in the place of the name.
    """

    code = 15
    text = "the name {name!r} does not resolve on {host} ({why}); check its spelling, or write the address"
    name: str
    host: str
    why: str


class UnreachableAddressError(ConfigurationError):
    """A server tells others an address by which they cannot reach it.

    What to do next
    ---------------
    - Name an address of the server that the others reach: `zmqps server --advertise HOST`, or the network with
      `--interface`.
    - `zmqps doctor` shows which host reaches which, and by which address.
    """

    code = 17
    text = "{node} advertises {endpoint}, {why}; {advice}"
    node: str
    endpoint: str
    why: str
    advice: str


class AddressInUseError(PSError, OSError):
    """The endpoint cannot be bound because somebody holds its port.

    What to do next
    ---------------
    - End the process that the text names, if it is a cluster of before: `zmqps down` where it was started by `zmqps
      up`.
    - Or choose another port, or 0 for a free one, which is then logged.
    """

    code = 3
    text = "cannot bind {endpoint}: port {port} is in use by {owner}; choose another port, or 0 for a free one"
    endpoint: str
    port: int
    owner: str
