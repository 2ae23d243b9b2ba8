"""What the simulator claims to check it does check: each machine here is broken on purpose, and must be caught."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.simulator import Simulation, SimulationError
from tests.simulator.jobs.synchronous import SyncTraining, overwrite
from tests.simulator.members.departures import Departures
from tests.simulator.placement.restores import Restored
from tests.simulator.scenarios import SCENARIOS
from zmqps.core.coordinator.consistency import Bounded, Decision, Synchronous
from zmqps.core.coordinator.jobs import Jobs, TouchedJobs
from zmqps.core.coordinator.machine import CoordinatorMachine
from zmqps.core.coordinator.members.erasures import Erasures
from zmqps.core.coordinator.members.membership import Roster
from zmqps.core.coordinator.members.places import Losses, Places
from zmqps.core.coordinator.run import JobRun
from zmqps.core.coordinator.saving.checkpoints import Checkpoints
from zmqps.core.coordinator.training.data import DataSet
from zmqps.core.coordinator.training.steps import Commits, Steps
from zmqps.core.node.handshake import Handshake
from zmqps.core.node.member import Member
from zmqps.core.node.timers import Timer
from zmqps.core.protocol.events import COORDINATOR, Action, Disconnected, Run, Send
from zmqps.core.protocol.messages import (
    Ack,
    Arrive,
    Commit,
    Departed,
    Error,
    HeartbeatAck,
    Hold,
    Holding,
    Leave,
    Lost,
    Message,
    Proceed,
    Save,
)
from zmqps.core.protocol.security.roles import TABLE, Row, row_of
from zmqps.core.server.clients import Clients
from zmqps.core.server.dense.aggregate import Stage
from zmqps.core.server.dense.part import DensePart
from zmqps.core.server.dense.rules import Undo
from zmqps.core.server.dense.slices import Updates
from zmqps.core.server.dense.snapshot import Snapshot
from zmqps.core.server.dense.steps import ShardSteps
from zmqps.core.server.machine import ServerKernel
from zmqps.core.server.orders import Orders
from zmqps.core.server.saves import Saves
from zmqps.core.server.shard import Shard
from zmqps.core.server.tenant import Tenant
from zmqps.core.worker.asked import Asked
from zmqps.core.worker.connections.link import Link
from zmqps.core.worker.connections.links import Links
from zmqps.core.worker.early import Early
from zmqps.core.worker.operations import Advance
from zmqps.core.worker.pace import Pace, Pause
from zmqps.core.worker.session import SessionKernel
from zmqps.core.worker.transfer import LoadTransfer, PullTransfer, PushTransfer, Target
from zmqps.core.worker.transfers import Transfers
from zmqps.core.worker.waits import Orphaned
from zmqps.errors import DeadlineError, PeerLostError, ServerMemoryError

pytestmark = pytest.mark.repeats

Patch = pytest.MonkeyPatch
#: A seed in which the broken place is not passed does not notice; in so many, one does.
SEEDS = 80


def caught(scenario: str, text: str, begin: int = 0) -> None:
    """Assert that one of a scenario's seeds from ``begin`` on fails for this reason; others may be violated first.

    It saves time if that is one that notices. Where it does not any more, because a change has made the seeds other
    runs, any other one will do.
    """
    assert text, "name the reason: any failure has an empty one in it"
    reasons: list[str] = []
    while not any(text in reason for reason in reasons):
        assert len(reasons) < SEEDS, f"not noticed, or only by {set(reasons)}"
        reasons.append(violated(SCENARIOS[scenario].simulation(begin + len(reasons))))


def violated(simulation: Simulation | Restored) -> str:
    """Return what a run has violated, without its trace; nothing if it was well."""
    try:
        simulation.run()
    except SimulationError as error:
        return str(error.__cause__) or _where(error.__cause__)
    return ""


def _where(error: BaseException | None) -> str:
    """Say which assertion without words it was."""
    frame = traceback.extract_tb(error.__traceback__)[-1] if error is not None else None
    return "" if frame is None else f"{frame.name}: {frame.line}"


def wrap(patch: Patch, owner: type, name: str, change: Callable[..., Any]) -> None:
    """Let a method do something else: ``change(original, self, *arguments)``."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda self, *a, **k: change(original, self, *a, **k))


# --- reach ---------------------------------------------------------------------------------------


def test_a_node_that_never_looks_why_nobody_answers(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Handshake, "looked", lambda original, self, why: False)
    caught("async-partitions", "does not say why", begin=7)


def test_a_worker_that_does_not_miss_a_server_whose_connection_has_ended(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Handshake, "ended", lambda self, now: None)
    monkeypatch.setattr(Link, "validate", lambda link: None)
    caught("async-routes", "does not come back", begin=5)


def test_a_worker_that_knows_why_a_server_is_silent_and_does_not_tell(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Links, "unreached", lambda self, now: {})
    caught("sync-routes", "keeps it to itself")


