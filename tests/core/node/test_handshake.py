"""The first words on a connection: when they are said again, and when somebody looks why nobody answers."""

from __future__ import annotations

from tests.core.machines import hello
from zmqps.core.node.handshake import (
    BROKEN_LOOK_S,
    FIRST_RETRY_S,
    LOOK_AGAIN_S,
    LOOK_S,
    MAX_WHY_CHARS,
    SLOWEST_RETRY_S,
    Handshake,
)
from zmqps.core.protocol.events import Connect, Look, Send, server_peer
from zmqps.core.protocol.messages import Welcome

PEER, ENDPOINT = server_peer(0), "tcp://s0:1"
HELLO = hello("worker")
WELCOME = Welcome(1, b"i" * 16, "s", 0, 1.0, 5.0, 1, 1)
ASK, LOOK = Send(PEER, HELLO), Look(PEER, ENDPOINT)


def begun() -> Handshake:
    handshake = Handshake(HELLO, PEER, ENDPOINT)
    assert handshake.start(0.0) == [Connect(PEER, ENDPOINT), ASK]
    return handshake


def rung(handshake: Handshake, until: float) -> list[tuple[float, Look | Send]]:
    """Ring whenever something is due; return what it does and when."""
    done = []
    while handshake.due is not None and handshake.due <= until:
        now = handshake.due
        done += [(now, action) for action in handshake.on_deadline(now)]
    return done


def test_it_says_hello_ever_more_slowly_and_looks_now_and_then_why_nobody_answers() -> None:
    done = rung(begun(), 20.0)
    said = [now for now, action in done if action == ASK]
    waits = [round(b - a, 9) for a, b in zip([0.0, *said], said, strict=False)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (FIRST_RETRY_S, SLOWEST_RETRY_S)
    first, second, *_ = [now for now, action in done if action == LOOK]
    assert LOOK_S <= first < LOOK_S + SLOWEST_RETRY_S
    assert LOOK_AGAIN_S <= second - first < LOOK_AGAIN_S + SLOWEST_RETRY_S


def test_a_welcome_ends_the_silence_and_the_questions() -> None:
    handshake = begun()
    assert handshake.silence(3.0) == 3.0
    assert handshake.looked("nobody listens")
    assert handshake.because == " (nobody listens)"
    handshake.on_welcome(WELCOME)
    assert (handshake.silence(4.0), handshake.because, handshake.due) == (0.0, "", None)
    assert not handshake.looked("it is too late to say")


def test_over_a_connection_that_has_ended_nothing_is_said_until_it_is_back() -> None:
    handshake = begun()
    handshake.on_welcome(WELCOME)
    handshake.ended(10.0)
    assert handshake.is_down
    assert rung(handshake, 17.0) == [(10.0 + BROKEN_LOOK_S, LOOK), (10.0 + BROKEN_LOOK_S + LOOK_AGAIN_S, LOOK)]
    assert handshake.again(18.0) == [ASK]
    assert not handshake.is_down


def test_why_is_told_once_in_few_characters_that_can_be_printed() -> None:
    handshake = begun()
    assert handshake.looked("\x1b" + "x" * 10 * MAX_WHY_CHARS)
    assert handshake.why.isprintable()
    assert len(handshake.why) < 2 * MAX_WHY_CHARS
    assert not handshake.looked("\x1b" + "x" * 10 * MAX_WHY_CHARS)


def test_who_has_stopped_waits_for_nobody() -> None:
    handshake = begun()
    handshake.stop()
    handshake.ended(1.0)
    assert (handshake.again(2.0), handshake.due, handshake.silence(3.0)) == ([], None, 0.0)
