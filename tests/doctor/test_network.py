"""Names and ports: who cannot resolve whom, who does not reach whom, and why."""

from __future__ import annotations

from dataclasses import replace

from tests.doctor.hosts import A, B, C, findings, reach, texts, well
from tests.tables import for_each
from zmqps.doctor.facts import Host, Port
from zmqps.doctor.network import is_loopback, judge, named

THERE = {"host-a": ["10.0.0.1"], "host-b": ["10.0.0.2"]}


def names(of_a: dict[str, list[str]], of_b: dict[str, list[str]], **addresses: str) -> list[str]:
    facts = {"host-a": well(1, names=of_a), "host-b": well(2, names=of_b)}
    found = {name.replace("_", "-"): address for name, address in addresses.items()}
    return texts(judge(findings(facts=facts, addresses=found)))


def test_names_that_resolve_everywhere_are_one_row() -> None:
    assert names(THERE, THERE) == ["all hosts | names | good | every host can resolve host-a and host-b"]


@for_each(
    "of_b, row",
    [
        ({**THERE, "host-a": []}, "host-b | names | wrong | cannot resolve host-a"),
        ({**THERE, "host-a": ["127.0.0.1"]},
         "host-b | names | wrong | host-a leads to 127.0.0.1, back to the host that asks"),
        ({**THERE, "host-b": ["127.0.1.1"]},
         "host-b | names | warning | calls itself 127.0.1.1, where no other host reaches it"),
    ],
)  # fmt: skip
def test_a_name_that_leads_astray_is_named(of_b: dict[str, list[str]], row: str) -> None:
    assert names(THERE, of_b) == [row]


def test_a_name_that_nobody_needs_is_a_warning() -> None:
    assert names(THERE, {**THERE, "host-a": []}, host_a="10.0.0.1") == [
        "host-b | names | warning | cannot resolve host-a"
    ]


def test_addresses_are_no_names() -> None:
    hosts = (Host(name="10.0.0.1"), Host(name="fe80::1%eth0"), Host(name="localhost"))
    facts = {host.name: well(1, names={}) for host in hosts}
    assert texts(judge(findings(hosts, facts=facts, reaches=[], rates=[]))) == []


def test_ports_that_all_reach_are_one_row() -> None:
    ports = [Port(host=host, port=port) for host in ("host-a", "host-b") for port in (5570, 5571, 5572, 0)]
    assert texts(judge(findings(ports=ports)))[-1] == (
        "all hosts | ports | good | 5570–5572 and any free port free, and reached by all others"
    )


def test_a_port_that_is_taken_is_wrong_and_its_owner_named() -> None:
    ports = [Port(host="host-a", port=5570, owner="python (pid 7)"), Port(host="host-b", port=5570)]
    assert texts(judge(findings(ports=ports)))[1:] == ["host-a | port 5570 | wrong | is in use by python (pid 7)"]


@for_each(
    "problem, found, advice",
    [
        ("refused", "is refused by 10.0.0.2", "a firewall rejects it"),
        ("silent", "gets no answer of 10.0.0.2", "a firewall drops it: open 5570 there"),
        ("no route", "has no way to 10.0.0.2", "ip route get 10.0.0.2"),
        ("unresolved", "cannot resolve 10.0.0.2", "DNS"),
        ("stranger", "finds another program at 10.0.0.2", "another host"),
        ("Protocol error", "cannot reach 10.0.0.2: Protocol error", "documentation"),
    ],
)
def test_what_cannot_be_reached_is_said_with_whence_and_why(problem: str, found: str, advice: str) -> None:
    failed = [reach("host-a", "host-b", 5570, problem), reach("host-c", "host-b", 5570, problem)]
    ports = [Port(host="host-b", port=5570)]
    [_, row] = judge(findings((A, B, C), reaches=failed, ports=ports, addresses={"host-b": "10.0.0.2"}))
    assert texts([row]) == [f"host-a and host-c → host-b | port 5570 | wrong | {found}"]
    assert advice in row.advice


def test_a_firewall_with_gaps_is_told_from_one_without() -> None:
    [_, row] = judge(findings(reaches=[reach("host-a", "host-b", 0, "silent")]))
    assert row.check == "any free port"
    assert "--ports" in row.advice


def test_where_only_workers_run_nothing_has_to_be_reached() -> None:
    hosts = (replace(A, servers=1), replace(B, workers=2))
    failed = [reach("host-a", "host-b", 0, "silent"), reach("host-b", "host-a", 0, "silent")]
    ports = [Port(host="host-b", port=5571, owner="python")]
    rows = list(judge(findings(hosts, reaches=failed, ports=ports)))
    assert [(row.where, row.verdict) for row in rows if row.check != "names"] == [
        ("host-b", "warning"), ("host-b → host-a", "wrong"), ("host-a → host-b", "warning"),
    ]  # fmt: skip


@for_each(
    "ports, text",
    [([0], "any free port"), ([5570, 0], "5570 and any free port"), ([3, 1, 2, 7], "1–3 and 7"), ([], "")],
)
def test_ports_in_words(ports: list[int], text: str) -> None:
    assert named(ports) == text


@for_each(
    "address, expected",
    [("127.0.1.1", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("host-a", False), ("", False)],
)
def test_loopback_is_known(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
