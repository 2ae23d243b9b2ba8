"""Pulls that wait, against a plain list of them."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.core.machines import job, make_shard, placement, zeros
from tests.tables import for_each
from zmqps.core.protocol.messages import Pull
from zmqps.core.server.parked import DeferredPulls, nbytes_of
from zmqps.core.server.parts import COMMITTED

CLIENTS = [b"a", b"b", b"c"]
AWAITED = st.tuples(st.integers(0, 2), st.integers(1, 3))
RANGES = st.lists(st.tuples(st.integers(0, 2), st.just(0), st.lists(st.just(4), max_size=3).map(tuple)), max_size=3)


def pull(request: int, parts: object = ((0, 0, ()),), version: int = 1, exact: int = 0) -> Pull:
    return Pull(request, 1, version, exact, "raw", tuple(parts))  # type: ignore[arg-type]


class AnyOrder(RuleBasedStateMachine):
    """Clients ask, ask again, withdraw and go, while slices get versions."""

    @initialize()
    def begin(self) -> None:
        self.parked = DeferredPulls()
        self.model: dict[tuple[bytes, int], tuple[Pull, list[tuple[int, int]]]] = {}  # the newest last

    @rule(
        who=st.sampled_from(CLIENTS), request=st.integers(1, 4), parts=RANGES,
        awaits=st.lists(AWAITED, min_size=1, max_size=3, unique=True),
    )  # fmt: skip
    def waits(self, who: bytes, request: int, parts: object, awaits: list[tuple[int, int]]) -> None:
        message = pull(request, parts)
        self.parked.remove(who, request)
        self.parked.add(who, message, nbytes_of(message), awaits)
        self.model.pop((who, request), None)
        self.model[who, request] = message, awaits

    @rule(awaited=AWAITED)
    def comes(self, awaited: tuple[int, int]) -> None:
        found = self.parked.due(awaited)
        expected = [(who, message) for (who, _), (message, awaits) in self.model.items() if awaited in awaits]
        assert [(who, id(message)) for who, message in found] == [(who, id(message)) for who, message in expected]
        for who, message in expected:
            del self.model[who, message.request]

    @rule(who=st.sampled_from(CLIENTS), request=st.integers(1, 4))
    def withdraws(self, who: bytes, request: int) -> None:
        self.parked.remove(who, request)
        self.model.pop((who, request), None)

    @rule(who=st.sampled_from(CLIENTS))
    def goes(self, who: bytes) -> None:
        self.parked.drop(who)
        self.model = {key: held for key, held in self.model.items() if key[0] != who}
        assert self.parked.nbytes_for(who) == 0

    @invariant()
    def holds_exactly_what_waits(self) -> None:
        self.parked.validate({who for who, _ in self.model})
        of = {
            who: sum(nbytes_of(message) for (w, _), (message, _) in self.model.items() if w == who) for who in CLIENTS
        }
        assert {who: self.parked.nbytes_for(who) for who in CLIENTS} == of
        assert self.parked.nbytes == sum(of.values())
        assert (len(self.parked), set(self.parked)) == (len(self.model), set(self.model))
        assert set(self.parked.awaited) == {awaited for _, awaits in self.model.values() for awaited in awaits}
        nbytes, heaviest = self.parked.heaviest()
        assert nbytes == max(of.values()) == of.get(heaviest, 0)
        if nbytes:
            assert self.parked.newest(heaviest) == [request for who, request in self.model if who == heaviest][-1]


AnyOrder.TestCase.settings = settings(max_examples=20, stateful_step_count=25)
TestAnyOrder = AnyOrder.TestCase


def test_what_a_pull_takes_grows_with_its_slices_and_their_ranges() -> None:
    sizes = [nbytes_of(pull(1, parts)) for parts in ((), ((0, 0, ()),), ((0, 0, (0, 4)),), ((0, 0, ()),) * 100)]
    assert sizes == [1024, 1536, 1616, 1024 + 51_200]


@for_each("version, exact, expected", [(1, 0, [(1, 1)]), (2, 0, [(0, 2)]), (7, 0, [(0, 7)]), (7, 1, [(0, 2), (1, 1)])])
def test_a_pull_waits_for_the_first_slice_that_lacks_its_version_or_for_any_change(
    version: int, exact: int, expected: list[tuple[int, int]]
) -> None:
    spec = job("w", size=16)
    shard = make_shard(spec, placement(spec), 0)
    shard.dense.load([(0, 0, ()), (1, 0, ())], zeros(spec))
    shard.dense.push([(0, 0, ())], [zeros(spec)[0][:8]], "w")
    assert shard.dense.awaited(pull(1, ((0, 0, ()), (1, 0, ())), version, exact)) == expected


def test_a_pull_of_a_synchronous_job_waits_for_the_step() -> None:
    spec = job("w", mode="sync")
    assert spec.mode == "sync"
    assert make_shard(spec, placement(spec), 0).dense.awaited(pull(1, version=4)) == [(COMMITTED, 4)]
