"""Errors of what the user has set: options, files, names of hosts, addresses and ports."""

from __future__ import annotations

from zmqps.errors.base import PSError


class ConfigurationError(PSError, ValueError):
    """A flag, environment variable, file entry or option that cannot be used.

    It was checked first: nothing has been started or changed.

    What to do next
    ---------------
    - Change what the text names. `zmqps COMMAND --help` has the options of a command, docs/operations.md the variables
      and the file.
    - A variable that is set somewhere counts too: `env | grep ZMQPS` shows them.
    """

    code = 2


class UnsafeFileError(ConfigurationError):
    """A file or directory that this process must not write to or trust: another user may have put it there.

    A user with write access to a directory can put a link or a file there before a command runs, so such files are
    neither read nor written.

    What to do next
    ---------------
    - Do what the text says: remove what is there, `chmod` it, or name another directory with `--directory`.
    - If you did not put it there, find out which user did before you continue.
    """

    code = 13
    text = "{path} is not safe to use: {why}; {advice}"
    path: str
    why: str
    advice: str


class UnresolvedNameError(ConfigurationError):
    """A host's name does not resolve, now or at all.

    What to do next
    ---------------
    - Check the spelling, and run `getent hosts NAME` on the host that the text names.
    - If the host is just starting, as in Kubernetes, try again in a moment; nodes with `--patience` wait by
      themselves.
    - Write the address instead of the name.
    """

    code = 15
    text = "the name {name!r} does not resolve on {host} ({why}); check its spelling, or write the address"
    name: str
    host: str
    why: str


class UnreachableAddressError(ConfigurationError):
    """A server advertises an address that others cannot reach.

    What to do next
    ---------------
    - Give an address of the server that the others can reach: `zmqps server --advertise HOST`, or the network with
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
    """The endpoint cannot be bound because its port is in use.

    What to do next
    ---------------
    - End the process that the text names, if it is an earlier cluster: `zmqps down` where it was started by `zmqps
      up`.
    - Or choose another port, or 0 for a free one, which is then logged.
    """

    code = 3
    text = "cannot bind {endpoint}: port {port} is in use by {owner}; choose another port, or 0 for a free one"
    endpoint: str
    port: int
    owner: str
