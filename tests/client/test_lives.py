"""What a supervisor says of a life of its worker."""

from __future__ import annotations

import pytest

import zmqps
from tests.inprocess import InProcessCluster
from tests.pace import allow
from tests.tables import for_each
from zmqps.client.lives import Life, find_life
from zmqps.errors import ConfigurationError

TOKEN = "0123456789abcdef" * 2


def test_what_is_not_said_is_no_life() -> None:
    assert find_life({"ZMQPS_WORKER_RESTART": "3"}) == Life()
    assert find_life({"ZMQPS_WORKER_RESTART": "3", "ZMQPS_WORKER_INDEX": "1"}) == Life(index=1)
    assert find_life({"ZMQPS_WORKER_TOKEN": TOKEN}) == Life(bytes.fromhex(TOKEN), 0)
    assert Life(bytes.fromhex(TOKEN), 0).name("worker") is None, "then it is called as any other process"


def test_a_worker_is_called_as_its_log_is() -> None:
    facts = {"ZMQPS_WORKER_INDEX": "1", "ZMQPS_LOG_NODE": "worker-1@host-b"}
    assert find_life(facts).name("worker") == "worker-1@host-b"
    assert find_life(facts).name("observer") == "observer-1"
    assert find_life({**facts, "ZMQPS_LOG_NODE": "worker-2"}).name("worker") == "worker-1", "that of its launcher"
    assert [find_life(facts).wish(role) for role in ("worker", "observer")] == [1, None]


@for_each(
    "name, value",
    [("TOKEN", "12"), ("TOKEN", "x" * 32), ("RESTART", "-1"), ("RESTART", "one"), ("RESTART", "4294967296"),
     ("RESTART", "٣"), ("INDEX", "-1"), ("INDEX", "one")],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"ZMQPS_WORKER_{name}"):
        find_life({"ZMQPS_WORKER_TOKEN": TOKEN, f"ZMQPS_WORKER_{name}": value})


def test_the_next_life_of_a_worker_takes_its_place_although_the_first_one_seems_to_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def connect(index: int, life: int) -> zmqps.Worker:
        monkeypatch.setenv("ZMQPS_WORKER_TOKEN", f"{index:032x}")
        monkeypatch.setenv("ZMQPS_WORKER_INDEX", str(index))
        monkeypatch.setenv("ZMQPS_WORKER_RESTART", str(life))
        return zmqps.connect(cluster.address)

    with InProcessCluster() as cluster, connect(0, 0) as first, connect(1, 0) as second, connect(0, 1) as again:
        assert (first.rank, second.rank, again.rank) == (0, 1, 0)
        status = again.status()
        assert [(member["rank"], member["name"]) for member in status["members"] if member["role"] == "worker"] == [
            (0, "worker-0"), (1, "worker-1")
        ]  # fmt: skip
        assert [(gone["name"], gone["how"]) for gone in status["gone"]] == [("worker-0", "restarted")]
        with pytest.raises(zmqps.EvictedError, match="was started again, and its new life has its place"):
            first.barrier("b", timeout=allow(20.0))
