"""Both ends prove that they know a secret; nobody else can, whatever it has heard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqps.core.protocol.messages import MAGIC, PROTOCOL_VERSION, Hello, Left
from zmqps.core.protocol.security.proof import (
    MARK,
    MAX_HELLO_NBYTES,
    NONCE_NBYTES,
    ProofInitiator,
    ProofResponder,
    door_word,
)
from zmqps.core.protocol.wire import encode
from zmqps.errors import LimitError, ProtocolError, ProtocolVersionError

SECRET, OTHER = "what both ends know", "what a stranger thinks"


def hello(name: str, version: int = PROTOCOL_VERSION) -> Hello:
    return Hello(MAGIC, version, "worker", name.encode().ljust(16, b"."), name, "host", 7)


def nonce(number: int) -> bytes:
    return number.to_bytes(NONCE_NBYTES, "big")


def test_two_that_know_the_secret_learn_who_the_other_is() -> None:
    asking, answering = ProofInitiator(SECRET, nonce(1), hello("tail")), ProofResponder(SECRET, nonce(2), hello("head"))
    found, proof = asking.second(answering.reply(asking.first()))
    assert found == hello("head")
    assert answering.finish(proof) == hello("tail")


def test_neither_takes_one_with_another_secret() -> None:
    asking, answering = ProofInitiator(OTHER, nonce(1), hello("tail")), ProofResponder(SECRET, nonce(2), hello("head"))
    with pytest.raises(ProtocolError, match="does not know the channel's secret"):
        asking.second(answering.reply(asking.first()))
    _, proof = asking.second(ProofResponder(OTHER, nonce(2), hello("head")).reply(asking.first()))
    with pytest.raises(ProtocolError, match="does not know the channel's secret"):
        answering.finish(proof)


def test_what_was_overheard_proves_nothing_later() -> None:
    asking, answering = ProofInitiator(SECRET, nonce(1), hello("tail")), ProofResponder(SECRET, nonce(2), hello("head"))
    reply = answering.reply(asking.first())
    _, proof = asking.second(reply)
    later = ProofResponder(SECRET, nonce(3), hello("head"))
    later.reply(asking.first())
    with pytest.raises(ProtocolError):
        later.finish(proof)
    with pytest.raises(ProtocolError):
        ProofInitiator(SECRET, nonce(4), hello("tail")).second(reply)


def test_an_end_cannot_be_shown_its_own_proof_or_a_changed_hello() -> None:
    asking, answering = ProofInitiator(SECRET, nonce(1), hello("tail")), ProofResponder(SECRET, nonce(2), hello("head"))
    mark, their_nonce, _, their_proof = answering.reply(asking.first())
    with pytest.raises(ProtocolError):
        answering.finish([MARK, their_proof])
    with pytest.raises(ProtocolError):
        asking.second([mark, their_nonce, encode(hello("evil"))[0], their_proof])


def test_an_end_that_proves_itself_and_speaks_another_version_is_told_so() -> None:
    asking, answering = (
        ProofInitiator(SECRET, nonce(1), hello("tail", 99)),
        ProofResponder(SECRET, nonce(2), hello("head")),
    )
    _, proof = asking.second(answering.reply(asking.first()))
    with pytest.raises(ProtocolVersionError):
        answering.finish(proof)


def test_only_a_hello_is_taken_and_only_a_short_one() -> None:
    asking, answering = ProofInitiator(SECRET, nonce(1), hello("tail")), ProofResponder(SECRET, nonce(2), hello("head"))
    asking._hello = bytes(encode(Left())[0])
    _, proof = asking.second(answering.reply(asking.first()))
    with pytest.raises(ProtocolError, match="Left in place of Hello"):
        answering.finish(proof)
    with pytest.raises(LimitError):
        answering.reply([MARK, nonce(1), bytes(MAX_HELLO_NBYTES + 1)])
    with pytest.raises(LimitError):
        ProofInitiator(SECRET, nonce(1), hello("tail" * 1024))


def test_the_word_at_the_door_tells_neither_secret_nor_proof() -> None:
    assert door_word(SECRET) != door_word(OTHER)
    assert SECRET.encode() not in door_word(SECRET)


FRAMES = st.lists(st.one_of(st.binary(max_size=80), st.just(MARK), st.just(nonce(1))), max_size=6)


@given(FRAMES)
def test_any_frames_are_a_documented_error(frames: list[bytes]) -> None:
    answering = ProofResponder(SECRET, nonce(2), hello("head"))
    well_formed = len(frames) == 3 and frames[0] == MARK and len(frames[1]) == NONCE_NBYTES
    if well_formed:
        assert len(answering.reply(frames)) == 4, "who it is will be looked at when it has proved itself"
    else:
        with pytest.raises(ProtocolError):
            answering.reply(frames)
    with pytest.raises(ProtocolError):
        answering.finish(frames)
    with pytest.raises(ProtocolError):
        ProofInitiator(SECRET, nonce(3), hello("tail")).second(frames)
