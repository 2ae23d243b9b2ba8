"""Hosts on which all is as it should be, to change one thing of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from zmqps.doctor.facts import Findings, Host, HostFacts, Interface, Rate, Reach

VERSIONS = {
    "zmqps": "0.1.0", "protocol": "3", "source": "c0ffee", "Python": "3.11.7", "libzmq": "4.3.5", "pyzmq": "27.3.0",
    "numpy": "2.4.6", "msgpack": "1.2.4", "numba": "0.68.1",
}  # fmt: skip
WELL = HostFacts(
    hostname="host", versions=VERSIONS, cores=8, load=0.1, memory_nbytes=64 << 30, available_nbytes=60 << 30,
    shm_nbytes=32 << 30, shm_free_nbytes=32 << 30, open_files=4096, encrypts=True, gpus=[], gpu_problem="",
    interfaces={}, names={f"host-{letter}": [f"10.0.0.{number}"] for number, letter in enumerate("abcdef", 1)},
)  # fmt: skip
A, B, C = (Host(name=f"host-{letter}", login=f"me@host-{letter}") for letter in "abc")


def well(number: int, **changes: Any) -> HostFacts:
    """Return the facts of the host 10.0.0.<number>, with an interface of 1 Gbit/s."""
    interface = Interface(addresses=[f"10.0.0.{number}"], speed_mbit=1000, mtu=1500, up=True)
    return replace(WELL, interfaces={"eth0": interface}, **changes)


def reach(source: str, target: str, port: int = 0, problem: str = "", latency_s: float = 1e-4) -> Reach:
    near, far = (f"10.0.0.{'abcdefghijkl'.find(name[-1]) + 1}" for name in (source, target))
    return Reach(source=source, target=target, port=port, problem=problem, latency_s=latency_s, near=near, far=far)


def rates(source: str, target: str, there: float, back: float, *, encrypted: bool = False) -> list[Rate]:
    return [
        Rate(source=source, target=target, encrypted=encrypted, nbytes_per_s=there),
        Rate(source=target, target=source, encrypted=encrypted, nbytes_per_s=back),
    ]


def findings(hosts: Sequence[Host] = (A, B), **changes: Any) -> Findings:
    """Return hosts that are well, and reach each other at 117 MB/s."""
    pairs = [(a.name, b.name) for number, a in enumerate(hosts) for b in hosts[number + 1 :]]
    both = [*pairs, *((b, a) for a, b in pairs)]
    told: dict[str, Any] = {
        "facts": {host.name: well(number) for number, host in enumerate(hosts, 1)},
        "reaches": [reach(a, b) for a, b in both],
        "rates": [rate for a, b in pairs for rate in rates(a, b, 117e6, 117e6)],
    }
    return Findings(hosts=hosts, **{**told, **changes})


def texts(rows: Any) -> list[str]:
    """Return rows as text: where, check, verdict, found."""
    return [f"{row.where} | {row.check} | {row.verdict} | {row.found}" for row in rows]
