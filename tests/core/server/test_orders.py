"""What the coordinator says is carried out by a table; tests of each order are those of the machine and its jobs."""

from __future__ import annotations

import pytest

from tests.core.machines import errors, exits_of, identity, job, logged, make_shard, peer, sent, ticketed
from tests.core.server.test_machine import EIGHT, WELCOME, Server, push
from tests.modes import MODES
from tests.tables import for_each
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import COORDINATOR, Send, Stop
from zmqps.core.protocol.messages import (
    Ack,
    Commit,
    Committed,
    Departed,
    Error,
    Forgotten,
    HeartbeatAck,
    Pull,
    ScanRows,
    Shutdown,
    Values,
)
from zmqps.core.server.builds import Builds, begin_anew
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.orders import Orders
from zmqps.errors import EvictedError, JobError, ProtocolError


def test_what_no_order_is_concerns_the_member_alone() -> None:
    server = Server.trained("w")
    assert HeartbeatAck not in server.machine.handlers.orders
    assert server.get(HeartbeatAck(3)) == []
    assert server.machine.member.cluster.num_workers == 3


@for_each(
    "message, code",
    [
        (Shutdown("all jobs are done"), exits.OK),
        (Error.of(0, EvictedError("gone")), exits.EVICTED),
        (Error.of(0, JobError("too many")), exits.FAILED),
    ],
)
def test_the_coordinators_word_ends_the_server_and_an_error_says_why(message: Shutdown | Error, code: int) -> None:
    actions = Server.joined().get(message)
    assert exits_of(actions) == [code]
    assert not isinstance(message, Error) or message.text in logged(actions)


def test_who_has_departed_is_barred_and_that_is_confirmed_however_often_it_is_said() -> None:
    server = Server.trained("w")
    who = ticketed("worker", "w").incarnation
    for _ in range(2):
        assert server.get(Departed(who, 1)) == [Send(COORDINATOR, Forgotten(who))]
    (refused,) = sent(server.get(ticketed("worker", "w"), "w"), Error, peer("w"))
    assert refused.code == EvictedError.code


def test_a_finished_cluster_ends_the_server_with_what_it_was_told() -> None:
    server = Server()
    server.get(WELCOME)
    assert exits_of(server.get(Shutdown("all jobs are done"))) == [exits.OK]


class Kernel(Server):
    """A server without extensions."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = ServerKernel(identity("server", "s"), "tcp://coordinator:1")  # type: ignore[assignment]
        Orders(self.machine, Builds(self.machine.tenants, make_shard, lambda: 1 << 30))
        self.machine.start(0.0)


@for_each("mode", ["async", "sync"])
def test_the_kernel_alone_trains(mode: str) -> None:
    server = Kernel()
    server.spec = job("a", "b", **MODES[mode])
    server.train("w")
    before = server.values()
    assert sent(server.get(push(), "w"), Ack)
    if mode == "sync":
        assert server.values() == before
        who = ticketed("worker", "w").incarnation
        assert sent(server.get(Commit(1, 0, ((who, (0,)),))), Committed) == [Committed(1, 0)]
    assert server.values() == [*(-EIGHT).tolist(), *before[8:]]
    assert sent(server.get(Pull(9, 1, 0, 0, "raw", ((0, 0, ()),)), "w"), Values)
    assert server.machine.counters()["jobs"]["1"]["pushes"] == 1
    assert exits_of(server.handle(Stop("SIGTERM", 60.0))) == [exits.OK]


def test_the_kernel_refuses_what_only_extensions_take_and_begins_with_nothing() -> None:
    server = Kernel()
    server.train("w")
    assert errors(server.get(ScanRows(9, 1, 2, 0, 1), "w")) == [ProtocolError.code]
    with pytest.raises(JobError, match="cannot begin with anything"):
        begin_anew(server.machine.tenants[1].built(), server.spec, {"path": "/c"})
