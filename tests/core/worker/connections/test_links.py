"""The links to the servers of a job: which there are, over which connections, and what all of them are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.core.machines import identity, sent
from tests.tables import for_each
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.spec import Parameter
from zmqps.core.node.member import Member
from zmqps.core.protocol.encoding import CODING
from zmqps.core.protocol.events import Action, Connect, Disconnect, server_peer
from zmqps.core.protocol.messages import Hello, Job, Leave, Welcome
from zmqps.core.protocol.messages import Pull as PullMessage
from zmqps.core.worker.connections.links import Links
from zmqps.core.worker.transfer import PullTransfer, Target, plan
from zmqps.errors import ConfigurationError, ProtocolError

WHERE = Placement.balance(KeySpace((Parameter("w", (8,), "float32"),)), 2)
KEYS = {"ticket": (b"t" * 16).hex(), "proof": (b"p" * 16).hex()}
S0, S1, S2, S3 = (server_peer(n) for n in range(4))
WELCOME = Welcome(1, b"i" * 16, "s", 0, 1.0, 5.0, 1, 1, proof=b"p" * 16)


def job(*endpoints: str, **changed: Any) -> Job:
    servers = [
        {"name": "s", "endpoint": endpoint, "rank": n, "epoch": n + 1, **KEYS, **changed}
        for n, endpoint in enumerate(endpoints)
    ]
    return Job(1, 1, {}, {**WHERE.to_wire(), "servers": servers}, 0, 0, 1, "", 0)


def connected(*endpoints: str) -> tuple[Links, list[Action]]:
    links = Links(Member(identity("worker"), "tcp://c:1", dict), CODING)
    return links, links.connect(WHERE, job(*endpoints).placement, 0.0)


def test_one_link_a_shard_by_rank_and_by_connection() -> None:
    links, actions = connected("tcp://a:1", "tcp://b:1")
    assert [a for a in actions if isinstance(a, Connect)] == [Connect(S0, "tcp://a:1"), Connect(S1, "tcp://b:1")]
    assert [link.server.title for link in links.by_shard] == ["server 0 (s, tcp://a:1)", "server 1 (s, tcp://b:1)"]
    assert list(links.by_peer) == [S0, S1]
    assert links.title_of(S1) == "server 1 (s, tcp://b:1)"
    assert links.title_of(b"x") == "the coordinator"


def test_a_connection_that_is_open_is_used_again_for_whoever_is_there_now() -> None:
    links, _ = connected("tcp://a:1", "tcp://b:1")
    actions = links.connect(WHERE, job("tcp://b:1", "tcp://c:1").placement, 1.0)
    assert [a for a in actions if isinstance(a, Connect)] == [Connect(S2, "tcp://c:1")]
    assert [a for a in actions if isinstance(a, Disconnect)] == [Disconnect(S0)], "it would try again for ever"
    assert len(sent(actions, Hello)) == 2
    assert [link.server.peer for link in links.by_shard] == [S1, S2]


def test_a_connection_is_closed_when_the_last_shard_has_moved_away_from_its_server() -> None:
    links, _ = connected("tcp://a:1", "tcp://b:1")
    where = job("tcp://a:1", "tcp://b:1", "tcp://c:1").placement["servers"]
    assert [a for a in links.move(0, where[1], 1.0) if isinstance(a, Connect | Disconnect)] == [Disconnect(S0)]
    assert links.by_peer == {S1: links.by_shard}
    assert [a for a in links.move(0, where[2], 2.0) if isinstance(a, Connect | Disconnect)] == [
        Connect(S2, "tcp://c:1")
    ]
    back = [a for a in links.move(1, where[0], 3.0) if isinstance(a, Connect | Disconnect)]
    assert back == [Connect(S3, "tcp://a:1"), Disconnect(S1)], "what comes late over an old one is no answer here"
    links.validate()


@for_each(
    "wrong",
    [
        job("tcp://a:1"), job("tcp://a:1", "tcp://b:1", ticket=7), job(), job("tcp://a:1", "tcp://b:1", epoch=1 << 32),
        job("tcp://a:1", "tcp://b:1", rank="0"),
    ],
)  # fmt: skip
def test_a_job_that_does_not_name_its_servers_is_refused(wrong: Job) -> None:
    with pytest.raises(ProtocolError):
        connected("tcp://a:1", "tcp://b:1")[0].connect(WHERE, wrong.placement, 0.0)


def test_two_servers_at_one_endpoint_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="advertise tcp://a:1"):
        connected("tcp://a:1", "tcp://a:1")


def test_links_to_shards_of_one_server_share_a_connection_and_are_told_apart() -> None:
    links = Links(Member(identity("worker"), "tcp://c:1", dict), CODING)
    message = job("tcp://a:1", "tcp://a:1", rank=3)
    message.placement["servers"][1]["proof"] = (b"q" * 16).hex()
    actions = links.connect(WHERE, message.placement, 0.0)
    assert [a for a in actions if isinstance(a, Connect)] == [Connect(S0, "tcp://a:1")]
    assert [m.epoch for m in sent(actions, Hello, S0)] == [1, 2], "a ticket for each"
    first, second = links.by_peer[S0]
    assert links.title_of(S0) == first.server.title == second.server.title == "server 3 (s, tcp://a:1)"
    assert links.of_proof(S0, b"q" * 16) is second
    assert links.of_proof(S0, b"x" * 16) is None
    assert links.of_proof(S1, b"q" * 16) is None
    for link, proof in ((first, b"p"), (second, b"q")):
        link.on_welcome(replace(WELCOME, proof=proof * 16), 0.1)
    request = PullTransfer(cargoes=plan(WHERE), target=Target(arrays=[np.zeros(8, np.float32)]))
    second.enqueue(request, plan(WHERE)[0] + plan(WHERE)[1])
    (asked,) = sent(second.pump(0.1), PullMessage)
    assert asked.epoch == 2
    assert links.of_answer(S0, asked.request) is second
    assert links.of_answer(S0, asked.request + 1) is links.of_answer(S1, asked.request) is None
    assert [m.epoch for m in sent(links.connected(S0, 1.0), Hello, S0)] == [1, 2]
    assert sent(links.part("finished"), Leave) == [Leave("finished")], "once a connection"


def test_goodbye_is_said_to_those_that_know_us() -> None:
    links, _ = connected("tcp://a:1", "tcp://b:1")
    links.by_shard[1].on_welcome(WELCOME, 0.1)
    assert sent(links.part("finished"), Leave, S1) == [Leave("finished")]
    assert all(link.server.handshake.is_over for link in links.by_shard)
    assert links.on_deadline(100.0) == []


def test_strange_connections_are_nobodys() -> None:
    links, _ = connected("tcp://a:1", "tcp://b:1")
    assert links.connected(b"x", 1.0) == links.disconnected(b"x", 1.0) == []
    assert links.lost_server is None
    assert links.unreached(1.0) == {}
