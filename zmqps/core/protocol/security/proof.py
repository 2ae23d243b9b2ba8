"""How two ends of a connection prove to each other that they know its secret, without sending it.

The end that connects sends a nonce and its `Hello`; the other answers with its own nonce and `Hello` and a proof, an
HMAC over all four; the first one checks it and sends its own proof. A nonce is used once, so an overheard proof is
useless later. The two proofs differ in their label, so neither end can be shown its own.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

from zmqps.core.protocol.messages import Hello
from zmqps.core.protocol.messages.hello import check_hello
from zmqps.core.protocol.wire import decode, encode
from zmqps.errors import LimitError, ProtocolError

#: First frame of a proof's messages; another kind of proof gets another one.
MARK = b"zmqps proof 1"
#: Of a nonce and of a proof, SHA-256's.
NONCE_NBYTES = 32
#: A `Hello` with the longest names that `zmqps` makes takes a tenth of it.
MAX_HELLO_NBYTES = 4096


def door_word(secret: str) -> bytes:
    """Return the password for ZeroMQ's own handshake; it proves nothing else."""
    return _mac(secret, b"door").hex().encode()


class ProofInitiator:
    """The end that connects: `first`, then `second` with the answer."""

    def __init__(self, secret: str, nonce: bytes, hello: Hello) -> None:
        self._secret, self._nonce, self._hello = secret, nonce, _said(hello)

    def first(self) -> list[bytes]:
        """Return the first message's frames."""
        return [MARK, self._nonce, self._hello]

    def second(self, frames: Sequence[Any]) -> tuple[Hello, list[bytes]]:
        """Check the other end's proof; return its `Hello`, and the message with ours.

        Raises
        ------
        ProtocolError
            It does not know the secret, or these are not frames of its message.
        """
        nonce, hello, proof = _fields(frames, 3)
        said = _transcript(self._nonce, self._hello, nonce, hello)
        _check(proof, _mac(self._secret, b"answering" + said))
        return _hello(hello), [MARK, _mac(self._secret, b"asking" + said)]


class ProofResponder:
    """The end that binds, for one connection: `reply` to its first message, `finish` with its second one."""

    def __init__(self, secret: str, nonce: bytes, hello: Hello) -> None:
        self._secret, self._nonce, self._hello = secret, nonce, _said(hello)
        self._theirs = self._said = b""

    def reply(self, frames: Sequence[Any]) -> list[bytes]:
        """Return the answer to the first message; raise `ProtocolError` if it is malformed."""
        nonce, self._theirs = _fields(frames, 2)
        self._said = _transcript(nonce, self._theirs, self._nonce, self._hello)
        return [MARK, self._nonce, self._hello, _mac(self._secret, b"answering" + self._said)]

    def finish(self, frames: Sequence[Any]) -> Hello:
        """Return the `Hello` of an end that has proved itself; raise `ProtocolError` for any other."""
        [proof] = _fields(frames, 1)
        _check(proof, _mac(self._secret, b"asking" + self._said))
        return _hello(self._theirs)


def _said(hello: Hello) -> bytes:
    data = bytes(encode(hello)[0])
    if len(data) > MAX_HELLO_NBYTES:
        raise LimitError(what="size of a stage's name and host", got=len(data), limit=MAX_HELLO_NBYTES)
    return data


def _mac(secret: str, text: bytes) -> bytes:
    return hmac.digest(secret.encode(), b"zmqps channel " + text, "sha256")


def _transcript(*parts: bytes) -> bytes:
    """Return the transcript of both, of a fixed length each, so that no two conversations look alike."""
    return b"".join(hashlib.sha256(part).digest() for part in parts)


def _fields(frames: Sequence[Any], count: int) -> list[bytes]:
    """Return the frames after the mark; frames of another number or size are rejected unread."""
    sizes = [memoryview(frame).nbytes for frame in frames[:5]]
    if len(frames) != 1 + count or sizes[0] != len(MARK) or bytes(frames[0]) != MARK:
        raise ProtocolError("a stage proves first that it knows the channel's secret")
    if max(sizes) > MAX_HELLO_NBYTES:
        raise LimitError(what="size of a proof's frame", got=max(sizes), limit=MAX_HELLO_NBYTES)
    fields = [bytes(frame) for frame in frames[1:]]
    if len(fields[0]) != NONCE_NBYTES:
        raise ProtocolError(f"a nonce or proof has {NONCE_NBYTES} bytes, not {len(fields[0])}")
    return fields


def _check(proof: bytes, expected: bytes) -> None:
    if not hmac.compare_digest(proof, expected):
        raise ProtocolError("it does not know the channel's secret")


def _hello(data: bytes) -> Hello:
    hello = decode([data])
    if not isinstance(hello, Hello):
        raise ProtocolError(f"{type(hello).__name__} in place of Hello")
    check_hello(hello, ("worker",))
    return hello
