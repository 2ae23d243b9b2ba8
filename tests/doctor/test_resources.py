"""Processors, memory, descriptors, clocks and GPUs: facts in, rows out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.doctor.hosts import A, findings, texts, well
from tests.tables import for_each
from zmqps.doctor.facts import Clock, Host, Interface, Model
from zmqps.doctor.resources import judge, needed_nbytes

BUSY = replace(A, servers=1, workers=4)
RESNET = Model(name="resnet50", nbytes=100 << 20)


def rows(host: Host = A, model: Model | None = None, clock: float = 0.0, **changes: Any) -> list[str]:
    clocks = {host.name: Clock(ahead_s=clock, error_s=0.001)}
    return texts(judge(findings((host,), facts={host.name: well(1, **changes)}, clocks=clocks, model=model)))


def test_a_host_that_is_well_has_good_rows_only() -> None:
    assert rows() == [
        "host-a | cores | good | 8 cores, 0.1 busy",
        "host-a | memory | good | 64.4 GB of 68.7 GB free",
        "host-a | /dev/shm | good | 34.4 GB of 34.4 GB free",
        "host-a | open files | good | 4096 at most",
        "host-a | clock | good | 0 s behind (± 1 ms)",
        "host-a | GPUs | good | none",
    ]


@for_each(
    "host, changes, row",
    [
        (BUSY, {"cores": 4}, "cores | warning | 4 cores, 0.1 busy, for 1 server and 4 workers"),
        (A, {"load": 6.2}, "cores | warning | 8 cores, 6.2 busy"),
        (A, {"available_nbytes": 100 << 20}, "memory | warning | 105 MB of 68.7 GB free"),
        (BUSY, {"model": Model(name="x", nbytes=20 << 30)}, "memory | wrong | 64.4 GB of 68.7 GB free, 237 GB needed"),
        (A, {"shm_nbytes": 64 << 20, "shm_free_nbytes": 64 << 20}, "/dev/shm | warning | 67.1 MB of 67.1 MB free"),
        (BUSY, {"shm_free_nbytes": 100 << 20}, "/dev/shm | warning | 105 MB of 34.4 GB free, 168 MB needed"),
        (A, {"shm_nbytes": 0, "shm_free_nbytes": 0}, "/dev/shm | warning | there is none"),
        (A, {"open_files": 256}, "open files | warning | 256 at most"),
        (BUSY, {"open_files": 64}, "open files | wrong | 64 at most, 84 needed for 5 nodes"),
        (A, {"open_files": -1}, "open files | good | no limit"),
        (A, {"clock": -3.0}, "clock | warning | 3 s behind (± 1 ms)"),
        (A, {"gpus": ["cuda:0 (H200)"]}, "GPUs | good | cuda:0 (H200)"),
        (A, {"gpus": ["0"], "gpu_problem": "a GPU needs CuPy"}, "GPUs | warning | 1 GPU, not usable"),
    ],
)
def test_what_is_short_is_said(host: Host, changes: dict[str, Any], row: str) -> None:
    assert f"host-a | {row}" in rows(host, **changes)


def test_memory_counts_what_the_nodes_of_the_host_hold() -> None:
    there = replace(A, name="host-b", servers=1)
    needed = needed_nbytes(BUSY, findings((BUSY, there), model=RESNET))
    assert needed == 3 * 50 * (1 << 20) + 2 * 4 * 100 * (1 << 20) + 5 * 150 * (1 << 20)


@for_each(
    "interfaces, row",
    [
        ({"eth0": (["10.0.0.1"], True)}, "wrong | no eth1 with an address"),
        ({"eth1": (["10.0.1.1"], False)}, "wrong | eth1 is down"),
        ({"eth1": (["10.0.1.1"], True)}, "good | eth1, 10.0.1.1"),
    ],
)
def test_an_interface_that_was_named_is_looked_at(interfaces: dict[str, tuple[list[str], bool]], row: str) -> None:
    found = {
        name: Interface(addresses=addresses, speed_mbit=1000, mtu=1500, up=up)
        for name, (addresses, up) in interfaces.items()
    }
    facts = {"host-a": replace(well(1), interfaces=found)}
    assert f"host-a | interface | {row}" in texts(judge(findings((replace(A, interface="eth1"),), facts=facts)))


@for_each(
    "login, problem, advice",
    [
        ("me@host-a", "/usr/bin/python: No module named zmqps", "--python"),
        ("me@host-a", "Error: No such command 'doctor'.", "same zmqps"),
        ("me@host-a", "me@host-a: Permission denied (publickey).", "`ssh me@host-a true`"),
        ("", "no answer within 20 s", "this host alone"),
    ],
)
def test_a_host_that_cannot_be_asked_is_wrong(login: str, problem: str, advice: str) -> None:
    [row] = judge(findings((replace(A, login=login),), facts={}, problems={"host-a": problem}))
    assert row.verdict == "wrong"
    assert row.found == problem
    assert advice in row.advice
