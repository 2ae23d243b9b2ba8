"""Probes on two hosts that are addresses of loopback: what they find about each other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.doctor.hosts import A, B, well
from tests.tables import for_each
from zmqps.doctor import examine as examination
from zmqps.doctor.examine import Wanted, addresses_of, examine, judge
from zmqps.doctor.facts import Findings, Host, Interface, Reach
from zmqps.launch import hosts as launch
from zmqps.launch.ssh import Shell

HERE = Host(name="127.0.0.1", servers=1)


def command(name: str) -> list[str]:
    return Shell().zmqps(launch.Host(name=name, user="me"), "doctor", "--probe")


THERE = Host(name="127.0.0.2", login="me@127.0.0.2", command=command("127.0.0.2"), workers=1, servers=1)


def found(*hosts: Host, **more: Any) -> tuple[Findings, list[Reach]]:
    return asyncio.run(examine(Wanted(hosts=hosts, **more)))


def test_two_hosts_find_each_other(ssh: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "MEASURE_NBYTES", 1 << 20)
    ssh("")
    with socket.create_server(("127.0.0.1", 0)) as node:
        at = [("coordinator", "127.0.0.1", node.getsockname()[1])]
        findings, reaches = found(HERE, THERE, nodes=at)
    assert findings.problems == {}
    assert findings.addresses == {"127.0.0.1": "127.0.0.1", "127.0.0.2": "127.0.0.2"}
    assert findings.facts["127.0.0.1"].versions == findings.facts["127.0.0.2"].versions
    assert abs(findings.clocks["127.0.0.2"].ahead_s) <= findings.clocks["127.0.0.2"].error_s + 0.001
    pairs = [("127.0.0.1", "127.0.0.2"), ("127.0.0.2", "127.0.0.1")]
    assert sorted((r.source, r.target) for r in findings.reaches if not r.problem and r.port == 0) == pairs
    assert sorted((r.source, r.target) for r in findings.rates if r.nbytes_per_s > 0 and not r.encrypted) == pairs
    assert sorted((r.source, r.target, r.problem) for r in reaches) == [
        ("127.0.0.1", "coordinator", ""), ("127.0.0.2", "coordinator", ""),
    ]  # fmt: skip


def test_what_is_wrong_on_one_host_is_found_and_one_that_cannot_be_asked_keeps_nobody(
    ssh: Callable[[str], None],
) -> None:
    ssh("ulimit -n 60; [ $host = me@127.0.0.3 ] && { echo 'Permission denied.' >&2; exit 255; }")
    locked = replace(THERE, name="127.0.0.3", login="me@127.0.0.3", command=command("127.0.0.3"))
    with socket.create_server(("127.0.0.2", 0)) as busy:
        port = busy.getsockname()[1]
        findings, _ = found(THERE, locked, ports=(port,), measured=False)
    rows = [(row.where, row.check) for row in judge(findings) if row.verdict == "wrong"]
    assert rows == [("127.0.0.2", "open files"), ("127.0.0.3", "ssh"), ("127.0.0.2", f"port {port}")]
    assert findings.problems == {"127.0.0.3": "Permission denied."}


@for_each(
    "host, reached_at, address",
    [
        (A, "", "host-a"),
        (A, "10.0.0.9", "10.0.0.9"),
        (replace(A, interface="eth0"), "10.0.0.9", "10.0.0.1"),
        (replace(A, interface="eth7"), "10.0.0.9", "10.0.0.9"),
        (replace(A, address="a.lan", interface="eth0"), "10.0.0.9", "a.lan"),
    ],
)
def test_a_host_is_reached_as_the_user_says_else_as_ssh_did(host: Host, reached_at: str, address: str) -> None:
    assert addresses_of([host], {"host-a": well(1, reached_at=reached_at)}) == {"host-a": address}


def test_this_host_is_reached_by_the_way_to_the_others() -> None:
    facts = {"localhost": well(1), "host-b": well(2, reached_at="127.0.0.2")}
    assert addresses_of([Host(name="localhost"), B], facts)["localhost"] == "127.0.0.1"


def test_a_link_local_address_is_nothing_to_connect_to() -> None:
    eth0 = Interface(addresses=["fe80::1%eth0", "fd00::7"], speed_mbit=0, mtu=1500, up=True)
    facts = {"host-a": replace(well(1), interfaces={"eth0": eth0})}
    assert addresses_of([replace(A, interface="eth0")], facts) == {"host-a": "fd00::7"}
