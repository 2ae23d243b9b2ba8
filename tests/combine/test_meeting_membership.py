"""A member that gives up its leader knows whether that may have pushed what it was brought."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from zmqps.combine.meeting import LeaderGoneError, Membership, Met
from zmqps.combine.messages import HostMessage, Joined, Pushing, Want, encode

TIMEOUT_S = 0.4
PATIENCE_S = 20.0


class Leader:
    """The other end of a member's connection."""

    def __init__(self) -> None:
        self.socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE_S)

    def say(self, message: HostMessage) -> None:
        self.socket.send(encode(message))

    def heard_the_end(self) -> bool:
        while self.socket.recv(1 << 20):
            pass
        return True


@pytest.fixture
def leader() -> Iterator[Leader]:
    leader = Leader()
    yield leader
    leader.socket.close()


def join(leader: Leader) -> Membership:
    leader.say(Joined("worker 0", 0, TIMEOUT_S / 4, TIMEOUT_S))
    member = Membership(Met(leader.theirs, None, 1), "worker 1", 1, 0, TIMEOUT_S)
    assert isinstance(member.ask(None, PATIENCE_S), Joined)
    return member


def test_what_a_silent_leader_says_before_the_socket_is_shut_is_read(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen = Membership._listen

    def listen_and_wake(self: Membership, selector: object) -> None:
        listen(self, selector)  # type: ignore[arg-type]
        leader.say(Pushing(0))  # it wakes just as it is given up

    monkeypatch.setattr(Membership, "_listen", listen_and_wake)
    member = join(leader)
    with pytest.raises(LeaderGoneError) as gone:
        member.ask(Want(0), PATIENCE_S)
    assert gone.value.pushing
    member.close()


def test_a_leader_that_wakes_after_it_was_given_up_cannot_say_that_it_pushes(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[OSError] = []
    rest = Membership._read_rest

    def read_and_wake(self: Membership) -> None:
        rest(self)
        try:
            leader.say(Pushing(0))
        except OSError as error:
            refused.append(error)

    monkeypatch.setattr(Membership, "_read_rest", read_and_wake)
    member = join(leader)
    with pytest.raises(LeaderGoneError) as gone:
        member.ask(Want(0), PATIENCE_S)
    assert not gone.value.pushing
    assert len(refused) == 1
    assert leader.heard_the_end()
    member.close()
