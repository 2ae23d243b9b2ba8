"""One command starts a cluster on four hosts by ssh, and leaves nothing there, however it ends."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.lan.cluster import DIGITS, NAME, PORT, TRAINER, check_emptied, check_recording
from tests.lan.host import Process
from tests.lan.lan import Lan

#: Of core/protocol/exits.py and the shell.
HOST_LOST, INTERRUPTED = 8, 130
#: A directory that each host has, and shares with none.
HERE = Path("/tmp")
#: A worker that trains until somebody ends it.
ENDLESS = ("python", TRAINER, "--seconds", 600, "--pause", 0.2)


def launch(lan: Lan, *words: Any, options: Sequence[Any] = (), entry: str = "slots=1") -> Process:
    """Launch two servers from the first host, and one worker on each host."""
    host = lan.hosts[0]
    (host.tmp / "hosts.txt").write_text("".join(f"{other.name} {entry}\n" for other in lan.hosts))
    flags = ["--hosts", "hosts.txt", "--servers", 2, "--workers", len(lan.hosts), "--kernels", "numpy", *options]
    return host.zmqps("launch", *flags, "--", *words, cwd=HERE)


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
    (folder / "env").mkdir()
    (folder / "env" / "pyvenv.cfg").touch()
    launched = launch(lan, "python", "project/train.py", options=["--sync-code"])
    assert launched.finish(90) == 0, launched.output
    for name in lan.names:
        assert f"{name} from a file beside it" in launched.output
    said = "copying 2 files, 90 B, of /tmp/project to 4 hosts, without env/"
    assert said in launched.output
    assert sorted(path.name for path in (lan.hosts[1].tmp / "project").iterdir() if path.suffix) == [
        "part.py",
        "train.py",
    ]
    check_emptied(lan.hosts)


@pytest.mark.lan("capture")
@pytest.mark.parametrize("keyed", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["keys", "insecure"])
def test_a_recording_of_a_launched_run_holds_values_and_names_only_without_keys(lan: Lan, keyed: bool) -> None:
    listener = lan.hosts[3]  # its worker has no server beside it
    with lan.capture(listener, listener.directory / "frames.pcap") as frames:
        words = ["python", TRAINER, "--mb", 1, "--parameter", NAME]
        launched = launch(lan, *words, options=[] if keyed else ["--insecure"])
        assert launched.finish(90) == 0, launched.output
    check_recording(frames, readable=not keyed)
    check_emptied(lan.hosts)


@pytest.mark.lan("block")
def test_a_cluster_is_launched_on_the_second_network_behind_a_firewall_with_a_range_of_ports() -> None:
    with Lan(3, nics=2) as lan:
        for host in lan.hosts:
            lan.admit(host, "22", f"{PORT}:{PORT + 10}")
        before = [(host.traffic("eth0"), host.traffic("eth1")) for host in lan.hosts]
        options = ["--port", PORT, "--ports", f"{PORT + 1}-{PORT + 10}"]
        words = ["python", TRAINER, "--mb", 2]
        launched = launch(lan, *words, options=options, entry="slots=1 interface=eth1")
        assert launched.finish(90) == 0, launched.output
        first, second = [], []
        for host, (eth0, eth1) in zip(lan.hosts, before, strict=True):
            first.append((host.traffic("eth0") - eth0).received)
            second.append((host.traffic("eth1") - eth1).received)
        assert max(first) < 1e6 < 2e6 < min(second), (first, second)
        check_emptied(lan.hosts)
