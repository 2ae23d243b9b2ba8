"""The published test vectors: what they say is what we send and understand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.core.strategies import as_bytes, comparable
from tests.data.make_wire_vectors import PATH, from_json, render
from tests.tables import for_each
from zmqps.core.protocol.messages import BY_KIND, PROTOCOL_VERSION
from zmqps.core.protocol.wire import decode, encode
from zmqps.errors import ProtocolError

VECTORS: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))


def frames_of(vector: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(frame) for frame in vector["frames"]]


@for_each("vector", VECTORS["messages"])
def test_a_vector_is_what_we_send_and_what_we_understand(vector: dict[str, Any]) -> None:
    message = from_json(vector["message"])
    assert type(message).__name__ == vector["message"]["type"]
    assert as_bytes(encode(message)) == frames_of(vector)
    assert comparable(decode(frames_of(vector))) == comparable(message)


@for_each("vector", VECTORS["malformed"])
def test_a_malformed_vector_is_refused_as_it_says(vector: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(frames_of(vector))
    assert type(caught.value).__name__ == vector["error"]


def test_every_kind_has_a_vector() -> None:
    assert {vector["message"]["kind"] for vector in VECTORS["messages"]} == set(BY_KIND)
    assert VECTORS["protocol_version"] == PROTOCOL_VERSION


def test_the_file_is_what_its_script_writes() -> None:
    assert PATH.read_text(encoding="utf-8") == render(), "run python -m tests.data.make_wire_vectors"