# --- memory -------------------------------------------------------------------------------------


def test_a_server_that_acknowledges_what_it_had_no_memory_for(monkeypatch: Patch) -> None:
    def push(original: Any, dense: DensePart, parts: Any, *rest: Any, **options: Any) -> Any:
        try:
            return original(dense, parts, *rest, **options)
        except MemoryError:
            told = (1,) * len(parts), (0,) * len(parts)
            options["note"](told)
            return told

    wrap(monkeypatch, DensePart, "push", push)
    caught("async-memory", "an acknowledged push is missing")


def test_a_shard_that_moves_values_to_a_buffer_before_they_are_there(monkeypatch: Patch) -> None:
    def take_back(original: Any, updates: Updates, states: Any, rooms: Any, *rest: Any) -> None:
        for state in states:
            if state.slice.index in rooms and rooms[state.slice.index][0] is not state.value:
                state.value, state.readers = rooms.pop(state.slice.index)
        original(updates, states, rooms, *rest)

    wrap(monkeypatch, Updates, "_take_back", take_back)
    caught("async-memory", "was applied", begin=26)


@pytest.mark.parametrize(("scenario", "text"), [("async-memory", "was applied"), ("sync-memory", "is not the sequen")])
def test_a_half_of_an_update_that_is_left_behind(scenario: str, text: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Undo, "restore", lambda self: None)
    caught(scenario, text)


def test_a_commit_that_begins_anew_when_it_is_repeated(monkeypatch: Patch) -> None:
    def commit(original: Any, shard: Shard, step: int, contributors: Any, *terms: Any, **flags: Any) -> None:
        try:
            original(shard, step, contributors, *terms, **flags)
        except MemoryError:
            for state in shard.slices:
                state.version = step
            raise

    wrap(monkeypatch, Shard, "commit", commit)
    monkeypatch.setattr(Shard, "validate", lambda self: None)
    caught("sync-memory", "is not the sequential reference", begin=5)


# --- the values of a synchronous step -----------------------------------------------------------


def test_a_shard_that_commits_other_contributors(monkeypatch: Patch) -> None:
    def commit(original: Any, shard: Shard, step: int, contributors: Any, *terms: Any, **flags: Any) -> None:
        original(shard, step, contributors[:-1] if shard.index == 1 and step == 2 else contributors, *terms, **flags)

    wrap(monkeypatch, Shard, "commit", commit)
    caught("sync-twisted", "is not the sequential reference at version 3")


def test_a_shard_that_applies_a_step_twice(monkeypatch: Patch) -> None:
    def commit(original: Any, shard: Shard, step: int, contributors: Any, *terms: Any, **flags: Any) -> None:
        original(shard, step, contributors, *terms, **flags)
        if step == 1:
            original(shard, step + 1, contributors, *terms, **flags)

    wrap(monkeypatch, Shard, "commit", commit)
    caught("sync-twisted", "at version 3, which was never committed")


def test_a_shard_that_loses_a_gradient(monkeypatch: Patch) -> None:
    def add(original: Any, stage: Stage, step: int, contributor: Any, *rest: Any) -> None:
        if step != 2 or contributor[1] % 2:
            original(stage, step, contributor, *rest)

    wrap(monkeypatch, Stage, "add", add)
    caught("sync-twisted", "lacks a gradient of it")


def test_a_shard_that_forgets_how_many_examples_a_gradient_is_of(monkeypatch: Patch) -> None:
    wrap(monkeypatch, Stage, "add", lambda original, stage, *a: original(stage, *a[:3], 1, *a[4:]))
    caught("sync-twisted", "is not the sequential reference")


def test_a_server_that_forgets_a_commit(monkeypatch: Patch) -> None:
    def commit(original: Any, orders: Orders, message: Commit, now: float) -> Any:
        shard = orders._host.tenants[message.epoch].ready()
        if shard.index == 0 and message.step == 3:
            shard.steps.version += 1
            for state in shard.slices:
                state.version += 1
        return original(orders, message, now)

    wrap(monkeypatch, Orders, "_commit", commit)
    caught("sync-twisted", "is not the sequential reference at version 4")


# --- who counts ---------------------------------------------------------------------------------


def test_a_coordinator_that_does_not_wait_for_all(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Synchronous, "_complete", lambda self, missing: self._open.num_gradients > 0)
    caught("sync-twisted", "is committed without")


def test_a_coordinator_that_does_not_wait_for_the_quorum(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Synchronous, "_complete", lambda self, missing: self._open.num_gradients > 0)
    caught("sync-backup", "has 1 of 2 gradients")


