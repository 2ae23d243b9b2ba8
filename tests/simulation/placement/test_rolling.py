"""What the simulator claims to check where servers are drained: machines are broken on purpose, and must be caught."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.test_invariants import Patch, caught, violated, wrap
from tests.simulator.engine import Engine
from tests.simulator.jobs.synchronous import SyncTraining
from tests.simulator.scenarios import SCENARIOS
from tests.simulator.simulation import Simulation
from zmqps.core.coordinator.placement.transitions import Handovers
from zmqps.core.coordinator.placement.views import MemberViews
from zmqps.core.protocol.messages import ChangeKind, Discard, Message, Replicate, View
from zmqps.core.server.dense.steps import ShardSteps
from zmqps.core.server.leaving import Leaving
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.replicas.follower import Follower
from zmqps.core.server.replicas.replication import ReplicaStreams
from zmqps.core.server.replicas.stream import Stream
from zmqps.core.worker.connections.link import Link

pytestmark = pytest.mark.repeats


def lose(patch: Patch, *kinds: type[Message], often: float) -> None:
    """Let messages of these kinds be lost now and then, and their connections live."""

    def send(original, self, node, peer, message, readers):  # type: ignore[no-untyped-def]
        if not (isinstance(message, kinds) and not self.network.quiet and self.rng.random() < often):
            original(self, node, peer, message, readers)

    wrap(patch, Engine, "_send", send)


#: What is lost so that machines that are broken are noticed; each is said again.
LOST = (("async-drains", Discard, 0.9), ("async-drains", View, 0.7), ("async-drains-replicas", Replicate, 0.1))


@pytest.mark.parametrize(("name", "kind", "often"), LOST)
def test_what_is_lost_is_said_again(name: str, kind: type[Message], often: float, monkeypatch: Patch) -> None:
    lose(monkeypatch, kind, often=often)
    for seed in range(5):
        assert violated(SCENARIOS[name].simulation(seed)) == ""


@pytest.mark.parametrize("name", ["async-drains", "sync-drains", "sync-drains-replicas"])
def test_servers_are_drained_at_all(name: str) -> None:
    drained = 0
    for seed in range(5):
        simulation = SCENARIOS[name].simulation(seed)
        assert isinstance(simulation, Simulation)
        assert simulation._rolling is not None
        simulation.run()
        drained += simulation._rolling.num_drained
        if drained >= 3:
            return
    raise AssertionError(f"{drained} servers were drained")


def test_the_last_server_that_stays_is_not_lost_while_others_go() -> None:
    simulation = Simulation(seed=1, servers=3, workers=2, training=SyncTraining(), replicas=1)
    assert simulation.losses is not None
    while simulation.counters["steps"] == 0:
        simulation.step()
    members = list(simulation.coordinator.servers)
    first, *others = (simulation.nodes[member.hello.name] for member in members)
    assert simulation.losses.may_lose(first)
    members[1].leaving = True
    assert simulation.losses.may_lose(first), "the third has what both have"
    members[2].leaving = True
    assert not simulation.losses.may_lose(first), "they end at once when nobody can take what they have"
    assert all(simulation.losses.may_lose(other) for other in others)


def test_a_leader_that_gives_up_its_place_before_its_backups_have_all(monkeypatch: Patch) -> None:
    def at_once(original, self, tenant, stream):  # type: ignore[no-untyped-def]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Stream, "is_behind", False)
            return original(self, tenant, stream)

    lose(monkeypatch, Replicate, often=0.1)
    wrap(monkeypatch, ReplicaStreams, "_yielded", at_once)
    caught("async-drains-replicas", "which has confirmed all of", begin=29)


def test_a_leader_that_goes_on_to_answer_when_it_has_given_up_its_place(monkeypatch: Patch) -> None:
    def answers(original, self, epoch, client=None):  # type: ignore[no-untyped-def]
        tenant = self.tenants.get(epoch)
        if tenant is None or not tenant.yielding:
            return original(self, epoch, client)
        tenant.yielding = False
        try:
            return original(self, epoch, client)
        finally:
            tenant.yielding = True

    lose(monkeypatch, Discard, View, often=0.9)
    wrap(monkeypatch, ServerKernel, "tenant_of", answers)
    caught("sync-drains", "lacks a gradient of it", begin=1)


def test_a_copy_that_takes_over_without_the_gradients_of_the_open_step(monkeypatch: Patch) -> None:
    monkeypatch.setattr(ShardSteps, "is_open", False)
    caught("sync-drains", "lacks a gradient of it", begin=7)


def test_a_new_leader_that_tells_its_backups_nothing_of_what_is_done_first(monkeypatch: Patch) -> None:
    def forgets(original, self, record):  # type: ignore[no-untyped-def]
        if self.handed_over:
            self.handed_over = False
        else:
            original(self, record)

    def notes(original, self, *arguments):  # type: ignore[no-untyped-def]
        self.handed_over = arguments[-1] is not None
        original(self, *arguments)

    wrap(monkeypatch, Follower, "add", forgets)
    wrap(monkeypatch, Follower, "__init__", notes)
    caught("async-drains-replicas", "may not know soon", begin=12)


def test_a_server_that_goes_with_what_it_has(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Leaving, "stop", lambda original, self, event, now: self._end(event.reason, now))
    caught("async-drains", "asked to go, and has not drained")


def test_workers_that_are_not_told_where_a_shard_is_now(monkeypatch: Patch) -> None:
    def begin(original: Any, views: MemberViews, kind: ChangeKind, *arguments: Any, **more: Any) -> Any:
        change, told = original(views, kind, *arguments, **more)
        if kind is not ChangeKind.MOVED:
            return change, told
        views.open.pop(change.revision, None)
        return change, []

    wrap(monkeypatch, MemberViews, "begin", begin)
    caught("async-drains", "waits although all is well")


def test_a_worker_that_does_not_send_again_what_was_turned_away(monkeypatch: Patch) -> None:
    def drops(original, self, number, now):  # type: ignore[no-untyped-def]
        self.free(number, now)

    lose(monkeypatch, View, often=0.7)
    wrap(monkeypatch, Link, "wait_for_move", drops)
    caught("async-drains", "transfer.remaining")


def test_a_cluster_that_ends_and_forgets_that_steps_are_held_for_a_shard_that_moves(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Handovers, "take_back", lambda original, self, now: [self.stop()][:0])
    caught("sync-saves-drains-ended", "steps are held for nothing")


def test_a_server_whose_shards_nobody_moves(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Handovers, "plan", lambda original, self, servers, now: [])
    caught("async-drains", "is still there", begin=2)
