"""The LAN itself: what tests on it build upon."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.imports import ROOT
from tests.lan.host import Host
from tests.lan.lan import PLACE, Lan
from tests.lan.namespaces import LanError
from tests.pace import allow

PLAIN = ROOT / "tests/lan/plain.py"
MB = 1_000_000


def listen(host: Host, port: int = 7000) -> None:
    host.popen(["python", PLAIN, "serve", port]).said("listening")


def ping(host: Host, to: str, port: int = 7000, timeout: float = 40) -> float:
    """Return the seconds of a round trip."""
    return float(host.run(["python", PLAIN, "ping", to, port], timeout=timeout))


def send(host: Host, to: str, nbytes: int, port: int = 7000) -> float:
    return float(host.run(["python", PLAIN, "send", to, port, nbytes], timeout=allow(50)))


@pytest.mark.lan
def test_hosts_are_hosts_of_their_own_and_reach_each_other_by_ssh(lan: Lan) -> None:
    a, b = lan.hosts[:2]
    said = a.run(["ssh", b.name, "hostname; echo $HOME; touch ~/here /tmp/here /dev/shm/here; ps -e -o args="])
    assert said.splitlines()[:2] == [b.name, str(b.home)]
    assert "python" not in "".join(said.splitlines()[3:])  # but for process 1: none of the tests, none of other hosts
    assert (b.home / "here").exists()
    assert (b.tmp / "here").exists()
    for name in (str(b.home / "here"), "/tmp/here", "/dev/shm/here", str(a.home / "here")):
        with pytest.raises(LanError):
            a.run(["ls", name])
    assert a.run(["ssh", f"{b.name}-v6", "echo $SSH_CONNECTION"]).split()[:3:2] == [a.address6, b.address6]
    own = "/proc/sys/kernel/random/boot_id"
    assert len({Path(own).read_text(), *(host.run(["cat", own]) for host in (a, b))}) == 3
    assert not a.left()


@pytest.mark.lan
def test_one_home_for_all_and_two_interfaces_where_asked() -> None:
    with Lan(3, nics=[2, 2, 1], shared_home=True, debian_names=True) as lan:
        a, b, c = lan.hosts
        (a.home / "here").write_text("to all")
        assert b.run(["cat", "here"]) == "to all"
        listen(b)
        ping(a, b.ipv4["eth1"])
        before = b.traffic("eth1")
        assert (b.traffic("eth1") - before).received == 0
        ping(a, b.ipv6["eth1"])
        assert (b.traffic("eth1") - before).received > 0
        with pytest.raises(LanError, match="unreachable"):
            ping(c, b.ipv4["eth1"])
        assert "127.0.1.1" in b.run(["getent", "hosts", b.name])
        assert "127.0.1.1" not in a.run(["getent", "hosts", b.name])


@pytest.mark.lan("limit")
def test_wires_are_cut_limited_delayed_and_lossy(lan: Lan) -> None:
    a, b, c = lan.hosts[:3]
    listen(b)
    assert ping(a, b.name) < 0.02
    lan.limit(b, mbit=50)
    assert 1.6 < send(a, b.name, 10 * MB) < 3  # both ways
    lan.limit(b, mbit=None)
    assert send(a, b.name, 10 * MB) < 1
    lan.delay(b, ms=60)
    assert 0.06 < ping(a, b.name) < 0.12
    assert ping(a, c.name, 22) < 0.02
    lan.loss(b, 0.02)
    before = a.traffic()
    send(a, b.name, 2 * MB)
    assert (a.traffic() - before).sent > 2.01 * MB  # what was lost was sent again
    lan.delay(b, ms=0)
    lan.loss(b, 0)
    lan.cut(b)
    with pytest.raises(LanError, match=r"timed out|No route to host"):
        ping(a, b.name)
    lan.heal(b)
    ping(a, b.name)
    lan.cut(c, carrier=True)
    assert "state DOWN" in c.run(["ip", "link", "show", "eth0"])
    lan.heal(c)
    ping(a, c.name, 22)


@pytest.mark.lan("block", "capture")
def test_a_firewall_blocks_and_a_capture_holds_what_was_sent(lan: Lan, tmp_path: Path) -> None:
    a, b, c = lan.hosts[:3]
    for port in (7000, 7001):
        listen(b, port)
    lan.block(b, "7001", reject=True)
    with pytest.raises(LanError, match="refused"):
        ping(a, b.name, 7001)
    lan.block(b, "7000", source=c)
    with lan.capture(b, b.directory / "frames.pcap") as frames:
        ping(a, b.name, 7000)
    assert b.address in b.run(["tcpdump", "-n", "-r", frames])
    with pytest.raises(LanError, match="not ended"):
        ping(c, b.address, 7000, timeout=2)
    lan.unblock(b)
    ping(c, b.address6, 7001)
    lan.admit(b, "22", "7001:7010")
    for address in (b.address, b.address6):
        ping(c, address, 7001)
        with pytest.raises(LanError, match="not ended"):
            ping(c, address, 7000, timeout=2)
    listen(c)
    ping(b, c.address)  # it still reaches others


@pytest.mark.lan
def test_a_host_that_loses_its_power_says_no_word(lan: Lan) -> None:
    a, b = lan.hosts[:2]
    options = ["-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=2"]
    waits = a.popen(["ssh", *options, b.name, "echo on; exec sleep 1000"])
    waits.said("on")
    assert "sleep" in " ".join(b.left())
    lan.power_off(b)
    assert waits.finish() == 255
    assert "not responding" in waits.output
    assert not b.left()


@pytest.mark.lan
def test_nothing_is_left_of_a_lan_whose_process_was_killed() -> None:
    script = """if True:
        from tests.lan.lan import Lan
        with Lan(2) as lan:
            lan.hosts[0].popen(["sleep", "1000"])
            print("up", *(host.namespaces.pid for host in lan.hosts), flush=True)
            input()
    """
    killed = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdin=-1, stdout=-1, text=True)
    assert killed.stdout is not None
    word, *pids = killed.stdout.readline().split()
    assert word == "up"
    files = list(PLACE.glob(f"zmqps-lan-{killed.pid}-*"))
    assert files
    ends = [os.pidfd_open(int(pid)) for pid in pids]
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    for end in ends:
        assert select.select([end], [], [], 10)[0]
        os.close(end)
    with Lan(1, ssh=False):
        assert not any(path.exists() for path in files)
