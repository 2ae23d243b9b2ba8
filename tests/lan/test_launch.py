"""One command starts a cluster on four hosts by ssh, and leaves nothing there, however it ends."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.imports import ROOT
from tests.lan.cluster import DIGITS
from tests.lan.host import Host, Process
from tests.lan.lan import Lan

#: Of core/protocol/exits.py and the shell.
HOST_LOST, INTERRUPTED = 8, 130
#: A directory that each host has, and shares with none.
HERE = Path("/tmp")
TRAINER = ROOT / "tests/lan/trainer.py"
#: A worker that trains until somebody ends it.
ENDLESS = ("python", TRAINER, "--seconds", 600, "--pause", 0.2)


def launch(lan: Lan, *words: Any, options: Sequence[Any] = ()) -> Process:
    """Launch two servers and four workers from the first host, one worker on each of four."""
    host = lan.hosts[0]
    (host.tmp / "hosts.txt").write_text("".join(f"{other.name} slots=1\n" for other in lan.hosts))
    flags = ["--hosts", "hosts.txt", "--servers", 2, "--workers", 4, "--kernels", "numpy", *options]
    return host.zmqps("launch", *flags, "--", *words, cwd=HERE)


def check_emptied(hosts: Sequence[Host], timeout: float = 30) -> None:
    """Nothing runs any more on hosts, and no file lies about."""
    assert {host.name: host.emptied(timeout) for host in hosts} == {host.name: [] for host in hosts}


def train(lan: Lan, *options: Any) -> Process:
    """Launch workers that go on until they are ended, and wait until all have begun."""
    launched = launch(lan, *ENDLESS, options=options)
    for index in range(4):
        launched.said(rf"worker-{index}@host-.*step 1:", 90)
    return launched


@pytest.mark.lan
def test_one_command_trains_digits_on_four_hosts(lan: Lan) -> None:
    launched = launch(lan, "python", DIGITS, "--passes", 20)
    assert launched.finish(120) == 0, launched.output
    found = re.findall(r"worker-(\d)@(host-.).*test accuracy (\d\.\d+)", launched.output)
    assert sorted((rank, host) for rank, host, _ in found) == [(str(i), lan.names[i]) for i in range(4)]
    assert all(float(accuracy) >= 0.95 for _, _, accuracy in found)
    check_emptied(lan.hosts)
    logs = {path.name for path in (lan.hosts[0].tmp / "runs/cluster/logs").iterdir()}
    assert len(logs) >= 7, logs
    assert not list(lan.hosts[1].tmp.glob("runs*"))


@pytest.mark.lan
def test_ctrl_c_ends_everything_everywhere(lan: Lan) -> None:
    launched = train(lan)
    launched.send_signal(signal.SIGINT)
    assert launched.finish() == INTERRUPTED, launched.output
    check_emptied(lan.hosts)


@pytest.mark.lan
def test_a_launcher_that_is_killed_leaves_nothing(lan: Lan) -> None:
    launched = train(lan)
    launched.kill()
    assert launched.finish() == -signal.SIGKILL
    check_emptied(lan.hosts)


@pytest.mark.lan
def test_a_host_that_vanishes_ends_the_run_and_leaves_nothing(lan: Lan) -> None:
    launched = train(lan)
    lan.power_off(lan.hosts[3])
    assert launched.finish(90) == HOST_LOST, launched.output
    assert re.search(r"error.*host-d", launched.output), launched.output
    check_emptied(lan.hosts[:3])


@pytest.mark.lan
def test_a_launcher_whose_host_vanishes_leaves_nothing_on_the_others(lan: Lan) -> None:
    train(lan)
    lan.power_off(lan.hosts[0])
    check_emptied(lan.hosts[1:], 60)


@pytest.mark.lan
def test_an_ssh_that_is_killed_ends_the_run_and_leaves_nothing(lan: Lan) -> None:
    launched = train(lan)
    connections = [line for line in lan.hosts[0].left() if line.startswith("ssh ")]
    assert len(connections) >= 3
    lan.hosts[0].run(["pkill", "-KILL", "-x", "-n", "ssh"])  # of this host only: it sees no other's processes
    assert launched.finish(90) == HOST_LOST, launched.output
    check_emptied(lan.hosts)


@pytest.mark.lan
def test_the_first_failure_is_shown_and_is_the_exit_code(lan: Lan) -> None:
    script = "import os, sys; i = os.environ['ZMQPS_WORKER_INDEX']; print('said by', i); sys.exit(3 if i == '2' else "
    launched = launch(lan, "python", "-c", script + "__import__('time').sleep(60))")
    assert launched.finish(90) == 3, launched.output
    assert "worker-2" in launched.output
    assert "said by 2" in launched.output
    check_emptied(lan.hosts)


@pytest.mark.lan
def test_code_is_copied_to_hosts_that_share_no_files(lan: Lan) -> None:
    folder = lan.hosts[0].tmp / "project"
    folder.mkdir()
    (folder / "part.py").write_text("TEXT = 'from a file beside it'\n")
    (folder / "train.py").write_text("import part, socket\nprint(socket.gethostname(), part.TEXT)\n")
    launched = launch(lan, "python", "project/train.py", options=["--sync-code"])
    assert launched.finish(90) == 0, launched.output
    for name in lan.names:
        assert f"{name} from a file beside it" in launched.output
    check_emptied(lan.hosts)