def test_a_coordinator_that_tells_servers_different_contributors(monkeypatch: Patch) -> None:
    def commit(original: Any, steps: Steps, commitment: Any, now: float) -> Any:
        first, *others = original(steps, commitment, now)
        return [
            first,
            *(replace(o, message=replace(o.message, contributors=o.message.contributors[1:])) for o in others),
        ]

    wrap(monkeypatch, Steps, "_commit", commit)
    caught("sync-twisted", "is committed with other contributors than before")


def test_a_coordinator_that_counts_what_a_worker_brought_in_part(monkeypatch: Patch) -> None:
    def arrive(
        original: Any, policy: Synchronous, worker: bytes, step: int, attempts: Any, *rest: Any, **k: Any
    ) -> None:
        original(policy, worker, step, attempts[:1], *rest, **k)

    wrap(monkeypatch, Synchronous, "arrive", arrive)
    caught("sync-twisted", "of a worker that arrived with")


def test_a_coordinator_that_counts_gradients_of_another_step(monkeypatch: Patch) -> None:
    def arrive(original: Any, policy: Synchronous, worker: bytes, step: int, *rest: Any, **flags: Any) -> None:
        original(policy, worker, policy.clock, *rest, **flags)

    wrap(monkeypatch, Synchronous, "arrive", arrive)
    caught("sync-backup", "of a worker that arrived with")


@pytest.mark.parametrize(("counted", "text"), [(True, "are lost"), (False, "is told that what counts was dropped")])
def test_a_coordinator_that_lies_about_what_counted(counted: bool, text: str, monkeypatch: Patch) -> None:
    def decide(original: Any, policy: Synchronous, *arguments: Any) -> Decision:
        decision: Decision = original(policy, *arguments)
        return replace(decision, granted=tuple(replace(r, counted=counted) for r in decision.granted))

    wrap(monkeypatch, Synchronous, "decide", decide)
    caught("sync-backup", text)


def test_a_coordinator_that_lets_workers_go_on_before_the_commit(monkeypatch: Patch) -> None:
    monkeypatch.setattr(
        "zmqps.core.coordinator.training.steps.Proceed",
        lambda request, version, *rest: Proceed(request, version + 1, *rest),
    )
    caught("sync-twisted", "a worker may read version")


# --- what is read -------------------------------------------------------------------------------


def test_a_worker_that_reads_two_versions_at_once(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Target, "outdated", lambda self: ())
    monkeypatch.setattr(Pace, "start", lambda self, transfer, terms: _start(self, transfer))
    caught("sync-backup", "at once", begin=8)


_start_unbroken = Pace.start


def _start(pace: Pace, transfer: PushTransfer | PullTransfer | LoadTransfer) -> None:
    version = transfer.version if isinstance(transfer, PullTransfer) else 0
    _start_unbroken(pace, transfer)
    if isinstance(transfer, PullTransfer):
        transfer.version = version  # what comes, and not what the step demands


def test_a_worker_that_reads_before_the_slowest_is_near_enough(monkeypatch: Patch) -> None:
    def decide(original: Any, policy: Bounded, missing: int, now: float) -> Decision:
        policy.staleness, bound = 100, policy.staleness
        decision: Decision = original(policy, missing, now)
        policy.staleness = bound
        return decision

    wrap(monkeypatch, Bounded, "decide", decide)
    caught("bounded-stops", "steps ahead of")


def test_an_older_version_that_is_not_what_it_was(monkeypatch: Patch) -> None:
    monkeypatch.setattr(
        ShardSteps, "_keep", lambda self, state: state.history.append((state.version, state.value, [], Pinned()))
    )
    monkeypatch.setattr(Shard, "validate", lambda self: None)
    caught("sync-twisted", "what worker-")


class Pinned:
    done = True


# --- examples -----------------------------------------------------------------------------------


def test_a_range_that_is_lost_with_its_worker(monkeypatch: Patch) -> None:
    def leave(original: Any, data: DataSet, worker: bytes, *, finished: bool) -> None:
        original(data, worker, finished=True)

    wrap(monkeypatch, DataSet, "leave", leave)
    caught("sync-data-crashes", "is over")


def test_a_range_that_two_workers_have(monkeypatch: Patch) -> None:
    def take(original: Any, data: DataSet, worker: bytes) -> int | None:
        return next(iter(data.taken.values()), None) if len(data.taken) == 2 else original(data, worker)

    wrap(monkeypatch, DataSet, "take", take)
    monkeypatch.setattr(DataSet, "validate", lambda self: None)
    caught("sync-data", "two workers have range")


def test_a_range_that_is_used_again(monkeypatch: Patch) -> None:
    def done(original: Any, data: DataSet, worker: bytes, used: tuple[int, int]) -> None:
        if used[1] == 4 and data.taken.get(worker) == 4:
            data._returned.append(data.taken.pop(worker))
        else:
            original(data, worker, used)

    wrap(monkeypatch, DataSet, "done", done)
    caught("sync-data", "has been used already")


