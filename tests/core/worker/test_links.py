"""The links to the servers of a job: which there are, over which connections, and what all of them are told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.machines import identity, sent
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.core.node.member import Member
from zmqps.core.protocol.encoding import CODING
from zmqps.core.protocol.events import Action, Connect, server_peer
from zmqps.core.protocol.messages import Hello, Job, Leave, Welcome
from zmqps.core.worker.links import Links
from zmqps.errors import ConfigurationError, ProtocolError

WHERE = Placement.balance(KeySpace((Parameter("w", (8,), "float32"),)), 2)
KEYS = {"ticket": (b"t" * 16).hex(), "proof": (b"p" * 16).hex()}
S0, S1, S2 = (server_peer(n) for n in range(3))
WELCOME = Welcome(1, b"i" * 16, "s", 0, 1.0, 5.0, 1, 1, proof=b"p" * 16)


def job(*endpoints: str, **changed: Any) -> Job:
    servers = [{"name": "s", "endpoint": endpoint, **KEYS, **changed} for endpoint in endpoints]
    return Job(1, 1, {}, {**WHERE.to_wire(), "servers": servers}, 0, 0, 1, "", 0)


def connected(*endpoints: str) -> tuple[Links, list[Action]]:
    links = Links(Member(identity("worker"), "tcp://c:1", dict), CODING)
    return links, links.connect(WHERE, job(*endpoints), 0.0)


def test_one_link_a_shard_by_rank_and_by_connection() -> None:
    links, actions = connected("tcp://a:1", "tcp://b:1")
    assert [a for a in actions if isinstance(a, Connect)] == [Connect(S0, "tcp://a:1"), Connect(S1, "tcp://b:1")]
    assert [link.title for link in links.by_rank] == ["server 0 (s, tcp://a:1)", "server 1 (s, tcp://b:1)"]
    assert list(links.by_peer) == [S0, S1]
    assert links.title_of(S1) == "server 1 (s, tcp://b:1)"
    assert links.title_of(b"x") == "the coordinator"


def test_a_connection_that_is_open_is_used_again_for_whoever_is_there_now() -> None:
    links, _ = connected("tcp://a:1", "tcp://b:1")
    actions = links.connect(WHERE, job("tcp://b:1", "tcp://c:1"), 1.0)
    assert [a for a in actions if isinstance(a, Connect)] == [Connect(S2, "tcp://c:1")]
    assert len(sent(actions, Hello)) == 2
    assert [link.peer for link in links.by_rank] == [S1, S2]


@pytest.mark.parametrize("wrong", [job("tcp://a:1"), job("tcp://a:1", "tcp://b:1", ticket=7), job()])
def test_a_job_that_does_not_name_its_servers_is_refused(wrong: Job) -> None:
    with pytest.raises(ProtocolError):
        connected("tcp://a:1", "tcp://b:1")[0].connect(WHERE, wrong, 0.0)


def test_two_servers_at_one_endpoint_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="advertise tcp://a:1"):
        connected("tcp://a:1", "tcp://a:1")


def test_goodbye_is_said_to_those_that_know_us() -> None:
    links, _ = connected("tcp://a:1", "tcp://b:1")
    links.by_rank[1].on_welcome(WELCOME, 0.1)
    assert sent(links.part("finished"), Leave, S1) == [Leave("finished")]
    assert all(link.handshake.is_over for link in links.by_rank)
    assert links.on_deadline(100.0) == []


def test_strange_connections_are_nobodys() -> None:
    links, _ = connected("tcp://a:1", "tcp://b:1")
    assert links.connected(b"x", 1.0) == links.disconnected(b"x", 1.0) == []
    assert links.lost_server is None
    assert links.unreached(1.0) == {}
