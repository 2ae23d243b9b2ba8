"""Shards that are cut anew: every element once, at the places where they may be cut, and back together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.models import RESNET50
from tests.core.strategies import keyspaces
from zmqps.core.job.keyspace import KeySpace, Placement
from zmqps.core.job.recut import bounds_of, owners, parents, pieces_of
from zmqps.core.job.spec import Parameter

RESNET = KeySpace([Parameter(name, shape, "float32") for name, shape in RESNET50.items()])
SERVERS = st.integers(1, 7)


def elements(placement: Placement, shard: int) -> list[set[int]]:
    return [set(range(start, stop)) for start, stop in bounds_of(placement, shard)]


@given(keyspaces(), SERVERS, SERVERS)
def test_pieces_hold_every_element_once_and_belong_to_one_shard_each(keyspace, few, many) -> None:  # type: ignore[no-untyped-def]
    before, after = Placement.balance(keyspace, few), Placement.balance(keyspace, many)
    pieces = pieces_of(before, after)
    Placement.from_wire(keyspace, pieces.to_wire())  # it may travel
    assert sum(pieces.nbytes(piece) for piece in range(pieces.num_shards)) == keyspace.nbytes
    for of in (before, after):
        its = owners(pieces, of)
        assert its is not None
        for piece, owner in enumerate(its):
            if owner is not None:
                both = zip(elements(pieces, piece), elements(of, owner), strict=True)
                assert all(some <= whole for some, whole in both)


@given(keyspaces(), SERVERS, SERVERS)
def test_pieces_are_cut_only_where_shards_are(keyspace, few, many) -> None:  # type: ignore[no-untyped-def]
    before, after = Placement.balance(keyspace, few), Placement.balance(keyspace, many)
    for table, row in enumerate(pieces_of(before, after).cuts):
        assert set(row) <= set(before.cuts[table]) | set(after.cuts[table])


@given(keyspaces(), SERVERS, SERVERS)
def test_pieces_make_the_shards_they_belong_to(keyspace, few, many) -> None:  # type: ignore[no-untyped-def]
    before, after = Placement.balance(keyspace, few), Placement.balance(keyspace, many)
    pieces = pieces_of(before, after)
    for shard in range(after.num_shards):
        found = [elements(pieces, piece) for piece in parents(pieces, after, shard)]
        for table, wanted in enumerate(elements(after, shard)):
            assert wanted <= {element for piece in found for element in piece[table]}


def test_shards_of_which_some_belong_to_several_are_no_pieces() -> None:
    assert owners(Placement.balance(RESNET, 2), Placement.balance(RESNET, 4)) is None
    assert owners(Placement.balance(RESNET, 1), Placement.balance(RESNET, 1)) == (0,)


def test_resnet_is_in_balance_on_four_servers_after_two() -> None:
    two, four = Placement.balance(RESNET, 2), Placement.balance(RESNET, 4)
    its = owners(pieces_of(two, four), four)
    assert its is not None
    shares = [four.nbytes(shard) / four.keyspace.nbytes for shard in range(4)]
    assert max(shares) < 0.25 * 1.02
    assert set(its) == {0, 1, 2, 3}
