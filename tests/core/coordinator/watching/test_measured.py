"""What the coordinator says in figures: each of the catalogue's, of all members, and none of who has gone."""

from __future__ import annotations

from typing import Any

from tests.core.coordinator.training.test_steps import Cluster
from tests.core.machines import Coordinator
from zmqps.core.coordinator.watching.measured import measured
from zmqps.core.coordinator.watching.status import MAX_LISTED
from zmqps.core.node.measured import Measurements
from zmqps.core.protocol.figures import OF_COORDINATOR
from zmqps.core.protocol.messages import Heartbeat, Leave


def measure(cluster: Coordinator, **own: Any) -> Measurements:
    return measured(cluster.machine, own, cluster.now)


def known(found: Measurements, name: str) -> dict[tuple[str, ...], float]:
    return {tuple(one.labels.values()): one.value for one in found.known if one.name == name}


def test_members_are_counted_by_role_and_each_is_heard_since_some_time() -> None:
    cluster = Cluster("s0", "w0", "w1")
    cluster.now = 10.0
    cluster.take("w0", Heartbeat({"pushes": 4}))
    cluster.now = 12.5
    found = measure(cluster)
    assert known(found, "members") == {("server",): 1, ("worker", "default"): 2}
    assert known(found, "wanted_servers") == {(): 1}
    assert known(found, "silent_s")[("worker", "0", "default")] == 2.5
    assert known(found, "heartbeats") == {(): 1}


def test_what_members_have_counted_is_told_as_they_said_it() -> None:
    cluster = Cluster("s0", "w0")
    cluster.take("w0", Heartbeat({"pushes": 4, "text": "no"}))
    epoch = next(iter(cluster.machine.runs["default"].startup.copies)).epoch
    cluster.take("s0", Heartbeat({"clients": 2, "jobs": {str(epoch): {"applies": 7}}}))
    nodes = {(node.scope, node.role, node.rank, node.job): node.counters for node in measure(cluster, cpu=1.0).counted}
    assert nodes["worker", "worker", 0, "default"] == '{"pushes": 4, "text": "no"}'
    assert nodes["job", "server", 0, "default"] == {"applies": 7}
    assert nodes["coordinator", "coordinator", None, ""]["cpu"] == 1.0  # type: ignore[index]


def test_who_keeps_the_others_waiting_and_for_how_long_a_step_has_been_waited_for() -> None:
    cluster = Cluster("s0", "w0", "w1")
    cluster.arrive("w0", 0)
    cluster.now = 3.0
    assert known(measure(cluster), "step_wait_s") == {("default",): 3.0}
    assert known(measure(cluster), "waits") == {("default",): 1}
    cluster.arrive("w1", 0)
    assert known(measure(cluster), "awaited_s") == {("worker", "0", "default"): 0.0, ("worker", "1", "default"): 3.0}


def test_the_series_of_a_member_end_when_it_leaves() -> None:
    cluster = Cluster("s0", "w0", "w1")
    cluster.take("w1", Leave("finished"))
    found = measure(cluster)
    assert [node.rank for node in found.counted if node.scope == "worker"] == [0]
    assert ("worker", "1", "default") not in known(found, "silent_s")
    assert known(found, "happened")[("left",)] == 1
    assert known(found, "lost") == {(): 0}


def test_members_that_fall_silent_are_counted_as_lost() -> None:
    cluster = Cluster("s0", "w0", "w1")
    cluster.wait(60.0, "s0", "w0")
    assert known(measure(cluster), "lost") == {(): 1}
    assert known(measure(cluster), "members")[("worker", "default")] == 1


def test_a_value_that_was_logged_is_told_with_its_name_and_who_logged_it() -> None:
    cluster = Cluster("s0", "w0")
    cluster.machine.watching.history.note("default", "worker 0", "loss", 1.0, 5, 0.25)
    cluster.machine.watching.history.note("default", "", "accuracy", 1.0, 5, 0.5)
    assert known(measure(cluster), "value") == {("loss", "worker", "0", "default"): 0.25, ("accuracy", "default"): 0.5}


def test_there_are_no_more_series_than_the_status_names_members() -> None:
    cluster = Cluster("s0", *(f"w{n}" for n in range(3)))
    first = cluster.machine.runs["default"].workers
    many = [next(iter(first))] * (MAX_LISTED + 5)
    run = cluster.machine.runs["default"]
    run.workers = many  # type: ignore[misc, assignment]
    found = measure(cluster)
    assert sum(node.scope in ("worker", "server") for node in found.counted) == MAX_LISTED
    assert known(found, "members")[("worker", "default")] == MAX_LISTED + 5


def test_only_figures_of_the_catalogue_are_told_with_the_labels_that_it_says() -> None:
    cluster = Cluster("s0", "w0")
    cluster.machine.watching.history.note("default", "worker 0", "loss", 1.0, 5, 0.25)
    catalogue = {figure.name: set(figure.labels) for figure in OF_COORDINATOR}
    for one in measure(cluster).known:
        assert set(one.labels) <= catalogue[one.name], one
