"""What the page shows of a view."""

from __future__ import annotations

import json
from typing import Any

from tests.core.coordinator.training.test_steps import Cluster
from zmqps.core.protocol.messages import Heartbeat, Watch
from zmqps.page.feed import MOST_EVENTS, MOST_MEMBERS, MOST_SHARDS, seen


def view_of(cluster: Cluster) -> dict[str, Any]:
    return cluster.machine.view(Watch(0, 300.0, 300, 1.0, "", ""), cluster.now)


def test_it_has_the_job_its_nodes_and_where_its_shards_are() -> None:
    cluster = Cluster("s0", "s1", "w0", "w1")
    cluster.take("w0", Heartbeat({"rss_nbytes": 1, "doing": "computing", "wire_out_mb_s": 3.0}))
    told = seen(view_of(cluster))
    (job,) = told["jobs"].values()
    assert job["state"] == "training"
    assert [(copy["shard"], copy["server"], copy["backup"]) for copy in job["copies"]] == [
        (0, "server 0", False),
        (1, "server 1", False),
    ]
    assert [row["shard"] for row in job["placement"]] == [0, 1]
    assert [f"{member['role']} {member['rank']}" for member in told["members"]] == [
        *("server 0", "server 1", "worker 0", "worker 1"),
    ]
    assert told["members"][2]["counters"] == {"doing": "computing"}


def test_it_shares_nothing_with_what_the_coordinator_changes() -> None:
    cluster = Cluster("s0", "w0")
    told = seen(view_of(cluster))
    before = json.dumps(told)
    cluster.arrive("w0", 0)
    cluster.confirm(0)
    assert json.dumps(told) == before


def test_nothing_that_proves_who_somebody_is_leaves_the_coordinator() -> None:
    told = json.dumps(seen(view_of(Cluster("s0", "w0"))))
    assert all(word not in told for word in ("secret", "ticket", "token", "incarnation"))


def test_many_nodes_events_and_shards_are_cut_and_the_page_says_so() -> None:
    view = view_of(Cluster("s0", "w0"))
    (name,) = view["status"]["jobs"]
    view["status"]["members"] *= MOST_MEMBERS
    view["events"] = [{"t": float(at), "kind": "joined", "level": "info", "job": "", "text": ""} for at in range(900)]
    view["status"]["jobs"][name]["job"]["placement"] *= 2 * MOST_SHARDS
    told = seen(view)
    assert len(told["members"]) == MOST_MEMBERS
    assert told["left_out"] == [f"{MOST_MEMBERS} of {2 * MOST_MEMBERS} nodes"]
    assert [event["t"] for event in told["events"]][-1] == 899.0
    assert len(told["events"]) == MOST_EVENTS
    assert len(told["jobs"][name]["placement"]) == MOST_SHARDS
    assert told["jobs"][name]["num_shards"] == 2 * MOST_SHARDS
