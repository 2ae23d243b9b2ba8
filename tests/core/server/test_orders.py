"""What the coordinator says is carried out by a table; tests of each order are those of the machine and its jobs."""

from __future__ import annotations

import pytest

from tests.core.machines import exits_of, logged, peer, sent, ticketed
from tests.core.server.test_machine import Server
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import COORDINATOR, Send
from zmqps.core.protocol.messages import Departed, Error, Forgotten, HeartbeatAck, Shutdown
from zmqps.core.server.orders import HANDLERS
from zmqps.errors import EvictedError, JobError


def test_what_no_order_is_concerns_the_member_alone() -> None:
    server = Server.trained("w")
    assert HeartbeatAck not in HANDLERS
    assert server.get(HeartbeatAck(3)) == []
    assert server.machine.member.cluster.num_workers == 3


@pytest.mark.parametrize(
    ("message", "code"),
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
