"""Errors of what the user has set: options, files, addresses, ports, and hosts that cannot run zmqps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from zmqps.errors.base import PSError
from zmqps.words import printable


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


#: Which package has a program, where that has another name.
_PACKAGES = {"ssh": "openssh-client (openssh-clients on Fedora and its kin)"}
#: What to do about a host, by what ssh or Python have said there; the first that is found counts.
_ADVICE = (
    ((" on this host",), f"install the package {_PACKAGES['ssh']} here, or name another command with --ssh"),
    (
        ("No module named zmqps", "No module named 'zmqps'", "not found", "No such file"),
        "install zmqps there at the same path as here, or name its Python with --python",
    ),
    (
        ("No module named",),
        "a package that zmqps needs is missing there: install zmqps again, with what it depends on",
    ),
    (("No such command", "No such option"), "install the same zmqps there as here"),
)
#: The first rsync that makes the folders that it copies into.
RSYNC = "3.2.3"
#: Another version of zmqps than that of this host.
SAME_VERSION = "install the same version everywhere"


def host_advice(why: str, login: str) -> str:
    """Return what to do about a host on which zmqps did not start.

    Parameters
    ----------
    why
        What ssh or Python said.
    login
        The destination for ssh, ``user@host``.
    """
    for clues, advice in _ADVICE:
        if any(clue in why for clue in clues):
            return advice
    return f"see what `ssh {login} true` says; it must work without a password"


class UnusableHostError(PSError, ConnectionError):
    """A host cannot be reached by ssh, or cannot run this zmqps.

    What to do next
    ---------------
    - Do what the text says. `zmqps doctor -H HOST,HOST` checks all hosts.
    - ssh must let you in without a password or a prompt: `ssh -o BatchMode=yes HOST true`.
    """

    code = 30
    text = "{host} cannot run zmqps: {why}; {advice}"
    host: str
    why: str
    advice: str

    @classmethod
    def of(cls, host: str, login: str, said: Sequence[str], how: str, *, reached: bool) -> Self:
        """Return the error of a host that ssh could not reach or stay on.

        Parameters
        ----------
        host
            Its name.
        login
            The destination for ssh, ``user@host``.
        said
            The last lines that were heard.
        how
            How ssh ended, for a host of which nothing was heard.
        reached
            Whether ssh has reached it: then what is missing there may be in an earlier line than the last.
        """
        lines = [printable(line.strip()[:300]) for line in said if line.strip()]
        telling = [line for line in lines if any(clue in line for clues, _ in _ADVICE for clue in clues)]
        why = (telling if telling and reached else lines or [how])[-1]
        return cls(host=host, why=why, advice=host_advice(why if reached else "", login))


class ProgramMissingError(ConfigurationError):
    """A program that zmqps runs is not installed, or is too old: ssh here, or rsync at either end.

    What to do next
    ---------------
    - Install the package that the text names, on the host that it names.
    - Without rsync: keep the code in a directory that all hosts share, and omit `--sync-code`.
    """

    code = 31
    text = "there is no {program} on {host}: {advice}"
    program: str
    host: str
    advice: str

    @classmethod
    def of(cls, program: str, host: str) -> Self:
        """Return the error of a program that is not there; ``host`` is empty for this one."""
        package = _PACKAGES.get(program.partition(" ")[0], program.partition(" ")[0])
        advice = f"install the package {package} there"
        if program.startswith("rsync"):
            advice += ", or share the directory between the hosts and leave --sync-code out"
        return cls(program=program, host=host or "this host", advice=advice)