def test_data_that_are_over_too_soon(monkeypatch: Patch) -> None:
    monkeypatch.setattr(DataSet, "over", property(lambda self: self.data_pass == 1))
    caught("sync-data", "are said to be used up")


# --- waiting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["bounded", "sync"])
def test_waiting_for_the_dead(mode: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr({"bounded": Bounded, "sync": Synchronous}[mode], "leave", lambda self, worker: None)
    monkeypatch.setattr(CoordinatorMachine, "validate", lambda self: None)
    caught(f"{mode}-crashes", "waits although all is well")


def test_an_arrival_that_is_never_answered(monkeypatch: Patch) -> None:
    def advance(original: Any, steps: Steps, *arguments: Any) -> Any:
        actions = original(steps, *arguments)
        return [a for a in actions if not isinstance(getattr(a, "message", None), Proceed) or a.message.version != 3]

    wrap(monkeypatch, Steps, "advance", advance)
    monkeypatch.setattr("zmqps.core.coordinator.members.membership.MAX_ANSWERED", 0)
    caught("sync-twisted", "waits although all is well")


def test_a_step_that_nobody_has_brought_anything_to_and_that_never_ends(monkeypatch: Patch) -> None:
    def complete(original: Any, policy: Synchronous, missing: int) -> bool:
        return policy._open.num_gradients > 0 and original(policy, missing)

    wrap(monkeypatch, Synchronous, "_complete", complete)
    caught("sync-skips", "waits although all is well")


def test_a_bounded_worker_whose_clock_stands_still_when_it_skips(monkeypatch: Patch) -> None:
    def arrive(original: Any, policy: Bounded, worker: bytes, step: int, attempts: Any, *rest: Any, **k: Any) -> None:
        original(policy, worker, step if attempts else -1, attempts, *rest, **k)

    wrap(monkeypatch, Bounded, "arrive", arrive)
    caught("bounded-skips", "steps ahead of")


def test_a_step_that_counts_what_its_worker_has_left_out(monkeypatch: Patch) -> None:
    def arriving(original: Any, pace: Pace, request: int) -> Arrive:
        if isinstance(pace.step.closing, Advance):
            pace.step.closing.skips = False
        return original(pace, request)

    wrap(monkeypatch, Pace, "arriving", arriving)
    caught("sync-skips", "left out")


def test_a_server_that_answers_what_nobody_waits_for_any_more(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Tenant, "withdraw", lambda self, incarnation, request: None)
    caught("sync-eager", "values that it was told not to")


def test_a_worker_that_goes_on_waiting_for_what_it_has_given_up(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Link, "withdraw", lambda self, pull, now: [])
    caught("sync-eager", "PullTransfer) and transfer.done")


def test_a_worker_that_counts_values_it_has_asked_for_early_though_it_goes_on_at_a_later_step(
    monkeypatch: Patch,
) -> None:
    def recall(original: Any, transfers: Transfers, now: float) -> list[Action]:
        transfers.ahead = None
        return []

    wrap(monkeypatch, Transfers, "take_back_ahead", recall)
    caught("sync-together-backup", "and has read version", begin=6)


def test_a_worker_that_takes_an_early_pull_back_and_leaves_it_with_the_servers(monkeypatch: Patch) -> None:
    def recall(original: Any, transfers: Transfers, now: float) -> list[Action]:
        pull, transfers.ahead = transfers.ahead, None
        if pull is not None:
            transfers.drop(pull)
        return []

    wrap(monkeypatch, Transfers, "take_back_ahead", recall)
    caught("sync-together-several", "PullTransfer) and transfer.done")


def test_a_worker_that_goes_on_with_an_early_pull_before_the_step_is_over(monkeypatch: Patch) -> None:
    def begin(original: Any, early: Early, now: float) -> list[Action]:
        actions: list[Action] = original(early, now)
        transfers = early._session.transfers
        if transfers.ahead is not None:  # as if its turn had come
            transfers.pace.held.popitem(last=False)
            transfers.ahead = None
        return actions

    wrap(monkeypatch, Early, "begin", begin)
    caught("sync-together-several", "waits although all is well")


def test_a_worker_that_writes_where_servers_are_yet_to_read_its_gradients(monkeypatch: Patch) -> None:
    monkeypatch.setattr(SyncTraining, "part", lambda self, source: overwrite(source))
    caught("sync-lent", "is not the sequential reference")


def test_a_chief_that_has_gone_and_has_no_successor(monkeypatch: Patch) -> None:
    def name_chief(original: Any, places: Places, acknowledge: Any) -> Any:
        return original(places, acknowledge) if places.chief is None else []

    wrap(monkeypatch, Places, "name_chief", name_chief)
    monkeypatch.setattr(CoordinatorMachine, "validate", lambda self: None)
    caught("sync-crashes", "no worker is told to be the chief")


def test_a_worker_that_is_the_chief_beside_another_one(monkeypatch: Patch) -> None:
    def acknowledge(original: Any, run: JobRun, member: Any) -> HeartbeatAck:
        return replace(original(run, member), chief=1)

    wrap(monkeypatch, JobRun, "acknowledge", acknowledge)
    caught("sync-crashes", "is told to be the chief: the first has rank")


def test_a_run_in_which_nothing_happens_any_more(monkeypatch: Patch) -> None:
    simulation = Simulation(1)
    simulation._heap.clear()
    with pytest.raises(SimulationError, match="nothing happens any more"):
        simulation.run()


# --- several jobs -------------------------------------------------------------------------------


def test_a_server_that_takes_one_job_for_another(monkeypatch: Patch) -> None:
    def push(original: Any, server: ServerKernel, client: Any, message: Any) -> Any:
        first, epochs = next(iter(server.tenants)), client.epochs
        client.epochs = {*epochs, first}
        try:
            return original(server, client, replace(message, epoch=first))
        finally:
            client.epochs = epochs

    wrap(monkeypatch, ServerKernel, "push", push)
    caught("jobs-alike", "no worker pushed")


def test_a_coordinator_that_forgets_to_have_a_job_freed(monkeypatch: Patch) -> None:
    def discard(original: Any, erasures: Erasures, epoch: int, *rest: Any, **options: Any) -> Any:
        return [] if epoch % 3 == 0 else original(erasures, epoch, *rest, **options)

    wrap(monkeypatch, Erasures, "discard", discard)
    caught("jobs-ended", "still has shards of jobs that have ended")


def test_a_coordinator_that_asks_only_once_for_a_job_to_be_freed(monkeypatch: Patch) -> None:
    ask_once(monkeypatch)
    caught("jobs-loss", "still has shards of jobs that have ended", begin=27)


def ask_once(patch: Patch) -> None:
    """Let the coordinator ask servers only once to erase something."""
    patch.setattr(Erasures, "on_deadline", lambda self, now: [])
    patch.setattr(Erasures, "next_deadline", lambda self: None)


def test_a_coordinator_that_forgets_which_jobs_servers_have_said_something_of(monkeypatch: Patch) -> None:
    def of_epoch(original: Any, jobs: Jobs, *arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(TouchedJobs, "add", lambda self, name: None)
            return original(jobs, *arguments)

    wrap(monkeypatch, Jobs, "of_epoch", of_epoch)
    caught("sync-loss", "it was forgotten when job")


def test_a_coordinator_that_forgets_which_jobs_their_members_have_said_something_of(monkeypatch: Patch) -> None:
    def add(original: Any, touched: TouchedJobs, name: str) -> None:
        if name not in touched._timers:  # else it is due as it was when it began
            original(touched, name)

    wrap(monkeypatch, TouchedJobs, "add", add)
    caught("jobs-loss", "it was forgotten when job")


@pytest.mark.parametrize(
    ("part", "scenario"),
    [
        ("erasing", "jobs-loss"),
        ("checkpoints", "sync-saves"),
        ("what moves", "sync-drains"),
        ("tracing", "sync-traces"),
        ("examinations", "sync-probed-loss"),
    ],
)
def test_a_coordinator_that_forgets_when_a_part_of_it_is_due(monkeypatch: Patch, part: str, scenario: str) -> None:
    def touch(original: Any, timer: Timer) -> None:
        if timer.name != part:
            original(timer)

    wrap(monkeypatch, Timer, "touch", touch)
    caught(scenario, f"it was forgotten when {part} is due")


def test_a_coordinator_that_ends_a_job_before_its_last_step_is_applied(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Commits, "all_confirmed", True)
    caught("jobs-ended", "steps", begin=107)


# --- connections that break ---------------------------------------------------------------------


def test_a_server_that_keeps_the_pulls_of_connections_that_have_ended(monkeypatch: Patch) -> None:
    def handle(original: Any, server: ServerKernel, event: Any, now: float) -> Any:
        return [] if isinstance(event, Disconnected) else original(server, event, now)

    wrap(monkeypatch, ServerKernel, "handle", handle)
    caught("sync-eager", "keeps pulls of peers that are gone", begin=10)


# --- members that have gone ---------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_coordinator_that_tells_servers_only_once_that_a_member_has_gone(mode: str, monkeypatch: Patch) -> None:
    ask_once(monkeypatch)
    caught(f"{mode}-departures", "keeps a client that has gone")


def test_a_coordinator_that_tells_servers_after_the_step_that_is_complete_without_a_member(monkeypatch: Patch) -> None:
    def recorded(original: Any, machine: CoordinatorMachine, actions: list[Action], now: float) -> Any:
        late = sorted(actions, key=lambda action: isinstance(getattr(action, "message", None), Departed))
        return original(machine, late, now)

    wrap(monkeypatch, CoordinatorMachine, "_recorded", recorded)
    caught("sync-departures", "before a step")


def test_a_server_that_confirms_what_it_does_not_do(monkeypatch: Patch) -> None:
    monkeypatch.setattr(ServerKernel, "depart", lambda self, incarnation, evicted=0: None)
    caught("async-departures", "which it has forgotten")


# --- a coordinator that dies --------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["async", "bounded", "sync", "sync-data"])
def test_workers_that_do_not_notice_the_death_of_the_coordinator(mode: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(SessionKernel, "_lose_coordinator", lambda self, now: [])
    caught(f"{mode}-orphaned", "waits for the dead")


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_workers_that_wait_for_servers_that_have_ended_with_the_coordinator(mode: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Orphaned, "look", lambda self, operations, now: setattr(self, "due", None) or [])
    caught(f"{mode}-orphaned", "waits for the dead", begin=4)


def test_a_worker_that_asks_servers_for_what_only_a_coordinator_can_bring(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Orphaned, "is_ahead", lambda self, operation: False)
    caught("sync-orphaned", "has waited for the dead: pull", begin=9)


def test_a_worker_that_tells_of_a_deadline_and_not_of_the_cause(monkeypatch: Patch) -> None:
    def lose(original: Any, orphaned: Orphaned, now: float) -> PeerLostError | DeadlineError:
        return DeadlineError(operation="x", seconds=1.0, waiting_for="x")

    wrap(monkeypatch, Orphaned, "error", lose)
    caught("sync-orphaned", "is not told for whom it has waited in vain")


def test_a_cluster_that_ends_well_although_a_worker_was_lost(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Losses, "left", lambda self, worker, how: None)
    caught("async-stops", "were lost, and the cluster ends well", begin=7)


# --- a coordinator that is started again --------------------------------------------------------


def test_members_that_take_another_coordinators_refusal_for_their_own_fault(monkeypatch: Patch) -> None:
    def take(original: Any, member: Member, message: Message, now: float) -> Any:
        return [] if isinstance(message, Error) else original(member, message, now)

    wrap(monkeypatch, Member, "on_message", take)
    caught("async-succeeded", "is not told that its coordinator is another one")


def test_workers_that_wait_for_another_coordinator_than_their_own(monkeypatch: Patch) -> None:
    monkeypatch.setattr(SessionKernel, "_lose_coordinator", lambda self, now: [])
    caught("async-succeeded", "waits for another coordinator than its own")


def test_servers_that_stay_although_their_coordinator_is_another_one(monkeypatch: Patch) -> None:
    monkeypatch.setattr(ServerKernel, "end", lambda self, now: [])
    caught("async-succeeded", "stays although its coordinator is another one", begin=18)


# --- many members -------------------------------------------------------------------------------


def test_a_coordinator_that_tells_everybody_of_everybody_who_is_lost(monkeypatch: Patch) -> None:
    def lose(original: Any, machine: CoordinatorMachine, member: Any, *arguments: Any) -> Any:
        others = [other for other in machine.runs[member.job].members.values() if other is not member]
        lost = Lost(member.role, member.rank, member.hello.name, member.incarnation, 10.0)
        return [*original(machine, member, *arguments), *(Send(other.peer, lost) for other in others)]

    wrap(monkeypatch, CoordinatorMachine, "give_up", lose)
    monkeypatch.setattr("zmqps.core.coordinator.kernel.machine.MOST_LOST", 1000)
    caught("sync-crowd", "for the coordinator")


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Roster, "promote", lambda original, *arguments: None),
        (
            Asked,
            "_attach",
            lambda original, asked, init, job, now: original(asked, init, replace(job, rank=9), now),
        ),
    ],
)
def test_a_worker_whose_rank_others_have_taken_who_only_idle(
    owner: type, name: str, broken: Callable[..., Any], monkeypatch: Patch
) -> None:
    wrap(monkeypatch, owner, name, broken)
    caught("sync-outranked", "3 workers are expected, and their ranks are")


