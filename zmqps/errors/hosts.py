"""Errors of hosts that are reached by ssh: those that cannot run zmqps, and programs that are missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from zmqps.errors.base import PSError
from zmqps.errors.configuration import ConfigurationError
from zmqps.words import printable

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
