"""The commands that reach a host."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tests.tables import for_each
from zmqps.errors import ConfigurationError
from zmqps.launch.hosts import Host
from zmqps.launch.ssh import Shell

HOST = Host(name="host-b", user="me", port=2222)


def test_an_agent_is_reached_without_passwords_and_told_nothing_secret() -> None:
    command = Shell("ssh -i 'a key'").agent(HOST)
    assert command[:3] == ["ssh", "-i", "a key"]
    assert "BatchMode=yes" in command
    assert command[command.index("-p") + 1] == "2222"
    assert command[-3:-1] == ["--", "me@host-b"]
    words = shlex.split(command[-1])
    assert words[0] == "exec"
    assert words[-6:] == [sys.executable, "-P", "-m", "zmqps", "agent", "20"]


def test_this_host_needs_no_ssh_and_another_python_finds_its_own_package() -> None:
    assert Shell().agent(Host(name="localhost"))[0] == sys.executable
    assert Shell().agent(Host(name="localhost", user="me"))[0] == "ssh"
    assert "exec /opt/python -P -m zmqps agent 20" in Shell(python="/opt/python").agent(HOST)
    assert "exec /a/python -P -m zmqps agent 3.5" in Shell("ssh", "/opt/python", 3.5).agent(
        Host(name="host-b", python="/a/python")
    )


@for_each("silence", [1.0, 3.5, 20.0, 90.0, 1e9])
def test_ssh_gives_up_a_silent_host_after_the_silence_that_is_allowed_and_not_before(silence: float) -> None:
    options = dict(word.split("=") for word in Shell(silence=silence).reach(HOST) if word.startswith("ServerAlive"))
    count, interval = int(options["ServerAliveCountMax"]), int(options["ServerAliveInterval"])
    gives_up_after = (count + 1) * interval  # it asks so many times, and waits for the last answer as long
    if silence < 1e6:
        assert silence < gives_up_after <= 2 * silence + count + 1
    else:
        assert gives_up_after > 1e6
        assert interval < 1 << 31  # what ssh can read


def test_a_folder_is_copied_by_the_same_ssh() -> None:
    command = Shell("ssh -F file").copy(HOST, Path("/home/me/my code"), "/srv/my code")
    assert command[0] == "rsync"
    assert command[-2:] == ["/home/me/my code/", "me@host-b:/srv/my code/"]
    assert shlex.split(command[command.index("--rsh") + 1])[:3] == ["ssh", "-F", "file"]
    assert "--files-from=-" in command, "which files is said on its input"
    assert Shell().copy(Host(name="fd00::7"), Path("/a"), "/b")[-1] == "[fd00::7]:/b/"


@for_each("ssh", ["", "'", "  "])
def test_a_shell_that_is_no_command_is_refused(ssh: str) -> None:
    with pytest.raises(ConfigurationError, match="--ssh"):
        Shell(ssh).agent(HOST)
