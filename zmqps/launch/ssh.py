"""The commands that reach a host: the system's own ssh, so that its configuration, agent and jump hosts count."""

from __future__ import annotations

import math
import shlex
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from zmqps.errors import ConfigurationError
from zmqps.launch.hosts import Host

#: Never ask for a password; give up a host that does not answer.
OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "RemoteCommand=none")
#: A host that falls silent, too: ssh asks this many times, one interval after the other, and ends an interval later.
ALIVE_COUNT = 3
#: The longest interval, in seconds, whatever silence is allowed: ssh takes no number that is too large.
MAX_ALIVE_S = 1 << 20


@dataclass(frozen=True, slots=True)
class Shell:
    """How hosts are reached.

    Attributes
    ----------
    ssh
        The command in place of ``ssh``; takes the same arguments.
    python
        The Python that runs zmqps on each host; empty: the path of this Python.
    silence
        Seconds without a word after which an agent ends by itself, and the launcher gives a host up. ssh does so later.
    """

    ssh: str = "ssh"
    python: str = ""
    silence: float = 20.0

    def agent(self, host: Host) -> list[str]:
        """Return the command that runs the agent of a host."""
        return self.zmqps(host, "agent", f"{self.silence:g}")

    def zmqps(self, host: Host, *arguments: str) -> list[str]:
        """Return the command that runs ``zmqps`` with arguments on a host."""
        command = [host.python or self.python or sys.executable, "-P", "-m", "zmqps", *arguments]
        if host.is_local:
            return command
        path = _home()
        prefix = ["env", f"PYTHONPATH={path}"] if path and not (host.python or self.python) else []
        return [*self.reach(host), "--", host.destination, shlex.join(["exec", *prefix, *command])]

    def reach(self, host: Host) -> list[str]:
        """Return ssh's command up to the name of the host."""
        port = ["-p", str(host.port)] if host.port else []
        interval = min(math.ceil(self.silence / ALIVE_COUNT), MAX_ALIVE_S)
        alive = (f"ServerAliveInterval={interval}", f"ServerAliveCountMax={ALIVE_COUNT}")
        return [*self._ssh(), "-T", *(word for option in (*OPTIONS, *alive) for word in ("-o", option)), *port]

    def copy(self, host: Host, folder: Path, there: str) -> list[str]:
        """Return the command that copies the files of a folder that are named on its input to one of a host."""
        name = f"[{host.name}]" if ":" in host.name else host.name
        target = f"{host.user}@{name}" if host.user else name
        return [
            "rsync", "--archive", "--compress", "--mkpath", "--from0", "--files-from=-", "--ignore-missing-args",
            "--rsh", shlex.join(self.reach(host)), "--", f"{folder}/", f"{target}:{there}/",
        ]  # fmt: skip

    def _ssh(self) -> list[str]:
        try:
            words = shlex.split(self.ssh)
        except ValueError as error:
            raise ConfigurationError(f"--ssh {self.ssh!r:.100} is not a command: {error}") from None
        if not words:
            raise ConfigurationError("--ssh names no command")
        return words


def _home() -> str:
    """Return where this package is, unless every program of this Python finds it anyway."""
    home = str(Path(__file__).parents[2])
    return "" if home in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")) else home
