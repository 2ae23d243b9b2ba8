"""Messages of a host group: what was written is read, and anything else is a documented error."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps.combine.messages import (
    KINDS,
    MAX_NBYTES,
    Failed,
    HostGradients,
    HostMessage,
    HostValues,
    Joined,
    JoinGroup,
    decode,
    encode,
)
from zmqps.core.protocol.plain import pack
from zmqps.errors import ProtocolError

PLACES = [[12, 7, 1 << 20, b"k" * 16]]
SOME: list[HostMessage] = [
    JoinGroup("worker 1", 12, 3),
    HostGradients(step=3, places=PLACES, counts=[[0, 4, 32], [6, 7, 1]], codec="bf16", atomic=True),
    Joined("worker 0", 3, 0.5, 10.0),
    Failed(reads=True, code=4, text="no", facts={"seconds": 1.5}),
    HostValues(2, 9, PLACES),
]


@for_each("message", SOME)
def test_what_was_written_is_read(message: HostMessage) -> None:
    assert decode(encode(message)) == message


@given(
    st.one_of(
        st.binary(max_size=64),
        st.recursive(st.none() | st.integers(-(1 << 63), (1 << 64) - 1) | st.text(), st.lists).map(pack),
    )
)
def test_anything_else_is_refused(data: bytes) -> None:
    try:
        assert type(decode(data)) in KINDS.values()
    except ProtocolError:
        pass


@given(st.sampled_from(SOME), st.data())
def test_a_message_with_another_field_is_refused_or_read(message: HostMessage, data: st.DataObject) -> None:
    entries = [message.kind, *(getattr(message, field.name) for field in fields(message))]
    at = data.draw(st.integers(1, len(entries) - 1))
    entries[at] = data.draw(
        st.sampled_from([None, -1, (1 << 64) - 1, [], [[1]], "", b"", {}, [[3, 1, 1]], [[0, 1, 0]]])
    )
    try:
        assert type(decode(pack(entries))) is type(message)
    except ProtocolError:
        pass


def test_one_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match="bytes to the workers of this host"):
        encode(JoinGroup("w" * MAX_NBYTES, 1, 0))
