"""A running cluster: what its coordinator says, who can be reached."""

from __future__ import annotations

from typing import Any

from tests.doctor.hosts import findings, reach, texts
from tests.tables import for_each
from zmqps.core.coordinator.watching.status import MAX_COUNTER_TEXT_CHARS
from zmqps.doctor.facts import Cluster, Reach
from zmqps.doctor.running import endpoints, judge


def member(role: str, rank: int, host: str, endpoint: str = "", **more: Any) -> dict[str, Any]:
    return {"role": role, "rank": rank, "host": host, "endpoint": endpoint, "silent_s": 0.2, **more}


#: As `zmqps.core.worker.connections.links` says it; tests/lan/test_doctor.py has it from a cluster.
UNREACHED = (
    "server 0 (server-0, tcp://10.0.0.1:7) for 3 s (that host sends no answer: it is off, or a firewall drops what is "
    "sent to this port)"
)
SERVER = member("server", 0, "a", "tcp://10.0.0.1:7 ipc:///tmp/x")
WORKER = member("worker", 0, "b", name="w", pid=9)
GOOD = "coordinator | status | good | running, 1 server, 1 worker"


def rows(*members: dict[str, Any], reaches: tuple[Reach, ...] = (), **status: Any) -> list[str]:
    found = {"state": "running", "members": [*members], "gone": [], "waiting": [], **status}
    return texts(judge(findings(cluster=Cluster(address="tcp://10.0.0.1:5570", status=found, reaches=reaches))))


def test_no_cluster_no_rows() -> None:
    assert list(judge(findings())) == []


def test_a_cluster_that_is_well_has_one_row_and_who_is_reached_another() -> None:
    assert rows(SERVER, WORKER) == [GOOD]
    reaches = (reach("host-a", "server 0"), reach("host-b", "coordinator", latency_s=0.003))
    assert rows(SERVER, WORKER, reaches=reaches)[1:] == [
        "server 0 and coordinator | reachable | good | from every host, within 3 ms"
    ]


def test_only_what_listens_on_tcp_is_knocked_at() -> None:
    local = member("server", 1, "a", "ipc:///tmp/x")
    cluster = Cluster(address="tcp://10.0.0.1:5570", status={"members": [SERVER, local, WORKER]})
    assert list(endpoints(cluster)) == [("coordinator", "tcp://10.0.0.1:5570"), ("server 0", "tcp://10.0.0.1:7")]


@for_each(
    "members, status, row",
    [
        ([SERVER, WORKER], {"waiting": ["waiting for 1 of 2 servers"]},
         "coordinator | waiting | warning | waiting for 1 of 2 servers"),
        ([SERVER, {**WORKER, "counters": {"unreached": UNREACHED}}],
         {"waiting": [f"job 'default': worker 0 (w, b, pid 9) cannot reach {UNREACHED}"]},
         f"worker 0 on b | servers | wrong | cannot reach {UNREACHED}"),
        ([SERVER, {**WORKER, "silent_s": 7.0}], {}, "worker 0 | silence | warning | no sign of life for 7 s"),
        ([{**SERVER, "endpoint": "tcp://127.0.0.1:7"}, WORKER], {},
         "server 0 | address | wrong | says it is at 127.0.0.1, where other hosts find themselves"),
        ([SERVER, WORKER], {"gone": [{**WORKER, "how": "lost", "ago_s": 60.0}, {**WORKER, "how": "left"}]},
         "worker 0 | lost | warning | lost 1 min ago, was on b"),
    ],
)  # fmt: skip
def test_what_is_not_well_is_said(members: list[dict[str, Any]], status: dict[str, Any], row: str) -> None:
    assert rows(*members, **status) == [GOOD, row]


def test_what_a_status_has_cut_off_is_taken_from_what_the_coordinator_waits_for() -> None:
    both = f"{UNREACHED}, {UNREACHED.replace('server 0', 'server 1').replace('server-0', 'server-1')}"
    cut = {**WORKER, "counters": {"unreached": both[:MAX_COUNTER_TEXT_CHARS]}}
    untold, silent = {**cut, "rank": 1, "pid": 8}, {**WORKER, "rank": 2, "pid": 7}
    waiting = [
        f"job 'default': worker 0 (w, b, pid 9) cannot reach {both}",
        f"job 'default': worker 2 (w, b, pid 7) cannot reach {UNREACHED}",
        "init waits for worker 1",
    ]
    assert rows(SERVER, cut, untold, silent, waiting=waiting)[1:] == [
        f"worker 0 on b | servers | wrong | cannot reach {both}",
        f"worker 1 on b | servers | wrong | cannot reach {both[:MAX_COUNTER_TEXT_CHARS]}",
        f"worker 2 on b | servers | wrong | cannot reach {UNREACHED}",
        "coordinator | waiting | warning | init waits for worker 1",
    ]


def test_a_name_that_does_not_resolve_is_no_firewall() -> None:
    text = "server 0 (s, tcp://nobody:7) for 3 s (the name 'nobody' does not resolve on b (unknown))"
    found = {"members": [{**WORKER, "counters": {"unreached": text}}]}
    [_, row] = judge(findings(cluster=Cluster(address="tcp://10.0.0.1:5570", status=found)))
    assert "/etc/hosts" in row.advice


def test_loopback_is_fine_where_all_are_on_one_host() -> None:
    assert rows({**SERVER, "endpoint": "tcp://127.0.0.1:7"}, {**WORKER, "host": "a"}) == [GOOD]


def test_a_server_that_cannot_be_reached_is_named_with_whence_and_where() -> None:
    failed = reach("host-b", "server 0", 7, "silent")
    assert rows(SERVER, WORKER, reaches=(failed,))[1:] == [
        "host-b → server 0 | port 7 | wrong | gets no answer of 10.0.0.1"
    ]


def test_a_coordinator_that_does_not_answer_is_wrong() -> None:
    cluster = Cluster(address="tcp://10.0.0.1:5570", status={}, problem="status timed out")
    assert texts(judge(findings(cluster=cluster))) == ["coordinator | status | wrong | status timed out"]


def test_a_status_of_another_shape_breaks_nothing() -> None:
    assert rows(state=3, members={"a": 1}, gone=None, waiting=[]) == [
        "coordinator | status | good | 3, 0 servers, 0 workers"
    ]
