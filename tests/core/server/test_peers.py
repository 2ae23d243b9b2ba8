"""Connections and the nodes behind them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zmqps.core.server.peers import Peers


def test_a_node_that_connects_again_has_both_connections_until_it_goes() -> None:
    peers = Peers(4)
    peers.add(b"@1", b"a")
    peers.add(b"@2", b"a")
    peers.add(b"@3", b"b")
    assert (peers.find(b"@1"), peers.find(b"@2"), peers.find(b"@3")) == (b"a", b"a", b"b")
    peers.forget(b"a")
    assert (peers.find(b"@1"), peers.find(b"@2"), peers.find(b"@3")) == (None, None, b"b")


def test_the_oldest_connections_are_forgotten() -> None:
    peers = Peers(2)
    for i in range(5):
        peers.add(b"@%d" % i, b"a")
    assert [peers.find(b"@%d" % i) for i in range(5)] == [None, None, None, b"a", b"a"]
    peers.validate({b"a"})


@given(st.lists(st.tuples(st.sampled_from([b"@1", b"@2", b"@3", b"@4"]), st.sampled_from([b"a", b"b", b"c", b""]))))
def test_both_directions_agree_whatever_happens(events: list[tuple[bytes, bytes]]) -> None:
    peers, expected = Peers(3), dict[bytes, bytes]()
    for peer, incarnation in events:
        if incarnation:
            expected.pop(peer, None)
            expected[peer] = incarnation
            peers.add(peer, incarnation)
        else:
            gone = expected.get(peer, b"")
            expected = {p: i for p, i in expected.items() if i != gone}
            peers.forget(gone)
        while len(expected) > 3:
            del expected[next(iter(expected))]
        peers.validate({b"a", b"b", b"c"})
        assert {p: peers.find(p) for p in expected} == expected