# --- strangers ----------------------------------------------------------------------------------


def test_a_coordinator_that_does_not_compare_secrets(monkeypatch: Patch) -> None:
    monkeypatch.setattr("zmqps.core.coordinator.members.membership.same", lambda ours, theirs: True)
    caught("async-attacked", "coordinator takes a stranger for")


def test_a_server_that_does_not_check_tickets(monkeypatch: Patch) -> None:
    monkeypatch.setattr("zmqps.core.server.clients.same", lambda ours, theirs: True)
    caught("sync-attacked", "takes a stranger for")


def test_a_server_whose_clients_anybody_can_take_away(monkeypatch: Patch) -> None:
    def leave(original: Any, server: ServerKernel, peer: bytes, message: Message) -> Any:
        for who in list(server.clients.by_incarnation) if isinstance(message, Leave) else ():
            for tenant in server.tenants.values():
                tenant.forget(who)  # with its ledger: what is repeated is new
        return original(server, peer, message)

    wrap(monkeypatch, ServerKernel, "_from_stranger", leave)
    caught("async-attacked", "a push was applied twice")


def test_a_server_that_takes_what_comes_after_a_client_has_left(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Clients, "bar", lambda self, who, error: self.by_incarnation.get(who))
    monkeypatch.setattr(Clients, "forget", lambda self, who: self.by_incarnation.get(who))
    monkeypatch.setattr(Departures, "_sent", lambda self, sender, receiver, message: None)  # which notices it sooner
    caught("async-attacked", "a push was applied twice", begin=8)


