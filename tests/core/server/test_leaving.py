"""A server that is asked to end: it hands over what it has, if somebody can take it."""

from __future__ import annotations

from tests.core.machines import exits_of, identity, logged, sent
from zmqps.core.node.member import Member
from zmqps.core.protocol import exits
from zmqps.core.protocol.events import COORDINATOR, Action, Exit, Stop
from zmqps.core.protocol.messages import PROTOCOL_VERSION, Drain, Draining, Leave, Welcome
from zmqps.core.protocol.messages.resizing import DrainState
from zmqps.core.server.leaving import AGAIN_S, Leaving


class Server:
    """What of a server's machine has to do with its end."""

    def __init__(self, *, joined: bool = True, patience: float = 0.0) -> None:
        self.member = Member(identity("server"), "tcp://c:1", dict)
        self.now = 0.0
        self.member.start(0.0)
        if joined:
            self.member.on_message(Welcome(PROTOCOL_VERSION, b"i" * 16, "c", 0, 1.0, 1e9, 1, 1, patience=patience), 0.0)
        self.leaving = Leaving(self.member)

    def stop(self, drain_s: float = 60.0) -> list[Action]:
        return self.leaving.stop(Stop("SIGTERM", drain_s), self.now)

    def told(self, state: int, text: str = "shard 0 to server-1, 40%") -> list[Action]:
        return self.leaving.told(Draining(1, state, text), self.now)

    def wait(self, seconds: float) -> list[Action]:
        actions: list[Action] = []
        until = self.now + seconds
        while self.leaving.due is not None and self.leaving.due <= until and not exits_of(actions):
            self.now = self.leaving.due
            actions += self.leaving.on_deadline(self.now)
        self.now = until
        return actions


def reasons(actions: list[Action]) -> list[str]:
    return [message.reason for message in sent(actions, Leave, COORDINATOR)]


def done(actions: list[Action]) -> list[bool]:
    return [action.done for action in actions if isinstance(action, Exit)]


def test_it_asks_until_it_is_told_that_nothing_is_left() -> None:
    server = Server()
    asked = server.stop()
    assert sent(asked, Drain, COORDINATOR) == [Drain(1, "", 0)]
    assert exits_of(asked) == []
    assert "SIGTERM: handing over what is here, for 60 s at most" in logged(asked)
    assert server.stop() == [], "asked twice it goes on"
    assert logged(server.told(DrainState.GOING)) == "shard 0 to server-1, 40%"
    assert server.told(DrainState.GOING) == [], "nothing new"
    assert len(sent(server.wait(3 * AGAIN_S), Drain)) == 3
    gone = server.told(DrainState.GONE, "nothing is left")
    assert (reasons(gone), exits_of(gone), done(gone)) == (["drained"], [exits.OK], [True])
    assert server.leaving.due is None
    assert server.told(DrainState.GONE, "nothing is left") == []


def test_without_time_or_coordinator_it_ends_at_once() -> None:
    for server, drain_s in ((Server(), 0.0), (Server(joined=False), 60.0)):
        ended = server.stop(drain_s)
        assert sent(ended, Drain) == []
        assert (exits_of(ended), done(ended)) == ([exits.OK], [False])


def test_where_nobody_can_take_it_it_ends_and_says_so() -> None:
    server = Server()
    server.stop()
    ended = server.told(DrainState.STAYS, "there is no other server")
    assert (reasons(ended), done(ended)) == (["closed"], [False])
    assert "nothing can be handed over: there is no other server" in logged(ended)


def test_one_that_was_not_asked_to_end_stays_or_goes_as_it_is_told() -> None:
    stays = Server().told(DrainState.STAYS, "it was asked to stay")
    assert exits_of(stays) == []
    assert "stays" in logged(stays)
    gone = Server().told(DrainState.GONE, "nothing is left")
    assert (reasons(gone), exits_of(gone)) == (["drained"], [exits.OK])


def test_it_ends_when_its_time_is_over_whatever_has_moved() -> None:
    server = Server()
    server.stop(10.0)
    server.told(DrainState.GOING)
    ended = server.wait(11.0)
    assert (reasons(ended), done(ended)) == (["closed"], [False])
    assert "not everything could be handed over in time (shard 0 to server-1, 40%)" in logged(ended)


def test_a_coordinator_that_does_not_answer_is_asked_until_the_time_is_over() -> None:
    server = Server()
    server.stop(60.0)
    asked = server.wait(30.0)
    assert (exits_of(asked), len(sent(asked, Drain))) == ([], 30)
    ended = server.wait(61.0)
    assert exits_of(ended) == [exits.OK]
    assert "in time (the coordinator does not answer)" in logged(ended)
