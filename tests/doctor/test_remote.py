"""Probes by ssh: how they are started, what they say, and each way they can fail."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from zmqps.doctor import remote
from zmqps.doctor.facts import Host
from zmqps.doctor.remote import ProbeError, RemoteProbe
from zmqps.launch import hosts as launch
from zmqps.launch.ssh import Shell

SHELL = Shell().zmqps(launch.Host(name="127.0.0.2", user="me"), "doctor", "--probe")
THERE = Host(name="127.0.0.2", login="me@127.0.0.2", command=SHELL)


def ask(timeout: float = 20.0, **command: Any) -> Any:
    async def run() -> Any:
        async with RemoteProbe(THERE) as probe:
            return await probe.ask(timeout, **command)

    return asyncio.run(run())


def test_what_a_login_shell_says_is_passed_over_and_what_a_probe_cannot_do_is_told(ssh: Callable[[str], None]) -> None:
    ssh("echo 'Welcome to $host!'")
    with pytest.raises(ProbeError, match="unknown command 'dance'"):
        ask(do="dance")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("echo 'me@127.0.0.2: Permission denied (publickey).' >&2; exit 255", r"Permission denied \(publickey\)"),
        ("exit 1", "it ended at once"),
        ("while :; do echo noise; done", "lines of something else"),
        ("""printf 'zmqps-doctor {"number": 0, "error": "a\\\\u001b[2Jb"}\\n'; exec cat >/dev/null""", r"a\\x1b\[2Jb"),
        ("head -c 9000000 /dev/zero; exit", "it ended at once"),
    ],
)
def test_a_probe_that_goes_wrong_says_why(
    ssh: Callable[[str], None], lines: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "END_S", 0.1)
    ssh(lines)
    with pytest.raises(ProbeError, match=message):
        ask(do="time")


def test_a_probe_that_says_nothing_is_given_up_and_ended(
    ssh: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "END_S", 0.1)
    ssh("exec sleep 60")
    with pytest.raises(ProbeError, match="no answer within"):
        ask(0.05, do="time")
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            assert "sleep" not in child.cmdline()


def test_no_ssh_at_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ProbeError, match="there is no ssh on this host"):
        ask(do="time")