def test_a_coordinator_that_lets_anybody_end_a_job(monkeypatch: Patch) -> None:
    monkeypatch.setattr("zmqps.core.protocol.security.guard.same", lambda ours, theirs: True)
    caught("async-attacked", "strangers ended the job")


@pytest.mark.parametrize(
    ("broken", "scenario", "text"),
    [
        ("zmqps.core.coordinator.members.membership.check_same", "async-keyed", "coordinator takes a stranger for"),
        ("zmqps.core.coordinator.kernel.machine.check_role", "async-keyed", "coordinator takes a stranger for"),
    ],
)
def test_a_coordinator_that_does_not_look_at_keys(monkeypatch: Patch, broken: str, scenario: str, text: str) -> None:
    monkeypatch.setattr(broken, lambda *args, **options: None)
    caught(scenario, text)


@pytest.mark.parametrize(
    ("scenario", "text"),
    [
        ("async-keyed", "strangers ended the job"),
        ("async-saves-keyed", "an observer has planted a checkpoint"),
    ],
)
def test_a_coordinator_that_listens_to_every_role(monkeypatch: Patch, scenario: str, text: str) -> None:
    def listen(message: Message, *sender: Any, **options: Any) -> Row:
        return row_of(message) or TABLE[0]

    monkeypatch.setattr("zmqps.core.coordinator.kernel.machine.check_sender", listen)
    caught(scenario, text)


