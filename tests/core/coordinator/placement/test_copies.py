"""The copies of a job's shards: their numbers, where they are, and what members need to talk to their servers."""

from __future__ import annotations

from itertools import count

from tests.core.machines import hello, peer
from zmqps.core.coordinator.members.membership import MemberInfo, Roster
from zmqps.core.coordinator.placement.copies import ReplicaSet
from zmqps.core.protocol.security.keys import LOADER, proof_of, ticket_of

ROOT = b"r" * 16


def members(role: str, *names: str) -> list[MemberInfo]:
    roster = Roster()
    return [roster.enter(hello(role, name), peer(name), 0.0) for name in names]


def placed(*names: str) -> tuple[ReplicaSet, list[MemberInfo]]:
    numbers = count(7)
    copies, servers = ReplicaSet(ROOT, lambda: next(numbers)), members("server", *names)
    assert copies.place(servers) == 7, "the first one stands for the job"
    return copies, servers


def test_each_shard_has_a_copy_with_a_number_of_its_own() -> None:
    copies, (a, b) = placed("a", "b")
    assert list(copies.leaders()) == [(0, 7, a), (1, 8, b)]
    assert [copy.epoch for copy in copies.of(b)] == [8]
    assert copies.of(*members("server", "c")) == []
    assert len(copies) == 2


def test_a_server_with_two_shards_is_one_of_those_to_be_told_with_both_numbers() -> None:
    copies, (a, b) = placed("a", "b")
    copies.by_epoch[8].server = a
    assert copies.epochs_by_server() == {a.incarnation: (a, {7, 8})}
    assert b.incarnation not in copies.epochs_by_server()


def test_a_row_says_where_a_shard_is_and_how_its_server_and_a_member_know_each_other() -> None:
    copies, _ = placed("a", "b")
    (worker,) = members("worker", "w")
    for copy, row in zip(copies, copies.rows(worker), strict=True):
        key = copies.key(copy)
        assert {name: row[name] for name in ("name", "endpoint", "rank", "epoch")} == {
            "name": copy.server.hello.name, "endpoint": copy.server.hello.endpoint, "rank": copy.shard,
            "epoch": copy.epoch,
        }  # fmt: skip
        assert row["ticket"] == ticket_of(key, "worker", worker.incarnation).hex()
        assert row["proof"] == proof_of(key, "worker", worker.incarnation).hex()
    (first, second) = (copies.key(copy) for copy in copies)
    assert first != second
    loader = copies.rows(worker, load=True)[0]["ticket"]
    assert loader == ticket_of(first, LOADER, worker.incarnation).hex()
