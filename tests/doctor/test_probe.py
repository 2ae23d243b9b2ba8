"""What a probe does when it is told to, without another host."""

from __future__ import annotations

import io
import json
import os
import socket
import threading

import pytest

from zmqps.doctor.facts import HostFacts, read
from zmqps.doctor.probe import MARK, Probe, serve

TOKEN = "00" * 32


@pytest.fixture
def probe():
    found = Probe("0.1.0")
    yield found
    found.close()


def test_a_host_says_what_it_is(probe) -> None:
    facts = read(HostFacts, probe.run({"do": "look", "names": ["127.0.0.1"], "keys": ""}))
    assert facts.versions["zmqps"] == "0.1.0"
    assert facts.cores >= 1
    assert facts.memory_nbytes > facts.available_nbytes > 0
    assert facts.names == {"127.0.0.1": ["127.0.0.1"]}
    assert any("127.0.0.1" in interface.addresses for interface in facts.interfaces.values())


def test_keys_are_looked_at_and_not_into(probe, tmp_path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    (folder / "cluster.key").touch(mode=0o640)
    [top, key] = read(HostFacts, probe.run({"do": "look", "names": [], "keys": str(folder)})).keys
    assert (top.folder, top.mode, top.own) == (True, 0o700, True)
    assert (key.folder, key.mode, key.own) == (False, 0o640, True)
    assert read(HostFacts, probe.run({"do": "look", "names": [], "keys": str(tmp_path / "no")})).keys == []


def test_ports_are_bound_and_knocked_at_and_free_again(probe) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        taken = busy.getsockname()[1]
        command = {"do": "listen", "host": "127.0.0.1", "ports": [0, taken], "token": TOKEN}
        [free, other] = probe.run(command)
    assert free["owner"] == ""
    assert f"(pid {os.getpid()})" in other["owner"]
    at = [["me", "127.0.0.1", free["port"], TOKEN], ["me", "127.0.0.1", taken, TOKEN]]
    command = {"do": "knock", "source": "here", "at": at, "patience": 1.0}
    assert [reach["problem"] for reach in probe.run(command)] == ["", "refused"]
    probe.close()
    assert [reach["problem"] for reach in probe.run(command)] == ["refused", "refused"]


def test_more_ports_than_are_looked_at_are_refused_and_not_passed_over(probe) -> None:
    with pytest.raises(ValueError, match="34 ports are too many"):
        probe.run({"do": "listen", "host": "127.0.0.1", "ports": [0] * 34, "token": TOKEN})


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_what_one_sends_another_receives(probe, host: str) -> None:
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    there = probe.run({"do": "receive", "host": host, "port": 0, "token": TOKEN, "encrypted": True})
    sent = {"to": f"tcp://{host}:{there['port']}", "token": TOKEN, "key": there["key"]}
    assert probe.run({"do": "send", **sent, "seconds": 0.05, "nbytes": 1 << 20, "patience": 2.0}) > 0


def test_commands_come_in_lines_and_a_bad_one_is_answered() -> None:
    reading, writing = os.pipe()
    lines = [b'{"number": 1, "do": "time"}', b"nonsense", b'{"number": 2, "do": "listen"}', b'{"number": 3}']
    threading.Thread(target=lambda: (os.write(writing, b"\n".join(lines) + b"\n"), os.close(writing))).start()
    answers = io.BytesIO()
    with os.fdopen(reading, "rb") as commands:
        serve(commands, answers, "0.1.0")
    found = [json.loads(line.removeprefix(MARK)) for line in answers.getvalue().decode().splitlines()]
    assert [answer["number"] for answer in found] == [1, None, 2, 3]
    assert ["error" in answer for answer in found] == [False, True, True, True]