# --- what is sent twice -------------------------------------------------------------------------


def test_a_worker_that_sends_everything_again_after_a_silence(monkeypatch: Patch) -> None:
    def on_deadline(original: Any, link: Link, now: float) -> list[Action]:
        if link.probe.due is None or now < link.probe.due:
            return list(original(link, now))
        link.probe.ask(now, 0)  # only to wait longer the next time
        return [link._again(request) for request in link.in_flight.values() if not request.transfer.done]

    wrap(monkeypatch, Link, "on_deadline", on_deadline)
    caught("sync-slow", "are needed")


def test_a_worker_that_does_not_ask_what_a_silent_server_has(monkeypatch: Patch) -> None:
    def on_deadline(original: Any, link: Link, now: float) -> list[Action]:
        link.probe.due = None
        return list(original(link, now))

    wrap(monkeypatch, Link, "on_deadline", on_deadline)
    monkeypatch.setattr(Link, "validate", lambda link: None)
    caught("async-drops", "waits although all is well")


def test_a_worker_that_takes_a_push_for_applied_that_a_server_had_no_memory_for(monkeypatch: Patch) -> None:
    def handle(original: Any, transfers: Transfers, peer: bytes, message: Any, now: float) -> list[Action]:
        request = (
            transfers._links.by_peer[peer][0].in_flight.get(message.request) if isinstance(message, Error) else None
        )
        if request is not None and request.transfer.target is None and message.code == ServerMemoryError.code:
            message = Ack(message.request, [0] * len(request.cargoes), [0] * len(request.cargoes))
        return list(original(transfers, peer, message, now))

    wrap(monkeypatch, Transfers, "handle", handle)
    caught("async-memory", "an acknowledged push is missing")


def test_a_worker_that_does_not_say_again_what_was_lost_with_a_connection(monkeypatch: Patch) -> None:
    def on_welcome(original: Any, link: Link, *rest: Any) -> list[Action]:
        link.resends.all = False
        return list(original(link, *rest))

    wrap(monkeypatch, Link, "on_welcome", on_welcome)
    monkeypatch.setattr(Link, "_resend_unanswered", lambda *rest, **options: None)  # nor when it asks the server
    monkeypatch.setattr(Link, "validate", lambda link: None)
    caught("async-breaks", "waits although all is well")


# --- checkpoints ----------------------------------------------------------------------------------


def test_a_snapshot_that_does_not_copy_slots(monkeypatch: Patch) -> None:
    def kept(snapshot: Snapshot, row: Any) -> Any:
        row.state.snapshot, row.slots = None, row.state.slots
        return row.slots

    monkeypatch.setattr(Snapshot, "_copy_slots", kept)
    caught("sync-saves", "has other slots than the sequential reference")


