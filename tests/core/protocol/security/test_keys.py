"""Keys, tickets and proofs: each opens one thing for one node, and tells nothing of the key it was made of."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import for_each
from zmqps.core.protocol.security.keys import KEY_NBYTES, LOADER, alias, key_of, proof_of, same, shard_key, ticket_of
from zmqps.errors import ProtocolError

ROOT, OTHER_ROOT = b"r" * 16, b"o" * 16
NODES = [b"a" * 16, b"b" * 16]


def test_every_shard_of_every_job_has_a_key_of_its_own() -> None:
    keys = [shard_key(root, epoch, node) for root, epoch, node in product([ROOT, OTHER_ROOT], [1, 2, 257], NODES)]
    assert len(set(keys)) == len(keys) == 12
    assert {len(key) for key in keys} == {KEY_NBYTES}
    assert shard_key(ROOT, 1, NODES[0]) == keys[0], "and keeps it"


def test_no_ticket_or_proof_serves_for_another_role_node_server_or_purpose() -> None:
    keys = [shard_key(ROOT, 1, b"s" * 16), shard_key(ROOT, 1, b"t" * 16)]
    made = [
        make(key, role, node)
        for make, key, role, node in product([ticket_of, proof_of], keys, ["worker", "observer", LOADER], NODES)
    ]
    assert len(set(made)) == len(made) == 24
    assert not set(made) & set(keys)


@for_each("text, key", [("00" * 16, bytes(16)), ("0aFf" * 8, bytes([10, 255] * 8))])
def test_a_key_goes_through_hex(text: str, key: bytes) -> None:
    assert key_of(text) == key


@for_each("text", ["", "00" * 15, "00" * 17, "zz" * 16, "0" * 31, "\ud800" * 32, "é" * 32, "\u0660" * 32])
def test_what_is_no_key_in_hex_is_a_protocol_error(text: str) -> None:
    with pytest.raises(ProtocolError, match="16 bytes in hex"):
        key_of(text)


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_two_keys_are_the_same_when_all_their_bytes_are(one: bytes, other: bytes) -> None:
    assert same(one, other) is (one == other)
    assert same(one, one)


def test_a_name_in_logs_does_not_tell_what_it_stands_for() -> None:
    names = {alias(bytes([n]) * 16) for n in range(256)}
    assert len(names) == 256
    assert all(len(name) == 8 and name.isalnum() for name in names)
    assert alias(b"abcd") not in ("61626364", "abcd")