def test_a_snapshot_that_does_not_pin_values(monkeypatch: Patch) -> None:
    def unpinned(original: Any, snapshot: Snapshot, *rest: Any) -> None:
        original(snapshot, *rest)
        for row in snapshot._rows.values():
            row.pin.done = True

    wrap(monkeypatch, Snapshot, "__init__", unpinned)
    monkeypatch.setattr(Snapshot, "validate", lambda snapshot: None)
    caught("sync-saves", "is not the sequential reference", begin=12)


def test_a_server_that_keeps_its_shard_after_the_next_commit(monkeypatch: Patch) -> None:
    def later(original: Any, saves: Saves, message: Save, *rest: Any) -> Any:
        if message.exact and message.number not in seen:
            seen.add(message.number)
            message = replace(message, version=message.version + 1)
        return original(saves, message, *rest)

    seen: set[int] = set()
    wrap(monkeypatch, Saves, "ask", later)
    caught("sync-saves", "has versions")


def test_a_coordinator_that_ends_jobs_without_saving_them(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Jobs, "close", lambda jobs, run, how, now, moved=False: jobs.end(run, how, now, moved=moved))
    caught("async-saves-ended", "ends, and is not saved before")


def test_a_coordinator_that_ends_its_cluster_before_jobs_are_saved(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Jobs, "is_saving", False)
    caught("async-saves-ended", "ends, and is not saved before")


def test_a_coordinator_that_takes_an_earlier_checkpoint_for_the_last_one(monkeypatch: Patch) -> None:
    def last(original: Any, checkpoints: Checkpoints, run: JobRun, now: float) -> list[Action]:
        return [] if run.fallback.good else original(checkpoints, run, now)

    wrap(monkeypatch, Checkpoints, "last", last)
    caught("async-saves-ended", "ends, and is not saved before")


def test_a_coordinator_that_saves_before_all_workers_hold(monkeypatch: Patch) -> None:
    def at_once(original: Any, checkpoints: Checkpoints, making: Any, now: float) -> list[Action]:
        return [*original(checkpoints, making, now), *checkpoints._save(making, now)]

    wrap(monkeypatch, Checkpoints, "_hold", at_once)
    caught("async-saves-twisted", "has pushes in part", begin=5)


def test_a_worker_that_says_it_holds_while_a_push_is_under_way(monkeypatch: Patch) -> None:
    def pause(original: Any, transfers: Transfers, message: Hold, now: float) -> list[Action]:
        if message.ends:
            return original(transfers, message, now)
        transfers.pace.paused = Pause(message.number, now + 5.0, now + 100.0)
        return [Send(COORDINATOR, Holding(message.number))]

    wrap(monkeypatch, Transfers, "pause", pause)
    caught("async-saves-twisted", "has pushes in part", begin=10)


def test_a_worker_that_is_never_told_to_go_on(monkeypatch: Patch) -> None:
    def pause(original: Any, transfers: Transfers, message: Hold, now: float) -> list[Action]:
        return [] if message.ends else original(transfers, message, now)

    monkeypatch.setattr("zmqps.core.worker.transfers.PAUSE_S", 1e6)
    wrap(monkeypatch, Transfers, "pause", pause)
    caught("bounded-saves", "stays paused for a checkpoint")


def test_a_coordinator_that_answers_before_it_has_published(monkeypatch: Patch) -> None:
    def saved(original: Any, checkpoints: Checkpoints, server: Any, message: Any, now: float) -> list[Action]:
        actions, making = original(checkpoints, server, message, now), checkpoints._making
        if making is not None and making.stage == "published":
            actions += checkpoints._published(making, making.target.path, 0, now)
        return [action for action in actions if not isinstance(action, Run)]

    wrap(monkeypatch, Checkpoints, "saved", saved)
    caught("async-saves", "is told of a checkpoint that is not there")


def test_a_server_that_takes_a_slice_for_written_that_was_not(monkeypatch: Patch) -> None:
    def returned(original: Any, saves: Saves, tag: Any, value: Any, now: float) -> list[Action]:
        written = tag.index >= 0 and isinstance(value, Exception)
        return original(saves, tag, None if written else value, now)

    wrap(monkeypatch, Saves, "returned", returned)
    caught("sync-saves", "lacks a part", begin=9)


def test_a_restored_shard_without_its_slots(monkeypatch: Patch) -> None:
    def restore(original: Any, shard: DensePart, index: int, value: Any, slots: Any, *rest: Any) -> None:
        original(shard, index, value, [], *rest)

    wrap(monkeypatch, DensePart, "restore", restore)
    caught("sync-saves", "is not the sequential reference")


def test_a_restored_shard_that_forgets_its_step(monkeypatch: Patch) -> None:
    monkeypatch.setattr(Shard, "begin_at", lambda shard, version: None)
    monkeypatch.setattr(ShardSteps, "validate", lambda steps, missing: None)  # which would notice it first
    caught("sync-saves", "is at version 0, which was never committed")
